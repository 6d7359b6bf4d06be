"""The main job, to look at: a memory is written, recalled, closed, opened again and read back from disk.

Run it twice and the memory goes on: it lies in `quickstart-memory` in the current directory.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from gotong_memfile import open_memory

ROOT = Path("quickstart-memory")


def main() -> None:
    """Show each step and what it gives."""
    with open_memory(ROOT, "agent/writer") as memory:
        memory.remember("Prefers dark mode", kind="semantic", meta={"source": "settings"})
        memory.remember("Asked about coffee in Kuala Lumpur")
        entry = memory.remember("客户复购, 上周的订单")
        print(f"Remembered {len(memory.list())} entries, the last of them as {entry.id}\n")

    with open_memory(ROOT, "agent/writer") as memory:
        print('Recalled by "DARK", after closing and opening again:')
        print(f"{memory.recall('DARK', k=3)}\n")
        print("Recalled from the last minute:")
        print(f"{memory.recall(since=timedelta(minutes=1), k=5)}\n")
        log = Path(memory.path) / "semantic.jsonl"

    print(f"Read back from disk, {log}:")
    print(log.read_text(encoding="utf-8"), end="")


if __name__ == "__main__":
    main()

"""The background compactor: online, bounded, and gone when it should be."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support import FaultyOS, Host, in_threads, judge

from gotong_memfile import MemoryFilePlugin, ServiceInitCtx, compactor, open_memory, store


def compactors() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "gotong-memfile-compactor"]


def test_there_is_one_thread_and_it_goes_when_nothing_is_left_to_do(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_A_MOMENT", 0.05)
    memories = [open_memory(root, f"agent/{n}", max_episodic_bytes=2_000) for n in range(4)]
    for memory in memories:
        memory.remember_many([{"text": f"n{n}"} for n in range(30)])
    assert len(compactors()) == 1
    for memory in memories:
        memory.close()
        assert (Path(memory.path) / "episodic.jsonl").stat().st_size <= 2_000
    compactor.COMPACTOR.wait()
    for thread in compactors():
        thread.join(5)
    assert not compactors()


def test_a_writer_that_outruns_it_is_held_at_twice_the_cap(root: Path, disk: FaultyOS) -> None:
    cap = 20_000
    largest = 0
    with open_memory(root, "agent/a", max_episodic_bytes=cap) as memory:
        for n in range(3_000):
            memory.remember(f"entry {n}")
            largest = max(largest, (root / "agent/a/episodic.jsonl").stat().st_size)
    assert cap < largest <= 2 * cap + 200


def test_writers_go_on_while_what_stays_is_copied(root: Path, disk: FaultyOS) -> None:
    """The copy is made without any lock: a remember in its midst is done before the copy is."""
    with open_memory(root, "agent/a") as memory:
        memory.remember_many([{"text": f"n{n} " + "x" * 500, "id": f"n{n}"} for n in range(1_000)])
    during: list[str] = []
    with open_memory(root, "agent/a", max_episodic_bytes=300_000) as memory:

        def copy(real: Any, *arguments: Any) -> Any:
            if not during:
                during.extend(memory.remember(f"during {n}").id for n in range(20))
                assert memory.forget(during.pop(0)), "and a rewrite too: then the compaction begins anew"
            return real(*arguments)

        disk.hook("copy_file_range", copy)
        memory.compact()
        memory.flush()
        kept = [entry.id for entry in memory.scan()]
    assert set(during) <= set(kept)
    assert len(kept) == len(set(kept))
    assert (root / "agent/a/episodic.jsonl").stat().st_size <= 300_000 + 20 * 200


def test_an_append_that_fails_beside_a_compaction_does_not_come_back_with_it(
    root: Path, disk: FaultyOS
) -> None:
    """The compaction's snapshot must not end within a record that is taken back a moment later."""
    with open_memory(root, "agent/a") as memory:
        memory.remember_many([{"text": f"n{n} " + "x" * 100, "id": f"n{n}"} for n in range(50)])
    with open_memory(root, "agent/a", max_episodic_bytes=6_000) as memory:
        in_write, go_on = threading.Event(), threading.Event()

        def write(real: Any, descriptor: int, data: Any) -> Any:
            if b"doomed" in bytes(data):
                real(descriptor, bytes(data)[:60])
                in_write.set()
                assert go_on.wait(10)
                raise OSError(errno.EIO, "I/O error")
            return real(descriptor, data)

        def doomed() -> None:
            with pytest.raises(OSError, match="write to"):
                memory.remember("doomed " * 30)

        disk.hook("write", write)
        failing = threading.Thread(target=doomed)
        failing.start()
        assert in_write.wait(10)
        compacting = threading.Thread(target=memory.compact)
        compacting.start()
        time.sleep(0.05)
        go_on.set()
        failing.join(10)
        memory.remember("after")
        compacting.join(10)
        disk.heal()
    assert b"doomed" not in (root / "agent/a/episodic.jsonl").read_bytes()
    assert judge(root / "agent/a/episodic.jsonl")[-1]["text"] == "after"


def test_it_lives_on_after_an_exception(root: Path, disk: FaultyOS, caplog: pytest.LogCaptureFixture) -> None:
    with open_memory(root, "agent/a", max_episodic_bytes=1_000) as memory:
        disk.fail("replace", errno.EIO)
        memory.remember_many([{"text": f"n{n}"} for n in range(30)])
        memory.flush()
        assert "stays over its cap for now" in caplog.text
        assert len(memory.list()) == 30
        disk.heal()
        memory.remember("again")
        memory.flush()
        assert len(memory.list()) < 15


def test_flush_waits_for_it_and_compact_does_it_at_once(root: Path, host: Host) -> None:
    plugin = MemoryFilePlugin()
    plugin.init(ServiceInitCtx(root_dir=root, hub=host))
    memory = plugin.attach("agent/a", {"maxEpisodicBytes": 1_000, "maxSemanticBytes": 1_000})
    memory.remember_many(
        [{"text": f"n{n}", "kind": kind} for n in range(30) for kind in ("episodic", "semantic")]
    )
    memory.flush()
    assert {kind: numbers.size_bytes <= 1_000 for kind, numbers in memory.stats().kinds.items()} == {
        "episodic": True, "semantic": True, "working": True,
    }  # fmt: skip
    assert sorted(data["kind"] for kind, data in host.events if kind == "memory_compacted") == [
        "episodic",
        "semantic",
    ]
    assert memory.compact() == 0
    plugin.shutdown()


def test_where_no_thread_can_be_started_the_caller_compacts(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with open_memory(root, "agent/a", max_episodic_bytes=1_000) as memory:
        memory.remember_many([{"text": f"n{n}"} for n in range(30)])
        assert (root / "agent/a/episodic.jsonl").stat().st_size <= 1_000


def test_what_a_host_writes_when_it_is_told_does_not_wait_for_itself(root: Path, host: Host) -> None:
    plugin = MemoryFilePlugin()
    plugin.init(ServiceInitCtx(root_dir=root, hub=host))
    memory = plugin.attach("agent/a", {"maxEpisodicBytes": 500})
    told = []

    def publish(kind: str, data: Any) -> None:
        told.append(threading.current_thread().name)
        if len(told) < 3:
            memory.remember("x" * 2_000)

    host.publish_event = publish  # type: ignore[method-assign]
    memory.remember_many([{"text": f"n{n}"} for n in range(30)])
    memory.flush()
    assert "gotong-memfile-compactor" in told
    plugin.shutdown()


def test_many_threads_under_a_small_cap_lose_nothing_newer_than_the_cut(root: Path) -> None:
    """In the order of each writer, what is there is the newest of it without gaps."""
    with open_memory(root, "agent/a", max_episodic_bytes=32_000) as memory:
        in_threads(*[lambda n=n: [memory.remember(f"{n}:{i}") for i in range(200)] for n in range(16)])
    lines = judge(root / "agent/a/episodic.jsonl")
    by_writer: dict[str, list[int]] = {}
    for line in lines:
        writer, number = line["text"].split(":")
        by_writer.setdefault(writer, []).append(int(number))
    assert lines
    for numbers in by_writer.values():
        assert numbers == list(range(numbers[0], 200))


SCRIPTS = {
    "ends right after passing the cap": """
        memory = open_memory(root, "agent/a", max_episodic_bytes=20_000)
        memory.remember_many([{"text": f"n{n}"} for n in range(400)])
    """,
    "passes it in atexit": """
        import atexit
        memory = open_memory(root, "agent/a", max_episodic_bytes=20_000)
        atexit.register(lambda: memory.remember_many([{"text": f"n{n}"} for n in range(400)]))
    """,
    "passes it in a destructor": """
        memory = open_memory(root, "agent/a", max_episodic_bytes=20_000)
        class Last:
            def __del__(self, memory=memory):
                memory.remember_many([{"text": f"n{n}"} for n in range(400)])
        last = Last()
    """,
    "passes it in a thread that outlives main": """
        import threading, time
        memory = open_memory(root, "agent/a", max_episodic_bytes=20_000)
        def late():
            time.sleep(0.2)
            memory.remember_many([{"text": f"n{n}"} for n in range(400)])
        threading.Thread(target=late).start()
    """,
    "is left by an exception": """
        memory = open_memory(root, "agent/a", max_episodic_bytes=20_000)
        memory.remember_many([{"text": f"n{n}"} for n in range(400)])
        raise SystemExit(0)
    """,
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_a_script_that_ends_beside_a_compaction_neither_hangs_nor_complains_nor_loses(
    root: Path, script: str
) -> None:
    import textwrap

    code = f"from gotong_memfile import open_memory\nroot = {str(root)!r}\n" + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")
    numbers = [int(line["text"][1:]) for line in judge(root / "agent/a/episodic.jsonl")]
    assert numbers == list(range(numbers[0], 400))
    assert os.path.getsize(root / "agent/a/episodic.jsonl") <= 20_000
    assert not list((root / "agent" / "a").glob(".memfile-*"))


def test_what_a_program_without_locks_writes_a_moment_after_the_swap_is_carried_over(
    root: Path, folder: Path
) -> None:
    with open_memory(root, "agent/writer") as memory:
        memory.remember_many([{"text": f"n{n}"} for n in range(30)])
    log = folder / "episodic.jsonl"
    theirs = b'{"id":"theirs","kind":"episodic","text":"opened before","ts":1}\n'
    with open_memory(root, "agent/writer", max_episodic_bytes=1_000) as memory, log.open("ab") as slow:
        inode = log.stat().st_ino
        compacting = threading.Thread(target=memory.compact)
        compacting.start()
        while log.stat().st_ino == inode:
            pass
        slow.write(theirs)
        slow.flush()
        compacting.join(10)
        assert next(memory.scan(newest_first=False)).text == "opened before"

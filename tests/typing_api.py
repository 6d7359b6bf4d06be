"""The public API as a type checker sees it. Checked by mypy, never run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from gotong_memfile import (
    EntryList,
    HubSurface,
    MemoryEntry,
    MemoryFileConfig,
    MemoryFileHandle,
    MemoryFilePlugin,
    MemoryHandle,
    MemoryStats,
    NewMemoryEntry,
    Owner,
    ServiceInitCtx,
    ServiceSnapshot,
    TrashRef,
    open_memory,
    resolve_owner,
)


def agent(memory: MemoryHandle) -> list[MemoryEntry]:
    """Code for any implementation."""
    entry: MemoryEntry = memory.remember("x", kind="semantic", meta={"a": [1, None]}, id="own")
    when: datetime = entry.when
    many: EntryList = memory.remember_many([NewMemoryEntry(text="x"), {"text": "y"}])
    recalled: EntryList = memory.recall("x", kinds=["semantic"], since=timedelta(days=1), k=5)
    listed: EntryList = memory.list("working", limit=3)
    scanned: Iterator[MemoryEntry] = memory.scan(since=when, newest_first=False)
    found: MemoryEntry | None = memory.get(entry.id)
    there: bool = memory.forget(entry.id) and memory.patch_meta(entry.id, {"a": 1})
    counts: int = memory.forget_many(one.id for one in many) + memory.clear("episodic") + memory.compact()
    stats: MemoryStats = memory.stats()
    del found, there, counts, stats
    return [*recalled, *listed, *scanned]


def host(hub: HubSurface) -> None:
    plugin = MemoryFilePlugin(durability="power")
    plugin.init(ServiceInitCtx(root_dir="memory", hub=hub))
    config: MemoryFileConfig = plugin.validate_config({"kinds": ["semantic"]})
    owner: Owner = resolve_owner("private", agent_id="writer")
    handle: MemoryFileHandle = plugin.attach(owner, config)
    agent(handle)
    ref: TrashRef = plugin.soft_delete(owner, reason="retired")
    back: Owner = plugin.restore(ref)
    snapshot: ServiceSnapshot = plugin.describe(back)
    del snapshot


with open_memory("memory", "agent/writer", max_episodic_bytes=65_536) as opened:
    agent(opened)
    opened.remember("x", kind="dreams")  # type: ignore[arg-type]
    opened.remember(5)  # type: ignore[arg-type]

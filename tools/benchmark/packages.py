"""The packages that people would use in this library's place, as each is meant to be used."""

from __future__ import annotations

import importlib
import sqlite3
import time
import uuid
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from benchmark.stores import NotOffered, Store


class TinyDb(Store):
    """TinyDB: one JSON file, written whole for each change."""

    name = "TinyDB"
    module = package = "tinydb"
    most_entries = 10_000

    def __init__(self, directory: Path, *, fsync: bool = False) -> None:
        if fsync:
            raise NotOffered("no fsync")
        tinydb = importlib.import_module(self.module)
        directory.mkdir(parents=True, exist_ok=True)
        self._where = tinydb.where
        self._database = tinydb.TinyDB(directory / "memory.json", encoding="utf-8")

    def fill(self, entries: Iterable[dict[str, Any]]) -> None:
        self._database.insert_multiple(entries)

    def remember(self, text: str, meta: dict[str, Any] | None) -> None:
        self._database.insert(_new(text, meta))

    def remember_many(self, entries: Sequence[dict[str, Any]]) -> None:
        self._database.insert_multiple([_new(one["text"], one.get("meta")) for one in entries])

    def newest(self, count: int) -> list[str]:
        return _newest(self._database.all(), count)

    def containing(self, text: str, count: int) -> list[str]:
        folded = text.casefold()
        wanted = self._where("text").test(lambda own: folded in own.casefold())
        return _newest(self._database.search(wanted), count)

    def since(self, ts: int, count: int) -> list[str]:
        return _newest(self._database.search(self._where("ts") >= ts), count)

    def get(self, entry_id: str) -> str | None:
        found = self._database.get(self._where("id") == entry_id)
        return None if found is None else str(found["text"])

    def forget(self, entry_id: str) -> None:
        self._database.remove(self._where("id") == entry_id)

    def patch_meta(self, entry_id: str, patch: dict[str, Any]) -> None:
        def merge(entry: dict[str, Any]) -> None:
            entry["meta"] = {**(entry.get("meta") or {}), **patch}

        self._database.update(merge, self._where("id") == entry_id)

    def drop_older_half(self, ts: int) -> None:
        self._database.remove(self._where("ts") < ts)

    def close(self) -> None:
        self._database.close()


class DiskCache(Store):
    """diskcache: pickles in SQLite, by key; the keys are ids that sort by time."""

    name = "diskcache"
    module = package = "diskcache"

    def __init__(self, directory: Path, *, fsync: bool = False) -> None:
        diskcache = importlib.import_module(self.module)
        level = 2 if fsync else 1  # of PRAGMA synchronous: FULL or NORMAL
        self._cache = diskcache.Cache(
            str(directory), eviction_policy="none", sqlite_synchronous=level, size_limit=2**40
        )

    def fill(self, entries: Iterable[dict[str, Any]]) -> None:
        with self._cache.transact():
            for entry in entries:
                self._cache.set(entry["id"], entry)

    def remember(self, text: str, meta: dict[str, Any] | None) -> None:
        entry = _new(text, meta)
        self._cache.set(entry["id"], entry)

    def remember_many(self, entries: Sequence[dict[str, Any]]) -> None:
        self.fill([_new(one["text"], one.get("meta")) for one in entries])

    def newest(self, count: int) -> list[str]:
        return [self._cache[key]["id"] for key in islice(self._cache.iterkeys(reverse=True), count)]

    def containing(self, text: str, count: int) -> list[str]:
        folded = text.casefold()
        keys = self._cache.iterkeys(reverse=True)
        return list(islice((key for key in keys if folded in self._cache[key]["text"].casefold()), count))

    def since(self, ts: int, count: int) -> list[str]:
        found: list[str] = []
        for key in self._cache.iterkeys(reverse=True):
            if len(found) == count or self._cache[key]["ts"] < ts:
                break
            found.append(key)
        return found

    def get(self, entry_id: str) -> str | None:
        entry = self._cache.get(entry_id)
        return None if entry is None else str(entry["text"])

    def forget(self, entry_id: str) -> None:
        self._cache.delete(entry_id)

    def patch_meta(self, entry_id: str, patch: dict[str, Any]) -> None:
        with self._cache.transact():
            entry = self._cache[entry_id]
            entry["meta"] = {**(entry.get("meta") or {}), **patch}
            self._cache[entry_id] = entry

    def close(self) -> None:
        self._cache.close()


class _LangGraph(Store):
    """What both of LangGraph's stores have in common."""

    _NAMESPACE: Final = ("memories", "bench")
    _store: Any

    def fill(self, entries: Iterable[dict[str, Any]]) -> None:
        put = importlib.import_module("langgraph.store.base").PutOp
        rest = iter(entries)
        while batch := list(islice(rest, 1_000)):
            self._store.batch([put(self._NAMESPACE, one["id"], one) for one in batch])

    def remember(self, text: str, meta: dict[str, Any] | None) -> None:
        entry = _new(text, meta)
        self._store.put(self._NAMESPACE, entry["id"], entry)

    def remember_many(self, entries: Sequence[dict[str, Any]]) -> None:
        self.fill([_new(one["text"], one.get("meta")) for one in entries])

    def get(self, entry_id: str) -> str | None:
        item = self._store.get(self._NAMESPACE, entry_id)
        return None if item is None else str(item.value["text"])

    def forget(self, entry_id: str) -> None:
        self._store.delete(self._NAMESPACE, entry_id)

    def close(self) -> None:
        """Nothing to close."""


class LangGraphMemory(_LangGraph):
    """LangGraph's `InMemoryStore`: gone with the process."""

    name = "LangGraph memory"
    module = "langgraph.store.memory"
    package = "langgraph"

    def __init__(self, directory: Path, *, fsync: bool = False) -> None:
        if fsync or any(directory.glob("*")):
            raise NotOffered("keeps nothing on disk")
        self._store = importlib.import_module(self.module).InMemoryStore()


class LangGraphSqlite(_LangGraph):
    """LangGraph's `SqliteStore`; what it orders by is the second in which an item was last changed."""

    name = "LangGraph SQLite"
    module = "langgraph.store.sqlite"
    package = "langgraph-checkpoint-sqlite"

    def __init__(self, directory: Path, *, fsync: bool = False) -> None:
        store = importlib.import_module(self.module).SqliteStore
        directory.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(
            directory / "memory.sqlite", timeout=60, isolation_level=None, check_same_thread=False
        )
        self._store = store(self._connection)
        self._store.setup()
        self._connection.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}")

    def newest(self, count: int) -> list[str]:
        return [item.key for item in self._store.search(self._NAMESPACE, limit=count)]

    def since(self, ts: int, count: int) -> list[str]:
        found = self._store.search(self._NAMESPACE, filter={"ts": {"$gte": ts}}, limit=count)
        return [item.key for item in found]

    def close(self) -> None:
        self._connection.close()


PACKAGES: Final[tuple[type[Store], ...]] = (TinyDb, DiskCache, LangGraphMemory, LangGraphSqlite)


def _newest(entries: Iterable[dict[str, Any]], count: int) -> list[str]:
    ordered = sorted(entries, key=lambda entry: (entry["ts"], entry["id"]), reverse=True)
    return [entry["id"] for entry in ordered[:count]]


def _new(text: str, meta: dict[str, Any] | None) -> dict[str, Any]:
    now = time.time_ns() // 1_000_000
    return {
        "id": f"{now:014d}-{uuid.uuid4().hex}",
        "kind": "episodic",
        "text": text,
        "ts": now,
        "meta": meta,
    }

"""What the benchmark asks of every store, and the two that need no other package: this library, and SQLite.

Every store holds the same entries and answers the same questions. What one does not offer raises
`NotOffered`, with the reason; a store whose package is missing raises `ImportError`.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from gotong_memfile import open_memory

from benchmark import data

OWNER: Final = "agent/bench"


class NotOffered(Exception):  # noqa: N818 - a fact about a store, no error of it
    """The store has no such operation; the message says why."""


class Store:
    """One way to keep an agent's memory, in `directory`; `fsync` asks it to survive a loss of power.

    Answers are lists of ids, newest first.
    """

    name: ClassVar[str]
    module: ClassVar[str]
    """What is imported for it."""
    package: ClassVar[str | None]
    """What it is installed as; None: it comes with Python."""
    most_entries: ClassVar[int | None] = None
    """With more, one operation takes too long to be repeated."""

    def __init__(self, directory: Path, *, fsync: bool = False) -> None:
        raise NotImplementedError

    def fill(self, entries: Iterable[dict[str, Any]]) -> None:
        """Store entries that have ids and times already, in the way that is quickest."""
        raise NotImplementedError

    def remember(self, text: str, meta: dict[str, Any] | None) -> None:
        """Store a new entry, under a new id and the present time."""
        raise NotImplementedError

    def remember_many(self, entries: Sequence[dict[str, Any]]) -> None:
        """Store new entries, of which text and meta are taken."""
        raise NotOffered("no storing of many")

    def newest(self, count: int) -> list[str]:
        """The newest entries."""
        raise NotOffered("no order by time")

    def containing(self, text: str, count: int) -> list[str]:
        """The newest entries whose text holds this one, whatever its case."""
        raise NotOffered("no search in texts without an embedding model")

    def since(self, ts: int, count: int) -> list[str]:
        """The newest entries that are not older."""
        raise NotOffered("no order by time")

    def get(self, entry_id: str) -> str | None:
        """The text of an entry."""
        raise NotImplementedError

    def forget(self, entry_id: str) -> None:
        """Drop an entry."""
        raise NotImplementedError

    def patch_meta(self, entry_id: str, patch: dict[str, Any]) -> None:
        """Merge `patch` into an entry's meta."""
        raise NotOffered("no change in place")

    def drop_older_half(self, ts: int) -> None:
        """Drop the older half of the entries, which ends before `ts`, and give the space back."""
        raise NotOffered("no dropping of the oldest")

    def close(self) -> None:
        """Release what it holds."""
        raise NotImplementedError


class Memfile(Store):
    """This library."""

    name = "gotong_memfile"
    module = package = "gotong_memfile"

    def __init__(self, directory: Path, *, fsync: bool = False) -> None:
        self._directory = directory
        self._file = directory / OWNER / "episodic.jsonl"
        self._memory = open_memory(directory, OWNER, durability="power" if fsync else "process")

    def fill(self, entries: Iterable[dict[str, Any]]) -> None:
        # With the ids and times that they have, as another program writes.
        data.write(self._file, entries)

    def remember(self, text: str, meta: dict[str, Any] | None) -> None:
        self._memory.remember(text, meta=meta)

    def remember_many(self, entries: Sequence[dict[str, Any]]) -> None:
        self._memory.remember_many([{"text": one["text"], "meta": one.get("meta")} for one in entries])

    def newest(self, count: int) -> list[str]:
        found = self._memory.recall(k=count) if count <= 200 else self._memory.list(limit=count)
        return [entry.id for entry in found]

    def containing(self, text: str, count: int) -> list[str]:
        return [entry.id for entry in self._memory.recall(text, k=count)]

    def since(self, ts: int, count: int) -> list[str]:
        return [entry.id for entry in self._memory.recall(since=ts, k=count)]

    def get(self, entry_id: str) -> str | None:
        entry = self._memory.get(entry_id)
        return None if entry is None else entry.text

    def forget(self, entry_id: str) -> None:
        self._memory.forget(entry_id)

    def patch_meta(self, entry_id: str, patch: dict[str, Any]) -> None:
        self._memory.patch_meta(entry_id, patch)

    def drop_older_half(self, ts: int) -> None:
        cap = self._file.stat().st_size * 3 // 4
        with open_memory(self._directory, OWNER, max_episodic_bytes=cap) as capped:
            capped.compact()

    def close(self) -> None:
        self._memory.close()


class Sqlite(Store):
    """The standard library's SQLite, WAL mode, one commit for each entry, an index on the time."""

    name = "SQLite"
    module = "sqlite3"
    package = None

    def __init__(self, directory: Path, *, fsync: bool = False) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / "memory.sqlite"
        self._level = "FULL" if fsync else "NORMAL"
        self._local = threading.local()
        self._all: list[sqlite3.Connection] = []
        self._connection.executescript(
            "CREATE TABLE IF NOT EXISTS entries"
            " (id TEXT PRIMARY KEY, kind TEXT, text TEXT, ts REAL, meta TEXT);"
            "CREATE INDEX IF NOT EXISTS by_time ON entries (ts);"
        )

    @property
    def _connection(self) -> sqlite3.Connection:
        """This thread's connection."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = sqlite3.connect(
                self._path, timeout=60, isolation_level=None, check_same_thread=False
            )
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {self._level}")
            self._local.connection = connection
            self._all.append(connection)
        return connection

    def fill(self, entries: Iterable[dict[str, Any]]) -> None:
        self._insert((one["id"], one["text"], one["ts"], one.get("meta")) for one in entries)

    def remember(self, text: str, meta: dict[str, Any] | None) -> None:
        self._connection.execute(
            "INSERT INTO entries VALUES (?, 'episodic', ?, ?, ?)",
            (uuid.uuid4().hex, text, time.time_ns() // 1_000_000, _json(meta)),
        )

    def remember_many(self, entries: Sequence[dict[str, Any]]) -> None:
        now = time.time_ns() // 1_000_000
        self._insert((uuid.uuid4().hex, one["text"], now, one.get("meta")) for one in entries)

    def _insert(self, rows: Iterable[tuple[str, str, float, dict[str, Any] | None]]) -> None:
        self._connection.execute("BEGIN")
        self._connection.executemany(
            "INSERT INTO entries VALUES (?, 'episodic', ?, ?, ?)",
            ((entry_id, text, ts, _json(meta)) for entry_id, text, ts, meta in rows),
        )
        self._connection.execute("COMMIT")

    def newest(self, count: int) -> list[str]:
        return self._ids("ORDER BY ts DESC LIMIT ?", count)

    def containing(self, text: str, count: int) -> list[str]:
        return self._ids("WHERE text LIKE ? ORDER BY ts DESC LIMIT ?", f"%{text}%", count)

    def since(self, ts: int, count: int) -> list[str]:
        return self._ids("WHERE ts >= ? ORDER BY ts DESC LIMIT ?", ts, count)

    def _ids(self, condition: str, *values: object) -> list[str]:
        rows = self._connection.execute(
            f"SELECT id, kind, text, ts, meta FROM entries {condition}",  # noqa: S608 - constants above
            values,
        )
        return [row[0] for row in rows.fetchall()]

    def get(self, entry_id: str) -> str | None:
        row = self._connection.execute("SELECT text FROM entries WHERE id = ?", (entry_id,)).fetchone()
        return None if row is None else str(row[0])

    def forget(self, entry_id: str) -> None:
        self._connection.execute("DELETE FROM entries WHERE id = ?", (entry_id,))

    def patch_meta(self, entry_id: str, patch: dict[str, Any]) -> None:
        self._connection.execute(
            "UPDATE entries SET meta = json_patch(coalesce(meta, '{}'), ?) WHERE id = ?",
            (_json(patch), entry_id),
        )

    def drop_older_half(self, ts: int) -> None:
        self._connection.execute("DELETE FROM entries WHERE ts < ?", (ts,))
        self._connection.execute("VACUUM")

    def close(self) -> None:
        for connection in self._all:
            connection.close()


class SqliteFts(Sqlite):
    """The same with a trigram index of the texts, which knows of case in any script."""

    name = "SQLite FTS5"

    def __init__(self, directory: Path, *, fsync: bool = False) -> None:
        super().__init__(directory, fsync=fsync)
        self._connection.executescript(
            "CREATE VIRTUAL TABLE IF NOT EXISTS texts USING fts5"
            " (text, content = entries, tokenize = 'trigram case_sensitive 0');"
            "CREATE TRIGGER IF NOT EXISTS added AFTER INSERT ON entries BEGIN"
            " INSERT INTO texts (rowid, text) VALUES (new.rowid, new.text); END;"
            "CREATE TRIGGER IF NOT EXISTS dropped AFTER DELETE ON entries BEGIN"
            " INSERT INTO texts (texts, rowid, text) VALUES ('delete', old.rowid, old.text); END;"
        )

    def containing(self, text: str, count: int) -> list[str]:
        phrase = '"' + text.replace('"', '""') + '"'
        return self._ids(
            "WHERE rowid IN (SELECT rowid FROM texts WHERE texts MATCH ?) ORDER BY ts DESC LIMIT ?",
            phrase,
            count,
        )


def _json(meta: dict[str, Any] | None) -> str | None:
    return None if meta is None else json.dumps(meta, ensure_ascii=False, separators=(",", ":"))

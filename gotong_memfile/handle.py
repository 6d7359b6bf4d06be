"""The verbs: one owner's memory, as agents use it."""

from __future__ import annotations

import builtins
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import islice
from types import TracebackType
from typing import Any, Final

from gotong_memfile.codec import as_utf16
from gotong_memfile.compaction import Compaction
from gotong_memfile.compactor import COMPACTOR, Job
from gotong_memfile.config import MemoryFileConfig, StoreOptions
from gotong_memfile.draft import Draft, checked_id, checked_meta, draft, drafts_of
from gotong_memfile.errors import (
    HandleClosedError,
    InvalidEntryError,
    InvalidQueryError,
    KindNotAllowedError,
)
from gotong_memfile.layout import MemoryKind, owner_paths
from gotong_memfile.models import (
    LIST_DEFAULT,
    RECALL_DEFAULT,
    EntryList,
    ListQuery,
    MemoryEntry,
    MemoryQuery,
    NewMemoryEntry,
    Owner,
    checked_query,
)
from gotong_memfile.reader import Scan
from gotong_memfile.registry import close_store, open_store
from gotong_memfile.store import OwnerStore
from gotong_memfile.surface import HubSurface, LocalHub, MemoryStats

_logger: Final = logging.getLogger("gotong_memfile")

Since = float | datetime | timedelta | None
"""From when on: epoch ms, an aware datetime, or a timedelta back from now; None: from the beginning."""


class MemoryFileHandle:
    """One owner's memory in JSONL files. Get it from `open_memory` or `MemoryFilePlugin.attach`.

    Callers may rely on: every verb blocks until it is done and may be called from any thread; what
    `remember` returned is in the file and survives the death of the process; after an error nothing was
    stored or changed; reads see all that was acknowledged before, by any thread or process, and wait for
    no writer. They may not rely on anything between two hosts that write one directory.

    Every verb checks its arguments before it touches a file, and raises `HandleClosedError` once the
    handle is closed. Verbs see the configured kinds only.

    >>> from gotong_memfile import open_memory
    >>> with open_memory("quickstart-memory", "agent/writer") as memory:
    ...     entry = memory.remember("Prefers dark mode", kind="semantic")
    ...     memory.recall("DARK")[0].text
    'Prefers dark mode'
    """

    def __init__(
        self,
        owner: Owner,
        store: OwnerStore,
        config: MemoryFileConfig,
        options: StoreOptions,
        hub: HubSurface,
    ) -> None:
        self._owner = owner
        self._store = store
        self._config = config
        self._options = options
        self._hub = hub
        self._now = options.clock or hub.now
        self._caps = {kind: config.cap(kind) for kind in config.kinds}
        self._closing = threading.Lock()
        self._closed = False

    @classmethod
    def _open(
        cls, root: str, owner: Owner, config: MemoryFileConfig, options: StoreOptions, hub: HubSurface
    ) -> MemoryFileHandle:
        """A handle on the owner's one store in this process. Requires: `root` is a real path."""
        store = open_store(owner_paths(root, owner.kind, owner.id))
        try:
            store.require_sound()
            store.remove_leftovers()
            if options.advisory_lock:
                store.lease.hold(options)
        except BaseException:
            close_store(store)
            raise
        return cls(owner, store, config, options, hub)

    # -- writing -----------------------------------------------------------------------------------------

    def remember(
        self,
        text: str,
        *,
        kind: MemoryKind = "episodic",
        meta: Mapping[str, Any] | None = None,
        id: str | None = None,
    ) -> MemoryEntry:
        """Store an entry; returns once it is in the file.

        An `id` makes it an idempotent retry: same id and same content gives the stored entry and writes
        nothing. `text` is kept verbatim; `meta` is a JSON object.

        Raises `KindNotAllowedError`, `InvalidEntryError` (empty text, meta that JSON cannot hold; names the
        path), `DuplicateIdError` (the id has other content), `LockTimeoutError`, `StorageError`.

        >>> memory.remember("Asked about coffee", meta={"task": "t1"}).kind
        'episodic'
        """
        self._require_open()
        return self._store_drafts([draft(text, kind, meta, id)])[0]

    def remember_many(self, entries: Iterable[NewMemoryEntry | Mapping[str, Any]]) -> EntryList:
        """Store entries with one write per kind, all or none, and give them back in order.

        Each is a `NewMemoryEntry` or a mapping of its fields. Raises as `remember` does; the message names
        the index. After a crash in the midst of the write part of the batch may be there: with ids of
        yours a retry completes it.

        >>> len(memory.remember_many([{"text": "lives in KL", "kind": "semantic"}, {"text": "said hello"}]))
        2
        """
        self._require_open()
        return EntryList(self._store_drafts(drafts_of(entries)))

    def patch_meta(self, id: str, patch: Mapping[str, Any]) -> bool:
        """Merge `patch` into an entry's meta: given keys are set, others and all else stay.

        Returns whether there is such an entry. Raises `InvalidEntryError` as `remember` does.

        >>> memory.patch_meta(memory.recall("coffee")[0].id, {"importance": 5})
        True
        """
        self._require_open()
        wanted, checked = checked_id(id), checked_meta(patch)
        found = self._store.patch(wanted, checked, self._config.kinds, self._options)
        if found:
            for kind, cap in self._caps.items():
                if cap is not None:
                    self._keep_cap(kind, cap)
        return found

    def forget(self, id: str) -> bool:
        """Erase an entry from the file's bytes; whether there was one.

        >>> memory.forget("no such id")
        False
        """
        return self.forget_many([id]) > 0

    def forget_many(self, ids: Iterable[str]) -> int:
        """Erase entries with one rewrite per kind; how many there were.

        >>> memory.forget_many(entry.id for entry in memory.recall("nonsense"))
        0
        """
        self._require_open()
        if isinstance(ids, str):
            raise InvalidEntryError("forget_many takes an iterable of ids; forget takes one id")
        wanted = {checked_id(one) for one in ids}
        return self._store.erase(wanted, self._config.kinds, self._options) if wanted else 0

    def clear(self, kind: MemoryKind | None = None) -> int:
        """Erase all entries, of all configured kinds or of one; how many there were.

        Lines that cannot be read as entries stay, as they do everywhere: they may be somebody's data.

        >>> memory.clear("working")
        0
        """
        self._require_open()
        return self._store.clear(self._writable(kind), self._options)

    def compact(self, kind: MemoryKind | None = None) -> int:
        """Bring the files that are over their byte caps under them now; how many entries were dropped.

        >>> memory.compact()
        0
        """
        self._require_open()
        dropped = 0
        for one in self._writable(kind):
            cap = self._caps[one]
            if cap is not None and self._store.over_cap(one, cap):
                done = self._store.compact(one, cap, self._options)
                if done is not None:
                    dropped += done.lines_before - done.lines_after
                    self._tell(done)
        return dropped

    def flush(self) -> None:
        """Wait for compactions under way, and bring everything acknowledged to the disk itself.

        >>> memory.flush()
        """
        self._require_open()
        COMPACTOR.wait(directory=self.path)
        self._store.sync(self._config.kinds)

    # -- reading -----------------------------------------------------------------------------------------

    def recall(
        self,
        text: str | None = None,
        *,
        kinds: Iterable[MemoryKind] | None = None,
        since: Since = None,
        k: int = RECALL_DEFAULT,
    ) -> EntryList:
        """The newest `k` entries (clamped to 1..200) that contain `text`, whatever its case.

        Case is folded as Unicode says ("STRASSE" finds "Straße"). Newest first by `ts`; of equal `ts` the
        later in its file first. `since` (inclusive) is epoch ms, an aware datetime or a timedelta back
        from now. Raises `InvalidQueryError`.

        >>> [entry.text for entry in memory.recall("COFFEE", k=5)]
        ['Asked about coffee']
        """
        self._require_open()
        query = checked_query(MemoryQuery, text=text, kinds=kinds, since=since, k=k)
        wanted = self._config.kinds if query.kinds is None else query.kinds
        visible = [kind for kind in self._config.kinds if kind in wanted]
        needle = None if query.text is None else as_utf16(query.text)
        entries = self._store.reader.ordered(
            visible, since=query.since_ms(self._now), text=needle, most=query.k
        )
        return EntryList([entry.model() for entry in islice(entries, query.k)])

    def list(self, kind: MemoryKind | None = None, limit: int = LIST_DEFAULT) -> EntryList:
        """The newest `limit` entries (clamped to 1..500), of all configured kinds or of one.

        >>> len(memory.list("semantic"))
        1
        """
        self._require_open()
        query = checked_query(ListQuery, kind=kind, limit=limit)
        entries = self._store.reader.ordered(self._visible(query.kind), most=query.limit)
        return EntryList([entry.model() for entry in islice(entries, query.limit)])

    def scan(
        self, kind: MemoryKind | None = None, *, since: Since = None, newest_first: bool = True
    ) -> Iterator[MemoryEntry]:
        """All entries as they are now, one after the other, in bounded memory.

        What is written while you iterate changes nothing of what you get. The files stay open until the
        iterator is used up or thrown away.

        >>> sum(1 for entry in memory.scan(newest_first=False))
        3
        """
        self._require_open()
        query = checked_query(MemoryQuery, kinds=None if kind is None else (kind,), since=since)
        if not isinstance(newest_first, bool):
            raise InvalidQueryError(f"newest_first must be True or False, not {newest_first!r}")
        return Scan(
            self._store.reader.ordered(
                self._visible(kind), since=query.since_ms(self._now), newest_first=newest_first
            )
        )

    def get(self, id: str) -> MemoryEntry | None:
        """The entry of this id, or None.

        >>> memory.get("no such id") is None
        True
        """
        self._require_open()
        wanted = checked_id(id)
        found = self._store.reader.get(wanted, self._config.kinds)
        return None if found is None else found.model()

    def stats(self) -> MemoryStats:
        """The memory in numbers: by kind bytes, entries, unreadable lines, cap, span of time.

        >>> memory.stats().entries
        3
        """
        self._require_open()
        kinds = {kind: self._store.reader.stats(kind, self._config.cap(kind)) for kind in self._config.kinds}
        return MemoryStats(owner=self._owner, path=self._store.paths.directory, kinds=kinds)

    # -- life --------------------------------------------------------------------------------------------

    @property
    def owner(self) -> Owner:
        """Whose memory it is."""
        return self._owner

    @property
    def config(self) -> MemoryFileConfig:
        """What the owner is configured for."""
        return self._config

    @property
    def path(self) -> str:
        """The owner's folder, which is made by the first write."""
        return self._store.paths.directory

    @property
    def closed(self) -> bool:
        """Whether `close` was called or the owner detached."""
        return self._closed

    def close(self) -> None:
        """Release the memory, when compactions under way are done. Further verbs raise `HandleClosedError`.

        Closing again does nothing.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
        COMPACTOR.wait(directory=self.path)
        if self._options.advisory_lock:
            self._store.lease.drop()
        close_store(self._store)

    def __enter__(self) -> MemoryFileHandle:
        self._require_open()
        return self

    def __exit__(
        self,
        kind: builtins.type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, it is a handle on the same owner in the process that unpickles it, on that one's clock."""
        self._require_open()
        root = self._store.paths.root
        return MemoryFileHandle._open, (root, self._owner, self._config, self._options, LocalHub())

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<MemoryFileHandle of {str(self._owner)!a} in {self.path!a}, {state}>"

    # -- inside ------------------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._closed:
            raise HandleClosedError(
                f"the memory of {str(self._owner)!a} was closed or detached; open or attach it again"
            )

    def _visible(self, kind: MemoryKind | None) -> builtins.list[MemoryKind]:
        return [one for one in self._config.kinds if kind is None or kind == one]

    def _writable(self, kind: MemoryKind | None) -> tuple[MemoryKind, ...]:
        kinds = tuple(self._visible(kind))
        if not kinds:
            raise KindNotAllowedError(
                f"memory kind {kind!r} is not configured for {str(self._owner)!a}; "
                f"use {' or '.join(self._config.kinds)}, or add it to `kinds`"
            )
        return kinds

    def _store_drafts(self, drafts: builtins.list[Draft]) -> builtins.list[MemoryEntry]:
        if not drafts:
            return []
        kinds = {made.kind for made in drafts}
        for kind in kinds:
            if kind not in self._caps:
                self._writable(kind)
        entries = self._store.append(drafts, self._now, self._options)
        for kind in kinds:
            cap = self._caps[kind]
            if cap is not None and self._store.written(kind) > cap:
                self._keep_cap(kind, cap)
        return entries

    def _keep_cap(self, kind: MemoryKind, cap: int) -> None:
        """Have a file compacted that has grown over its cap; wait for that only at twice the cap."""
        if self._store.over_cap(kind, cap):
            job = Job(self._store, kind, cap, self._options, self._tell)
            COMPACTOR.request(job)
            if self._store.over_cap(kind, 2 * cap):
                COMPACTOR.wait(job.log)

    def _tell(self, compaction: Compaction) -> None:
        """Requires: no lock is held, since a hub may call back."""
        _logger.info("compacted the memory of %a: %s", str(self._owner), compaction)
        try:
            self._hub.publish_event("memory_compacted", compaction.event(str(self._owner)))
        except Exception:  # a host's own fault must not turn a stored entry into an error
            _logger.exception("the hub failed at the event memory_compacted")

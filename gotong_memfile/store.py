"""The store of one owner: all writes of this process to one owner's files go through it, one at a time.

There is one `OwnerStore` per owner directory and process, shared by every handle of every plugin and found
through the one registry at the end of this file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from gotong_memfile import fileio, zones
from gotong_memfile.codec import RawEntry, encode_patched
from gotong_memfile.config import StoreOptions
from gotong_memfile.draft import Draft
from gotong_memfile.errors import DuplicateIdError, MemoryFileError, MutationPendingError, StorageError
from gotong_memfile.ids import EntryIdSource
from gotong_memfile.layout import (
    FOREIGN_MUTATION_MARKERS,
    MEMORY_KINDS,
    TEMPORARY_PREFIX,
    MemoryKind,
    OwnerPaths,
)
from gotong_memfile.locks import ProcessLock
from gotong_memfile.log import Appended, KindLog, Piece, Snapshot
from gotong_memfile.models import Json, MemoryEntry
from gotong_memfile.reader import OwnerReader
from gotong_memfile.search import lines_with_ids

_logger: Final = logging.getLogger("gotong_memfile")


@dataclass(frozen=True, slots=True)
class Compaction:
    """What one compaction did to the file of `kind`."""

    kind: MemoryKind
    bytes_before: int
    bytes_after: int
    lines_before: int
    lines_after: int


class OwnerStore:
    """The kind logs of one owner, and the queue that orders the writes to them.

    Invariants:
    - Every change of a file of this owner by this process happens under `exclusive`.
    - Nothing of a file is held in memory from one call to the next, so that there is nothing to become
      stale; `_other_bytes` is a hint that only delays a compaction when it is wrong.
    """

    def __init__(self, paths: OwnerPaths) -> None:
        self.paths = paths
        self._queue = threading.Lock()
        self._process_lock = ProcessLock(paths, _logger)
        self._ids = EntryIdSource()
        self._logs = {kind: KindLog(paths.log_file(kind), kind, _logger) for kind in MEMORY_KINDS}
        self.reader = OwnerReader(paths, self._logs, _logger)
        # Damage and blank lines do not count against a cap: else they would push good entries out.
        self._other_bytes: dict[MemoryKind, int] = {}

    def require_sound(self) -> None:
        """Raise before anything is touched when a link, or what is no regular file, is in a file's place.

        Raises `UnsafePathError`, `RootNotDirectoryError`, `OwnerCollisionError`.
        """
        if fileio.owner_exists(self.paths):
            fileio.require_own_spelling(self.paths)
            for log in self._logs.values():
                fileio.require_regular_file(log.path)

    # -- writing -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def exclusive(self, options: StoreOptions) -> Iterator[None]:
        """Be the only writer of this owner, of all threads and, with the process lock, of all processes."""
        with self._queue, self._process_lock.held(options):
            yield

    def append(
        self, drafts: Sequence[Draft], now: Callable[[], int], options: StoreOptions
    ) -> list[MemoryEntry]:
        """Store the drafts, all or none, and give back the entries, in order.

        A draft with an id that is stored already with the same content is that entry, and writes nothing.
        Raises `DuplicateIdError`.
        """
        with self.exclusive(options):
            self._require_writable()
            entries, lines = self._settle(drafts, now)
            if lines:
                self._make_directory(options)
                self._append_lines(lines, options)
            return entries

    def erase(self, ids: Collection[str], kinds: Sequence[MemoryKind], options: StoreOptions) -> int:
        """Drop the lines of these ids from the files; how many of the ids there were."""
        erased: set[str] = set()

        def plan(kind: MemoryKind, snapshot: Snapshot) -> Sequence[Piece] | None:
            pieces: list[Piece] = []
            position = 0
            for line in lines_with_ids(snapshot, kind, ids):
                erased.add(line.entry.id)
                if position < line.start:
                    pieces.append((position, line.start))
                position = line.end
            return [*pieces, (position, snapshot.size)] if position else None

        self._rewrite(kinds, plan, options)
        return len(erased)

    def clear(self, kinds: Sequence[MemoryKind], options: StoreOptions) -> int:
        """Drop all entries from the files, and leave the corrupt lines; how many entries there were."""
        dropped: dict[MemoryKind, int] = {}

        def plan(kind: MemoryKind, snapshot: Snapshot) -> Sequence[Piece] | None:
            damage: list[Piece] = []
            dropped[kind] = 0
            for line in zones.lines(snapshot, kind):
                if line.entry is None:
                    damage.append((line.start, line.end))
                else:
                    dropped[kind] += 1
            return damage if dropped[kind] else None

        self._rewrite(kinds, plan, options)
        return sum(dropped.values())

    def patch(self, entry_id: str, patch: Json, kinds: Sequence[MemoryKind], options: StoreOptions) -> bool:
        """Merge `patch` into the meta of the lines of this id; whether there was one."""
        found = False

        def plan(kind: MemoryKind, snapshot: Snapshot) -> Sequence[Piece] | None:
            nonlocal found
            pieces: list[Piece] = []
            position = 0
            for line in lines_with_ids(snapshot, kind, {entry_id}):
                found = True
                old = snapshot.file.read_at(line.start, line.end - line.start)
                new = encode_patched(old, line.entry, patch)
                if new is not None:
                    pieces += [(position, line.start), new]
                    position = line.end
            return [*pieces, (position, snapshot.size)] if pieces else None

        self._rewrite(kinds, plan, options)
        return found

    def compact(self, kind: MemoryKind, cap: int, options: StoreOptions) -> Compaction | None:
        """Bring the file of `kind` under `cap` bytes by dropping the older half of its entries, again and
        again; the newest entry and all corrupt lines stay. None when there was nothing to do.
        """
        done: Compaction | None = None

        def plan(kind: MemoryKind, snapshot: Snapshot) -> Sequence[Piece] | None:
            nonlocal done
            done = None
            starts, sizes = array("q"), array("q")
            damage: list[tuple[int, int]] = []
            for line in zones.lines(snapshot, kind):
                if line.entry is None:
                    damage.append((line.start, line.end))
                else:
                    starts.append(line.start)
                    sizes.append(line.end - line.start)
            self._other_bytes[kind] = snapshot.size - sum(sizes)
            kept = newest_that_fit(sizes, cap)
            if kept == len(sizes):
                return None
            cut = starts[len(starts) - kept]
            pieces = [*(piece for piece in damage if piece[0] < cut), (cut, snapshot.size)]
            after = sum(end - start for start, end in pieces)
            done = Compaction(kind, snapshot.size, after, len(sizes), kept)
            return pieces

        self._rewrite((kind,), plan, options)
        return done

    def over_cap(self, kind: MemoryKind, cap: int) -> bool:
        """Whether the file of `kind` holds more than `cap` bytes of what can be read, as far as is known."""
        found = fileio.status(self.paths.log_file(kind))
        return found is not None and found.st_size - self._other_bytes.get(kind, 0) > cap

    def sync(self, kinds: Sequence[MemoryKind]) -> None:
        """Bring what was acknowledged to the disk itself."""
        if fileio.owner_exists(self.paths):
            for kind in kinds:
                self._logs[kind].sync()
            fileio.sync_directory(self.paths.directory)

    def remove_leftovers(self, options: StoreOptions) -> None:
        """Remove what rewrites that were killed have left. Where that fails it is told, no more."""
        try:
            if not fileio.owner_exists(self.paths) or not self._leftovers():
                return
            with self.exclusive(options):
                # Looked for anew: under the lock no rewrite of another process is under way.
                for path in self._leftovers():
                    fileio.remove(path)
        except MemoryFileError as error:
            _logger.warning("what a cut-off rewrite left in %r stays there: %s", self.paths.directory, error)

    # -- under `exclusive` -------------------------------------------------------------------------------

    def _settle(
        self, drafts: Sequence[Draft], now: Callable[[], int]
    ) -> tuple[list[MemoryEntry], dict[MemoryKind, list[bytes]]]:
        """The entries that the drafts become, and the lines to write for those that are new, by kind."""
        ts = int(now())
        given = {draft.id for draft in drafts if draft.id is not None}
        # Ids are unique per owner, so kinds that this handle does not have count too.
        known = self.reader.find(given, MEMORY_KINDS) if given else {}
        entries = []
        lines: dict[MemoryKind, list[bytes]] = {}
        for draft in drafts:
            entry_id = draft.id if draft.id is not None else self._ids.next(ts)
            stored = known.get(entry_id)
            if stored is not None:
                if not draft.same_content(stored):
                    raise DuplicateIdError(
                        f"id {entry_id!r} is taken by another {stored.kind} entry of "
                        f"{self.paths.owner_kind}/{self.paths.owner_id}; "
                        "a retry must have the same content, a new entry another id or none"
                    )
                entries.append(stored.model())
                continue
            if draft.id is not None:
                known[entry_id] = RawEntry(entry_id, draft.kind, draft.text, ts, draft.meta)
            lines.setdefault(draft.kind, []).append(draft.line(entry_id, ts))
            entries.append(draft.model(entry_id, ts))
        return entries, lines

    def _append_lines(self, lines: dict[MemoryKind, list[bytes]], options: StoreOptions) -> None:
        done: list[tuple[KindLog, Appended]] = []
        try:
            for kind, of_kind in lines.items():
                log = self._logs[kind]
                done.append((log, log.append(b"".join(of_kind), options)))
        except BaseException:
            for log, appended in done:
                try:
                    log.take_back(appended)
                except MemoryFileError:
                    _logger.exception("entries of a batch that failed stay in %r", log.path)
            raise

    def _rewrite(
        self,
        kinds: Sequence[MemoryKind],
        plan: Callable[[MemoryKind, Snapshot], Sequence[Piece] | None],
        options: StoreOptions,
    ) -> None:
        """Rewrite the logs of `kinds` for which `plan` has pieces. A store that has no files is left alone.

        All new generations are on the disk before the first takes its place, so that an error leaves all as
        it was. Only a rename that fails after another one succeeded can break that, and says so.
        """
        if not fileio.owner_exists(self.paths):
            return
        with self.exclusive(options), contextlib.ExitStack() as stack:
            self._require_writable()
            rewrites = []
            for kind in kinds:
                rewrite = self._logs[kind].prepare(partial(plan, kind), options)
                if rewrite is not None:
                    rewrites.append(stack.enter_context(rewrite))
            for done, rewrite in enumerate(rewrites):
                try:
                    rewrite.commit()
                except StorageError as error:
                    if not done:
                        raise
                    raise StorageError(
                        f"{error}; {done} of {len(rewrites)} files had been rewritten before: "
                        "call again for the rest"
                    ) from error

    def _require_writable(self) -> None:
        for marker in FOREIGN_MUTATION_MARKERS:
            path = os.path.join(self.paths.directory, marker)
            if fileio.exists(path):
                raise MutationPendingError(
                    f"{path!r} shows a rewrite by the TypeScript side that was cut off; reading goes on, "
                    "writing waits: start that side once, so that it recovers, and call again"
                )

    def _make_directory(self, options: StoreOptions) -> None:
        if not fileio.owner_exists(self.paths):
            fileio.make_directory(self.paths.kind_directory, options.directory_mode)
            fileio.make_directory(self.paths.directory, options.directory_mode)
            if options.durability == "power":
                fileio.sync_directory(self.paths.kind_directory)
                fileio.sync_directory(self.paths.root)
        fileio.require_own_spelling(self.paths)

    def _leftovers(self) -> list[str]:
        names = fileio.listing(self.paths.directory)
        return [
            os.path.join(self.paths.directory, name) for name in names if name.startswith(TEMPORARY_PREFIX)
        ]


def newest_that_fit(sizes: Sequence[int], cap: int) -> int:
    """How many of the newest lines, whose sizes in bytes are given oldest first, stay under `cap`.

    The rule of the contract (DESIGN §3): while they do not fit, half of them, but at least one, stays.

    >>> newest_that_fit([100] * 10, 600), newest_that_fit([100] * 10, 1000), newest_that_fit([100], 5)
    (5, 10, 1)
    """
    kept = len(sizes)
    total = sum(sizes)
    while total > cap and kept > 1:
        first, kept = len(sizes) - kept, max(1, kept // 2)
        total -= sum(sizes[first : len(sizes) - kept])
    return kept


_registry_lock: Final = threading.Lock()
_registry: Final[dict[str, tuple[OwnerStore, int]]] = {}


def open_store(paths: OwnerPaths) -> OwnerStore:
    """The one store of this owner in this process; give it back with `close_store`.

    Requires: the root in `paths` is a real path, so that one directory has one name.
    """
    with _registry_lock:
        store, users = _registry.get(paths.directory) or (OwnerStore(paths), 0)
        _registry[paths.directory] = store, users + 1
        return store


def close_store(store: OwnerStore) -> None:
    """Give back a store; the last user's call forgets it."""
    with _registry_lock:
        _, users = _registry[store.paths.directory]
        if users > 1:
            _registry[store.paths.directory] = store, users - 1
        else:
            del _registry[store.paths.directory]

"""The store of one owner: all writes of this process to one owner's files go through it, one at a time.

There is one `OwnerStore` per owner directory and process, shared by every handle of every plugin.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Final

from gotong_memfile import fileio
from gotong_memfile.compaction import Compaction, survey
from gotong_memfile.config import StoreOptions
from gotong_memfile.draft import Draft
from gotong_memfile.edits import Pieces, with_patch, without_entries, without_ids
from gotong_memfile.errors import MemoryFileError, StorageError
from gotong_memfile.folder import OwnerFolder, owner_exists, require_own_spelling
from gotong_memfile.group_commit import Append, GroupCommit
from gotong_memfile.layout import MEMORY_KINDS, MemoryKind, OwnerPaths
from gotong_memfile.lease import HostLease
from gotong_memfile.locks import ProcessLock
from gotong_memfile.log import KindLog, Snapshot
from gotong_memfile.models import Json, MemoryEntry
from gotong_memfile.reader import OwnerReader
from gotong_memfile.rewrite import Rewrite, remove_leftovers
from gotong_memfile.write_queue import WriteQueue

_logger: Final = logging.getLogger("gotong_memfile")

_MAX_ATTEMPTS: Final = 10
_LITTLE: Final = 256 * 1024
"""How much of a delta, in bytes, writers are made to wait for at the end of a compaction."""

_A_BREATH: Final = 50e-6
_A_MOMENT: Final = 0.02
"""How long after a swap, in seconds, the old generation is looked at for the last time: the TypeScript side
opens, appends and closes within a few turns of its event loop."""


class OwnerStore:
    """The kind logs of one owner, and the queue that orders the writes to them.

    Invariants:
    - Every change of a file of this owner by this process happens under `exclusive`.
    - What is kept of files from one call to the next, open descriptors and zone maps, is compared with what
      is there before it is used; `_other_bytes` is a hint that only delays a compaction when it is wrong.

    `keeps` is called when the store has begun to keep a file open, and may call `let_go` of any store.
    """

    def __init__(self, paths: OwnerPaths, keeps: Callable[[OwnerStore], None]) -> None:
        self.paths = paths
        self.folder = OwnerFolder(paths)
        self._process_lock = ProcessLock(paths, _logger)
        self.lease = HostLease(paths, _logger)
        opened = partial(keeps, self)
        self._logs = {kind: KindLog(paths.log_file(kind), kind, _logger, opened) for kind in MEMORY_KINDS}
        self.reader = OwnerReader(self.folder, self._logs)
        self._group_commit = GroupCommit(paths, self.folder, self._logs, self.reader, self._process_lock)
        self._queue = self._new_queue()
        self._other_bytes: dict[MemoryKind, int] = {}

    def _new_queue(self) -> WriteQueue[Append, list[MemoryEntry]]:
        return WriteQueue(self._group_commit.write, joinable=Append.joinable, costly=Append.costly)

    def start_anew_in_child(self) -> None:
        """Forget, in a forked child, what threads of the parent are at: their locks, turns, ids and lease."""
        self._queue = self._new_queue()
        self.lease = HostLease(self.paths, _logger)
        self._group_commit.start_anew_in_child()
        self._process_lock.start_anew_in_child()
        self.let_go()
        for zone_map in self.reader.maps.values():
            zone_map.start_anew_in_child()

    def let_go(self) -> None:
        """Close what is kept open, and forget the zone maps: other owners are in use."""
        self._process_lock.let_go()
        for kind in MEMORY_KINDS:
            self.reader.maps[kind].let_go()
            self._logs[kind].let_go()

    def require_sound(self) -> None:
        """Raise before anything is touched when a link, or what is no regular file, is in a file's place.

        Raises `UnsafePathError`, `RootNotDirectoryError`, `OwnerCollisionError`.
        """
        if owner_exists(self.paths):
            require_own_spelling(self.paths)
            for log in self._logs.values():
                fileio.require_regular_file(log.path)

    # -- writing -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def exclusive(self, options: StoreOptions) -> Iterator[None]:
        """Be the only writer of this owner, of all threads and, with the process lock, of all processes."""
        with self._queue.alone(), self._process_lock.held(options):
            yield

    def append(
        self, drafts: Sequence[Draft], now: Callable[[], int], options: StoreOptions
    ) -> list[MemoryEntry]:
        """Store the drafts, all or none, and give back the entries, in order.

        A draft with an id that is stored already with the same content is that entry, and writes nothing.
        Raises `DuplicateIdError`, `MutationPendingError`, `LockTimeoutError`, `StorageError`.
        """
        return self._queue.submit(Append(drafts, now, options))

    def erase(self, ids: Collection[str], kinds: Sequence[MemoryKind], options: StoreOptions) -> int:
        """Drop the lines of these ids from the files; how many of the ids there were."""
        erased: dict[MemoryKind, set[str]] = {}

        def plan(kind: MemoryKind, snapshot: Snapshot) -> Pieces:
            pieces, erased[kind] = without_ids(snapshot, ids)
            return pieces

        self._rewrite(kinds, plan, options)
        return len(set().union(*erased.values()))

    def clear(self, kinds: Sequence[MemoryKind], options: StoreOptions) -> int:
        """Drop all entries from the files, and leave the corrupt lines; how many entries there were."""
        entries: dict[MemoryKind, int] = {}

        def plan(kind: MemoryKind, snapshot: Snapshot) -> Pieces:
            pieces, entries[kind] = without_entries(snapshot)
            return pieces

        self._rewrite(kinds, plan, options)
        return sum(entries.values())

    def patch(self, entry_id: str, patch: Json, kinds: Sequence[MemoryKind], options: StoreOptions) -> bool:
        """Merge `patch` into the meta of the lines of this id; whether there was one."""
        found: dict[MemoryKind, bool] = {}

        def plan(kind: MemoryKind, snapshot: Snapshot) -> Pieces:
            pieces, found[kind] = with_patch(snapshot, entry_id, patch)
            return pieces

        self._rewrite(kinds, plan, options)
        return any(found.values())

    def compact(self, kind: MemoryKind, cap: int, options: StoreOptions) -> Compaction | None:
        """Bring the file of `kind` under `cap` bytes (see `compaction.survey`); None: nothing to do.

        Online: what stays is copied without any lock. Writers wait only while what they appended meanwhile
        is copied, if that is little by then, and for the swap.
        """
        log = self._logs[kind]
        for _ in range(_MAX_ATTEMPTS):
            self.reader.zone_map(kind)  # may have to read all of the file, for which no writer should wait
            with self.exclusive(options):
                if self.folder.writable_version() is None:
                    return None
                zone_map = self.reader.zone_map(kind)
            if zone_map is None:
                return None
            found = survey(zone_map, cap, self._let_writers_by)
            self._other_bytes[kind] = found.other_bytes
            if found.compaction is None:
                return None
            with Rewrite(log, partial(_as_found, found.pieces), options) as rewrite:
                rewrite.prepare(zone_map.snapshot)
                if self._swap_in(rewrite, log, options):
                    self._look_again(rewrite, options)
                    return found.compaction
        raise self._restless(log)

    def _let_writers_by(self) -> None:
        """Let go of the interpreter when a writer is at work: it needs it again after each system call, and
        would wait for the length of a switch interval (5 ms) each time.
        """
        if self._queue.busy:
            time.sleep(_A_BREATH)

    def over_cap(self, kind: MemoryKind, cap: int) -> bool:
        """Whether the file of `kind` holds more than `cap` bytes of what can be read, as far as is known."""
        found = fileio.status(self._logs[kind].path)
        return found is not None and found.st_size - self._other_bytes.get(kind, 0) > cap

    def written(self, kind: MemoryKind) -> int:
        """Where this process's last append to the file of `kind` ended; what was done to it since is open."""
        return self._logs[kind].written

    def sync(self, kinds: Sequence[MemoryKind]) -> None:
        """Bring what was acknowledged to the disk itself."""
        if owner_exists(self.paths):
            for kind in kinds:
                self._logs[kind].sync()
            fileio.sync_directory(self.paths.directory)

    def remove_leftovers(self) -> None:
        """Remove what rewrites that were killed have left. Where that fails it is told, no more."""
        try:
            if owner_exists(self.paths):
                remove_leftovers(self.paths.directory)
        except MemoryFileError as error:
            _logger.warning("what a cut-off rewrite left in %r stays there: %s", self.paths.directory, error)

    # -- in a turn of the queue --------------------------------------------------------------------------

    def _rewrite(
        self,
        kinds: Sequence[MemoryKind],
        plan: Callable[[MemoryKind, Snapshot], Pieces],
        options: StoreOptions,
    ) -> None:
        """Rewrite the logs of `kinds` for which `plan` has pieces. A store that has no files is left alone.

        All new generations are on the disk before the first takes its place, so that an error leaves all as
        it was. Only a rename that fails after another one succeeded can break that, and says so.
        """
        if self.folder.version() is None:
            return
        with self.exclusive(options), contextlib.ExitStack() as stack:
            version = self.folder.writable_version()
            prepared = []
            for kind in kinds:
                log = self._logs[kind]
                rewrite = stack.enter_context(Rewrite(log, partial(plan, kind), options))
                if rewrite.prepare(log.snapshot(version)):
                    prepared.append((log, rewrite))
            for done, (log, rewrite) in enumerate(prepared):
                try:
                    self._replace(log, rewrite)
                except StorageError as error:
                    if not done:
                        raise
                    raise StorageError(
                        f"{error}; {done} of {len(prepared)} files had been rewritten before: "
                        "call again for the rest"
                    ) from error

    def _replace(self, log: KindLog, rewrite: Rewrite) -> None:
        """Put a prepared rewrite in place; planned anew where another program changed the file meanwhile."""
        for _ in range(_MAX_ATTEMPTS):
            while behind := rewrite.behind():
                rewrite.catch_up(behind)
            if behind == 0:
                rewrite.swap()
                rewrite.sync_name()
                rewrite.carry_over(unfinished=True)
                self._lead(rewrite, log)
                return
            if not rewrite.prepare(log.snapshot(self.folder.version())):
                return
        raise self._restless(log)

    def _swap_in(self, rewrite: Rewrite, log: KindLog, options: StoreOptions) -> bool:
        """Put a rewrite in place that was prepared outside of a turn; False: the log has become another."""
        for attempt in range(_MAX_ATTEMPTS):
            with self.exclusive(options):
                behind = rewrite.behind()
                if behind is None:
                    return False
                if behind <= _LITTLE or attempt == _MAX_ATTEMPTS - 1:
                    if behind:
                        rewrite.catch_up(behind)
                    rewrite.swap()
                    # Before the next append: what that acknowledges must not be in a file without a name.
                    rewrite.sync_name()
                    self._lead(rewrite, log)
                    return True
            rewrite.catch_up(behind)
        return False

    def _look_again(self, rewrite: Rewrite, options: StoreOptions) -> None:
        """Carry over what a program without locks, which had the old file open, wrote a moment too late."""
        time.sleep(_A_MOMENT)
        with self.exclusive(options):
            rewrite.carry_over(unfinished=True)

    def _restless(self, log: KindLog) -> StorageError:
        return StorageError(
            f"{log.path!r} was changed by another program during each of {_MAX_ATTEMPTS} tries to "
            "rewrite it; nothing was changed, stop that program and try again"
        )

    def _lead(self, rewrite: Rewrite, log: KindLog) -> None:
        """Keep what is known of a log over its rewrite, and let the old generation go."""
        log.let_go()
        rewrite.lead(self.reader.maps[log.kind], self.folder.version())


def _as_found(pieces: Pieces, snapshot: Snapshot) -> Pieces:  # noqa: ARG001 - the plan is made already
    return pieces

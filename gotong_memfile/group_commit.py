"""Group commit: what callers wish to store becomes entries, with ids and times, in one write per file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from gotong_memfile.codec import RawEntry
from gotong_memfile.config import StoreOptions
from gotong_memfile.draft import Draft
from gotong_memfile.errors import DuplicateIdError, MemoryFileError, SyncFailedError
from gotong_memfile.folder import OwnerFolder
from gotong_memfile.ids import EntryIdSource
from gotong_memfile.layout import MEMORY_KINDS, MemoryKind, OwnerPaths
from gotong_memfile.locks import ProcessLock
from gotong_memfile.log import Appended, KindLog
from gotong_memfile.models import MemoryEntry
from gotong_memfile.reader import OwnerReader
from gotong_memfile.write_queue import Commit, Turn

_logger: Final = logging.getLogger("gotong_memfile")


class Append(NamedTuple):
    """A caller's wish to store drafts: all of them or none."""

    drafts: Sequence[Draft]
    now: Callable[[], int]
    options: StoreOptions

    def joinable(self, other: Append) -> bool:
        """Whether both may share a write."""
        return self.options == other.options

    def costly(self) -> bool:
        """Whether it takes a sync to the disk, hundreds of times as long as all else."""
        return self.options.durability == "power"


AppendTurn = Turn[Append, list[MemoryEntry]]
Lines = dict[MemoryKind, tuple[list[bytes], list[int]]]
"""Lines to write and their `ts`, by kind."""


class GroupCommit:
    """Writes the appends of several callers to the logs of one owner.

    A record gets its `ts` and id here, in the owner's queue and under its process lock: so that the order in
    the file is that of time, and an id that callers give is there once.
    """

    def __init__(
        self,
        paths: OwnerPaths,
        folder: OwnerFolder,
        logs: Mapping[MemoryKind, KindLog],
        reader: OwnerReader,
        lock: ProcessLock,
    ) -> None:
        self._paths = paths
        self._folder = folder
        self._logs = logs
        self._reader = reader
        self._lock = lock
        self.start_anew_in_child()

    def start_anew_in_child(self) -> None:
        """Give, in a forked child, other ids than the parent."""
        self._ids = EntryIdSource()

    def write(self, turns: Sequence[AppendTurn]) -> None:
        """Write the appends of these turns together, and settle each. Requires: the first turn leads."""
        options = _request(turns[0]).options
        lock = self._lock
        try:
            lock.take(options)
            if not self._write_together(turns, self._folder.writable_version(), options):
                # Somebody's record does not fit, or whatever: find out whose, and store the others.
                for turn in turns:
                    if not turn.settled:
                        self._write_together([turn], self._folder.writable_version(), options)
        finally:
            lock.give_back()

    def _write_together(
        self, turns: Sequence[AppendTurn], version: int | None, options: StoreOptions
    ) -> bool:
        """Whether all turns that this tried are settled. An error of one write is that of all in it."""
        known: dict[str, RawEntry] = {}
        lines: Lines = {}
        written = []
        commit = Commit()
        for turn in turns:
            try:
                turn.promise(self._settle(_request(turn), known, lines), commit)
            except Exception as error:  # noqa: BLE001 - the caller's own: a duplicate id, or a clock that fails
                turn.fail(error)
                continue
            written.append(turn)
        try:
            if lines and version is None:
                version = self._folder.make(options.directory_mode)
            self._append_lines(lines, version or 0, options, commit)
        except MemoryFileError as error:
            if len(written) > 1 and not isinstance(error, SyncFailedError):
                return False
            for turn in written:
                turn.fail(error)
        return True

    def _settle(self, request: Append, known: dict[str, RawEntry], lines: Lines) -> list[MemoryEntry]:
        """The entries that the drafts become; to `lines` are added those to write, all or none.

        `known` are the entries with callers' ids that are about to be written; these are added, too.
        """
        ts = int(request.now())
        # Ids are unique per owner, so kinds that this handle does not have count too.
        given = {draft.id for draft in request.drafts if draft.id is not None}
        mine = {**self._reader.find(given, MEMORY_KINDS), **known} if given else {}
        entries = []
        new = []
        for draft in request.drafts:
            entry_id = draft.id if draft.id is not None else self._ids.next(ts)
            if draft.id is not None:
                stored = mine.get(entry_id)
                if stored is not None:
                    self._require_same(draft, stored)
                    entries.append(stored.model())
                    continue
                mine[entry_id] = RawEntry(entry_id, draft.kind, draft.text, ts, draft.meta)
            new.append((draft.kind, draft.line(entry_id, ts)))
            entries.append(draft.model(entry_id, ts))
        if mine:
            known.update(mine)
        for kind, line in new:
            of_kind = lines.get(kind)
            if of_kind is None:
                of_kind = lines[kind] = [], []
            of_kind[0].append(line)
            of_kind[1].append(ts)
        return entries

    def _require_same(self, draft: Draft, stored: RawEntry) -> None:
        if not draft.same_content(stored):
            raise DuplicateIdError(
                f"id {stored.id!r} is taken by another {stored.kind} entry of "
                f"{self._paths.owner_kind}/{self._paths.owner_id}; "
                "a retry must have the same content, a new entry another id or none"
            )

    def _append_lines(self, lines: Lines, version: int, options: StoreOptions, commit: Commit) -> None:
        """Append to all logs or to none; `commit` is done exactly when they are there to stay."""
        done: list[tuple[KindLog, Appended]] = []
        try:
            for kind, of_kind in lines.items():
                log = self._logs[kind]
                done.append((log, log.append(b"".join(of_kind[0]), of_kind[1], version, options)))
            commit.done = True
        except BaseException:
            for log, appended in done if not commit.done else ():
                try:
                    log.take_back(appended)
                except MemoryFileError:
                    _logger.exception("entries of a batch that failed stay in %r", log.path)
            raise


def _request(turn: AppendTurn) -> Append:
    assert turn.request is not None, "turns that work alone are in no group"  # noqa: S101
    return turn.request

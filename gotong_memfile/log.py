"""One JSONL file: snapshots for readers, append for writers.

A *generation* is one file (inode) under the log's name: appends extend it, a rewrite puts a new one in its
place. A reader keeps the generation that it opened, complete, whatever is written meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Final, NamedTuple

from gotong_memfile import fileio
from gotong_memfile.config import StoreOptions
from gotong_memfile.errors import StorageError
from gotong_memfile.layout import MemoryKind

BLOCK_BYTES: Final = 64 * 1024
"""How much is read at a time: the size of a zone (DESIGN §4)."""


Piece = tuple[int, int] | bytes
"""Part of a new generation: the bytes `[start, end)` of the old one, or new bytes."""


class Zone(NamedTuple):
    """The whole lines in the bytes `[start, end)`, about 64 KiB of them.

    `low` and `high` are the lowest and highest `ts`, infinity and its negative when there is none; `in_order`
    says that no line is older than one before it. Once they are counted, `entries` are the valid entries,
    `entry_bytes` theirs with their ends of line, and `corrupt` the lines that are neither that nor blank.
    Until then `entries` is None, and what is said of `ts` may be of more lines than the valid ones.
    """

    start: int
    end: int
    low: float
    high: float
    in_order: bool
    entries: int | None = None
    entry_bytes: int = 0
    corrupt: int = 0

    def joined(self, after: Zone) -> Zone:
        """This zone and the one behind it as one."""
        counted = self.entries is not None and after.entries is not None
        return Zone(
            self.start,
            after.end,
            min(self.low, after.low),
            max(self.high, after.high),
            self.in_order and after.in_order and self.high <= after.low,
            (self.entries or 0) + (after.entries or 0) if counted else None,
            self.entry_bytes + after.entry_bytes,
            self.corrupt + after.corrupt,
        )


class Snapshot:
    """The first `size` bytes of one generation of `log`: what was there when it was taken.

    The generation stays open for as long as somebody refers to it: its log, or a snapshot of it.
    """

    __slots__ = ("file", "kind", "log", "revision", "size", "status")

    def __init__(self, log: KindLog, file: fileio.KeptFile, status: os.stat_result, revision: int) -> None:
        self.log = log
        self.kind = log.kind
        self.file = file
        self.status = status
        self.size = status.st_size
        self.revision = revision

    def read(self, start: int, end: int) -> bytes:
        """The bytes `[start, end)`; fewer where another program has cut the file off meanwhile.

        Raises `StorageError` when the file system gives back less than is there: what was not read must
        not be taken for what is not there.
        """
        data = self.file.read_at(start, end - start)
        if len(data) < end - start and self.file.status().st_size > start + len(data):
            raise StorageError(
                f"cannot read all of {self.file.path!r}: it ended at byte {start + len(data)}; try again"
            )
        return data

    def blocks(
        self, start: int = 0, end: int | None = None, size: int | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Whole lines from `start`, the start of a line, about `size` bytes at a time (None: 64 KiB), with
        their offsets. Only the last line may lack its end of line. Raises as `read` does.
        """
        end = self.size if end is None else end
        size = BLOCK_BYTES if size is None else size
        position = offset = start
        parts: list[bytes] = []
        while position < end:
            data = self.read(position, min(position + size, end))
            if not data:
                break
            position += len(data)
            cut = data.rfind(b"\n") + 1
            if not cut:
                parts.append(data)
                continue
            parts.append(data[:cut])
            block = b"".join(parts)
            yield offset, block
            offset += len(block)
            parts = [data[cut:]] if cut < len(data) else []
        if parts:
            yield offset, b"".join(parts)


def lines_of(offset: int, block: bytes) -> Iterator[tuple[int, int, bytes]]:
    r"""The lines of a block: start, end, and bytes without the end of line.

    Only `\n` ends a line: the other separators that Unicode and Python know may stand inside a text.

    >>> list(lines_of(10, b"a\nb\x0bc"))
    [(10, 12, b'a'), (12, 15, b'b\x0bc')]
    """
    lines = block.split(b"\n")
    last = lines.pop()
    for line in lines:
        end = offset + len(line) + 1
        yield offset, end, line
        offset = end
    if last:
        yield offset, offset + len(last), last


class _Run:
    """Whole lines that one append after the other has written to `[start, end)`: a zone that grows."""

    __slots__ = ("end", "entries", "high", "in_order", "low", "start")

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.low, self.high = inf, -inf
        self.in_order = True
        self.entries = 0

    def grow(self, end: int, times: Sequence[int]) -> None:
        """Take up lines with these times, up to `end`."""
        self.end = end
        self.entries += len(times)
        for ts in times:
            if ts >= self.high:
                self.high = ts
            else:
                self.in_order = False
            self.low = min(self.low, ts)

    def zone(self) -> Zone:
        """The run as a zone."""
        size = self.end - self.start
        return Zone(self.start, self.end, self.low, self.high, self.in_order, self.entries, size)


class Appended(NamedTuple):
    """Where an append went: the bytes `[start, end)` of the generation that `status` is of."""

    status: os.stat_result
    start: int
    end: int
    created: bool


class KindLog:
    """The file of one memory kind of one owner.

    It keeps the generation open that it met last. Each verb is given the version of the owner's folder
    (`OwnerFolder.version`), by which it knows whether the name may mean another file by now. `opened` is
    called when it has begun to keep a file. `revision` counts the times that something other than an append
    is known to have changed the file under the same name; `written` is where the last append ended.

    Requires, for `append` and `take_back`: the owner's queue and process lock are held. What programs
    without locks write between is kept.
    """

    def __init__(
        self, path: str, kind: MemoryKind, logger: logging.Logger, opened: Callable[[], None]
    ) -> None:
        self.path = path
        self.kind = kind
        self.logger = logger
        # The generation whose name is known to be on the disk itself; None: not known yet.
        self._name_on_disk: tuple[int, int] | None = None
        self._opened = opened
        self.revision = 0
        self.written = 0
        self.let_go()

    def let_go(self) -> None:
        """Keep nothing open: the owner is not in use, or the generation was replaced, and takes up space."""
        self._reading: tuple[int, fileio.KeptFile | None] = (0, None)
        self._appending: tuple[int, fileio.KeptFile | None] = (0, None)
        self._end: tuple[fileio.KeptFile, int, int] | None = None
        self._told: fileio.KeptFile | None = None
        self._own: tuple[tuple[int, int] | None, list[_Run]] = (None, [])

    def snapshot(self, version: int | None) -> Snapshot | None:
        """What the log holds now, or None when there is no file. Takes no lock.

        Snapshots of one generation have the same `file`, as long as it is kept.
        """
        if version is None:
            return None
        revision = self.revision
        seen, kept = self._reading
        if seen == version:
            if kept is None:
                return None
            status = kept.status()
            if status.st_nlink:  # none: another file was put in its place
                return Snapshot(self, kept, status, revision)
            self.let_go()
        try:
            file = fileio.open_for_reading(self.path).kept()
        except FileNotFoundError:
            self._reading = version, None
            return None
        status = file.status()
        # While the old file is open, no other file can have its number.
        if kept is not None and os.path.samestat(kept.status(), status):
            file = kept
        else:
            self._told = None
        self._reading = version, file
        self._opened()
        return Snapshot(self, file, status, revision)

    def tell_damage(self, snapshot: Snapshot, offset: int) -> None:
        """Log that the line at `offset` is no entry: once for each generation."""
        if self._told is not snapshot.file:
            self._told = snapshot.file
            self.logger.warning(
                "the line at byte %d of %r cannot be read as an entry; it is skipped and kept, as others may "
                "be: stats() counts them",
                offset,
                self.path,
            )

    def own_zones(self, snapshot: Snapshot) -> list[Zone]:
        """What was appended by this process to the generation of `snapshot` since this was last asked, in
        file order: it need not be read to be known. Some of it may be missing.
        """
        (generation, runs), self._own = self._own, (None, [])
        same = generation == (snapshot.status.st_dev, snapshot.status.st_ino)
        return [run.zone() for run in runs] if same else []

    def append(self, data: bytes, times: Sequence[int], version: int, options: StoreOptions) -> Appended:
        """Write whole lines, of entries of these `ts`, to the end. An error means that none is in the file.

        A torn tail, a last line that lacks its end of line, gets it first: nothing is glued to it.
        """
        length = len(data)
        file, before, created = self._file_to_append(version, options)
        if self._is_torn(file, before):
            self.logger.warning(
                "%r ended within a line (at byte %d); the next entry starts on a line of its own",
                self.path,
                before.st_size,
            )
            data = b"\n" + data
        written = 0
        try:
            written = file.write(data)
            if written < len(data):
                rest = memoryview(data)
                while written < len(data):
                    written += file.write(rest[written:])
            if created:
                self._name_on_disk = None  # the new file may have the number of one that is gone
            if options.durability == "power":
                file.sync()
                self._sync_name(before)
            after = file.status()
        except BaseException:
            self._edited()
            end = file.position()
            try:
                start = before.st_size
                if not data.startswith(file.read_at(start, end - start)):
                    start = end - written  # a program without locks has written between
                self._erase(file, start, end, created=created)
            except StorageError:
                self.logger.exception("part of an entry that failed stays at the end of %r", self.path)
            raise
        end = after.st_size
        if end == before.st_size + len(data):
            self._end = file, end, after.st_mtime_ns
        else:  # a program without locks has written, too
            end = file.position()
        self._remember(after, end - length, end, times)
        self.written = end
        return Appended(before, end - len(data), end, created)

    def _remember(self, status: os.stat_result, start: int, end: int, times: Sequence[int]) -> None:
        """Take down, for `own_zones`, that lines with these times were written to `[start, end)`."""
        generation, runs = self._own
        if generation != (status.st_dev, status.st_ino):
            runs = []
            self._own = (status.st_dev, status.st_ino), runs
        if not runs or runs[-1].end != start or end - runs[-1].start > BLOCK_BYTES:
            runs.append(_Run(start))
        runs[-1].grow(end, times)

    def _is_torn(self, file: fileio.KeptFile, status: os.stat_result) -> bool:
        """Whether the last line lacks its end of line. Counts a `revision` where the file was edited since
        our last append.
        """
        size = status.st_size
        if self._end is not None and self._end[0] is file:
            if self._end[1:] == (size, status.st_mtime_ns):
                return False
            if size <= self._end[1]:
                self._edited()
        return size > 0 and file.read_at(size - 1, 1) != b"\n"

    def take_back(self, appended: Appended) -> None:
        """Undo an append, whatever a program without locks has appended after it."""
        self._edited()
        with contextlib.suppress(FileNotFoundError), fileio.open_for_appending(self.path) as file:
            if os.path.samestat(file.status(), appended.status):
                self._erase(file, appended.start, appended.end, created=appended.created)

    def _edited(self) -> None:
        self.revision += 1
        self._own = None, []

    def sync(self) -> None:
        """Bring the file to the disk itself."""
        with contextlib.suppress(FileNotFoundError), fileio.open_for_reading(self.path) as file:
            file.sync()

    def _sync_name(self, status: os.stat_result) -> None:
        """Bring the name of the file, and of the folders that lead to it, to the disk: once per generation.

        Whoever made them may not have asked for that.
        """
        generation = (status.st_dev, status.st_ino)
        if self._name_on_disk != generation:
            directory = self.path
            for _ in range(3):  # the owner's folder, that of its kind, the root
                directory = os.path.dirname(directory)
                fileio.sync_directory(directory)
            self._name_on_disk = generation

    def _file_to_append(
        self, version: int, options: StoreOptions
    ) -> tuple[fileio.KeptFile, os.stat_result, bool]:
        """The open file, what it is like, and whether it was made now."""
        seen, kept = self._appending
        if seen == version and kept is not None:
            status = kept.status()
            if status.st_nlink:
                return kept, status, False
        while True:
            created = False
            try:
                file = fileio.open_for_appending(self.path).kept()
            except FileNotFoundError:
                try:
                    file = fileio.create(self.path, options.file_mode, appending=True).kept()
                except FileExistsError:
                    continue
                created = True
            status = file.status()
            if kept is not None and os.path.samestat(kept.status(), status):
                file = kept
            else:
                self._end = None
            self._appending = version, file
            self._opened()
            return file, status, created

    def _erase(self, file: fileio.File, start: int, end: int, *, created: bool) -> None:
        """Remove the bytes `[start, end)` that an append of ours has put at the end of a file, and the file
        itself when it was `created` for them.
        """
        if file.status().st_size <= end:
            file.truncate(start)
            if created and not start:
                fileio.remove(self.path)
        elif start < end:
            # A program without locks has written behind them: its lines stay, ours become a blank line.
            with fileio.open_for_overwriting(self.path) as own:
                own.overwrite(b" " * (end - start - 1) + b"\n", start)

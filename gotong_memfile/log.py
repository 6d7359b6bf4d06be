"""One JSONL file: snapshots for readers, append for writers.

A *generation* is one file (inode) under the log's name: appends extend it, a rewrite puts a new one in its
place. A reader keeps the generation that it opened, complete, whatever is written meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gotong_memfile import fileio
from gotong_memfile.config import StoreOptions
from gotong_memfile.errors import StorageError
from gotong_memfile.layout import MemoryKind

BLOCK_BYTES: Final = 64 * 1024
"""How much is read at a time: the size of a zone (DESIGN §4)."""


class Snapshot(fileio.Closing):
    """The first `size` bytes of one generation: what was there when it was taken. Close it after use."""

    def __init__(self, file: fileio.File) -> None:
        self.file = file
        self.status = file.status()
        self.size = self.status.st_size

    def close(self) -> None:
        """Let the generation go."""
        self.file.close()

    def blocks(self, start: int = 0, end: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Whole lines from `start`, the start of a line, about 64 KiB at a time, with their offsets.

        Only the last line may lack its end of line. Ends early where another program has cut the file
        off meanwhile. Raises `StorageError` when the file system gives back less than is there: what was
        not read must not be taken for what is not there.
        """
        end = self.size if end is None else end
        position = offset = start
        parts: list[bytes] = []
        while position < end:
            data = self.file.read_at(position, min(BLOCK_BYTES, end - position))
            if not data:
                if self.file.status().st_size > position:
                    raise StorageError(
                        f"cannot read all of {self.file.path!r}: it ended at byte {position}; try again"
                    )
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


@dataclass(frozen=True, slots=True)
class Appended:
    """Where an append went: the bytes `[start, end)` of the generation that `status` is of."""

    status: os.stat_result
    start: int
    end: int
    created: bool


class KindLog:
    """The file of one memory kind of one owner.

    Requires, for `append` and `take_back`: the owner's queue and process lock are held. What programs
    without locks write between is kept.
    """

    def __init__(self, path: str, kind: MemoryKind, logger: logging.Logger) -> None:
        self.path = path
        self.kind = kind
        self.logger = logger
        # The generation whose name is known to be on the disk itself; None: not known yet.
        self._name_on_disk: tuple[int, int] | None = None

    def snapshot(self) -> Snapshot | None:
        """What the log holds now, or None when there is no file. Takes no lock."""
        try:
            file = fileio.open_for_reading(self.path)
        except FileNotFoundError:
            return None
        try:
            return Snapshot(file)
        except BaseException:
            file.close()
            raise

    def append(self, data: bytes, options: StoreOptions) -> Appended:
        """Write whole lines to the end. An error means that none of `data` is in the file.

        A torn tail, a last line that lacks its end of line, gets it first: nothing is glued to it.
        """
        file, created = self._open_to_append(options)
        with file:
            before = file.status()
            if before.st_size and file.read_at(before.st_size - 1, 1) != b"\n":
                self.logger.warning(
                    "%r ended within a line (at byte %d); the next entry starts on a line of its own",
                    self.path,
                    before.st_size,
                )
                data = b"\n" + data
            written = 0
            try:
                rest = memoryview(data)
                while written < len(data):
                    written += file.write(rest[written:])
                if created:
                    self._name_on_disk = None  # the new file may have the number of one that is gone
                if options.durability == "power":
                    file.sync()
                    self._sync_name(before)
            except BaseException:
                end = file.position()
                try:
                    start = before.st_size
                    if not data.startswith(file.read_at(start, end - start)):
                        start = end - written  # a program without locks has written between
                    self._erase(file, start, end, created=created)
                except StorageError:
                    self.logger.exception("part of an entry that failed stays at the end of %r", self.path)
                raise
            end = file.position()
            return Appended(before, end - len(data), end, created)

    def take_back(self, appended: Appended) -> None:
        """Undo an append, whatever a program without locks has appended after it."""
        with contextlib.suppress(FileNotFoundError), fileio.open_for_appending(self.path) as file:
            if os.path.samestat(file.status(), appended.status):
                self._erase(file, appended.start, appended.end, created=appended.created)

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

    def _open_to_append(self, options: StoreOptions) -> tuple[fileio.File, bool]:
        """The open file, and whether it was made now."""
        while True:
            with contextlib.suppress(FileNotFoundError):
                return fileio.open_for_appending(self.path), False
            with contextlib.suppress(FileExistsError):
                return fileio.create(self.path, options.file_mode, appending=True), True

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

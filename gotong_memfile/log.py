"""One JSONL file: snapshots for readers, append and rewrite for writers.

A *generation* is one file (inode) under the log's name: appends extend it, a rewrite puts a new one in its
place. A reader keeps the generation that it opened, complete, whatever is written meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from gotong_memfile import fileio
from gotong_memfile.config import StoreOptions
from gotong_memfile.errors import StorageError
from gotong_memfile.layout import TEMPORARY_PREFIX, MemoryKind

BLOCK_BYTES: Final = 64 * 1024
"""How much is read at a time: the size of a zone (DESIGN §4)."""

_MAX_ATTEMPTS: Final = 10


class Snapshot:
    """The first `size` bytes of one generation: what was there when it was taken. Close it after use."""

    def __init__(self, file: fileio.File) -> None:
        self.file = file
        self.status = file.status()
        self.size = self.status.st_size

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

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


Piece = tuple[int, int] | bytes
"""Part of a new generation: the bytes `[start, end)` of the old one, or new bytes."""

Plan = Callable[[Snapshot], Sequence[Piece] | None]
"""What a new generation consists of, seen from a snapshot of the old one; None: leave it as it is."""


@dataclass(frozen=True, slots=True)
class Appended:
    """Where an append went: the bytes `[start, end)` of the generation that `status` is of."""

    status: os.stat_result
    start: int
    end: int
    created: bool


class KindLog:
    """The file of one memory kind of one owner.

    Requires, for `append`, `take_back` and `prepare`: the owner's queue and process lock are held. They
    are then safe against each other; against programs that know no locks they keep what those wrote, but
    for a write that falls into the moment between the last look and the swap.
    """

    def __init__(self, path: str, kind: MemoryKind, logger: logging.Logger) -> None:
        self.path = path
        self.kind = kind
        self.logger = logger

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
                if options.durability == "power":
                    file.sync()
                    if created:
                        fileio.sync_directory(os.path.dirname(self.path))
            except BaseException:
                end = file.position()
                try:
                    self._erase(file, max(before.st_size, end - written), end, created=created)
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

    def prepare(self, plan: Plan, options: StoreOptions) -> Rewrite | None:
        """Write the new generation that `plan` wants beside the old one, or None when it wants none.

        The caller commits it, or leaves its `with` block to discard it.
        """
        rewrite = Rewrite(self, plan, options)
        with contextlib.ExitStack() as stack:
            stack.push(rewrite)
            if not rewrite.prepare():
                return None
            stack.pop_all()
        return rewrite

    def sync(self) -> None:
        """Bring the file to the disk itself."""
        with contextlib.suppress(FileNotFoundError), fileio.open_for_appending(self.path) as file:
            file.sync()

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


class Rewrite:
    """A new generation of a log, from the plan for it to the swap. Use it in a `with`.

    The new generation is on the disk before it takes the name, and keeps the mode of the old one. Until
    then the old one is untouched, so that any error on the way leaves everything as it was.

    Requires: the owner's queue and process lock are held from `prepare` to the end.
    """

    def __init__(self, log: KindLog, plan: Plan, options: StoreOptions) -> None:
        self._log = log
        self._plan = plan
        self._options = options
        self._directory = os.path.dirname(log.path)
        self._temporary = ""
        self._files = contextlib.ExitStack()

    def __enter__(self) -> Rewrite:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._discard()

    def prepare(self) -> bool:
        """Write the new generation; False when the plan, asked for the log as it is now, wants none."""
        self._discard()
        snapshot = self._log.snapshot()
        if snapshot is None:
            return False
        self._snapshot = self._files.enter_context(snapshot)
        pieces = self._plan(snapshot)
        if pieces is None:
            self._discard()
            return False
        name = f"{TEMPORARY_PREFIX}{self._log.kind}-{secrets.token_hex(6)}.tmp"
        self._temporary = os.path.join(self._directory, name)
        self._new = self._files.enter_context(fileio.create(self._temporary, self._options.file_mode))
        self._new.take_ownership_of(snapshot.status)
        for piece in pieces:
            if isinstance(piece, bytes):
                self._new.write_all(piece)
            else:
                self._new.copy_from(snapshot.file, piece[0], piece[1] - piece[0])
        self._new.sync()
        return True

    def commit(self) -> bool:
        """Put the new generation in place; False when the plan wants none any more.

        What a program without locks appended meanwhile is carried over. When one replaced the file, or
        changed it in place, the plan is asked again for what is there now.
        """
        for _ in range(_MAX_ATTEMPTS):
            if self._swap():
                return True
            if not self.prepare():
                return False
        raise StorageError(
            f"{self._log.path!r} was changed by another program during each of {_MAX_ATTEMPTS} tries to "
            "rewrite it; nothing was changed, stop that program and try again"
        )

    def _swap(self) -> bool:
        """Whether the new generation took the place of the old one, which was still as it was planned for."""
        copied = self._snapshot.size
        while True:
            now = fileio.status(self._log.path)
            if now is None or not _continues(self._snapshot, now, copied):
                return False
            if now.st_size == copied:
                break
            self._new.copy_from(self._snapshot.file, copied, now.st_size - copied)
            self._new.sync()
            copied = now.st_size
        fileio.replace(self._temporary, self._log.path)
        self._temporary = ""
        copied = self._carry_over(copied, unfinished=False)
        self._sync_name()
        self._carry_over(copied, unfinished=True)
        return True

    def _carry_over(self, copied: int, *, unfinished: bool) -> int:
        """Bring along what a program that had opened the old generation still writes into it.

        Only whole lines, unless `unfinished`: the rest of a line may be on its way. How much of the old
        generation is in the new one now.
        """
        old = self._snapshot.file
        late = b""
        try:
            late = old.read_at(copied, old.status().st_size - copied)
            if not unfinished:
                late = late[: late.rfind(b"\n") + 1]
            if late:
                # Opened anew, for appending: others may be writing to the new generation by now.
                with fileio.open_for_appending(self._log.path) as new:
                    new.write_all(late)
                    new.sync()
        except (StorageError, FileNotFoundError):
            self._log.logger.exception(
                "what another program appended to %r during a rewrite could not be kept", self._log.path
            )
        return copied + len(late)

    def _sync_name(self) -> None:
        """Make the swap itself durable. It is done already, so a failure here undoes nothing."""
        try:
            fileio.sync_directory(self._directory)
        except StorageError as error:
            self._log.logger.warning("%s; the rewrite is done, but may not survive a power failure", error)

    def _discard(self) -> None:
        """Close the files, and remove a new generation that is not in place."""
        self._files.close()
        if self._temporary:
            try:
                fileio.remove(self._temporary)
            except StorageError as error:
                self._log.logger.warning("%s; it is removed at the next attach", error)
            self._temporary = ""


def _continues(snapshot: Snapshot, now: os.stat_result, copied: int) -> bool:
    """Whether `now` is the snapshot's generation, changed by nothing but appends."""
    if not os.path.samestat(snapshot.status, now) or now.st_size < copied:
        return False
    return now.st_size > snapshot.size or now.st_mtime_ns == snapshot.status.st_mtime_ns

"""Putting a new generation in a log's place: prepared beside it, on the disk, then swapped in.

A small rewrite is prepared and swapped in one turn of the owner's queue. A large one is prepared without
any lock, while writers go on, and needs a turn only for what was appended meanwhile and for the swap.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Final

from gotong_memfile import fileio
from gotong_memfile.config import StoreOptions
from gotong_memfile.errors import StorageError, SyncFailedError
from gotong_memfile.layout import TEMPORARY_PREFIX
from gotong_memfile.locks import NoLocksError, try_lock
from gotong_memfile.log import KindLog, Piece, Snapshot
from gotong_memfile.zones import KindMap

_ABANDONED: Final = 3600.0

Plan = Callable[[Snapshot], Sequence[Piece] | None]
"""What a new generation consists of, seen from a snapshot of the old one; None: leave it as it is."""


class Rewrite(fileio.Closing):
    """A new generation of a log, from the plan for it to what is carried over after the swap.

    Use it in a `with`. The new generation is on the disk before it takes the name, and keeps the mode of the
    old one. Until then the old one is untouched, so that any error on the way leaves everything as it was.

    Callers may rely on: what was acknowledged is in the new generation; what programs without locks appended
    is, too, unless they write it after the last look; a file that was replaced or changed in place meanwhile
    is not overwritten.
    """

    def __init__(self, log: KindLog, plan: Plan, options: StoreOptions) -> None:
        self._log = log
        self._plan = plan
        self._options = options
        self._directory = os.path.dirname(log.path)
        self._temporary = ""
        self._copied = 0
        self._files = ExitStack()

    def prepare(self, snapshot: Snapshot | None) -> bool:
        """Write the new generation beside the old one; False when the plan wants none, or there is no file.

        Requires: `snapshot` was taken in a turn of the owner's queue. So it ends where an append ended, and
        not within one that fails and is taken back.
        """
        self.close()
        if snapshot is None:
            return False
        self._snapshot = snapshot
        pieces = self._plan(snapshot)
        if pieces is None:
            return False
        self._pieces = pieces
        self._new = self._files.enter_context(self._create())
        self._new.take_ownership_of(snapshot.status)
        for piece in pieces:
            if isinstance(piece, bytes):
                self._new.write_all(piece)
            else:
                self._new.copy_from(snapshot.file, piece[0], piece[1] - piece[0])
        self._new.sync()
        self._copied = snapshot.size
        return True

    def _create(self) -> fileio.File:
        """Make the temporary file, with a lock on it that shows that it is of use: see `remove_leftovers`."""
        while True:
            name = f"{TEMPORARY_PREFIX}{self._log.kind}-{secrets.token_hex(6)}.tmp"
            self._temporary = os.path.join(self._directory, name)
            file = fileio.create(self._temporary, self._options.file_mode)
            try:
                if not self._options.process_lock:
                    return file
                with suppress(NoLocksError):
                    try_lock(file)
                found = fileio.status(self._temporary)
                if found is not None and os.path.samestat(found, file.status()):
                    return file
            except BaseException:
                file.close()
                raise
            # Another process took it for a leftover in the moment before it was locked.
            file.close()

    def behind(self) -> int | None:
        """How many bytes were appended since, or None when the log is no longer what was planned for.

        Requires: a turn of the owner's queue, and its process lock.
        """
        now = fileio.status(self._log.path)
        if now is None or not os.path.samestat(self._snapshot.status, now) or now.st_size < self._copied:
            return None
        grown = now.st_size > self._snapshot.size
        if not grown and now.st_mtime_ns != self._snapshot.status.st_mtime_ns:
            return None
        return now.st_size - self._copied

    def catch_up(self, size: int) -> None:
        """Copy `size` bytes that were appended, as `behind` said."""
        self._new.copy_from(self._snapshot.file, self._copied, size)
        self._new.sync()
        self._copied += size

    def swap(self) -> None:
        """Give the new generation the log's name.

        Requires: a turn of the owner's queue, and its process lock; `behind` said 0 in it.
        """
        fileio.replace(self._temporary, self._log.path)
        self._temporary = ""
        self.carry_over(unfinished=False)

    def sync_name(self) -> None:
        """Make the swap itself durable. It is done already, so a failure here undoes nothing.

        Raises `SyncFailedError` for those who asked for durability against a loss of power.
        """
        try:
            fileio.sync_directory(self._directory)
        except StorageError as error:
            message = f"{self._log.path!r} was rewritten, but that may not survive a loss of power: {error}"
            if self._options.durability == "power":
                raise SyncFailedError(message) from error
            self._log.logger.warning("%s", message)

    def lead(self, zone_map: KindMap, version: int | None) -> None:
        """Have the map of the log's zones follow to the new generation. Requires: as for `carry_over`."""
        pieces = [*self._pieces, (self._snapshot.size, self._copied)]
        zone_map.follow(version, self._snapshot, self._new.status(), pieces)

    def carry_over(self, *, unfinished: bool) -> None:
        """Bring along what a program that had opened the old generation still wrote into it.

        Only whole lines, unless `unfinished`: the rest of a line may be on its way.
        Requires: a turn of the owner's queue, and its process lock; the swap is done.
        """
        old = self._snapshot.file
        try:
            late = old.read_at(self._copied, old.status().st_size - self._copied)
            if not unfinished:
                late = late[: late.rfind(b"\n") + 1]
            if late:
                # Opened anew, for appending: others may be writing to the new generation by now.
                with fileio.open_for_appending(self._log.path) as new:
                    new.write_all(late)
                    new.sync()
                self._copied += len(late)
        except (StorageError, FileNotFoundError):
            self._log.logger.exception(
                "what another program appended to %r during a rewrite could not be kept", self._log.path
            )

    def close(self) -> None:
        """Close the files, and remove a new generation that is not in place."""
        self._files.close()
        if self._temporary:
            try:
                fileio.remove(self._temporary)
            except StorageError as error:
                self._log.logger.warning("%s; it is removed at the next attach", error)
            self._temporary = ""


def remove_leftovers(directory: str) -> None:
    """Remove the temporary files of rewrites that were killed, and leave those of rewrites under way.

    A rewrite holds a lock on its temporary file, which the kernel gives up with the process. Where there
    are no locks, a file that has not been written for an hour is a leftover.
    """
    for name in fileio.listing(directory):
        if not name.startswith(TEMPORARY_PREFIX):
            continue
        path = os.path.join(directory, name)
        try:
            with fileio.open_for_overwriting(path) as file:
                try:
                    abandoned = try_lock(file)
                except NoLocksError:
                    abandoned = time.time() - file.status().st_mtime > _ABANDONED
                if abandoned:
                    fileio.remove(path)
        except FileNotFoundError:
            continue  # it was at its end

"""The advisory lease: tells two hosts that both have an owner attached. It warns; it keeps nobody out.

Each process has a marker of its own beside the owner's lock, `<host>-<pid>.lease`, and touches it again and
again. Who sees a marker of another host warns once. Markers whose process has died are removed: on the same
host at the next look, of another host once they have stood still for a lease's duration by this host's own
clock, so that clocks of hosts need not agree.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import socket
import sys
import threading
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gotong_memfile import fileio
from gotong_memfile.config import StoreOptions
from gotong_memfile.layout import OwnerPaths

if TYPE_CHECKING:
    from filelock import LeaseCompromise, SoftFileLease

_SUFFIX: Final = ".lease"


class MultiHostWarning(UserWarning):
    """An owner is attached on another host too; nothing keeps the writers of two hosts apart."""


@dataclass(slots=True)
class _Peer:
    """Another process's marker, as it was last seen: `mark` changes with each sign of life."""

    lease: SoftFileLease
    mark: tuple[int, int] | None = None
    told: bool = False


class HostLease:
    """This process's marker for one owner, and its watch over those of others.

    Callers may rely on: a host that attaches while another has the owner attached is warned at once, the
    other one within the lease's duration. They may not rely on being kept apart.
    """

    def __init__(self, paths: OwnerPaths, logger: logging.Logger) -> None:
        self._paths = paths
        self._logger = logger
        self._directory = paths.lock_directories[-1]
        self._name = f"{re.sub(r'[^A-Za-z0-9.]', '_', socket.gethostname())}-{os.getpid()}{_SUFFIX}"
        self._holding = threading.Lock()
        self._users = 0
        self._options = StoreOptions()
        self._own: SoftFileLease | None = None
        self._peers: dict[str, _Peer] = {}
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None

    def hold(self, options: StoreOptions) -> None:
        """Set the marker, look for others, and go on looking. Counted: see `drop`.

        Where no marker can be set, only that is told.
        """
        with self._holding:
            self._users += 1
            # At the end of the interpreter no thread would get to run any more.
            if self._own is None and not sys.is_finalizing():
                self._options = options
                self._take()

    def drop(self) -> None:
        """Take back one `hold`; with the last one the marker goes, and the watch ends."""
        with self._holding:
            self._users -= 1
            if self._users <= 0:
                self._give_up()

    def _take(self) -> None:
        own = self._lease_of(self._name)
        try:
            fileio.make_directories(self._paths.lock_directories, self._options.directory_mode)
            self._acquire(own)
        except OSError as error:
            self._logger.warning("no lease in %r, other hosts are not warned: %s", self._directory, error)
            return
        self._own = own
        atexit.register(self._give_up)
        self._stop.clear()
        self._watcher = threading.Thread(target=self._watch, name="gotong-memfile-lease", daemon=True)
        self._watcher.start()
        self._look()

    def _give_up(self) -> None:
        atexit.unregister(self._give_up)
        self._stop.set()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join(self._options.lease_duration)
        if self._own is not None:
            self._own.release(force=True)
            self._own = None

    def _lease_of(self, name: str) -> SoftFileLease:
        from filelock import SoftFileLease  # noqa: PLC0415 - only those who ask for leases pay for the import

        return SoftFileLease(
            os.path.join(self._directory, name),
            lease_duration=self._options.lease_duration,
            mode=self._options.file_mode,
            thread_local=False,
            timeout=0,
            on_compromise=self._lost if name == self._name else None,
        )

    def _acquire(self, lease: SoftFileLease) -> bool:
        """Whether the marker is ours now: there was none, or who set it is dead or has let it expire."""
        from filelock import LeaseSettingsMismatch, Timeout  # noqa: PLC0415

        try:
            lease.acquire()
        except (Timeout, LeaseSettingsMismatch):
            return False
        return True

    def _lost(self, compromise: LeaseCompromise) -> None:
        self._logger.warning("the lease %r was lost: %s", compromise.lock_file, compromise.reason)

    def _watch(self) -> None:
        while not self._stop.wait(self._options.lease_duration / 3):
            try:
                if self._own is not None and self._own.compromise is not None:
                    self._own.release(force=True)
                    self._acquire(self._own)
                self._look()
            except Exception:  # whatever a disk does, or a warning that was made an error: look again later
                self._logger.exception("the watch over %r goes on", self._directory)

    def _look(self) -> None:
        names = [name for name in fileio.listing(self._directory) if name.endswith(_SUFFIX)]
        self._peers = {name: peer for name, peer in self._peers.items() if name in names}
        for name in names:
            if name != self._name:
                self._look_at(name, self._peers.setdefault(name, _Peer(self._lease_of(name))))

    def _look_at(self, name: str, peer: _Peer) -> None:
        own = self._own.owner if self._own is not None else None
        theirs = peer.lease.owner
        path = os.path.join(self._directory, name)
        found = fileio.status(path)
        if found is None:
            return
        mark = (found.st_ino, found.st_mtime_ns)
        first, changed = peer.mark is None, mark not in {None, peer.mark}
        peer.mark = mark
        if theirs is not None and own is not None and theirs.hostname != own.hostname:
            mine = fileio.status(os.path.join(self._directory, self._name))
            # Both times are of the file system's clock, not of the hosts'.
            age = max(0.0, ((mine or found).st_mtime_ns - found.st_mtime_ns) / 1e9)
            alive = age <= self._options.lease_duration if first else changed
            if alive and not peer.told:
                peer.told = True
                self._tell(theirs.hostname, theirs.pid, age)
        # Of no use to a live process; it removes the marker of one that is not.
        if not (changed and not first) and self._acquire(peer.lease):
            peer.lease.release()

    def _tell(self, host: str, pid: int, age: float) -> None:
        message = (
            f"{self._paths.owner_kind}/{self._paths.owner_id} is attached on host {host!r} too (pid {pid}, "
            f"last sign of life {age:.0f} s ago): nothing keeps the writers of two hosts apart; detach one"
        )
        self._logger.warning("%s", message)
        warnings.warn(message, MultiHostWarning, stacklevel=2)

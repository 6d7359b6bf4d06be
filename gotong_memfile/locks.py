"""The lock that keeps writers of other processes on this host out while one of them writes."""

from __future__ import annotations

import contextlib
import errno
import logging
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple

from gotong_memfile import fileio
from gotong_memfile.config import StoreOptions
from gotong_memfile.errors import LockTimeoutError, StorageError
from gotong_memfile.layout import OwnerPaths

_NO_LOCKS: Final = frozenset([errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF])
"""What file systems without locks answer: many network and FUSE mounts."""

_HELD: Final = frozenset([errno.EAGAIN, errno.EACCES])
_FIRST_WAIT: Final = 0.0005
_LONGEST_WAIT: Final = 0.005
"""In seconds. A writer that never rests leaves the lock free for half of its time, so that ten tries, in less
than 50 ms, are enough for the next one but once in a thousand times.
"""


class NoLocksError(Exception):
    """The file system knows no locks."""


class _Flock(NamedTuple):
    """`flock(2)`, or what there is in its place: the function, and the operations that it is given."""

    call: Callable[[int, int], object]
    exclusively: int
    unlock: int


@cache
def _flock() -> _Flock:
    """The function by which portalocker locks on this platform, without the checks of its arguments, which
    take ten times as long as the lock; where there is no `flock`, portalocker's own, in the form of it.

    Imported with the first store, not with the package, for portalocker takes as long as all the rest; and
    not with the first write, for that may come when the interpreter shuts down and imports nothing more.
    """
    import portalocker  # noqa: PLC0415

    def in_its_place(descriptor: int, operation: int) -> None:
        try:
            if operation == int(portalocker.LOCK_UN):
                portalocker.unlock(descriptor)
            else:
                portalocker.lock(descriptor, portalocker.LockFlags(operation))
        except portalocker.AlreadyLocked as error:
            raise BlockingIOError(errno.EAGAIN, "another process holds it") from error
        except portalocker.LockException as error:
            cause = error.args[0] if error.args else None
            raise cause if isinstance(cause, OSError) else OSError(errno.EIO, str(error)) from error

    locker: Any = getattr(portalocker.portalocker, "FlockLocker", None)
    return _Flock(
        in_its_place if locker is None else locker().locker,
        int(portalocker.LOCK_EX | portalocker.LOCK_NB),
        int(portalocker.LOCK_UN),
    )


def try_lock(file: fileio.File) -> bool:
    """Lock a file for this process, until it is unlocked or closed; False when another one holds it.

    Raises `NoLocksError`, `StorageError`.
    """
    flock = _flock()
    try:
        flock.call(file.descriptor, flock.exclusively)
    except OSError as error:
        if error.errno in _HELD:
            return False
        if error.errno in _NO_LOCKS:
            raise NoLocksError(error.strerror) from error
        raise StorageError.from_os_error("lock", file.path, error) from error
    return True


def unlock(file: fileio.File) -> None:
    """Give a locked file free."""
    flock = _flock()
    try:
        flock.call(file.descriptor, flock.unlock)
    except OSError as error:
        raise StorageError.from_os_error("unlock", file.path, error) from error


class ProcessLock:
    """An exclusive lock of one owner between the processes of one host.

    Callers may rely on: two processes never hold it at once, on a local file system; a process that dies
    gives it up. They may not rely on it between hosts, nor on file systems without locks (one warning, and
    work goes on), nor for threads: the owner's queue serializes those.

    The lock file stays open from one holding to the next, until `let_go`. A forked child must begin with
    `start_anew_in_child`: what it shares with the parent is the lock itself.
    """

    def __init__(self, paths: OwnerPaths, logger: logging.Logger) -> None:
        self._paths = paths
        self._logger = logger
        _flock()
        self._unsupported = False
        # Kept open from one holding to the next, with the number by which others would know it.
        self._file: fileio.KeptFile | None = None
        self._generation: tuple[int, int] | None = None
        # What may be locked now. Set before it is, so that an interrupt in between leaves nothing locked.
        self._held: fileio.KeptFile | None = None

    def let_go(self) -> None:
        """Keep the lock file open no longer than it is held: the owner is not in use."""
        self._file = None

    def start_anew_in_child(self) -> None:
        """Let go, in a forked child, of what may be the parent's lock: it would outlive the parent here."""
        for file in (self._file, self._held):
            if file is not None:
                file.close()
        self._file = self._held = None

    @contextlib.contextmanager
    def held(self, options: StoreOptions) -> Iterator[None]:
        """Hold the lock for the `with` block. Raises as `take` does."""
        try:
            self.take(options)
            yield
        finally:
            self.give_back()

    def take(self, options: StoreOptions) -> None:
        """Wait for the lock. `give_back` must follow, even after an error: what `held` is for, at less cost.

        Raises `LockTimeoutError` after `options.lock_timeout` seconds, `StorageError` when the lock file
        cannot be made, such as in a directory that is read-only.
        """
        if self._unsupported or not options.process_lock:
            return
        file = self._held = self._file
        if file is None or not (self._try_lock(file) and self._is_current(file)):
            self._file = self._held = None
            self._wait(options)

    def give_back(self) -> None:
        """Let others have the lock."""
        file, self._held = self._held, None
        if file is not None:
            # Closing alone would not do: a child forked meanwhile may share the descriptor.
            try:
                unlock(file)
            except BaseException:
                self.let_go()
                raise

    def _wait(self, options: StoreOptions) -> None:
        """Open the lock file and lock it, but on a file system that knows no locks."""
        give_up = time.monotonic() + options.lock_timeout
        wait = _FIRST_WAIT
        while True:
            file = self._held = self._open(options)
            status = file.status()
            self._generation = (status.st_dev, status.st_ino)
            if self._try_lock(file) and self._is_current(file):
                self._file = file
                return
            del file
            self._held = None
            if self._unsupported:
                return
            if time.monotonic() >= give_up:
                raise LockTimeoutError(
                    f"another process has held {self._paths.write_lock!r} for {options.lock_timeout:g} s; "
                    "find it with `fuser`, or wait longer with a greater lock_timeout"
                )
            time.sleep(min(wait, max(0.0, give_up - time.monotonic())))
            wait = min(wait * 2, _LONGEST_WAIT)

    def _open(self, options: StoreOptions) -> fileio.KeptFile:
        path = self._paths.write_lock
        while True:
            fileio.make_directories(self._paths.lock_directories, options.directory_mode)
            # Locks need a descriptor that may write, on network mounts at least.
            with contextlib.suppress(FileNotFoundError):
                return fileio.open_for_overwriting(path).kept()
            with contextlib.suppress(FileExistsError):
                return fileio.create(path, options.file_mode).kept()

    def _try_lock(self, file: fileio.File) -> bool:
        try:
            return try_lock(file)
        except StorageError:
            self._file = self._held = None
            raise
        except NoLocksError as error:
            self._unsupported = True
            self._logger.warning(
                "%r is on a file system without locks (%s): going on without; do not write to %s/%s from "
                "several processes at once",
                file.path,
                error,
                self._paths.owner_kind,
                self._paths.owner_id,
            )
            return False

    def _is_current(self, file: fileio.File) -> bool:
        """Whether others would lock this same file: somebody may have cleaned `.locks` by hand."""
        found = fileio.status(file.path)
        return found is not None and (found.st_dev, found.st_ino) == self._generation

"""The lock that keeps writers of other processes on this host out while one of them writes."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any, Final

from gotong_memfile import fileio
from gotong_memfile.config import StoreOptions
from gotong_memfile.errors import LockTimeoutError, StorageError
from gotong_memfile.layout import OwnerPaths

_NO_LOCKS: Final = frozenset([errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF])
"""What file systems without locks answer: many network and FUSE mounts."""

_FIRST_WAIT: Final = 0.001
_LONGEST_WAIT: Final = 0.05


class NoLocksError(Exception):
    """The file system knows no locks."""


@cache
def _portalocker() -> ModuleType:
    """The library that locks.

    Imported with the first store, not with the package, for it takes as long as all the rest; and not with
    the first write, for that may come when the interpreter shuts down and imports nothing more.
    """
    import portalocker  # noqa: PLC0415

    return portalocker


@cache
def _locker() -> Any:
    """What has `lock` and `unlock`: where there is `flock`, its class itself. The functions in front of it,
    which find out each time which one to use, take three times as long.
    """
    flock = getattr(_portalocker().portalocker, "FlockLocker", None)
    return _portalocker() if flock is None else flock()


@cache
def _flags() -> Any:
    return _portalocker().LOCK_EX | _portalocker().LOCK_NB


def try_lock(file: fileio.File) -> bool:
    """Lock a file for this process, until it is unlocked or closed; False when another one holds it.

    Raises `NoLocksError`, `StorageError`.
    """
    portalocker = _portalocker()
    try:
        _locker().lock(file.descriptor, _flags())
    except portalocker.AlreadyLocked:
        return False
    except portalocker.LockException as error:
        cause = error.args[0] if error.args else None
        if not isinstance(cause, OSError):
            raise StorageError(
                f"cannot lock {file.path!r}: {error}; process_lock=False goes without"
            ) from error
        if cause.errno not in _NO_LOCKS:
            raise StorageError.from_os_error("lock", file.path, cause) from error
        raise NoLocksError(cause.strerror) from error
    return True


def unlock(file: fileio.File) -> None:
    """Give a locked file free."""
    _locker().unlock(file.descriptor)


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
        _locker()
        self._unsupported = False
        self._file: fileio.KeptFile | None = None
        self._status: os.stat_result | None = None

    def let_go(self) -> None:
        """Keep the lock file open no longer than it is held: the owner is not in use."""
        self._file = self._status = None

    def start_anew_in_child(self) -> None:
        """Let go, in a forked child, of what may be the parent's lock: it would outlive the parent here."""
        if self._file is not None:
            self._file.close()
        self.let_go()

    @contextlib.contextmanager
    def held(self, options: StoreOptions) -> Iterator[None]:
        """Hold the lock for the `with` block.

        Raises `LockTimeoutError` after `options.lock_timeout` seconds, `StorageError` when the lock file
        cannot be made, such as in a directory that is read-only.
        """
        if self._unsupported or not options.process_lock:
            yield
            return
        file = self._file
        try:
            if file is None or not (self._try_lock(file) and self._is_current(file)):
                self._file = file = None
                self._file = file = self._locked_file(options)
            yield
        finally:
            # Also where an interrupt came before it was known to be locked. If `let_go` was called meanwhile,
            # the last reference goes here, and that unlocks it.
            if file is not None and self._file is file:
                self._unlock(file)

    def _locked_file(self, options: StoreOptions) -> fileio.KeptFile | None:
        """The lock file, open and locked, or None where the file system knows no locks."""
        give_up = time.monotonic() + options.lock_timeout
        wait = _FIRST_WAIT
        while True:
            file = self._open(options)
            self._status = file.status()
            if self._try_lock(file) and self._is_current(file):
                return file
            del file
            if self._unsupported:
                return None
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

    def _unlock(self, file: fileio.KeptFile) -> None:
        try:
            # Closing alone would not do: a child forked meanwhile may share the descriptor.
            unlock(file)
        except BaseException:
            self.let_go()
            raise

    def _is_current(self, file: fileio.File) -> bool:
        """Whether others would lock this same file: somebody may have cleaned `.locks` by hand."""
        found = fileio.status(file.path)
        return found is not None and self._status is not None and os.path.samestat(found, self._status)

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
from typing import Final

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


def try_lock(file: fileio.File) -> bool:
    """Lock a file for this process, until it is unlocked or closed; False when another one holds it.

    Raises `NoLocksError`, `StorageError`.
    """
    portalocker = _portalocker()
    try:
        portalocker.lock(file.descriptor, portalocker.LOCK_EX | portalocker.LOCK_NB)
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
    _portalocker().unlock(file.descriptor)


class ProcessLock:
    """An exclusive lock of one owner between the processes of one host.

    Callers may rely on: two processes never hold it at once, on a local file system; a process that dies
    gives it up. They may not rely on it between hosts, nor on file systems without locks (one warning, and
    work goes on), nor for threads: the owner's queue serializes those.

    Each holding opens the lock file anew, so nothing is shared with a forked child for longer than that.
    """

    def __init__(self, paths: OwnerPaths, logger: logging.Logger) -> None:
        self._paths = paths
        self._logger = logger
        _portalocker()
        self._unsupported = False
        self._held: fileio.File | None = None

    def start_anew_in_child(self) -> None:
        """Let go, in a forked child, of the lock that the parent holds: it would outlive the parent here."""
        if self._held is not None:
            self._held.close()
            self._held = None

    @contextlib.contextmanager
    def held(self, options: StoreOptions) -> Iterator[None]:
        """Hold the lock for the `with` block.

        Raises `LockTimeoutError` after `options.lock_timeout` seconds, `StorageError` when the lock file
        cannot be made, such as in a directory that is read-only.
        """
        if self._unsupported or not options.process_lock:
            yield
            return
        with contextlib.ExitStack() as stack:
            file = self._locked_file(options)
            if file is not None:
                self._held = file
                stack.callback(self._release, file)
            yield

    def _locked_file(self, options: StoreOptions) -> fileio.File | None:
        """The lock file, open and locked, or None where the file system knows no locks."""
        give_up = time.monotonic() + options.lock_timeout
        wait = _FIRST_WAIT
        while True:
            file = self._open(options)
            try:
                if self._try_lock(file) and self._is_current(file):
                    return file
            except BaseException:
                file.close()
                raise
            file.close()
            if self._unsupported:
                return None
            if time.monotonic() >= give_up:
                raise LockTimeoutError(
                    f"another process has held {self._paths.write_lock!r} for {options.lock_timeout:g} s; "
                    "find it with `fuser`, or wait longer with a greater lock_timeout"
                )
            time.sleep(min(wait, max(0.0, give_up - time.monotonic())))
            wait = min(wait * 2, _LONGEST_WAIT)

    def _open(self, options: StoreOptions) -> fileio.File:
        path = self._paths.write_lock
        while True:
            fileio.make_directories(self._paths.lock_directories, options.directory_mode)
            # Locks need a descriptor that may write, on network mounts at least.
            with contextlib.suppress(FileNotFoundError):
                return fileio.open_for_overwriting(path)
            with contextlib.suppress(FileExistsError):
                return fileio.create(path, options.file_mode)

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

    def _release(self, file: fileio.File) -> None:
        if self._held is not file:
            return  # this is a child that was forked meanwhile: the lock is the parent's
        self._held = None
        try:
            # Closing alone would not do: a child forked meanwhile may share the descriptor.
            unlock(file)
        finally:
            file.close()

    @staticmethod
    def _is_current(file: fileio.File) -> bool:
        """Whether others would lock this same file: somebody may have cleaned `.locks` by hand."""
        found = fileio.status(file.path)
        return found is not None and os.path.samestat(found, file.status())

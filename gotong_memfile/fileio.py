"""The one seam to the file system: everything that touches the disk goes through these functions.

Tests play disk faults by replacing this module's `os`; production code pays nothing for that. Symbolic
links are never followed below the root, and only regular files are opened. Failures are typed
(`StorageError` and its kin); a file that is missing, or was made by another in between, gives the builtin
`FileNotFoundError` or `FileExistsError`, which callers expect.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Final, TypeVar

from gotong_memfile.errors import RootNotDirectoryError, StorageError, SyncFailedError, UnsafePathError

_SAFE_OPEN: Final = (
    getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
)
_COPY_STEP: Final = 8 * 1024 * 1024
_NO_KERNEL_COPY: Final = frozenset([errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM])
_NO_DIRECTORY_SYNC: Final = frozenset([errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES])


_Closing = TypeVar("_Closing", bound="Closing")


class Closing(ABC):
    """What holds descriptors, and lets them go at the end of a `with`."""

    @abstractmethod
    def close(self) -> None:
        """Let the descriptors go."""

    def __enter__(self: _Closing) -> _Closing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class File(Closing):
    """An open regular file. Close it, or use it in a `with`."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.descriptor)

    def kept(self) -> KeptFile:
        """The same open file, to be kept: from now on it is closed by itself. Use only what this returns."""
        return KeptFile(self.path, self.descriptor)

    def status(self) -> os.stat_result:
        """What the file system says of this file, also after its name went to another one."""
        try:
            return os.fstat(self.descriptor)
        except OSError as error:
            raise StorageError.from_os_error("read", self.path, error) from error

    def read_at(self, offset: int, size: int) -> bytes:
        """At most `size` bytes from `offset`; fewer only at the end of the file."""
        parts = []
        try:
            while size > 0:
                part = os.pread(self.descriptor, min(size, _COPY_STEP), offset)
                if not part:
                    break
                parts.append(part)
                offset += len(part)
                size -= len(part)
        except OSError as error:
            raise StorageError.from_os_error("read", self.path, error) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, data: bytes | memoryview) -> int:
        """Write at least one byte of `data`; how many."""
        try:
            return os.write(self.descriptor, data)
        except OSError as error:
            raise StorageError.from_os_error("write to", self.path, error) from error

    def write_all(self, data: bytes) -> None:
        """Write all of `data`; on an error part of it may be in the file."""
        rest = memoryview(data)
        while rest:
            rest = rest[self.write(rest) :]

    def position(self) -> int:
        """Where the last write of this descriptor ended."""
        return os.lseek(self.descriptor, 0, os.SEEK_CUR)

    def overwrite(self, data: bytes, offset: int) -> None:
        """Write `data` at `offset`, whatever is there. Requires: not opened for appending."""
        with _typed("write to", self.path):
            os.pwrite(self.descriptor, data, offset)

    def copy_from(self, source: File, offset: int, size: int) -> None:
        """Append `size` bytes of `source` from `offset`, in the kernel where it can.

        Raises `StorageError` when `source` ends before that: another program cut it off meanwhile.
        """
        in_kernel = hasattr(os, "copy_file_range")
        while size > 0:
            step = min(size, _COPY_STEP)
            if in_kernel:
                try:
                    copied = os.copy_file_range(source.descriptor, self.descriptor, step, offset)
                except OSError as error:
                    if error.errno not in _NO_KERNEL_COPY:
                        raise StorageError.from_os_error("copy", source.path, error) from error
                    in_kernel = False
                    continue
            else:
                part = source.read_at(offset, step)
                self.write_all(part)
                copied = len(part)
            if not copied:
                raise StorageError(
                    f"{source.path!r} became shorter while it was copied; nothing was changed, try again"
                )
            offset += copied
            size -= copied

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        with _typed("cut back", self.path):
            os.ftruncate(self.descriptor, size)

    def sync(self) -> None:
        """Bring the file's bytes to the disk itself."""
        try:
            os.fsync(self.descriptor)
        except OSError as error:
            raise SyncFailedError.from_os_error("sync", self.path, error) from error

    def set_mode(self, mode: int) -> None:
        """Give the file these permissions, whatever the umask."""
        with _typed("set the permissions of", self.path):
            os.fchmod(self.descriptor, mode)

    def take_ownership_of(self, like: os.stat_result) -> None:
        """Give the file the permissions and, where this user may, the owner and group of `like`.

        An operator who compacts as root must not take the file away from the agent that writes it.
        """
        mine = self.status()
        if (mine.st_uid, mine.st_gid) != (like.st_uid, like.st_gid):
            try:
                os.fchown(self.descriptor, like.st_uid, like.st_gid)
            except PermissionError:
                with contextlib.suppress(PermissionError):
                    os.fchown(self.descriptor, -1, like.st_gid)
        self.set_mode(stat.S_IMODE(like.st_mode))


class KeptFile(File):
    """An open file that is closed when nobody refers to it any more: it is kept between calls, and shared.

    A forked child shares its place in the file with the parent, and must not use it.
    """

    def close(self) -> None:
        """Close it now, whoever refers to it."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.descriptor >= 0:
            with contextlib.suppress(OSError):  # what was written to it was answered for when it was written
                close(self.descriptor)


def open_for_reading(path: str) -> File:
    """Open a regular file to read it. Raises `FileNotFoundError`, `UnsafePathError`, `StorageError`."""
    return _open("read", path, os.O_RDONLY, 0)


def open_for_appending(path: str) -> File:
    """Open a regular file so that each write goes to its end. Raises as `open_for_reading` does."""
    return _open("append to", path, os.O_RDWR | os.O_APPEND, 0)


def open_for_overwriting(path: str) -> File:
    """Open a regular file to change bytes in its midst. Raises as `open_for_reading` does."""
    return _open("write to", path, os.O_RDWR, 0)


def create(path: str, mode: int, *, appending: bool = False) -> File:
    """Make a file with exactly these permissions. Raises `FileExistsError`, `StorageError`.

    `appending` makes each write go to its end, and rules out copies in the kernel.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | (os.O_APPEND if appending else 0)
    file = _open("create", path, flags, mode)
    try:
        file.set_mode(mode)
        _inherit_ownership(file.descriptor, path)
    except BaseException:
        file.close()
        remove(path)
        raise
    return file


def _inherit_ownership(target: str | int, path: str) -> None:
    """Let what root creates belong to the owner of its folder, who must be able to write it later."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        with _typed("create", path):
            parent = os.stat(os.path.dirname(path))
            os.chown(target, parent.st_uid, parent.st_gid)


def _open(doing: str, path: str, flags: int, mode: int) -> File:
    try:
        descriptor = os.open(path, flags | _SAFE_OPEN, mode)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EISDIR, errno.ENXIO}:
            raise _unsafe(path) from error
        raise StorageError.from_os_error(doing, path, error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _unsafe(path)
    return File(path, descriptor)


def status(path: str) -> os.stat_result | None:
    """What is at `path` itself, links not followed, or None when nothing is."""
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return None
        raise StorageError.from_os_error("read", path, error) from error


def exists(path: str) -> bool:
    """Whether anything is at `path`, a broken link included."""
    return status(path) is not None


def is_directory(path: str) -> bool:
    """Whether a directory is at `path`. Raises `UnsafePathError` for a link or anything else there."""
    found = status(path)
    if found is None:
        return False
    if stat.S_ISLNK(found.st_mode):
        raise UnsafePathError(
            f"{path!r} is a symbolic link, and nothing under a memory root is followed through one; "
            "replace it by the real directory"
        )
    if not stat.S_ISDIR(found.st_mode):
        raise RootNotDirectoryError(f"{path!r} should be a directory but is a file; move it away")
    return True


def require_regular_file(path: str) -> None:
    """Raise `UnsafePathError` when what is at `path` is a link or anything but a regular file."""
    found = status(path)
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise _unsafe(path)


def listing(path: str) -> list[str]:
    """The names in a directory, sorted; none when it does not exist."""
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError.from_os_error("read", path, error) from error


def make_directory(path: str, mode: int) -> None:
    """Make a directory with exactly these permissions, unless it is there. Its parent must exist."""
    try:
        os.mkdir(path, mode)
        os.chmod(path, mode)
        _inherit_ownership(path, path)
    except FileExistsError:
        if not is_directory(path):
            raise
    except OSError as error:
        raise StorageError.from_os_error("create", path, error) from error


def make_directories(paths: Sequence[str], mode: int) -> None:
    """Make the directories that are not there, outermost first, with exactly these permissions."""
    for path in paths:
        if not is_directory(path):
            make_directory(path, mode)


def make_root(path: str, mode: int) -> None:
    """Make a directory and those that lead to it, unless it is there.

    Raises `RootNotDirectoryError`, `NotWritableError`.
    """
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent != path:
        make_root(parent, mode)
    make_directory(path, mode)


def replace(source: str, target: str) -> None:
    """Give the file `source` the name `target`, whose old file loses it, in one step."""
    with _typed("replace", target):
        os.replace(source, target)


def move_directory(source: str, target: str) -> None:
    """Give a directory another name on the same file system. Requires: `target` is free."""
    with _typed("move", source):
        os.rename(source, target)


def remove(path: str) -> None:
    """Remove a file, if it is there."""
    with _typed("remove", path), contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def remove_empty_directory(path: str) -> bool:
    """Remove a directory if it is empty; whether it is gone."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
            return False
        raise StorageError.from_os_error("remove", path, error) from error
    return True


def remove_tree(path: str) -> None:
    """Remove a directory and all in it; links in it are removed, not followed."""
    with _typed("remove", path), contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def sync_directory(path: str) -> None:
    """Bring a directory's names to the disk itself, on file systems that can."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise SyncFailedError.from_os_error("sync", path, error) from error


@contextlib.contextmanager
def _typed(doing: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError.from_os_error(doing, path, error) from error


def _unsafe(path: str) -> UnsafePathError:
    return UnsafePathError(
        f"{path!r} is a symbolic link or no regular file, and is neither followed nor opened; "
        "replace it by the real file"
    )

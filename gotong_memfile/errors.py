"""Every error that the library raises on purpose.

Each class has a stable `code` for programs and derives, beside `MemoryFileError`, from the builtin that
a caller would catch. A message says what was wrong, where, and what to do.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Final


class MemoryFileError(Exception):
    """Root of all errors of this library.

    >>> try:
    ...     raise HandleClosedError("the handle of agent/writer is closed")
    ... except MemoryFileError as error:
    ...     print(error.code)
    handle_closed
    """

    code: ClassVar[str] = "memory_file_error"


class InvalidEntryError(MemoryFileError, ValueError):
    """A text, meta or id that an entry cannot hold; the message names the path of the value."""

    code = "invalid_entry"


class KindNotAllowedError(MemoryFileError, ValueError):
    """A kind that is no memory kind, or that the owner's configuration leaves out."""

    code = "kind_not_allowed"


class DuplicateIdError(MemoryFileError, ValueError):
    """An id that the owner already uses for an entry with other content or of another kind."""

    code = "duplicate_id"


class InvalidQueryError(MemoryFileError, ValueError):
    """An argument of `recall`, `list` or `scan` that has no meaning."""

    code = "invalid_query"


class InvalidConfigError(MemoryFileError, ValueError):
    """A configuration or option with an unknown key or a value out of range."""

    code = "invalid_config"


class ConfigConflictError(MemoryFileError, ValueError):
    """An owner is attached already, with another configuration than the one asked for now."""

    code = "config_conflict"


class InvalidOwnerError(MemoryFileError, ValueError):
    """An owner kind or id that cannot become a folder name."""

    code = "invalid_owner"


class InvalidScopeError(MemoryFileError, ValueError):
    """A scope that is unknown or lacks the id that it needs."""

    code = "invalid_scope"


class OwnerCollisionError(MemoryFileError, ValueError):
    """Two owner ids that this file system holds for one folder (case or Unicode normalization)."""

    code = "owner_collision"


class HandleClosedError(MemoryFileError, ValueError):
    """A verb on a handle that was closed or detached. Files do the same: `ValueError`."""

    code = "handle_closed"


class NotInitializedError(MemoryFileError, RuntimeError):
    """A plugin that was used before `init` or after `shutdown`."""

    code = "not_initialized"


class InvalidTrashIdError(MemoryFileError, ValueError):
    """A trash id that is not 16 hex digits: nothing outside the trash is ever touched."""

    code = "invalid_trash_id"


class TrashRefMismatchError(MemoryFileError, ValueError):
    """A trash reference whose owner is not the one in the `meta.json` on disk."""

    code = "trash_ref_mismatch"


class TrashNotFoundError(MemoryFileError, LookupError):
    """No trash entry of this id: restored or deleted already, or of another root."""

    code = "trash_not_found"


class TrashDamagedError(MemoryFileError, ValueError):
    """A trash entry whose `meta.json` cannot be read or makes no sense."""

    code = "trash_damaged"


class TrashRestoreConflictError(MemoryFileError, FileExistsError):
    """The owner has data again: a restore would have to overwrite it."""

    code = "trash_restore_conflict"


class LockTimeoutError(MemoryFileError, TimeoutError):
    """Another process held the owner's lock for longer than the time allowed."""

    code = "lock_timeout"


class MutationPendingError(MemoryFileError, BlockingIOError):
    """The TypeScript side left a rewrite of this owner half done: reads go on, writes wait for it."""

    code = "mutation_pending"


class StorageError(MemoryFileError, OSError):
    """The file system refused an operation. `errno` and `filename` are those of the cause."""

    code = "storage"
    _way_out: ClassVar[str] = "nothing was changed; the call can be made again once the cause is gone"

    @classmethod
    def from_os_error(cls, doing: str, path: str, cause: OSError) -> StorageError:
        """The typed error for `cause`, met while `doing` something ("read", "append to") to `path`."""
        kind = _BY_ERRNO.get(cause.errno or 0, cls) if cls is StorageError else cls
        if kind is NotWritableError and doing == "read":
            kind = NotReadableError
        reason = os.strerror(cause.errno) if cause.errno else str(cause)
        error = kind(f"cannot {doing} {path!r}: {reason}; {kind._way_out}")
        error.errno = cause.errno
        error.filename = path
        return error

    def __str__(self) -> str:
        # OSError would show errno and filename in place of the message.
        return str(self.args[0]) if self.args else self.code


class SyncFailedError(StorageError):
    """The disk did not confirm what was written: with `durability="power"` it is not acknowledged.

    An entry was taken back, and the next write looks at the file anew; syncing again proves nothing.
    """

    code = "sync_failed"
    _way_out = "it is not acknowledged; see to the disk, then call again"


class NotWritableError(StorageError, PermissionError):
    """The directory may be read but not written by this process."""

    code = "not_writable"
    _way_out = "reading goes on; give this user write permission, or mount it writable, to write"


class NotReadableError(StorageError, PermissionError):
    """The file or directory may not be read by this process."""

    code = "not_readable"
    _way_out = "give this user read permission"


class DiskFullError(StorageError):
    """The disk, or the user's quota, is full."""

    code = "disk_full"
    _way_out = "nothing was stored; free some space and call again"


class UnsafePathError(StorageError):
    """Something under the root is a symbolic link or no regular file: it is neither followed nor opened."""

    code = "unsafe_path"
    _way_out = "replace it by the real file or directory"


class RootNotDirectoryError(StorageError, NotADirectoryError):
    """The root, or a folder under it, is taken by something that is no directory."""

    code = "root_not_directory"
    _way_out = "move that file away, or name another root"


_BY_ERRNO: Final[Mapping[int, type[StorageError]]] = MappingProxyType(
    {
        errno.EROFS: NotWritableError,
        errno.EACCES: NotWritableError,
        errno.EPERM: NotWritableError,
        errno.ENOSPC: DiskFullError,
        errno.EDQUOT: DiskFullError,
        errno.ELOOP: UnsafePathError,
        errno.ENOTDIR: RootNotDirectoryError,
        errno.EEXIST: RootNotDirectoryError,
    }
)

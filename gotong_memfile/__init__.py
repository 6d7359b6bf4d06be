"""Memory for agents in plain JSONL files: synchronous, thread-safe, and never losing what it acknowledged.

>>> from gotong_memfile import open_memory
>>> with open_memory("quickstart-memory", "agent/writer") as memory:
...     entry = memory.remember("Prefers dark mode", kind="semantic")
...     memory.recall("DARK")[0].text
'Prefers dark mode'
"""

from gotong_memfile._version import __version__
from gotong_memfile.config import MemoryFileConfig
from gotong_memfile.errors import (
    ConfigConflictError,
    DiskFullError,
    DuplicateIdError,
    HandleClosedError,
    InvalidConfigError,
    InvalidEntryError,
    InvalidOwnerError,
    InvalidQueryError,
    InvalidScopeError,
    InvalidTrashIdError,
    KindNotAllowedError,
    LockTimeoutError,
    MemoryFileError,
    MutationPendingError,
    NotInitializedError,
    NotReadableError,
    NotWritableError,
    OwnerCollisionError,
    RootNotDirectoryError,
    StorageError,
    SyncFailedError,
    TrashDamagedError,
    TrashNotFoundError,
    TrashRefMismatchError,
    TrashRestoreConflictError,
    UnsafePathError,
)
from gotong_memfile.handle import MemoryFileHandle
from gotong_memfile.layout import MemoryKind
from gotong_memfile.lease import MultiHostWarning
from gotong_memfile.models import EntryList, MemoryEntry, MemoryQuery, NewMemoryEntry, Owner, resolve_owner
from gotong_memfile.plugin import MemoryFilePlugin, open_memory
from gotong_memfile.surface import (
    HubSurface,
    KindStats,
    MemoryHandle,
    MemoryStats,
    ServiceInitCtx,
    ServiceSnapshot,
    TrashRef,
)

__all__ = [
    "ConfigConflictError",
    "DiskFullError",
    "DuplicateIdError",
    "EntryList",
    "HandleClosedError",
    "HubSurface",
    "InvalidConfigError",
    "InvalidEntryError",
    "InvalidOwnerError",
    "InvalidQueryError",
    "InvalidScopeError",
    "InvalidTrashIdError",
    "KindNotAllowedError",
    "KindStats",
    "LockTimeoutError",
    "MemoryEntry",
    "MemoryFileConfig",
    "MemoryFileError",
    "MemoryFileHandle",
    "MemoryFilePlugin",
    "MemoryHandle",
    "MemoryKind",
    "MemoryQuery",
    "MemoryStats",
    "MultiHostWarning",
    "MutationPendingError",
    "NewMemoryEntry",
    "NotInitializedError",
    "NotReadableError",
    "NotWritableError",
    "Owner",
    "OwnerCollisionError",
    "RootNotDirectoryError",
    "ServiceInitCtx",
    "ServiceSnapshot",
    "StorageError",
    "SyncFailedError",
    "TrashDamagedError",
    "TrashNotFoundError",
    "TrashRef",
    "TrashRefMismatchError",
    "TrashRestoreConflictError",
    "UnsafePathError",
    "__version__",
    "open_memory",
    "resolve_owner",
]

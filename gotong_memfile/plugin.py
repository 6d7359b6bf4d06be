"""The `memory:file` plugin: attaches owners to their files, and keeps deleted ones in the trash."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from gotong_memfile import fileio
from gotong_memfile._version import __version__
from gotong_memfile.config import MemoryFileConfig, StoreOptions, split_settings
from gotong_memfile.errors import (
    ConfigConflictError,
    InvalidConfigError,
    InvalidEntryError,
    InvalidQueryError,
    NotInitializedError,
    NotWritableError,
)
from gotong_memfile.handle import MemoryFileHandle
from gotong_memfile.layout import MEMORY_KINDS, TRASH, owner_paths
from gotong_memfile.models import Owner
from gotong_memfile.reader import OwnerReader
from gotong_memfile.registry import close_store, open_store
from gotong_memfile.surface import (
    PREVIEW_BYTES,
    HubSurface,
    LocalHub,
    ServiceInitCtx,
    ServiceSnapshot,
    TrashRef,
)
from gotong_memfile.trash import Trash

_logger: Final = logging.getLogger("gotong_memfile")


class MemoryFilePlugin:
    """Memory in JSONL files as a service of a hub.

    Options are those of `StoreOptions`, by name. Use it between `init` and `shutdown`; after `shutdown` it
    can be initialized again. All methods may be called from any thread, and take an owner as `Owner` or as
    a string such as `"agent/writer"`.

    >>> plugin = MemoryFilePlugin(durability="power")
    >>> plugin.init(ServiceInitCtx(root_dir="quickstart-memory"))
    >>> plugin.attach("agent/writer").remember("said hello").text
    'said hello'
    >>> plugin.describe("agent/writer").item_count
    1
    >>> plugin.shutdown()
    """

    type: ClassVar[str] = "memory"
    impl: ClassVar[str] = "file"
    version: ClassVar[str] = __version__
    description: ClassVar[str] = "Episodic, semantic and working memory in plain JSONL files"

    def __init__(self, **options: Any) -> None:
        self._options = StoreOptions.parse(options)
        self._lock = threading.Lock()
        self._attached: dict[Owner, MemoryFileHandle] = {}
        self._root: str | None = None
        self._hub: HubSurface = LocalHub()

    # -- life --------------------------------------------------------------------------------------------

    def init(self, ctx: ServiceInitCtx) -> None:
        """Make the root and its trash, where they are not there, and be ready.

        A root that can be read but not written is fine: only writing will fail. Raises
        `RootNotDirectoryError`, `NotWritableError` when a root must be made and cannot be.
        """
        logger = ctx.logger or _logger
        root = prepare_root(ctx.root_dir, self._options, logger)
        with self._lock:
            self._root = root
            self._hub = ctx.hub or LocalHub()
            self._trash = Trash(root, self._options, logger, (self.type, self.impl))

    def validate_config(self, raw: Mapping[str, Any] | MemoryFileConfig | None) -> MemoryFileConfig:
        """The configuration that `raw` means. Raises `InvalidConfigError`, which names the key."""
        return MemoryFileConfig.parse(raw)

    def attach(
        self, owner: Owner | str, config: Mapping[str, Any] | MemoryFileConfig | None = None
    ) -> MemoryFileHandle:
        """The owner's memory; the same handle again until it is detached or closed.

        Raises `InvalidOwnerError`, `OwnerCollisionError`, `UnsafePathError`, `InvalidConfigError`, and
        `ConfigConflictError` when it is attached with another configuration.
        """
        owner, checked = Owner.of(owner), MemoryFileConfig.parse(config)
        root = self._require_root()
        with self._lock:
            handle = self._attached.get(owner)
            if handle is not None and not handle.closed:
                if handle.config != checked:
                    raise ConfigConflictError(
                        f"{str(owner)!a} is attached already with {handle.config!r}; "
                        "detach it first, or attach it with the same configuration"
                    )
                return handle
            handle = MemoryFileHandle._open(root, owner, checked, self._options, self._hub)
            self._attached[owner] = handle
            return handle

    def detach(self, owner: Owner | str) -> None:
        """Close the owner's handle. An owner that is not attached is no error."""
        with self._lock:
            handle = self._attached.pop(Owner.of(owner), None)
        if handle is not None:
            handle.close()

    def shutdown(self) -> None:
        """Close all handles. Calling it again, or before `init`, does nothing."""
        with self._lock:
            handles = list(self._attached.values())
            self._attached.clear()
            self._root = None
        for handle in handles:
            handle.close()

    # -- trash -------------------------------------------------------------------------------------------

    def soft_delete(self, owner: Owner | str, reason: str | None = None) -> TrashRef:
        """Move all that the owner has into the trash, for 30 days.

        Again on the same UTC day it gives the same reference; what was written since then is kept beside
        the first. Handles stay usable: what they write begins a new life of the owner.
        """
        if reason is not None and not isinstance(reason, str):
            raise InvalidEntryError(f"reason must be a string, not {reason!r}")
        self._require_root()
        return self._trash.soft_delete(Owner.of(owner), self._now(), reason)

    def restore(self, ref: TrashRef | str) -> Owner:
        """Bring a deleted owner back, by its reference or trash id; the oldest life when there are several.

        Raises `TrashRestoreConflictError` when the owner has data again, `TrashNotFoundError`,
        `TrashDamagedError`, `TrashRefMismatchError`, `InvalidTrashIdError`.
        """
        self._require_root()
        return self._trash.restore(ref)

    def hard_delete(self, ref: TrashRef | str) -> None:
        """Delete a trash entry for good. Raises as `restore` does."""
        self._require_root()
        self._trash.hard_delete(ref)

    def list_trash(self) -> list[TrashRef]:
        """What is in the trash, last deleted first."""
        self._require_root()
        return self._trash.entries()

    def sweep_trash(self, now: int | None = None) -> list[TrashRef]:
        """Delete for good what has expired by epoch ms `now` (None: the present); what was deleted."""
        if now is not None and (not isinstance(now, int) or isinstance(now, bool)):
            raise InvalidQueryError(f"now must be epoch ms as an int, not {now!r}")
        self._require_root()
        return self._trash.sweep(self._now() if now is None else now)

    # -- report ------------------------------------------------------------------------------------------

    def describe(self, owner: Owner | str) -> ServiceSnapshot:
        """What the owner has, attached or not. A stranger has 0 bytes and 0 items."""
        owner = Owner.of(owner)
        store = open_store(owner_paths(self._require_root(), owner.kind, owner.id))
        try:
            return _describe(store.reader)
        finally:
            close_store(store)

    def _now(self) -> int:
        return (self._options.clock or self._hub.now)()

    def _require_root(self) -> str:
        root = self._root
        if root is None:
            raise NotInitializedError(
                "the memory:file plugin is not initialized; call init(ServiceInitCtx(root_dir=…))"
            )
        return root


def prepare_root(
    root_dir: str | os.PathLike[str], options: StoreOptions, logger: logging.Logger = _logger
) -> str:
    """The real path of the root, which is made where it is not there, with its trash."""
    if not isinstance(root_dir, (str, os.PathLike)) or not os.fspath(root_dir):
        raise InvalidConfigError(f"root_dir must be the path of a directory, not {root_dir!r}")
    root = os.path.realpath(os.path.expanduser(os.fspath(root_dir)))
    fileio.make_root(root, options.directory_mode)
    trash = os.path.join(root, TRASH)
    if not fileio.is_directory(trash):
        try:
            fileio.make_directory(trash, options.directory_mode)
        except NotWritableError as error:
            logger.info("%s", error)
    return root


def open_memory(
    root: str | os.PathLike[str], owner: Owner | str, **config_and_options: Any
) -> MemoryFileHandle:
    """Open an owner's memory in one line, for scripts and notebooks; close it, or use it in a `with`.

    Takes the names of `MemoryFileConfig` (`kinds`, `max_episodic_bytes`, `max_semantic_bytes`) and of
    `StoreOptions` (`durability`, `process_lock`, `lock_timeout`, `file_mode`, `directory_mode`,
    `advisory_lock`, `lease_duration`, `clock`).

    >>> with open_memory("quickstart-memory", "user/u-7", max_episodic_bytes=1_000_000) as memory:
    ...     memory.remember("lives in KL", kind="semantic").text
    'lives in KL'
    """
    owner = Owner.of(owner)
    config, options = split_settings(config_and_options)
    real_root = prepare_root(root, options)
    return MemoryFileHandle._open(real_root, owner, config, options, LocalHub())


def _describe(reader: OwnerReader) -> ServiceSnapshot:
    stats = [reader.stats(kind) for kind in MEMORY_KINDS]
    changed, preview, truncated = _preview(reader)
    return ServiceSnapshot(
        size_bytes=sum(kind.size_bytes for kind in stats),
        item_count=sum(kind.entries for kind in stats),
        corrupt_count=sum(kind.corrupt for kind in stats),
        last_access=changed,
        preview=preview,
        preview_truncated=truncated,
    )


def _preview(reader: OwnerReader) -> tuple[int | None, str, bool]:
    """When the file changed last was changed (epoch ms), its last whole lines, and whether there are more."""
    newest: tuple[int, bytes, bool] | None = None
    for kind in MEMORY_KINDS:
        snapshot = reader.snapshot(kind)
        if snapshot is None:
            continue
        changed = snapshot.status.st_mtime_ns // 1_000_000
        if newest is None or changed > newest[0]:
            start = max(0, snapshot.size - PREVIEW_BYTES)
            # One byte more tells whether the tail begins at the start of a line.
            tail = snapshot.file.read_at(max(0, start - 1), PREVIEW_BYTES + 1)
            newest = changed, tail if not start else tail[tail.find(b"\n") + 1 or len(tail) :], start > 0
    if newest is None:
        return None, "", False
    return newest[0], newest[1].decode("utf-8", "replace"), newest[2]

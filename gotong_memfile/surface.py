"""The surface that every memory plugin shares: its handle, its reports, and what a host gives it.

A vector or database plugin implements the same protocols, so that agents need not know which one they use.
"""

from __future__ import annotations

import builtins
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, Protocol, runtime_checkable

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

from gotong_memfile.layout import MemoryKind
from gotong_memfile.models import AnyStr, EntryList, Frozen, MemoryEntry, NewMemoryEntry, Owner

TRASH_RETENTION_MS: Final = 30 * 86_400_000
"""How long a deleted owner stays in the trash, in ms: 30 days (DESIGN §2)."""

PREVIEW_BYTES: Final = 32 * 1024
"""The most that a preview shows, in bytes of whole lines."""


class _Report(Frozen):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, serialize_by_alias=True)


class TrashRef(_Report):
    """A deleted owner in the trash; what `meta.json` holds. camelCase in JSON, snake_case in Python.

    `deleted_at` and `expires_at` are epoch ms. Keys that other implementations add are let through.
    """

    model_config = ConfigDict(extra="ignore")

    id: AnyStr
    type: AnyStr
    impl: AnyStr
    owner_kind: AnyStr
    owner_id: AnyStr
    deleted_at: int
    expires_at: int
    reason: AnyStr | None = None

    def is_expired(self, now: int) -> bool:
        """Whether a sweep at epoch ms `now` deletes it for good."""
        return now >= self.expires_at


class ServiceSnapshot(_Report):
    """What an owner has, without attaching it.

    `size_bytes` are the bytes of its memory files, `item_count` the entries that can be read,
    `corrupt_count` the lines that cannot, `last_access` the last change of a file in epoch ms (None:
    never), `preview` the last whole lines of the file changed last, at most 32 KiB of them.
    """

    size_bytes: int
    item_count: int
    corrupt_count: int
    last_access: int | None
    preview: AnyStr
    preview_type: AnyStr = "application/x-ndjson"
    preview_truncated: bool


class KindStats(_Report):
    """One kind of memory in numbers: bytes, entries, unreadable lines, cap in bytes, span of `ts`."""

    size_bytes: int
    entries: int
    corrupt: int
    torn_tail: bool
    max_bytes: int | None
    oldest: int | float | None
    newest: int | float | None


class MemoryStats(_Report):
    """An owner's memory in numbers, by kind."""

    owner: Owner
    path: AnyStr
    kinds: dict[MemoryKind, KindStats]

    @property
    def entries(self) -> int:
        """Entries of all kinds."""
        return sum(kind.entries for kind in self.kinds.values())

    @property
    def corrupt(self) -> int:
        """Unreadable lines of all kinds."""
        return sum(kind.corrupt for kind in self.kinds.values())


class HubSurface(Protocol):
    """What a plugin may ask of its host."""

    def now(self) -> int:
        """The present as epoch ms."""
        ...

    def publish_event(self, kind: str, data: Mapping[str, Any]) -> None:
        """Tell the host that something happened. Never called under a lock."""
        ...


class LocalHub:
    """The host of a plugin that has none: the system's clock, and events go nowhere."""

    def now(self) -> int:
        """The system's time as epoch ms."""
        return time.time_ns() // 1_000_000

    def publish_event(self, kind: str, data: Mapping[str, Any]) -> None:
        """Nobody listens; the log has a record of the same event."""


@dataclass(frozen=True, slots=True)
class ServiceInitCtx:
    """What a plugin gets from its host at `init`: its directory, a logger, the host's surface.

    Without a logger it uses its own, without a hub the system's clock.
    """

    root_dir: str | os.PathLike[str]
    logger: logging.Logger | None = None
    hub: HubSurface | None = None


@runtime_checkable
class MemoryHandle(Protocol):
    """One owner's memory, as agents use it. All verbs block, and may be called from any thread.

    Errors derive from the builtin that a caller would catch; `MemoryFileHandle` says which.
    """

    @property
    def owner(self) -> Owner:
        """Whose memory it is."""
        ...

    @property
    def closed(self) -> bool:
        """Whether `close` was called or the owner detached."""
        ...

    def remember(
        self,
        text: str,
        *,
        kind: MemoryKind = "episodic",
        meta: Mapping[str, Any] | None = None,
        id: str | None = None,
    ) -> MemoryEntry:
        """Store one entry."""
        ...

    def remember_many(self, entries: Iterable[NewMemoryEntry | Mapping[str, Any]]) -> EntryList:
        """Store entries, all or none."""
        ...

    def recall(
        self,
        text: str | None = None,
        *,
        kinds: Iterable[MemoryKind] | None = None,
        since: float | datetime | timedelta | None = None,
        k: int = 20,
    ) -> EntryList:
        """The newest entries that contain `text`."""
        ...

    def list(self, kind: MemoryKind | None = None, limit: int = 100) -> EntryList:
        """The newest entries."""
        ...

    def scan(
        self,
        kind: MemoryKind | None = None,
        *,
        since: float | datetime | timedelta | None = None,
        newest_first: bool = True,
    ) -> Iterator[MemoryEntry]:
        """All entries, one after the other."""
        ...

    def get(self, id: str) -> MemoryEntry | None:
        """The entry of this id, or None."""
        ...

    def forget(self, id: str) -> bool:
        """Erase an entry; whether there was one."""
        ...

    def forget_many(self, ids: Iterable[str]) -> int:
        """Erase entries; how many there were."""
        ...

    def clear(self, kind: MemoryKind | None = None) -> int:
        """Erase all entries; how many there were."""
        ...

    def patch_meta(self, id: str, patch: Mapping[str, Any]) -> bool:
        """Merge `patch` into an entry's meta; whether there was one."""
        ...

    def stats(self) -> MemoryStats:
        """The memory in numbers."""
        ...

    def compact(self, kind: MemoryKind | None = None) -> int:
        """Bring the files under their caps now; how many entries were dropped."""
        ...

    def flush(self) -> None:
        """Bring everything acknowledged to the disk itself."""
        ...

    def close(self) -> None:
        """Release the memory; further verbs raise."""
        ...

    def __enter__(self) -> MemoryHandle:
        """The handle itself."""
        ...

    def __exit__(
        self,
        kind: builtins.type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        ...

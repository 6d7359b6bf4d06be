"""Soft delete and restore: deleted owners stay in `.trash` for 30 days.

Each step leaves a state from which the next call goes on, whatever was killed between two of them:
`meta.json` is there before anything is moved in, and goes only after everything was moved out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Iterator
from typing import Final

from pydantic import ValidationError

from gotong_memfile import fileio
from gotong_memfile.codec import decode_document, encode_document
from gotong_memfile.config import StoreOptions
from gotong_memfile.errors import (
    InvalidOwnerError,
    MemoryFileError,
    TrashDamagedError,
    TrashNotFoundError,
    TrashRefMismatchError,
    TrashRestoreConflictError,
    UnsafePathError,
)
from gotong_memfile.folder import owner_exists
from gotong_memfile.ids import is_trash_id, trash_id
from gotong_memfile.layout import (
    META,
    TEMPORARY_PREFIX,
    TRASH,
    OwnerPaths,
    TrashPaths,
    owner_paths,
    payload_life,
    trash_paths,
)
from gotong_memfile.models import Owner, described
from gotong_memfile.registry import close_store, open_store
from gotong_memfile.surface import TRASH_RETENTION_MS, TrashRef

_PURGE_PREFIX: Final = ".purge-"
_MAX_META_BYTES: Final = 1024 * 1024


class Trash:
    """The trash of one root."""

    def __init__(
        self, root: str, options: StoreOptions, logger: logging.Logger, service: tuple[str, str]
    ) -> None:
        self._root = root
        self._directory = os.path.join(root, TRASH)
        self._options = options
        self._logger = logger
        self._type, self._impl = service

    def soft_delete(self, owner: Owner, now: int, reason: str | None) -> TrashRef:
        """Move the owner's folder into the trash.

        Again on the same UTC day it is the same trash entry; data written since then lies beside the first.
        """
        paths = owner_paths(self._root, owner.kind, owner.id)
        trash = trash_paths(self._root, trash_id(owner.kind, owner.id, now))
        owner_exists(paths)
        self._is_there(trash)
        with self._locked(paths):
            for directory in (self._directory, trash.directory):
                if not fileio.is_directory(directory):
                    fileio.make_directory(directory, self._options.directory_mode)
                    fileio.sync_directory(os.path.dirname(directory))
            ref = self._existing_ref(trash, now) or self._write_ref(trash, owner, now, reason)
            if owner_exists(paths) and not fileio.remove_empty_directory(paths.directory):
                fileio.move_directory(paths.directory, self._free_payload(trash, now))
                fileio.sync_directory(trash.directory)
                fileio.sync_directory(paths.kind_directory)
            return ref

    def restore(self, ref: TrashRef | str) -> Owner:
        """Move the oldest life in a trash entry back; the entry goes with its last life."""
        trash, paths = self._checked(ref)
        with self._locked(paths):
            found = self._require_ref(trash)
            lives = self._lives(trash)
            if lives:
                payload = os.path.join(trash.directory, lives[0])
                if not fileio.is_directory(payload):
                    raise TrashNotFoundError(f"{payload!r} has gone while it was restored")
                if owner_exists(paths) and not fileio.remove_empty_directory(paths.directory):
                    raise TrashRestoreConflictError(
                        f"{found.owner_kind}/{found.owner_id} has data again in {paths.directory!r}; "
                        "soft_delete it first, or move it away, then restore"
                    )
                fileio.make_directory(paths.kind_directory, self._options.directory_mode)
                fileio.move_directory(payload, paths.directory)
                fileio.sync_directory(paths.kind_directory)
                fileio.sync_directory(trash.directory)
            if len(lives) <= 1:
                self._remove_entry(trash)
            return Owner.parse(f"{found.owner_kind}/{found.owner_id}")

    def hard_delete(self, ref: TrashRef | str) -> None:
        """Delete a trash entry for good, with all lives in it."""
        trash, paths = self._checked(ref)
        with self._locked(paths):
            self._require_ref(trash)
            # Out of the list in one step: half a payload must never be restored.
            doomed = os.path.join(self._directory, f"{_PURGE_PREFIX}{trash.trash_id}-{secrets.token_hex(4)}")
            fileio.move_directory(trash.directory, doomed)
            fileio.sync_directory(self._directory)
        self._purge(doomed)

    def entries(self) -> list[TrashRef]:
        """What is in the trash, last deleted first. Entries that cannot be read are logged and left out."""
        refs = []
        for name in self._names():
            if not is_trash_id(name):
                continue
            trash = trash_paths(self._root, name)
            try:
                refs.append(self._require_ref(trash))
            except MemoryFileError as error:
                self._logger.warning("trash entry left out: %s", error)
        return sorted(refs, key=lambda ref: (-ref.deleted_at, ref.id))

    def sweep(self, now: int) -> list[TrashRef]:
        """Delete for good what has expired by epoch ms `now`; one failure stops no other."""
        for name in self._names():
            if name.startswith(_PURGE_PREFIX):
                with self._survived(name):
                    self._purge(os.path.join(self._directory, name))
        swept = []
        for ref in self.entries():
            if ref.is_expired(now):
                with self._survived(ref.id):
                    self.hard_delete(ref)
                    swept.append(ref)
        return swept

    @contextlib.contextmanager
    def _survived(self, name: str) -> Iterator[None]:
        try:
            yield
        except MemoryFileError as error:
            self._logger.warning("trash entry %s could not be swept: %s", name, error)

    @contextlib.contextmanager
    def _locked(self, paths: OwnerPaths) -> Iterator[None]:
        """Be the only one who writes this owner, its trash entries included."""
        store = open_store(paths)
        try:
            with store.exclusive(self._options):
                yield
        finally:
            close_store(store)

    def _names(self) -> list[str]:
        return fileio.listing(self._directory) if fileio.is_directory(self._directory) else []

    def _is_there(self, trash: TrashPaths) -> bool:
        return fileio.is_directory(self._directory) and fileio.is_directory(trash.directory)

    def _checked(self, ref: TrashRef | str) -> tuple[TrashPaths, OwnerPaths]:
        """The paths that a caller's reference leads to, by the `meta.json` on disk, not by the reference."""
        given = ref.id if isinstance(ref, TrashRef) else ref
        trash = trash_paths(self._root, given)
        found = self._require_ref(trash)
        if isinstance(ref, TrashRef):
            theirs, ours = ((one.type, one.impl, one.owner_kind, one.owner_id) for one in (ref, found))
            if theirs != ours:
                raise TrashRefMismatchError(
                    f"trash entry {trash.trash_id} is of {'/'.join(ours)!r}, but the reference says "
                    f"{'/'.join(theirs)!r}; take the reference from list_trash()"
                )
        return trash, owner_paths(self._root, found.owner_kind, found.owner_id)

    def _require_ref(self, trash: TrashPaths) -> TrashRef:
        ref = self._read_ref(trash) if self._is_there(trash) else None
        if ref is None:
            raise TrashNotFoundError(
                f"there is no trash entry {trash.trash_id} in {self._directory!r}; list_trash() says what is"
            )
        return ref

    def _read_ref(self, trash: TrashPaths) -> TrashRef | None:
        """What `meta.json` says, or None when there is none. Raises `TrashDamagedError`."""
        try:
            with fileio.open_for_reading(trash.meta) as file:
                data = file.read_at(0, _MAX_META_BYTES)
        except FileNotFoundError:
            return None
        fields = decode_document(data)
        try:
            ref = TrashRef.model_validate(fields)
            if ref.id != trash.trash_id:
                raise TrashDamagedError(
                    f"{trash.meta!r} is of trash entry {ref.id!r}; it does not belong there"
                )
            if (ref.type, ref.impl) != (self._type, self._impl):
                raise TrashDamagedError(f"{trash.meta!r} is of plugin {ref.type}:{ref.impl}, not of this one")
            owner_paths(self._root, ref.owner_kind, ref.owner_id)
        except ValidationError as error:
            reason = "no JSON object" if fields is None else described(error)
            raise TrashDamagedError(f"{trash.meta!r} cannot be read: {reason}; mend it by hand") from error
        except InvalidOwnerError as error:
            raise TrashDamagedError(f"{trash.meta!r} names no owner: {error}") from error
        return ref

    def _existing_ref(self, trash: TrashPaths, now: int) -> TrashRef | None:
        try:
            return self._read_ref(trash)
        except (TrashDamagedError, UnsafePathError) as error:
            aside = f"{trash.meta}.broken-{now}-{secrets.token_hex(4)}"
            self._logger.warning("%s; it is kept as %r", error, aside)
            fileio.replace(trash.meta, aside)
            return None

    def _write_ref(self, trash: TrashPaths, owner: Owner, now: int, reason: str | None) -> TrashRef:
        ref = TrashRef(
            id=trash.trash_id,
            type=self._type,
            impl=self._impl,
            owner_kind=owner.kind,
            owner_id=owner.id,
            deleted_at=now,
            expires_at=now + TRASH_RETENTION_MS,
            reason=reason,
        )
        temporary = os.path.join(trash.directory, f"{TEMPORARY_PREFIX}meta-{secrets.token_hex(6)}.tmp")
        try:
            with fileio.create(temporary, self._options.file_mode) as file:
                file.write_all(encode_document(ref.model_dump(exclude_none=True)))
                file.sync()
            fileio.replace(temporary, trash.meta)
        except BaseException:
            fileio.remove(temporary)
            raise
        fileio.sync_directory(trash.directory)
        return ref

    def _free_payload(self, trash: TrashPaths, now: int) -> str:
        """Where the next life goes: never onto an earlier one."""
        target = trash.payload
        while fileio.exists(target):
            target = f"{trash.payload}-{now}"
            now += 1
        return target

    def _lives(self, trash: TrashPaths) -> list[str]:
        """The names of the payloads in a trash entry, the one to restore first in front."""
        lives = [
            (life, name)
            for name in fileio.listing(trash.directory)
            if (life := payload_life(name)) is not None
        ]
        return [name for _, name in sorted(lives)]

    def _remove_entry(self, trash: TrashPaths) -> None:
        fileio.remove(trash.meta)
        for name in fileio.listing(trash.directory):
            if name.startswith(TEMPORARY_PREFIX):
                fileio.remove(os.path.join(trash.directory, name))
        if not fileio.remove_empty_directory(trash.directory):
            self._logger.warning("%r holds other files and stays", trash.directory)
        fileio.sync_directory(self._directory)

    def _purge(self, doomed: str) -> None:
        # The reference first: what is left by a crash here is no trash entry for anyone.
        fileio.remove(os.path.join(doomed, META))
        fileio.remove_tree(doomed)

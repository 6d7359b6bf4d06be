"""Where things lie under a root, and which names may become folders there.

The tree is the on-disk contract that other implementations share; the README describes it for people.
Nothing here touches the disk.
"""

from __future__ import annotations

import os
import unicodedata
from dataclasses import dataclass
from typing import Final, Literal, get_args

from gotong_memfile.errors import InvalidOwnerError, InvalidTrashIdError
from gotong_memfile.ids import is_trash_id

MemoryKind = Literal["episodic", "semantic", "working"]
"""A kind of memory; each is one file `<kind>.jsonl` in the owner's folder."""

OwnerKind = Literal["agent", "workflow-run", "shared", "user", "org", "peer"]
"""A kind of owner; each is one folder under the root."""

MEMORY_KINDS: Final[tuple[MemoryKind, ...]] = get_args(MemoryKind)
OWNER_KINDS: Final[tuple[OwnerKind, ...]] = get_args(OwnerKind)

TRASH: Final = ".trash"
LOCKS: Final = ".locks"
PAYLOAD: Final = "payload"
META: Final = "meta.json"

TEMPORARY_PREFIX: Final = ".memfile-"
"""Names of half-made files start with this: never read as data, removed at the next attach."""

FOREIGN_MUTATION_MARKERS: Final = (".mutation.prepare", ".mutation.pending")
"""Left in an owner's folder by the TypeScript side while a rewrite of its own is not finished."""

_MAX_NAME_BYTES: Final = 255
_WINDOWS_RESERVED: Final = frozenset(
    ["con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in "0123456789")]
)


@dataclass(frozen=True, slots=True)
class OwnerPaths:
    """The paths of one owner under one root. Made by `owner_paths`, so the id is known to be safe.

    `kind_directory` is the folder of all owners of the kind, `directory` the owner's own; `lock_directories`
    lead to `write_lock`, outermost first, the file whose lock orders the writers of all processes.
    """

    root: str
    owner_kind: str
    owner_id: str
    kind_directory: str
    directory: str
    lock_directories: tuple[str, ...]
    write_lock: str

    def log_file(self, kind: MemoryKind) -> str:
        """The JSONL file of one memory kind."""
        return os.path.join(self.directory, f"{kind}.jsonl")


def owner_paths(root: str, owner_kind: str, owner_id: str) -> OwnerPaths:
    """The paths of an owner, after its id was found fit to be a folder name.

    Raises `InvalidOwnerError`.

    >>> owner_paths("/memory", "agent", "writer").log_file("episodic")
    '/memory/agent/writer/episodic.jsonl'
    """
    if owner_kind not in OWNER_KINDS:
        raise InvalidOwnerError(f"owner kind {owner_kind!r} is unknown; use one of {', '.join(OWNER_KINDS)}")
    reason = _unfit(owner_id)
    if reason:
        shown = owner_id if len(owner_id) <= 60 else owner_id[:57] + "..."
        raise InvalidOwnerError(f"owner id {shown!r} cannot be a folder name: {reason}")
    kind_directory = os.path.join(root, owner_kind)
    locks = os.path.join(root, LOCKS)
    of_kind = os.path.join(locks, owner_kind)
    of_owner = os.path.join(of_kind, owner_id)
    return OwnerPaths(
        root=root,
        owner_kind=owner_kind,
        owner_id=owner_id,
        kind_directory=kind_directory,
        directory=os.path.join(kind_directory, owner_id),
        lock_directories=(locks, of_kind, of_owner),
        write_lock=os.path.join(of_owner, "write.lock"),
    )


def _unfit(name: str) -> str | None:
    """Why `name` may not become a folder name, or None when it may."""
    if not name:
        return "it is empty"
    if name in {".", ".."}:
        return "it leads out of its folder"
    for character in name:
        if character in "/\\":
            return f"it contains the path separator {character!r}"
        category = unicodedata.category(character)
        if category == "Cc":
            return f"it contains the control character {character!r}"
        if category == "Cs":
            return f"it contains half a character ({character!r}), which UTF-8 cannot hold"
    if len(name.encode()) > _MAX_NAME_BYTES:
        return f"it is longer than {_MAX_NAME_BYTES} bytes in UTF-8"
    if os.name == "nt" and (
        name.split(".", maxsplit=1)[0].rstrip(" ").lower() in _WINDOWS_RESERVED
        or name[-1] in ". "
        or any(character in '<>:"|?*' for character in name)
    ):
        return "Windows reserves it"
    return None


def confusable_names(name: str) -> set[str]:
    """Other spellings that a case- or normalization-insensitive file system holds for `name`.

    Not complete, but a file system that folds one of them is found out by it.
    """
    spellings = {
        name.swapcase(),
        name.casefold(),
        name.upper(),
        unicodedata.normalize("NFC", name),
        unicodedata.normalize("NFD", name),
    }
    return spellings - {name}


@dataclass(frozen=True, slots=True)
class TrashPaths:
    """The paths of one trash entry. Made by `trash_paths`, so the id is known to be safe."""

    root: str
    trash_id: str

    @property
    def directory(self) -> str:
        """The folder of the trash entry."""
        return os.path.join(self.root, TRASH, self.trash_id)

    @property
    def meta(self) -> str:
        """The file that holds the `TrashRef`."""
        return os.path.join(self.directory, META)

    @property
    def payload(self) -> str:
        """Where the owner's folder lies after its first deletion of the day."""
        return os.path.join(self.directory, PAYLOAD)


def trash_paths(root: str, trash_id: str) -> TrashPaths:
    """The paths of a trash entry, after its id was found to have the right form.

    Raises `InvalidTrashIdError`.
    """
    if not isinstance(trash_id, str) or not is_trash_id(trash_id):
        raise InvalidTrashIdError(
            f"trash id {trash_id!r} is not 16 hex digits; take it from list_trash() or soft_delete()"
        )
    return TrashPaths(root, trash_id)


def payload_life(name: str) -> int | None:
    """When the life in a payload folder ended, in ms: 0 for `payload`, or None for other names.

    >>> payload_life("payload"), payload_life("payload-1764500019000"), payload_life("meta.json")
    (0, 1764500019000, None)
    """
    if name == PAYLOAD:
        return 0
    prefix, dash, digits = name.partition("-")
    if prefix == PAYLOAD and dash and digits.isascii() and digits.isdigit():
        return int(digits)
    return None

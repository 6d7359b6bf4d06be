"""Entries to be: checked and encoded before the queue, so that inside it only id and time are missing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gotong_memfile.codec import (
    MAX_NESTING,
    RawEntry,
    as_utf16,
    encode_line,
    object_json,
    quick_copy,
    same_json,
    string_json,
)
from gotong_memfile.errors import InvalidEntryError, KindNotAllowedError
from gotong_memfile.layout import MEMORY_KINDS, MemoryKind
from gotong_memfile.models import Json, MemoryEntry, NewMemoryEntry


class Draft(NamedTuple):
    """An entry that was checked and encoded, but for the `id` and `ts` that it gets inside the queue.

    `id` is the caller's, or None for a generated one. `text` and `meta` are this draft's own copies.
    """

    id: str | None
    kind: MemoryKind
    text: str
    meta: Json | None
    text_json: bytes
    meta_json: bytes | None

    def line(self, entry_id: str, ts: float) -> bytes:
        """The line, end of line included, of this entry with that id and time."""
        return encode_line(string_json(entry_id), self.kind, self.text_json, ts, self.meta_json)

    def model(self, entry_id: str, ts: float) -> MemoryEntry:
        """The entry as the public model."""
        return MemoryEntry.trusted(entry_id, self.kind, self.text, ts, self.meta)

    def same_content(self, stored: RawEntry) -> bool:
        """Whether `stored` is what this draft would store: its kind, text and meta."""
        if self.kind != stored.kind or self.text != stored.text:
            return False
        try:
            return same_json(self.meta, stored.meta)
        except ValueError:  # a number beyond a double, which no draft has
            return False


def draft(text: object, kind: object, meta: object = None, entry_id: object = None) -> Draft:
    """The checked draft of a new entry.

    Raises `KindNotAllowedError` for what is no memory kind, and `InvalidEntryError`, which names the path
    of the value, for an empty text or id and for a `meta` that JSON cannot hold unchanged.
    """
    if not isinstance(kind, str) or kind not in MEMORY_KINDS:
        raise KindNotAllowedError(f"memory kind {kind!r} is unknown; use one of {', '.join(MEMORY_KINDS)}")
    own_kind = MEMORY_KINDS[MEMORY_KINDS.index(kind)]  # not an enum's member that equals it
    own_text = _checked_text("text", text)
    own_id = None if entry_id is None else _checked_text("id", entry_id)
    own_meta, meta_json = (None, None) if meta is None else _checked_and_encoded(meta)
    return Draft(own_id, own_kind, own_text, own_meta, string_json(own_text), meta_json)


def drafts_of(entries: Iterable[NewMemoryEntry | Mapping[str, Any]]) -> list[Draft]:
    """The checked drafts of many new entries. Raises as `draft` does; the message names the index."""
    return [_draft_of(index, entry) for index, entry in enumerate(entries)]


def _draft_of(index: int, entry: object) -> Draft:
    if isinstance(entry, NewMemoryEntry):
        fields: Mapping[str, Any] = dict(entry)
    elif isinstance(entry, Mapping):
        fields = entry
    else:
        raise InvalidEntryError(
            f"entries[{index}] must be a NewMemoryEntry or a mapping, not {type(entry).__name__}"
        )
    unknown = [key for key in fields if key not in NewMemoryEntry.model_fields]
    if unknown or "text" not in fields:
        problem = f"has the unknown key {unknown[0]!r}" if unknown else "lacks its text"
        raise InvalidEntryError(f"entries[{index}] {problem}; its keys are text, kind, meta and id")
    try:
        return draft(fields["text"], fields.get("kind", "episodic"), fields.get("meta"), fields.get("id"))
    except (InvalidEntryError, KindNotAllowedError) as error:
        raise type(error)(f"entries[{index}]: {error}") from error


def checked_meta(meta: object) -> Json:
    """A copy of `meta` for which is certain that JSON holds it unchanged.

    Raises `InvalidEntryError` with the path of the first value that it cannot hold.

    >>> checked_meta({"tags": ["a", {"n": float("nan")}]})
    Traceback (most recent call last):
    gotong_memfile.errors.InvalidEntryError: meta.tags[1].n is nan, which JSON cannot hold; use None
    """
    return _checked_and_encoded(meta)[0]


def _checked_and_encoded(meta: object) -> tuple[Json, bytes]:
    quick = quick_copy(meta) if type(meta) is dict else None
    if quick is not None:
        return quick
    if not isinstance(meta, (dict, Mapping)):
        raise InvalidEntryError(f"meta must be a mapping with string keys, not {type(meta).__name__}")
    copy: Json = _own_copy(meta, ("meta",), 2)
    return copy, object_json(copy)


def checked_id(value: object) -> str:
    """`value` as an id to look for. Raises `InvalidEntryError` when it is no string."""
    if not isinstance(value, str):
        raise InvalidEntryError(f"id must be a string, not {type(value).__name__}")
    return as_utf16(value)


def _checked_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidEntryError(f"{name} must be a string, not {type(value).__name__}")
    if not value:
        raise InvalidEntryError(f"{name} is empty; an entry needs at least one character")
    return as_utf16(value)


Path = tuple[Any, ...]
"""Where a value is: `("meta",)`, or the path of what holds it and the key or index there."""


def _own_copy(value: object, path: Path, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return as_utf16(value)
    if isinstance(value, int):
        return _own_integer(int(value), path)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidEntryError(f"{_shown(path)} is {value}, which JSON cannot hold; use None")
        return float(value)
    if not isinstance(value, (dict, list, Mapping)):
        raise InvalidEntryError(
            f"{_shown(path)} is a {type(value).__name__}, which JSON cannot hold unchanged; {_way_out(value)}"
        )
    if depth > MAX_NESTING:
        raise InvalidEntryError(
            f"{_shown(path)[:60]}… is nested deeper than {MAX_NESTING} levels, or contains itself; flatten it"
        )
    if isinstance(value, list):
        return [_own_copy(item, (path, index), depth + 1) for index, item in enumerate(value)]
    copy = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise InvalidEntryError(
                f"{_shown(path)} has the key {key!r}, a {type(key).__name__}; JSON keys are strings"
            )
        copy[as_utf16(key)] = _own_copy(item, (path, key), depth + 1)
    return copy


def _shown(path: Path) -> str:
    """A path as people write it: `meta.tags[1].n`."""
    if len(path) == 1:
        return str(path[0])
    holder, step = path
    return _shown(holder) + (f"[{step}]" if isinstance(step, int) else f".{step}")


def _own_integer(value: int, path: Path) -> int:
    if -(2**63) <= value < 2**63:
        return value
    try:
        repr(value)
    except ValueError as error:
        raise InvalidEntryError(
            f"{_shown(path)} is an integer with too many digits; store it as a string"
        ) from error
    return value


def _way_out(value: object) -> str:
    if isinstance(value, (tuple, set, frozenset)):
        return "pass a list"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "pass text, such as base64"
    if hasattr(value, "isoformat"):
        return "pass value.isoformat()"
    return "pass strings, numbers, booleans, None, lists and dicts only"

"""One line of a JSONL file <-> one entry: strict when writing, tolerant when reading.

Writing gives the bytes of JavaScript's `JSON.stringify` for the same entry, except for the notation of
some floats (`1.0`, `1e+16`), whose value is kept. Reading takes everything that is a valid entry, by
whoever wrote it; what is not is called corrupt and left to others to skip and count.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, NoReturn, TypeGuard

import msgspec

from gotong_memfile.errors import InvalidEntryError
from gotong_memfile.layout import MemoryKind
from gotong_memfile.models import Json, MemoryEntry

MAX_NESTING: Final = 200
"""The deepest nesting of arrays and objects in a line, the entry itself included.

Python's JSON decoder recurses, and its limit differs by version: a fixed number keeps a file readable on
all of them, also from code that is deep in a recursion of its own.
"""

QUICK_NESTING_BYTES: Final = 2 * MAX_NESTING
"""A line of no more bytes than this is never nested too deep: each level opens and closes."""

_BOM: Final = b"\xef\xbb\xbf"
_SURROGATES: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]")
_NESTING_TOKENS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{\]}]', re.DOTALL)
_GREAT_FLOAT: Final = re.compile(rb"\de\d")
_HAS_CONTENT: Final = re.compile(rb"[^ \t\r\n]")


class RawEntry(msgspec.Struct, frozen=True, gc=False):
    """A valid line, decoded but not yet a model: reading makes models only of what it returns."""

    id: str
    kind: str
    text: str
    ts: int | float
    meta: dict[str, Any] | None = None

    def model(self) -> MemoryEntry:
        """The entry as the public model."""
        kind: Any = self.kind
        return MemoryEntry.trusted(self.id, kind, self.text, self.ts, self.meta)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decode_quickly: Final = msgspec.json.Decoder(RawEntry).decode
_decode_any_object: Final = msgspec.json.Decoder(dict[str, Any]).decode
_decode_raw: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_patiently: Final = json.JSONDecoder(parse_constant=_reject_constant).decode
_encode_quickly: Final = msgspec.json.Encoder().encode
_encode_patiently: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False
).encode


# -- reading ---------------------------------------------------------------------------------------------


def is_blank(line: bytes) -> bool:
    """Whether a line holds nothing but white space and a BOM, and so is neither entry nor damage."""
    return _HAS_CONTENT.search(line.removeprefix(_BOM)) is None


def decode_line(line: bytes, kind: MemoryKind) -> RawEntry | None:
    """The entry in `line` of the file of `kind`, or None when the line is corrupt.

    `line` may have its end of line, a carriage return before it, and a BOM before its start.

    >>> decode_line(b'{"id":"a","kind":"working","text":"step 1","ts":5}', "working").text
    'step 1'
    >>> decode_line(b'{"id":"a","kind":"working","te', "working") is None
    True
    """
    line = line.removeprefix(_BOM)
    if len(line) > QUICK_NESTING_BYTES and too_deep(line):
        return None
    try:
        if not line.isascii():
            line.decode()
        entry = _decode_quickly(line)
    except UnicodeDecodeError:
        return None
    except msgspec.DecodeError:
        # The quick decoder knows no lone surrogates and no floats beyond a double: JavaScript does.
        fields = _decode_object(line)
        if fields is None or not _is_entry(fields):
            return None
        entry = RawEntry(fields["id"], fields["kind"], fields["text"], fields["ts"], fields.get("meta"))
    return entry if entry.kind == kind and entry.text else None


def _decode_object(line: bytes) -> Json | None:
    try:
        value = _decode_patiently(line.decode())
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _is_entry(fields: Json) -> bool:
    ts = fields.get("ts")
    return (
        isinstance(fields.get("id"), str)
        and isinstance(fields.get("kind"), str)
        and isinstance(fields.get("text"), str)
        and _is_number(ts)
        and math.isfinite(ts)
        and isinstance(fields.get("meta"), dict | None)
    )


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def too_deep(line: bytes) -> bool:
    """Whether a line is nested deeper than `MAX_NESTING`."""
    if line.count(b"{") + line.count(b"[") <= MAX_NESTING:
        return False
    depth = 0
    for token in _NESTING_TOKENS.finditer(line):
        opener = token[0]
        if opener in b"[{":
            depth += 1
            if depth > MAX_NESTING:
                return True
        elif opener in b"]}":
            depth -= 1
    return False


# -- writing ---------------------------------------------------------------------------------------------


def encode_entry(entry: MemoryEntry) -> bytes:
    """The line, end of line included, of an entry: keys in the order `id, kind, text, ts, meta`.

    >>> encode_entry(MemoryEntry(id="a", kind="working", text="cut \\ud83d", ts=5))
    b'{"id":"a","kind":"working","text":"cut \\\\ud83d","ts":5}\\n'
    """
    return encode_line(
        string_json(entry.id),
        entry.kind,
        string_json(entry.text),
        entry.ts,
        None if entry.meta is None else object_json(entry.meta),
    )


def encode_line(
    id_json: bytes, kind: MemoryKind, text_json: bytes, ts: float, meta_json: bytes | None
) -> bytes:
    """The line of an entry whose strings and meta are JSON text already."""
    meta = b"" if meta_json is None else b',"meta":%b' % meta_json
    time = repr(ts).encode()
    return b'{"id":%b,"kind":"%b","text":%b,"ts":%b%b}\n' % (id_json, kind.encode(), text_json, time, meta)


def encode_patched(line: bytes, entry: RawEntry, patch: Json) -> bytes | None:
    """`line` with `patch` merged into its meta, or None when that changes nothing.

    All other values, those of unknown keys too, keep the bytes that they have in `line`.
    Requires: `decode_line` found `entry` in `line`, and `patch` came from `checked_meta`.
    Raises `InvalidEntryError` when a number in `line` that is to be written anew is beyond a double.
    """
    try:
        return _patched(line, entry, {**(entry.meta or {}), **patch})
    except ValueError as error:
        raise InvalidEntryError(
            f"entry {entry.id!a} holds a number beyond a double, which cannot be written again unchanged; "
            "mend its line by hand, then patch it"
        ) from error


def _patched(line: bytes, entry: RawEntry, merged: Json) -> bytes | None:
    if entry.meta is not None and same_json(entry.meta, merged):
        return None
    line = line.removeprefix(_BOM)
    try:
        fields: dict[str, bytes] = {name: bytes(value) for name, value in _decode_raw(line).items()}
    except msgspec.DecodeError:
        patient: Json = _decode_patiently(line.decode())
        fields = {name: _patient_json(value) for name, value in patient.items()}
    fields["meta"] = _patient_json(merged)
    return b"{%b}\n" % b",".join(b"%b:%b" % (string_json(name), value) for name, value in fields.items())


def encode_document(value: Json) -> bytes:
    """A JSON object as `JSON.stringify(value, null, 2)` writes it: the form of `meta.json`."""
    return _well_formed(json.dumps(value, ensure_ascii=False, indent=2)).encode()


def decode_document(data: bytes) -> Json | None:
    """The JSON object in `data`, or None when there is none."""
    return None if too_deep(data) else _decode_object(data.removeprefix(_BOM))


def as_utf16(value: str) -> str:
    """`value` as JavaScript sees it: two halves of a character side by side are that character."""
    # An enum of strings is a string whose `str()` is another one: its content is what counts.
    value = str.__str__(value)
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return _SURROGATES.sub(lambda found: _pair(found[0]), value)
    return value


def string_json(value: str) -> bytes:
    """A string as JSON text."""
    try:
        return _encode_quickly(value)
    except UnicodeEncodeError:  # half a character
        return _patient_json(value)


def object_json(value: Json) -> bytes:
    """A JSON object as JSON text. Requires: its numbers are finite."""
    try:
        encoded = _encode_quickly(value)
    except UnicodeEncodeError:
        return _patient_json(value)
    # JavaScript puts a plus into the exponent of a great float, and the quick encoder does not.
    return _patient_json(value) if _GREAT_FLOAT.search(encoded) else encoded


def quick_copy(value: Json) -> tuple[Json, bytes] | None:
    """A copy of `value` and its JSON text, when JSON is certain to hold it unchanged; None: look closer.

    What comes back from its JSON text as it was is what JSON holds; only what is equal to it without being
    the same, such as the member of an enum, is replaced by what it equals.

    >>> quick_copy({"n": [1, 2.5]})
    ({'n': [1, 2.5]}, b'{"n":[1,2.5]}')
    >>> quick_copy({"n": (1, 2)}) is None
    True
    """
    try:
        encoded = _encode_quickly(value)
        copy: Json = _decode_any_object(encoded)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError, RuntimeError):
        return None
    shallow = encoded.count(b"{") + encoded.count(b"[") < MAX_NESTING
    return (copy, encoded) if shallow and copy == value and not _GREAT_FLOAT.search(encoded) else None


def same_json(one: Json | None, other: Json | None) -> bool:
    """Whether both are written alike: equal, keys in one order, 1 and 1.0 and True told apart.

    Raises `ValueError` for a number beyond a double.
    """
    return _encode_patiently(one) == _encode_patiently(other)


def _patient_json(value: Any) -> bytes:
    """JSON text, halves of a character included. Raises `ValueError` for a number beyond a double."""
    return _well_formed(_encode_patiently(value)).encode()


def _well_formed(encoded: str) -> str:
    """JSON text with lone surrogates escaped, as `JSON.stringify` does since ES2019."""
    if encoded.isascii():
        return encoded
    return _SURROGATES.sub(
        lambda found: _pair(found[0]) if len(found[0]) == 2 else f"\\u{ord(found[0]):04x}", encoded
    )


def _pair(found: str) -> str:
    return found.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")

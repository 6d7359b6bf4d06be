"""Lines as JavaScript writes them, and lines as anybody may have written them."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import shutil
import subprocess
import sys
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gotong_memfile import MemoryEntry
from gotong_memfile.codec import (
    MAX_NESTING,
    decode_document,
    decode_line,
    encode_document,
    encode_entry,
    encode_patched,
    is_blank,
    object_json,
    quick_copy,
)
from gotong_memfile.draft import _own_copy
from gotong_memfile.errors import InvalidEntryError


def entry(text: str = "x", meta: Any = None, **fields: Any) -> MemoryEntry:
    return MemoryEntry(**{"id": "a", "kind": "working", "text": text, "ts": 5, "meta": meta, **fields})


def line(**fields: Any) -> bytes:
    return json.dumps({"id": "a", "kind": "working", "text": "x", "ts": 5, **fields}).encode()


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (entry(), b'{"id":"a","kind":"working","text":"x","ts":5}\n'),
        (entry(meta={}), b'{"id":"a","kind":"working","text":"x","ts":5,"meta":{}}\n'),
        (entry('" \\ \b \f \n \r \t /'), rb'{"id":"a","kind":"working","text":"\" \\ \b \f \n \r \t /","ts":5}' + b"\n"),
        (entry("\0\x0b\x1b\x1f\x7f"), b'{"id":"a","kind":"working","text":"\\u0000\\u000b\\u001b\\u001f\x7f","ts":5}\n'),
        (entry("é中😀\u2028\u2029\x85"), '{"id":"a","kind":"working","text":"é中😀\u2028\u2029\x85","ts":5}\n'.encode()),
        (entry("cut \ud83d and \ude00!"), rb'{"id":"a","kind":"working","text":"cut \ud83d and \ude00!","ts":5}' + b"\n"),
        (entry("\ud83d\ude00"), '{"id":"a","kind":"working","text":"😀","ts":5}\n'.encode()),
        (entry(meta={"\ud83d": 2**64 + 1}), rb'{"id":"a","kind":"working","text":"x","ts":5,"meta":{"\ud83d":18446744073709551617}}' + b"\n"),
        (entry(ts=5.5), b'{"id":"a","kind":"working","text":"x","ts":5.5}\n'),
        (entry(id='i"d'), b'{"id":"i\\"d","kind":"working","text":"x","ts":5}\n'),
    ],
)  # fmt: skip
def test_an_entry_has_the_bytes_of_json_stringify(made: MemoryEntry, expected: bytes) -> None:
    assert encode_entry(made) == expected


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js as the judge")
def test_json_stringify_itself_gives_the_same_bytes() -> None:
    texts = [
        chr(code) for code in [*range(0x300), 0x2028, 0x2029, 0xD7FF, 0xD83D, 0xDE00, 0xFEFF, 0xFFFF, 0x1F600]
    ]
    entries = [
        entry(text, meta={"k" + text: [text, 0.1, 2.5e-3, -0.5, 2**53 - 1, None, True, {}]}) for text in texts
    ]
    source = json.dumps([dict(dict(one).items()) for one in entries])
    script = (
        "for (const e of JSON.parse(require('fs').readFileSync(0, 'utf8'))) console.log(JSON.stringify(e))"
    )
    theirs = subprocess.run(
        ["node", "-e", script], input=source.encode(), capture_output=True, check=True
    ).stdout
    assert b"".join(map(encode_entry, entries)) == theirs


@pytest.mark.parametrize(
    "tolerated",
    [
        line() + b"\r",
        b"\xef\xbb\xbf" + line(),
        b" \t" + line() + b"  ",
        line(extra={"id": "other"})[:-1] + b', "more": [1e400]}',
        line(meta=None),
        line(ts=5.0),
        line(ts=-(2**80)),
        b'{"ts":5,"text":"\\u0078","kind":"working","id":"\\u0061"}',
        b'{"id":"b","id":"a","kind":"working","text":"x","ts":5}',
    ],
)
def test_lines_of_other_writers_are_read(tolerated: bytes) -> None:
    raw = decode_line(tolerated, "working")
    assert raw is not None
    assert (raw.id, raw.text, raw.meta) == ("a", "x", None)


@pytest.mark.parametrize("text", ["cut \ud83d", "\ude00", "\ud83d\ud83d", "\0", "\u2028"], ids=ascii)
def test_halves_of_a_character_and_separators_come_back(text: str) -> None:
    raw = decode_line(line(text=text, meta={text: text}), "working")
    assert raw is not None
    assert (raw.text, raw.meta) == (text, {text: text})


CORRUPT = [
    b"",
    b"garbage",
    b"[]",
    b"null",
    b'"x"',
    b"{}",
    b"NaN",
    b"17",
    line()[:-1],
    line()[:20],
    line() + b"x",
    line() + line(),
    b"\0" * 100,
    b"\xff\xfe" + line(),
    line()[:-1] + b',"x":"\xff"}',
    line()[:-1] + b',"\xff":1}',
    line().replace(b'"x"', b'"\xed\xa0\xbd"'),
    line().replace(b'"x"', b'"\x01"'),
    line(id=5),
    line(id=None),
    line(text=""),
    line(text=None),
    line(text=["x"]),
    line(kind="episodic"),
    line(kind="dreams"),
    line(kind=None),
    line(ts=None),
    line(ts="5"),
    line(ts=True),
    line(ts=float("nan")),
    line(ts=float("inf")),
    line().replace(b"5", b"1e400"),
    line().replace(b"5", b"5" * 5_000),
    line(meta=[]),
    line(meta="x"),
    line(meta=0),
    line(meta={"n": float("nan")}),
    line().replace(b" 5}", b" 05}"),
    line().replace(b'"', b"'"),
    b"[" * 100_000,
    b'{"a":' * 50_000,
]


@pytest.mark.parametrize("corrupt", CORRUPT, ids=lambda corrupt: ascii(corrupt[:30]))
def test_what_is_no_valid_entry_is_corrupt(corrupt: bytes) -> None:
    assert decode_line(corrupt, "working") is None


@pytest.mark.parametrize("missing", ["id", "kind", "text", "ts"])
def test_a_line_without_a_required_key_is_corrupt(missing: str) -> None:
    fields = json.loads(line())
    del fields[missing]
    assert decode_line(json.dumps(fields).encode(), "working") is None


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth - 1):
        value = {"x": value}
    return value


def test_the_nesting_limit_is_the_same_however_deep_the_caller_is() -> None:
    """What one caller can read, all can; the decoders' own limits depend on version and stack."""
    deepest = line(meta=nested(MAX_NESTING - 1))
    too_deep = line(meta=nested(MAX_NESTING))
    flat = line(meta={"x": "[" * 5_000, "y": [[]] * 5_000, 'z"[[[[': '\\"[[[['})

    def down(levels: int) -> list[bool]:
        if levels:
            return down(levels - 1)
        return [decode_line(one, "working") is not None for one in (deepest, too_deep, flat)]

    assert down(0) == down(500) == [True, False, True]
    assert sys.getrecursionlimit() <= 1_000


def test_a_blank_line_is_neither_entry_nor_damage() -> None:
    assert all(is_blank(blank) for blank in (b"", b"\r", b" \t ", b"\xef\xbb\xbf", b"\xef\xbb\xbf\r"))
    assert not any(is_blank(line) for line in (b"x", b"\0", b"\x0b", b"{}", b"\xef\xbb"))


def patched(raw: bytes, patch: dict[str, Any]) -> bytes | None:
    found = decode_line(raw, "working")
    assert found is not None
    return encode_patched(raw, found, patch)


def test_a_patch_keeps_the_bytes_of_all_other_values() -> None:
    raw = (
        b'{"x":1e400,"ts":5.0e0,"n":123456789012345678901234567890,"f":1E+2,"text":"\\u0041\\/","id":"a",'
        b'"meta":{"b":1},"kind":"working","y":[ 1, 2 ]}\r'
    )
    assert patched(raw, {"c": "é"}) == (
        b'{"x":1e400,"ts":5.0e0,"n":123456789012345678901234567890,"f":1E+2,"text":"\\u0041\\/","id":"a",'
        b'"meta":{"b":1,"c":"\xc3\xa9"},"kind":"working","y":[ 1, 2 ]}\n'
    )


def test_a_patch_of_a_line_with_halves_of_characters_keeps_them() -> None:
    raw = rb'{"id":"a","kind":"working","text":"cut \uD83D","ts":5,"\ude00":"\ude00"}'
    assert patched(raw, {"a": 1}) == (
        rb'{"id":"a","kind":"working","text":"cut \ud83d","ts":5,"\ude00":"\ude00","meta":{"a":1}}' + b"\n"
    )


@pytest.mark.parametrize(
    ("meta", "patch", "changes"),
    [
        ({"a": 1}, {"a": 1}, False),
        ({"a": 1}, {}, False),
        (None, {}, True),
        ({"a": 1}, {"a": True}, True),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": 0}, {"a": False}, True),
    ],
)
def test_a_patch_that_changes_nothing_writes_nothing(meta: Any, patch: Any, changes: bool) -> None:
    raw = encode_entry(entry(meta=meta)).rstrip(b"\n")
    assert (patched(raw, patch) is not None) == changes


def test_a_document_has_the_form_of_json_stringify_with_an_indent_of_two() -> None:
    assert encode_document({"id": "é", "n": 1, "reason": "cut \ud83d"}) == (
        '{\n  "id": "é",\n  "n": 1,\n  "reason": "cut \\ud83d"\n}'.encode()
    )
    assert decode_document(b"\xef\xbb\xbf" + encode_document({"a": [1]})) == {"a": [1]}
    assert decode_document(b"[" * 100_000) is decode_document(b"[]") is decode_document(b"\xff") is None


def test_what_may_be_written_can_be_read_down_to_the_last_level() -> None:
    from gotong_memfile import InvalidEntryError
    from gotong_memfile.draft import draft

    written = draft("x", "working", nested(MAX_NESTING - 1)).line("a", 5)
    assert decode_line(written, "working") is not None
    with pytest.raises(InvalidEntryError, match="nested deeper"):
        draft("x", "working", nested(MAX_NESTING))


class Level(enum.IntEnum):
    HIGH = 3


class Mood(str, enum.Enum):
    CALM = "calm"


_ODD = st.sampled_from(
    [
        Level.HIGH, Mood.CALM, (1, 2), {1, 2}, b"x", uuid.UUID(int=5), decimal.Decimal("1.0"), object(), 1e300,
        datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc), float("nan"), float("inf"), -0.0, 2**64, -(2**63),
        10**400, "cut \ud83d", "\ud83d\ude00", "\u2028", 5e-324, 1e22, 1e-7, 123456789012345680.0,
    ]
)  # fmt: skip
_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | _ODD,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=3) | _ODD.filter(lambda key: not isinstance(key, set)), inner, max_size=3
        )
    ),
    max_leaves=8,
)


def shape(value: Any) -> Any:
    """A value with the types of all its parts and the order of its keys: what `==` does not tell apart."""
    if isinstance(value, dict):
        return dict, [(shape(key), shape(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return list, [shape(inner) for inner in value]
    return type(value), repr(value)


@given(st.dictionaries(st.text(max_size=3), _ANYTHING, max_size=4))
def test_the_quick_copy_of_a_meta_is_the_careful_one_or_none(meta: dict[str, Any]) -> None:
    quick = quick_copy(meta)
    if quick is None:
        return
    careful = _own_copy(meta, ("meta",), 2)  # raises where JSON cannot hold it
    assert shape(quick[0]) == shape(careful)
    assert quick[1] == object_json(careful)


def test_the_quick_copy_is_used_for_what_metas_mostly_are() -> None:
    meta = {"task": "t-1", "importance": 5, "tags": ["a", "ü"], "score": 0.5, "none": None, "in": {"x": True}}
    quick = quick_copy(meta)
    assert quick is not None
    assert shape(quick[0]) == shape(meta)
    assert quick[0] is not meta


@pytest.mark.parametrize("odd", [float("nan"), b"x", {1}, (1,), {1: 2}, {"a": object()}], ids=repr)
def test_what_json_cannot_hold_has_no_quick_copy(odd: Any) -> None:
    assert quick_copy({"a": odd}) is None
    with pytest.raises(InvalidEntryError):
        _own_copy({"a": odd}, ("meta",), 2)

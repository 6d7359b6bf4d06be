"""The decoders of whole blocks: where they answer at all, they answer what decoding line by line does."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gotong_memfile.bulk import entries_in, ids_in, times_in
from gotong_memfile.codec import decode_line

PLAIN = [
    b'{"id":"a","kind":"working","text":"x","ts":5}',
    b'{"id":"b","kind":"working","text":"Stra\xc3\x9fe","ts":4.5,"meta":{"n":[1,{"m":null}]}}',
    b'{"ts":7,"text":"escaped \\u0041\\n\\"{","kind":"working","id":"c\\/","extra":{"ts":9}}',
]
ODD = [
    b"",
    b" ",
    b"\r",
    b"\xef\xbb\xbf",
    PLAIN[0] + b"\r",
    b"\xef\xbb\xbf" + PLAIN[0],
    b" " + PLAIN[0],
    PLAIN[0] + PLAIN[1],
    PLAIN[0] + b" " + PLAIN[1],
    PLAIN[0] + b"{",
    PLAIN[0] + b",",
    b'{"id":"a","kind":"working","text":"torn',
    b'{"id":"a","kind":"working",',
    b'"text":"x","ts":5}',
    b'{"id":"d","kind":"working","text":"","ts":5}',
    b'{"id":"e","kind":"semantic","text":"x","ts":5}',
    b'{"id":"f","kind":"working","text":"x","ts":"5"}',
    b'{"id":"g","kind":"working","text":"x","ts":true}',
    b'{"id":"h","kind":"working","text":"x","ts":1e999}',
    b'{"id":"i","kind":"working","text":"x","ts":NaN}',
    b'{"id":"j","kind":"working","text":"x","ts":123456789012345678901234567890}',
    b'{"id":"k","kind":"working","text":"\\ud83d","ts":5}',
    b'{"id":"\\ud83d","kind":"working","text":"x","ts":5}',
    b'{"id":"l","kind":"working","text":"\xff","ts":5}',
    b'{"id":"m","kind":"working","text":"\xed\xa0\xbd","ts":5}',
    b'{"id":"n","kind":"working","text":"x","ts":5,"more":"\xff"}',
    b'{"id":"o","kind":"working","text":"x","ts":5,"ts":6}',
    b'{"id":"p","kind":"working","text":"a\x0bb\xe2\x80\xa8c","ts":5}',
    b'{"id":"q","kind":"working","text":"x","ts":5,"meta":[1]}',
    b'{"id":"r","kind":"working","text":"x","ts":5,"meta":null}',
    b'{"id":"s","kind":"working","text":"x","ts":5,"deep":' + b"[" * 250 + b"]" * 250 + b"}",
    b'{"id":"t","kind":"working","text":"x","ts":5,"deep":' + b'{"a":' * 300 + b"1" + b"}" * 300 + b"}",
    b'{"id":"u","kind":"working","text":"' + b"[" * 500 + b'","ts":5}',
    b"[1]",
    b"null",
    b"{}",
    b"{",
    b"}",
    b'{"ts":5}',
    b'{"ts"',
    b":5}",
]
lines = st.lists(st.sampled_from(PLAIN) | st.sampled_from(ODD) | st.binary(max_size=12), max_size=6)


@settings(max_examples=3_000, deadline=None)
@given(lines, st.booleans())
def test_an_answer_for_a_block_is_the_answer_for_each_of_its_lines(some: list[bytes], ended: bool) -> None:
    block = b"\n".join(some) + (b"\n" if ended else b"")
    each = block.split(b"\n")
    if each[-1] == b"":
        each.pop()
    decoded = [decode_line(line, "working") for line in each]
    entries = entries_in(block, "working")
    if entries is not None:
        assert [(one.id, one.kind, one.text, one.ts, one.meta) for one in entries] == [
            (one.id, one.kind, one.text, one.ts, one.meta) for one in decoded if one is not None
        ]
        assert len(entries) == len(each)
    for answer, name in ((times_in(block), "ts"), (ids_in(block), "id")):
        if answer is not None:
            assert len(answer) == len(each)
            for got, entry in zip(answer, decoded, strict=True):
                assert entry is None or got == getattr(entry, name)


@pytest.mark.parametrize("line", ODD)
def test_an_odd_line_among_plain_ones_changes_nothing_of_the_others(line: bytes) -> None:
    block = b"\n".join([*PLAIN, line, *PLAIN]) + b"\n"
    entry = decode_line(line, "working")
    times = times_in(block)
    entries = entries_in(block, "working")
    if times is not None:
        assert (times[:3], times[-3:], len(times)) == ([5, 4.5, 7], [5, 4.5, 7], 7)
    if entries is not None:
        assert entry is not None
        assert [one.id for one in entries] == ["a", "b", "c/", entry.id, "a", "b", "c/"]


def test_plain_blocks_are_answered() -> None:
    """Else nothing above would be tested, and everything be slow."""
    block = b"\n".join(PLAIN) + b"\n"
    assert times_in(block) == [5, 4.5, 7]
    assert ids_in(block) == ["a", "b", "c/"]
    entries = entries_in(block, "working")
    assert entries is not None
    assert [one.text for one in entries] == [json.loads(line)["text"] for line in PLAIN]
    assert entries_in(block, "semantic") is None

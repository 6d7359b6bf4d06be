"""What is looked for in raw bytes is found as a look at each decoded text would find it."""

from __future__ import annotations

import json
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gotong_memfile import MemoryEntry, MemoryFileHandle, open_memory
from gotong_memfile.codec import encode_entry

FOLDING = [
    char
    for char in map(chr, range(sys.maxunicode + 1))
    if not 0xD800 <= ord(char) < 0xE000 and {char.casefold(), char.upper(), char.lower()} != {char}
]
HARD = [
    *'ßſẞﬁﬀİıςσΣŉǰΐև/"\\\n\r\t\b\f\x01\x7fK\u212aÅ\u212b\u0345ά\u2028u0',
    "\ud83d",
    "\ude00",
    "😀",
    "é",
    "ss",
    "fi",
]
hard_texts = st.lists(st.sampled_from(HARD), min_size=1, max_size=5).map("".join)


def fill(folder: Path, texts: list[str], *, ascii_only: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "semantic.jsonl").open("wb") as file:
        for n, text in enumerate(texts):
            entry = MemoryEntry(id=f"i{n}", kind="semantic", text=text, ts=n)
            if ascii_only:
                file.write(json.dumps({**dict(entry), "meta": {}}, separators=(",", ":")).encode() + b"\n")
            else:
                file.write(encode_entry(entry))


def found(memory: MemoryFileHandle, needle: str) -> set[str]:
    return {entry.text for entry in memory.recall(needle, k=200)}


@pytest.mark.parametrize("form", ["casefold", "upper", "lower", "title"])
def test_each_letter_of_unicode_is_found_by_each_of_its_cases(root: Path, form: str) -> None:
    """One text for each code point that has a case; the search must find at least those that Python does."""
    texts = [f"<{char}>" for char in FOLDING]
    assert len(texts) > 2_700
    folds: dict[str, set[str]] = {}
    for text in texts:
        folds.setdefault(text.casefold(), set()).add(text)  # the brackets keep one from being part of another
    fill(root / "agent" / "a", texts)
    with open_memory(root, "agent/a") as memory:
        for char in FOLDING:
            needle = f"<{getattr(char, form)()}>"
            assert found(memory, needle) == folds[needle.casefold()], unicodedata.name(char, "")


@settings(max_examples=400, deadline=None)
@given(st.lists(hard_texts, min_size=1, max_size=12), hard_texts, st.booleans())
def test_hard_needles_are_found_as_in_the_decoded_texts(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], needle: str, ascii_only: bool
) -> None:
    """Quotes, line ends, backslashes, halves of emoji, letters that fold to several; by any writer."""
    root = tmp_path_factory.mktemp("hard")
    fill(root / "agent" / "a", texts, ascii_only=ascii_only)
    whole = [json.loads(json.dumps(text)) for text in texts]
    folded = json.loads(json.dumps(needle)).casefold()
    with open_memory(root, "agent/a") as memory:
        got = [entry.text for entry in memory.recall(needle, k=200)]
    assert got == [text for text in reversed(whole) if folded in text.casefold()]


@pytest.mark.parametrize(
    "needle", ["needle", "NEEDLE", '"', "\\", "semantic", "text", ":", "{", "u0041", "u"]
)
def test_a_match_elsewhere_in_the_line_is_no_match(root: Path, needle: str) -> None:
    folder = root / "agent" / "a"
    folder.mkdir(parents=True)
    line = {"id": 'needle "u', "kind": "semantic", "text": "A", "ts": 1, "meta": {"needle": 'u0041"\\'}}
    encoded = json.dumps({**line, "needle": "u"}).replace('"A"', '"\\u0041"')
    (folder / "semantic.jsonl").write_text(encoded + "\n", encoding="utf-8")
    with open_memory(root, "agent/a") as memory:
        assert memory.recall(needle) == []
        assert [entry.text for entry in memory.recall("a")] == ["A"]


def line(entry_id: str, ts: float, text: str = "x") -> bytes:
    return encode_entry(MemoryEntry(id=entry_id, kind="episodic", text=text, ts=ts))


@pytest.mark.parametrize("block", [100, 65_536])
def test_an_id_is_found_wherever_it_stands(root: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """At the time that is in it, at another, twice, in damage, between escapes, and not as part of another."""
    monkeypatch.setattr("gotong_memfile.log.BLOCK_BYTES", block)
    made = "millr0ds-k3x9ab"  # of 1764500014000
    folder = root / "agent" / "a"
    folder.mkdir(parents=True)
    log = folder / "episodic.jsonl"
    others = [line(f"o{n}", 1_764_500_000_000 + n * 1_000) for n in range(40)]
    cases = {
        "in its place": [*others[:14], line(made, 1_764_500_014_000, "one"), *others[14:]],
        "at another time": [line(made, 5, "one"), *others],
        "behind": [*others, line(made, 1_764_500_014_000, "one")],
        "twice, once at its time": [
            line(made, 1_764_500_014_000, "one"),
            *others,
            line(made, 1_764_500_099_000, "two"),
        ],
        "twice at its time": [
            line(made, 1_764_500_014_000, "two"),
            line(made, 1_764_500_014_000, "one"),
            *others,
        ],
        "escaped": [*others, line(made, 1_764_500_014_000, "one").replace(b"millr", b"\\u006dillr")],
        "beside damage": [
            *others,
            b'{"id":"millr0ds-k3x9ab"\n',
            line(made, 1_764_500_014_000, "one"),
            b"{\n",
        ],
        "at the end, no end of line": [*others, line(made, 1_764_500_014_000, "one")[:-1]],
    }
    for name, lines in cases.items():
        log.write_bytes(b"".join(lines))
        with open_memory(root, "agent/a") as memory:
            entry = memory.get(made)
            assert entry is not None, name
            assert entry.text == "one", name
            assert memory.get(made[:-1]) is None
            assert memory.get(made + "c") is None
            assert memory.forget(made), name
            assert memory.get(made) is None, name
            assert made.encode() not in log.read_bytes().replace(b'{"id":"millr0ds-k3x9ab"\n', b""), name
            assert {one.id for one in memory.scan()} == {f"o{n}" for n in range(40)}, name

"""Which entries hold a text, and which lines hold an id."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

from gotong_memfile.codec import RawEntry, decode_line
from gotong_memfile.layout import MemoryKind
from gotong_memfile.log import Snapshot, lines_of


class FoundLine(NamedTuple):
    """A valid line: the bytes `[start, end)`, and its entry."""

    start: int
    end: int
    entry: RawEntry


_FEW_IDS: Final = 8
_ESCAPES: Final = (b"\\u", b"\\/")


def text_match(needle: str | None) -> Callable[[RawEntry], bool] | None:
    """Whether an entry's text contains `needle`, by full Unicode case folding; None when all do.

    >>> text_match("STRASSE")(RawEntry("a", "semantic", "in der Straße", 5))
    True
    """
    if not needle:
        return None
    folded = needle.casefold()
    return lambda entry: folded in entry.text.casefold()


def lines_with_ids(snapshot: Snapshot, kind: MemoryKind, ids: Collection[str]) -> Iterator[FoundLine]:
    """The valid lines whose id is one of `ids`, in file order.

    Lines without the raw bytes of an id, as JSON writes it, are passed over undecoded, unless another
    writer may have escaped some of its characters.
    """
    needles = [json.dumps(entry_id, ensure_ascii=False).encode("utf-8", "replace") for entry_id in ids]

    def may_hold(data: bytes) -> bool:
        return (
            len(needles) > _FEW_IDS
            or any(needle in data for needle in needles)
            or any(escape in data for escape in _ESCAPES)
        )

    for offset, block in snapshot.blocks():
        if not may_hold(block):
            continue
        for start, end, line in lines_of(offset, block):
            if may_hold(line):
                entry = decode_line(line, kind)
                if entry is not None and entry.id in ids:
                    yield FoundLine(start, end, entry)

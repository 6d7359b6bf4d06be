"""Which lines can hold a text, and which hold an id: found in the raw bytes, then decoded and checked.

The raw search may be wrong only towards a needless check. What it looks for is written as JSON writes it, in
the one form that `JSON.stringify` has for each character. Others may have written any character as an escape
(`\\u00e9`, `\\/`), so lines with those are checked, whatever the search says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

import stringzilla

from gotong_memfile.bulk import ids_in
from gotong_memfile.codec import RawEntry, decode_line, string_json
from gotong_memfile.log import Snapshot, lines_of
from gotong_memfile.zones import EntryLine, ZoneMap, entry_in

_SEARCH_BYTES: Final = 1024 * 1024
"""How much is read and searched at a time: enough that what Python does for it does not count."""

_FEW_IDS: Final = 8
_FREE_ESCAPES: Final = (b"\\u", b"\\/")
_find: Final = stringzilla.find
_find_uncased: Final = stringzilla.utf8_uncased_search


class Needle:
    """A text that is looked for in the texts of entries, by full Unicode case folding.

    >>> Needle("STRASSE").matches(RawEntry("a", "semantic", "in der Straße", 5))
    True
    """

    def __init__(self, text: str) -> None:
        self._folded = text.casefold()
        self._raw = string_json(text)[1:-1]

    def matches(self, entry: RawEntry) -> bool:
        """Whether the entry's text holds it."""
        return self._folded in entry.text.casefold()

    def lines_in(self, snapshot: Snapshot, offset: int, block: bytes) -> Iterator[EntryLine]:
        """The lines of a block of `snapshot` whose entries hold it, in file order."""
        for start, end in _lines_around(block, [*_hits(block, self._raw, _find_uncased), *_escapes(block)]):
            entry = entry_in(snapshot, offset + start, block[start:end])
            if entry is not None and self.matches(entry):
                yield EntryLine(offset + start, offset + end, entry)


def matching_lines(
    snapshot: Snapshot, offset: int, block: bytes, needle: Needle | None = None
) -> Iterator[EntryLine]:
    """The lines of a block whose entries hold `needle`, or all that are entries; in file order."""
    if needle is not None:
        yield from needle.lines_in(snapshot, offset, block)
        return
    for start, end, line in lines_of(offset, block):
        entry = entry_in(snapshot, start, line)
        if entry is not None:
            yield EntryLine(start, end, entry)


def lines_with_ids(
    snapshot: Snapshot, ids: Collection[str], start: int = 0, end: int | None = None
) -> Iterator[EntryLine]:
    """The valid lines from `start` to `end` whose id is one of `ids`, in file order."""
    few = len(ids) <= _FEW_IDS
    for offset, block in snapshot.blocks(start, end, _SEARCH_BYTES):
        if few:
            hits = [hit for entry_id in ids for hit in _hits(block, string_json(entry_id), _find)]
            found = _lines_around(block, [*hits, *_escapes(block)])
        else:
            there = ids_in(block)
            if there is not None and not any(map(ids.__contains__, there)):
                continue
            found = ((first - offset, last - offset) for first, last, _ in lines_of(offset, block))
        for first, last in found:
            entry = decode_line(block[first:last], snapshot.kind)
            if entry is not None and entry.id in ids:
                yield EntryLine(offset + first, offset + last, entry)


def at_its_time(zone_map: ZoneMap, entry_id: str, ts: float) -> RawEntry | None:
    """The last entry of this id and time, or None: found by the zones, without a look at the rest."""
    found = None
    for zone in zone_map.zones_at(ts):
        for line in lines_with_ids(zone_map.snapshot, {entry_id}, zone.start, zone.end):
            if line.entry.ts == ts:
                found = line.entry
    return found


def _hits(block: bytes, raw: bytes, find: Callable[[bytes, bytes, int], int]) -> Iterator[int]:
    """Where the first hit of each line that has one is, at least."""
    position = 0
    while True:
        hit = find(block, raw, position)
        if hit < 0:
            return
        yield hit
        position = block.find(b"\n", hit) + 1
        if not position:
            return


def _escapes(block: bytes) -> Iterator[int]:
    for escape in _FREE_ESCAPES:
        yield from _hits(block, escape, _find)


def _lines_around(block: bytes, hits: list[int]) -> Iterator[tuple[int, int]]:
    """The lines, ends of line included, that hold the hits: each once, in file order."""
    end = 0
    for hit in sorted(hits):
        if hit >= end:
            start = block.rfind(b"\n", 0, hit) + 1
            end = block.find(b"\n", hit) + 1 or len(block)
            yield start, end

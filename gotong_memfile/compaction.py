"""The rule of compaction: which entries stay when a file has passed its byte cap."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from gotong_memfile import zones
from gotong_memfile.layout import MemoryKind
from gotong_memfile.log import Snapshot


@dataclass(frozen=True, slots=True)
class Compaction:
    """What one compaction of the file of `kind` does: bytes of the file and entries, before and after."""

    kind: MemoryKind
    bytes_before: int
    bytes_after: int
    lines_before: int
    lines_after: int

    def event(self, owner: str) -> dict[str, str | int]:
        """What a hub is told of it."""
        return {
            "owner": owner,
            "kind": self.kind,
            "bytesBefore": self.bytes_before,
            "bytesAfter": self.bytes_after,
            "linesBefore": self.lines_before,
            "linesAfter": self.lines_after,
        }


@dataclass(frozen=True, slots=True)
class Survey:
    """What a compaction has found: the bytes of the file that are no entries, and what to do, or None.

    `pieces` are the parts of the file that stay.
    """

    other_bytes: int
    compaction: Compaction | None
    pieces: list[tuple[int, int]]


def survey(snapshot: Snapshot, kind: MemoryKind, cap: int) -> Survey:
    """Find what must go from a file to bring it under `cap` bytes.

    The older half of the entries, again and again; the newest entry and all corrupt lines stay. Damage and
    blank lines do not count against the cap: else they would push good entries out.
    """
    starts, sizes = array("q"), array("q")
    damage: list[tuple[int, int]] = []
    for line in zones.lines(snapshot, kind):
        if line.entry is None:
            damage.append((line.start, line.end))
        else:
            starts.append(line.start)
            sizes.append(line.end - line.start)
    other_bytes = snapshot.size - sum(sizes)
    kept = newest_that_fit(sizes, cap)
    if kept == len(sizes):
        return Survey(other_bytes, None, [])
    cut = starts[len(starts) - kept]
    pieces = [*(piece for piece in damage if piece[0] < cut), (cut, snapshot.size)]
    after = sum(end - start for start, end in pieces)
    return Survey(other_bytes, Compaction(kind, snapshot.size, after, len(sizes), kept), pieces)


def newest_that_fit(sizes: Sequence[int], cap: int) -> int:
    """How many of the newest lines, whose sizes in bytes are given oldest first, stay under `cap`.

    The rule of the contract (DESIGN §3): while they do not fit, half of them, but at least one, stays.

    >>> newest_that_fit([100] * 10, 600), newest_that_fit([100] * 10, 1000), newest_that_fit([100], 5)
    (5, 10, 1)
    """
    kept = len(sizes)
    total = sum(sizes)
    while total > cap and kept > 1:
        first, kept = len(sizes) - kept, max(1, kept // 2)
        total -= sum(sizes[first : len(sizes) - kept])
    return kept

"""The entries of a log in order of time, newest or oldest first, in bounded memory.

Where the file is in order, which is nearly always, its lines are read from one end, as far as needed. Where
it is not, entries are selected in batches, each by one pass over the zones that can hold an entry of it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gotong_memfile.bulk import entries_in
from gotong_memfile.codec import RawEntry
from gotong_memfile.log import Snapshot, Zone
from gotong_memfile.search import Needle, matching_lines
from gotong_memfile.zones import ZoneMap

LIKELY: Final = 64
"""How many entries are selected first when it is not known how many will be taken."""

_LARGEST_BATCH: Final = 16_384
_LIKELY_BYTES: Final = 256
"""How long a line is likely to be."""

_MOST_BYTES: Final = 1024 * 1024

Rank = tuple[float, int]
"""Of an entry in an order: greater comes first. `ts` and offset, both negated for oldest first."""

Place = tuple[Rank, int, int]
"""The rank of an entry, and the bytes `[start, end)` of its line: a batch must not hold texts of any size."""


def in_order(
    zone_map: ZoneMap,
    *,
    newest_first: bool = True,
    since: float | None = None,
    needle: Needle | None = None,
    likely: int = LIKELY,
) -> Iterator[RawEntry]:
    """The entries with `ts >= since` that hold `needle`.

    Newest first: by falling `ts`, of equal `ts` the later in the file first. Oldest first is the exact
    reverse. `likely` is how many the caller will probably take.
    """
    if not zone_map.in_order:
        return iter(_Ranking(zone_map, newest_first, since, needle, likely))
    if newest_first:
        return _from_the_end(zone_map, since, needle, likely)
    return _from_the_start(zone_map, since, needle)


def _from_the_end(
    zone_map: ZoneMap, since: float | None, needle: Needle | None, likely: int
) -> Iterator[RawEntry]:
    """Requires: the file is in order."""
    snapshot = zone_map.snapshot
    end, size = snapshot.size, likely * _LIKELY_BYTES
    while end > 0:
        start = max(0, end - size)
        block = snapshot.read(start, end)
        if start:
            # The line at its beginning is read with the bytes before it.
            cut = block.find(b"\n") + 1
            if not 0 < cut < len(block):
                size *= 2
                continue
            start, block = start + cut, block[cut:]
        for entry in reversed(_entries(snapshot, start, block, needle)):
            if since is not None and entry.ts < since:
                return
            yield entry
        if needle is not None and since is not None:
            oldest = next(matching_lines(snapshot, start, block), None)
            if oldest is not None and oldest.entry.ts < since:
                return
        end, size = start, min(size * 2, _MOST_BYTES)


def _from_the_start(zone_map: ZoneMap, since: float | None, needle: Needle | None) -> Iterator[RawEntry]:
    """Requires: the file is in order."""
    start = 0
    if since is not None:
        recent = (zone.start for zone in zone_map.zones if zone.high >= since)
        start = next(recent, zone_map.snapshot.size)
    for offset, block in zone_map.snapshot.blocks(start):
        for entry in _entries(zone_map.snapshot, offset, block, needle):
            if since is None or entry.ts >= since:
                yield entry


def _entries(snapshot: Snapshot, offset: int, block: bytes, needle: Needle | None = None) -> list[RawEntry]:
    """The entries in a block that hold `needle`, in file order."""
    entries = entries_in(block, snapshot.kind) if needle is None else None
    if entries is None:
        entries = [line.entry for line in matching_lines(snapshot, offset, block, needle)]
    return entries


@dataclass(frozen=True, slots=True)
class _Ranking:
    """The entries of a file that is not in order, in rank order. Iterate over it.

    Invariant of a batch: zones are visited by falling best rank, so that once `size` entries are selected,
    and the next zone can hold none that is better, no other one can.
    """

    zone_map: ZoneMap
    newest_first: bool
    since: float | None
    needle: Needle | None
    likely: int

    def __iter__(self) -> Iterator[RawEntry]:
        size = self.likely
        after: Rank | None = None
        while True:
            batch = self._batch(after, size)
            for _, start, end in batch:
                yield from _entries(self.zone_map.snapshot, start, self.zone_map.snapshot.read(start, end))
            if len(batch) < size:
                return
            after = batch[-1][0]
            size = min(size * 4, _LARGEST_BATCH)

    def _batch(self, after: Rank | None, size: int) -> list[Place]:
        """Where the `size` entries of highest rank below `after` are, highest first."""
        kept: list[Place] = []  # a heap: on top the lowest rank that is still in
        for zone in self.zone_map.loose:
            self._select(zone, after, size, kept)
        for zone in self._zones():
            if len(kept) == size and self._best(zone) < kept[0][0]:
                break
            self._select(zone, after, size, kept)
        return sorted(kept, reverse=True)

    def _select(self, zone: Zone, after: Rank | None, size: int, kept: list[Place]) -> None:
        """Put into `kept` what of the zone belongs there."""
        if self.since is not None and zone.high < self.since:
            return
        if after is not None and self._worst(zone) > after:
            return
        snapshot = self.zone_map.snapshot
        for offset, block in snapshot.blocks(zone.start, zone.end):
            for line in matching_lines(snapshot, offset, block, self.needle):
                ts = line.entry.ts
                if self.since is not None and ts < self.since:
                    continue
                rank = (ts, line.start) if self.newest_first else (-ts, -line.start)
                if after is not None and rank >= after:
                    continue
                if len(kept) < size:
                    heapq.heappush(kept, (rank, line.start, line.end))
                elif rank > kept[0][0]:
                    heapq.heapreplace(kept, (rank, line.start, line.end))

    def _zones(self) -> list[Zone]:
        """The closed zones by falling best rank."""
        if self.newest_first:
            return self.zone_map.newest_zones()
        return sorted(self.zone_map.closed[: self.zone_map.count], key=self._best, reverse=True)

    def _best(self, zone: Zone) -> Rank:
        """The highest rank that an entry of the zone can have."""
        return (zone.high, zone.end) if self.newest_first else (-zone.low, -zone.start)

    def _worst(self, zone: Zone) -> Rank:
        """The lowest rank that an entry of the zone can have."""
        return (zone.low, zone.start) if self.newest_first else (-zone.high, -zone.end)

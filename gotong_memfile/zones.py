"""The zone map of a log: what runs of lines hold, so that readers go straight to those that matter.

Built from a snapshot by decoding it once, 64 KiB at a time; after that a query reads only the zones that
can hold an answer. Correct for files in any order of `ts`, and quick for those in order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from gotong_memfile.codec import RawEntry, decode_line, is_blank
from gotong_memfile.layout import MemoryKind
from gotong_memfile.log import Snapshot, lines_of

LIKELY: Final = 64
"""How many entries are selected first when it is not known how many will be taken."""

_LARGEST_BATCH: Final = 16_384


@dataclass(frozen=True, slots=True)
class Zone:
    """The whole lines in the bytes `[start, end)`: valid entries, their span of `ts`, and damage."""

    start: int
    end: int
    entries: int
    low: int | float
    high: int | float
    corrupt: int
    corrupt_bytes: int


@dataclass(frozen=True, slots=True)
class ZoneMap:
    """The zones of a snapshot: they cover all of its bytes, without gaps, in file order.

    `torn_tail` says that the last line lacks its end of line and is no valid entry.
    """

    zones: tuple[Zone, ...]
    torn_tail: bool

    @property
    def entries(self) -> int:
        """Valid entries."""
        return sum(zone.entries for zone in self.zones)

    @property
    def corrupt(self) -> int:
        """Lines that are no valid entries."""
        return sum(zone.corrupt for zone in self.zones)

    @property
    def corrupt_bytes(self) -> int:
        """Bytes of those lines."""
        return sum(zone.corrupt_bytes for zone in self.zones)

    @property
    def oldest(self) -> int | float | None:
        """The lowest `ts`."""
        return min((zone.low for zone in self.zones if zone.entries), default=None)

    @property
    def newest(self) -> int | float | None:
        """The highest `ts`."""
        return max((zone.high for zone in self.zones if zone.entries), default=None)


class Line(NamedTuple):
    """A line that is not blank: the bytes `[start, end)`, and its entry, or None when it is corrupt."""

    start: int
    end: int
    entry: RawEntry | None


def lines(snapshot: Snapshot, kind: MemoryKind, start: int = 0, end: int | None = None) -> Iterator[Line]:
    """All lines from `start` to `end`, but for blank ones, in file order."""
    for offset, block in snapshot.blocks(start, end):
        yield from _lines_in(offset, block, kind)


def build(snapshot: Snapshot, kind: MemoryKind) -> ZoneMap:
    """The zone map of a snapshot: decodes every line once, keeps none."""
    zones = []
    torn_tail = False
    for offset, block in snapshot.blocks():
        entries = corrupt = corrupt_bytes = 0
        low: int | float = 0
        high: int | float = 0
        for line in _lines_in(offset, block, kind):
            if line.entry is None:
                corrupt += 1
                corrupt_bytes += line.end - line.start
                torn_tail = line.end == snapshot.size and not block.endswith(b"\n")
                continue
            ts = line.entry.ts
            low = min(low, ts) if entries else ts
            high = max(high, ts) if entries else ts
            entries += 1
        zones.append(Zone(offset, offset + len(block), entries, low, high, corrupt, corrupt_bytes))
    return ZoneMap(tuple(zones), torn_tail)


Rank = tuple[float, int]
"""Place of an entry in an order: greater comes first. `ts` and offset, both negated for oldest first."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The entries of a snapshot with `ts >= since` that are `wanted`, in rank order. Iterate over it.

    Newest first: by falling `ts`, of equal `ts` the later in the file first. Oldest first is the exact
    reverse. In bounded memory: entries are selected in batches, each by one pass over the zones that can
    hold an entry of it; the first batch has `likely` entries, as many as the caller will probably take.
    """

    snapshot: Snapshot
    kind: MemoryKind
    zone_map: ZoneMap
    newest_first: bool = True
    since: float | None = None
    wanted: Callable[[RawEntry], bool] | None = None
    likely: int = LIKELY

    def __iter__(self) -> Iterator[RawEntry]:
        zones = [
            zone
            for zone in self.zone_map.zones
            if zone.entries and (self.since is None or zone.high >= self.since)
        ]
        zones.sort(key=self._best, reverse=True)
        size = self.likely
        after: Rank | None = None
        while True:
            batch = self._batch(zones, after, size)
            for _, entry in batch:
                yield entry
            if len(batch) < size:
                return
            after = batch[-1][0]
            size = min(size * 4, _LARGEST_BATCH)

    def _batch(self, zones: list[Zone], after: Rank | None, size: int) -> list[tuple[Rank, RawEntry]]:
        """The `size` entries of highest rank below `after`, highest first."""
        kept: list[tuple[Rank, RawEntry]] = []  # a heap: on top the lowest rank that is still in
        for zone in zones:
            if len(kept) == size and self._best(zone) < kept[0][0]:
                break
            if after is not None and self._worst(zone) > after:
                continue
            for line in lines(self.snapshot, self.kind, zone.start, zone.end):
                entry = line.entry
                if entry is None or (self.since is not None and entry.ts < self.since):
                    continue
                rank = (entry.ts, line.start) if self.newest_first else (-entry.ts, -line.start)
                if (after is not None and rank >= after) or (len(kept) == size and rank < kept[0][0]):
                    continue
                if self.wanted is not None and not self.wanted(entry):
                    continue
                # Ranks differ in the offset, so that a heap of pairs never compares entries.
                if len(kept) < size:
                    heapq.heappush(kept, (rank, entry))
                else:
                    heapq.heapreplace(kept, (rank, entry))
        return sorted(kept, key=lambda pair: pair[0], reverse=True)

    def _best(self, zone: Zone) -> Rank:
        """The highest rank that an entry of the zone can have."""
        return (zone.high, zone.end) if self.newest_first else (-zone.low, -zone.start)

    def _worst(self, zone: Zone) -> Rank:
        """The lowest rank that an entry of the zone can have."""
        return (zone.low, zone.start) if self.newest_first else (-zone.high, -zone.end)


def _lines_in(offset: int, block: bytes, kind: MemoryKind) -> Iterator[Line]:
    for start, end, line in lines_of(offset, block):
        entry = decode_line(line, kind)
        if entry is not None or not is_blank(line):
            yield Line(start, end, entry)

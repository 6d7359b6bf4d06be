"""The rule of compaction: which entries stay when a file has passed its byte cap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gotong_memfile.layout import MemoryKind
from gotong_memfile.log import Snapshot, Zone
from gotong_memfile.zones import ZoneMap, lines


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


def survey(zone_map: ZoneMap, cap: int, pause: Callable[[], None] | None = None) -> Survey:
    """Find what must go from a file to bring it under `cap` bytes.

    The rule of the contract (DESIGN §3): while the entries do not fit, the newer half of them, but at least
    one, stays. Damage stays, too, and it and blank lines do not count against the cap: else they would push
    good entries out. `pause` is called between steps of work.
    """
    snapshot = zone_map.snapshot
    zones = zone_map.counted(pause)
    entries = kept = sum(zone.entries or 0 for zone in zones)
    entry_bytes = kept_bytes = sum(zone.entry_bytes for zone in zones)
    other_bytes = snapshot.size - entry_bytes
    cut = 0
    while kept_bytes > cap and kept > 1:
        kept = max(1, kept // 2)
        cut, kept_bytes = newest(snapshot, zones, kept)
    if kept == entries:
        return Survey(other_bytes, None, [])
    pieces = []
    for zone in zones:
        if zone.corrupt and zone.start < cut:
            found = lines(snapshot, zone.start, min(zone.end, cut))
            pieces += [(line.start, line.end) for line in found if line.entry is None]
    pieces.append((cut, snapshot.size))
    after = sum(end - start for start, end in pieces)
    return Survey(other_bytes, Compaction(snapshot.kind, snapshot.size, after, entries, kept), pieces)


def newest(snapshot: Snapshot, zones: Sequence[Zone], wanted: int) -> tuple[int, int]:
    """Where the newest `wanted` entries of counted `zones` begin, and how many bytes they have."""
    total = 0
    start = snapshot.size
    for zone in reversed(zones):
        if not wanted:
            break
        if (zone.entries or 0) <= wanted:
            wanted -= zone.entries or 0
            total += zone.entry_bytes
            start = zone.start
            continue
        entries = [line for line in lines(snapshot, zone.start, zone.end) if line.entry is not None]
        start = entries[-wanted].start
        total += sum(line.end - line.start for line in entries[-wanted:])
        break
    return start, total

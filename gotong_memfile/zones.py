"""The zone map of a log: what runs of lines hold, so that readers go straight to those that matter.

It is kept from call to call. What this process appends it knows without reading; what others append is read
once; where the file was replaced, cut or changed in place, it is built anew.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from gotong_memfile import log
from gotong_memfile.bulk import entries_in, times_in
from gotong_memfile.codec import RawEntry, decode_line, is_blank
from gotong_memfile.errors import StorageError
from gotong_memfile.log import KindLog, Piece, Snapshot, Zone, lines_of

_SEAL_BYTES: Final = 512
"""How much of what was mapped is compared before it is taken for the same, when a file has grown."""


_MOST_READ: Final = 4 * 1024 * 1024
"""How much of a new generation is read at most, while writers wait, to keep what is known of the old one."""


class Line(NamedTuple):
    """A line that is not blank: the bytes `[start, end)`, and its entry, or None when it is corrupt."""

    start: int
    end: int
    entry: RawEntry | None


class EntryLine(NamedTuple):
    """A valid line: the bytes `[start, end)`, and its entry."""

    start: int
    end: int
    entry: RawEntry


def lines(snapshot: Snapshot, start: int = 0, end: int | None = None) -> Iterator[Line]:
    """All lines from `start` to `end`, but for blank ones, in file order. Damage is logged."""
    for offset, block in snapshot.blocks(start, end):
        yield from lines_in(snapshot, offset, block)


def lines_in(snapshot: Snapshot, offset: int, block: bytes) -> Iterator[Line]:
    """The lines of a block of `snapshot`, as `lines` gives them."""
    for start, end, line in lines_of(offset, block):
        entry = entry_in(snapshot, start, line)
        if entry is not None or not is_blank(line):
            yield Line(start, end, entry)


def entry_in(snapshot: Snapshot, start: int, line: bytes) -> RawEntry | None:
    """The entry in the line at `start`, or None. Damage is logged, but for an unfinished last line: it may be
    a record that another process is just writing, and the next writer tells of it.
    """
    entry = decode_line(line, snapshot.kind)
    if entry is None and not is_blank(line) and (line[-1] == 10 or start + len(line) < snapshot.size):
        snapshot.log.tell_damage(snapshot, start)
    return entry


@dataclass(frozen=True, slots=True)
class ZoneMap:
    """The zones of a snapshot: they cover all of its bytes, without gaps, in file order.

    The zones are `closed[:count]`, which stay as they are, then `growing`, and `rest`, a last line that
    lacks its end of line. `newest` is the highest `ts` of whole lines, `whole_in_order` whether none of them
    is older than one before it, `seal` what the last of them end with.
    """

    snapshot: Snapshot
    closed: list[Zone]
    count: int
    growing: Zone
    rest: Zone | None
    newest: float
    whole_in_order: bool
    seal: bytes
    _newest_zones: list[Zone]

    @property
    def in_order(self) -> bool:
        """Whether no entry is older than one before it."""
        return self.whole_in_order and (self.rest is None or self.newest <= self.rest.low)

    @property
    def zones(self) -> list[Zone]:
        """All zones that are not empty."""
        return [*self.closed[: self.count], *self.loose]

    @property
    def loose(self) -> list[Zone]:
        """The zones behind the closed ones, which change with the next append."""
        return [zone for zone in (self.growing, self.rest) if zone is not None and zone.end > zone.start]

    def zones_at(self, ts: float) -> Iterator[Zone]:
        """The zones that can hold an entry of that time, in file order."""
        first = 0
        if self.whole_in_order:
            first = bisect_left(self.closed, ts, 0, self.count, key=lambda zone: zone.high)
        for index in range(first, self.count):
            zone = self.closed[index]
            if zone.low <= ts <= zone.high:
                yield zone
            elif self.whole_in_order:
                break
        for zone in self.loose:
            if zone.low <= ts <= zone.high:
                yield zone

    def newest_zones(self) -> list[Zone]:
        """The closed zones by falling highest `ts`, of equal ones the later in the file first."""
        if not self._newest_zones:
            # Several threads may do this at once, all with one result.
            closed = self.closed[: self.count]
            self._newest_zones[:] = sorted(closed, key=lambda zone: (zone.high, zone.end), reverse=True)
        return self._newest_zones

    @property
    def torn_tail(self) -> bool:
        """Whether the last line lacks its end of line and is no valid entry."""
        return self.rest is not None and not self.rest.entries

    def holds(self, snapshot: Snapshot) -> bool:
        """Whether this is the map of `snapshot`, too: nothing has changed in between."""
        mine, now = self.snapshot.status, snapshot.status
        return (
            self.snapshot.file is snapshot.file
            and mine.st_size == now.st_size
            and mine.st_mtime_ns == now.st_mtime_ns
            and mine.st_ctime_ns == now.st_ctime_ns
            and self.snapshot.revision == snapshot.revision
        )

    def is_prefix_of(self, snapshot: Snapshot) -> bool:
        """Whether `snapshot` is of the same file, grown, as far as can be seen without reading it all."""
        covered = self.growing.end
        return (
            self.snapshot.file is snapshot.file
            and self.snapshot.revision == snapshot.revision
            and self.snapshot.size < snapshot.size
            and snapshot.read(covered - len(self.seal), covered) == self.seal
        )

    def leads_to(self, snapshot: Snapshot) -> bool:
        """Whether this map and `snapshot`, whichever is the older, are of one file that has only grown."""
        if self.snapshot.size > snapshot.size:
            return self.snapshot.file is snapshot.file and self.snapshot.revision == snapshot.revision
        return self.holds(snapshot) or self.is_prefix_of(snapshot)

    def counted(self, pause: Callable[[], None] | None = None) -> list[Zone]:
        """All zones, their entries counted: decodes each line once that was not counted before.

        `pause` is called after each zone that had to be read.
        """
        for index in range(self.count):
            if self.closed[index].entries is None:
                self.closed[index] = _counted(self.snapshot, self.closed[index])
                if pause is not None:
                    pause()
        return [zone if zone.entries is not None else _counted(self.snapshot, zone) for zone in self.zones]


class KindMap:
    """The zone map of one log, as far as it is known.

    Invariant: `_map` changes under `_lock` only, and `closed` of all maps of one file is one list, of which
    each map sees its own beginning.
    """

    def __init__(self, of: KindLog) -> None:
        self._log = of
        self.start_anew_in_child()

    def start_anew_in_child(self) -> None:
        """Forget the map, and what threads of the parent are at."""
        self._lock = threading.Lock()
        self._map: ZoneMap | None = None

    def let_go(self) -> None:
        """Forget the map, for an owner that is not used."""
        self._map = None

    def current(self, version: int | None, *, build: bool = True) -> ZoneMap | None:
        """The map of what the log holds now, seen from the folder's `version`; None when there is no file.

        Without `build` also None when there is no map to start from.
        """
        known = self._map
        snapshot = self._log.snapshot(version)
        if snapshot is None or (known is not None and known.holds(snapshot)):
            return known if snapshot is not None else None
        with self._lock:
            # Own appends are asked for before the file is looked at again: so it holds all of them.
            own = self._log.own_zones(snapshot)
            snapshot = self._log.snapshot(version)
            if snapshot is None:
                return None
            known = self._map
            if known is None or not known.holds(snapshot):
                grown = _Growing.of(known, snapshot) if known is not None else None
                if grown is None and not build:
                    return None
                self._map = known = (grown or _Growing(snapshot)).finished(own)
            return known

    def follow(
        self, version: int | None, old: Snapshot, new: os.stat_result, pieces: Sequence[Piece]
    ) -> None:
        """Take over what is known of the generation `old` to the one that was put in its place, `new`, which
        begins with these `pieces` of it. Requires: a turn of the owner's queue.
        """
        with self._lock:
            known, self._map = self._map, None
            if known is None or not known.leads_to(old):
                return
            try:
                snapshot = self._log.snapshot(version)
                if snapshot is not None and os.path.samestat(snapshot.status, new):
                    made = _Growing(snapshot)
                    if made.take_over(known, pieces):
                        self._map = made.finished([])
            except (
                StorageError
            ) as error:  # the rewrite is done all the same, and the next reader meets it, too
                self._log.logger.info("what %r holds is read anew: %s", self._log.path, error)


class _Growing:
    """A zone map that is being made: from nothing, or from what is known of the beginning of the file."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._closed: list[Zone] = []
        self._zone = _empty(0)
        self._newest = -inf
        self._in_order = True
        self._known: ZoneMap | None = None

    @classmethod
    def of(cls, known: ZoneMap, snapshot: Snapshot) -> _Growing | None:
        """Begin with what is known; None when `snapshot` does not begin with it."""
        if not known.is_prefix_of(snapshot):
            return None
        made = cls(snapshot)
        del known.closed[known.count :]
        made._closed = known.closed
        made._zone, made._newest, made._in_order = known.growing, known.newest, known.whole_in_order
        made._known = known
        return made

    def add(self, zone: Zone) -> None:
        """Append a zone that begins where the last one ends."""
        self._in_order = self._in_order and zone.in_order and self._newest <= zone.low
        self._newest = max(self._newest, zone.high)
        if zone.end - zone.start >= log.BLOCK_BYTES and self._zone.end > self._zone.start:
            self._closed.append(self._zone)
            self._zone = _empty(zone.start)
        self._zone = self._zone.joined(zone)
        if self._zone.end - self._zone.start >= log.BLOCK_BYTES:
            self._closed.append(self._zone)
            self._zone = _empty(zone.end)

    def take_over(self, known: ZoneMap, pieces: Sequence[Piece]) -> bool:
        """Append the zones that lie within `pieces` of the file of `known`, and read what is between them;
        False when that would be too much.
        """
        whole = [*known.closed[: known.count], known.growing]
        position = read = 0
        for piece in pieces:
            if isinstance(piece, bytes):
                position += len(piece)
                continue
            start, end = piece
            shift = position - start
            index = bisect_left(whole, start, key=lambda zone: zone.start)
            while index < len(whole) and whole[index].end <= end:
                zone = whole[index]
                gap = zone.start + shift - self._zone.end
                read += gap
                if read > _MOST_READ:
                    return False
                if gap:
                    self.read(zone.start + shift)
                self.add(zone._replace(start=zone.start + shift, end=zone.end + shift))
                index += 1
            position += end - start
        return self._snapshot.size - self._zone.end + read <= _MOST_READ

    def read(self, end: int) -> None:
        """Append the whole lines up to `end` by reading them."""
        for offset, block in self._snapshot.blocks(self._zone.end, end):
            if block.endswith(b"\n"):
                self.add(_surveyed(self._snapshot, offset, block))

    def finished(self, own: list[Zone]) -> ZoneMap:
        """The map of the snapshot, with what is known of it as `own`."""
        for zone in own:
            if self._zone.end <= zone.start and zone.end <= self._snapshot.size:
                self.read(zone.start)
                self.add(zone)
        self.read(self._snapshot.size)
        end, size = self._zone.end, self._snapshot.size
        rest = None
        if end < size:
            rest = _counted_lines(self._snapshot, end, self._snapshot.read(end, size))
        known = self._known
        same_zones = known is not None and known.count == len(self._closed)
        return ZoneMap(
            self._snapshot,
            self._closed,
            len(self._closed),
            self._zone,
            rest,
            self._newest,
            self._in_order,
            self._snapshot.read(max(0, end - _SEAL_BYTES), end),
            known._newest_zones if known is not None and same_zones else [],
        )


def _empty(at: int) -> Zone:
    return Zone(at, at, inf, -inf, in_order=True, entries=0)


def _surveyed(snapshot: Snapshot, offset: int, block: bytes) -> Zone:
    """The zone of a block of whole lines, not counted where it is quicker not to."""
    times = times_in(block)
    if times is None:
        return _counted_lines(snapshot, offset, block)
    ordered = sorted(times)
    return Zone(offset, offset + len(block), ordered[0], ordered[-1], times == ordered)


def _counted(snapshot: Snapshot, zone: Zone) -> Zone:
    """The same zone, its entries counted."""
    block = snapshot.read(zone.start, zone.end)
    entries = entries_in(block, snapshot.kind)
    if entries is None:
        return _counted_lines(snapshot, zone.start, block)._replace(end=zone.end)
    times = [entry.ts for entry in entries]
    ordered = sorted(times)
    in_order = times == ordered
    return Zone(zone.start, zone.end, ordered[0], ordered[-1], in_order, len(times), len(block))


def _counted_lines(snapshot: Snapshot, offset: int, block: bytes) -> Zone:
    """The zone of a block, counted line by line."""
    zone = _empty(offset)
    for line in lines_in(snapshot, offset, block):
        if line.entry is None:
            more = Zone(zone.end, line.end, inf, -inf, in_order=True, entries=0, corrupt=1)
        else:
            ts = line.entry.ts
            more = Zone(
                zone.end, line.end, ts, ts, in_order=True, entries=1, entry_bytes=line.end - line.start
            )
        zone = zone.joined(more)
    return zone._replace(end=offset + len(block))

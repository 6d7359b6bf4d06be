"""Reading one owner's logs: entries of several kinds in one order, entries by id, and the numbers.

Takes no lock that a writer holds. Each call works on what is there now.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from gotong_memfile import ordering
from gotong_memfile.codec import RawEntry
from gotong_memfile.folder import OwnerFolder
from gotong_memfile.ids import time_in
from gotong_memfile.layout import MemoryKind
from gotong_memfile.log import KindLog, Snapshot
from gotong_memfile.models import MemoryEntry
from gotong_memfile.search import Needle, at_its_time, lines_with_ids
from gotong_memfile.surface import KindStats
from gotong_memfile.zones import KindMap, ZoneMap


class OwnerReader:
    """What the files of one owner hold. Safe to use from any thread, beside any writer."""

    def __init__(self, folder: OwnerFolder, logs: Mapping[MemoryKind, KindLog]) -> None:
        self._folder = folder
        self._logs = logs
        self.maps = {kind: KindMap(log) for kind, log in logs.items()}

    def snapshot(self, kind: MemoryKind) -> Snapshot | None:
        """What the log of `kind` holds now, or None without a file."""
        return self._logs[kind].snapshot(self._folder.version())

    def zone_map(self, kind: MemoryKind) -> ZoneMap | None:
        """The zones of the log of `kind` as it is now, or None without a file."""
        return self.maps[kind].current(self._folder.version())

    def ordered(
        self,
        kinds: Iterable[MemoryKind],
        *,
        since: float | None = None,
        text: str | None = None,
        most: int = ordering.LIKELY,
        newest_first: bool = True,
    ) -> Iterator[RawEntry]:
        """The entries with `ts >= since` that contain `text`, of all `kinds` in one order.

        By `ts`; of equal `ts` within a kind by place in the file, across kinds by id: the kinds' orders are
        merged, always taking the greater head. `most` is how many the caller is likely to take. All kinds
        are read as they are at the time of the call, until the iterator is dropped.
        """
        version = self._folder.version()
        needle = Needle(text) if text else None
        streams = []
        for kind in kinds:
            zone_map = self.maps[kind].current(version)
            if zone_map is not None and zone_map.snapshot.size:
                streams.append(
                    ordering.in_order(
                        zone_map, newest_first=newest_first, since=since, needle=needle, likely=most
                    )
                )
        if len(streams) == 1:
            return streams[0]
        return heapq.merge(*streams, key=lambda entry: (entry.ts, entry.id), reverse=newest_first)

    def get(self, entry_id: str, kinds: Sequence[MemoryKind]) -> RawEntry | None:
        """The entry of this id, of the first of `kinds` that has it.

        Of several with one id it is the last that is of the time in the id, or else the last in its file.
        """
        ts = time_in(entry_id)
        if ts is not None:
            for kind in kinds:
                zone_map = self.zone_map(kind)
                found = None if zone_map is None else at_its_time(zone_map, entry_id, ts)
                if found is not None:
                    return found
        return self.find({entry_id}, kinds).get(entry_id)

    def find(self, ids: Collection[str], kinds: Sequence[MemoryKind]) -> dict[str, RawEntry]:
        """The entries of these ids; of several with one id the last in its file, of the first of `kinds`."""
        found: dict[str, RawEntry] = {}
        for kind in reversed(kinds):
            snapshot = self.snapshot(kind)
            if snapshot is not None:
                for line in lines_with_ids(snapshot, ids):
                    found[line.entry.id] = line.entry
        return found

    def stats(self, kind: MemoryKind, cap: int | None = None) -> KindStats:
        """One kind in numbers; `cap` is the configured one."""
        zone_map = self.zone_map(kind)
        zones = zone_map.counted() if zone_map is not None else []
        filled = [zone for zone in zones if zone.entries]
        return KindStats(
            size_bytes=zone_map.snapshot.size if zone_map is not None else 0,
            entries=sum(zone.entries or 0 for zone in filled),
            corrupt=sum(zone.corrupt for zone in zones),
            torn_tail=zone_map is not None and zone_map.torn_tail,
            max_bytes=cap,
            oldest=min((zone.low for zone in filled), default=None),
            newest=max((zone.high for zone in filled), default=None),
        )


class Scan(Iterator[MemoryEntry]):
    """An iterator over entries as models, which lets go of the files at its end."""

    def __init__(self, entries: Iterator[RawEntry]) -> None:
        self._entries = entries

    def __next__(self) -> MemoryEntry:
        try:
            return next(self._entries).model()
        except BaseException:
            self._entries = iter(())
            raise

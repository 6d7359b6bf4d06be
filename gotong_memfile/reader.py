"""Reading one owner's logs: entries of several kinds in one order, entries by id, and the numbers.

Takes no lock and keeps nothing: each call works on snapshots of what is there now.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from gotong_memfile import fileio, zones
from gotong_memfile.codec import RawEntry
from gotong_memfile.layout import MemoryKind, OwnerPaths
from gotong_memfile.log import KindLog, Snapshot
from gotong_memfile.models import MemoryEntry
from gotong_memfile.search import lines_with_ids, text_match
from gotong_memfile.surface import KindStats


class OwnerReader:
    """What the files of one owner hold. Safe to use from any thread, beside any writer."""

    def __init__(self, paths: OwnerPaths, logs: Mapping[MemoryKind, KindLog], logger: logging.Logger) -> None:
        self._paths = paths
        self._logs = logs
        self._logger = logger
        # Which damage of which generation was logged; a hint, so threads may overwrite each other's.
        self._told: dict[MemoryKind, tuple[int, int, int]] = {}

    def snapshot(self, kind: MemoryKind) -> Snapshot | None:
        """What the log of `kind` holds now, or None without a file. The caller closes it."""
        return self._logs[kind].snapshot() if fileio.owner_exists(self._paths) else None

    def ordered(
        self,
        stack: contextlib.ExitStack,
        kinds: Iterable[MemoryKind],
        *,
        since: float | None = None,
        needle: str | None = None,
        most: int = zones.LIKELY,
        newest_first: bool = True,
    ) -> Iterator[RawEntry]:
        """The entries with `ts >= since` that contain `needle`, of all `kinds` in one order.

        By `ts`; of equal `ts` within a kind by place in the file, across kinds by id: the kinds' orders are
        merged, always taking the greater head. `most` is how many the caller is likely to take. `stack`
        keeps the files open.
        """
        opened = []
        for kind in kinds:
            snapshot = self.snapshot(kind)
            if snapshot is not None:
                opened.append((kind, stack.enter_context(snapshot)))
        streams = [
            zones.Ranking(
                snapshot,
                kind,
                self._zone_map(snapshot, kind),
                newest_first=newest_first,
                since=since,
                wanted=text_match(needle),
                likely=most,
            )
            for kind, snapshot in opened
        ]
        return heapq.merge(*streams, key=lambda entry: (entry.ts, entry.id), reverse=newest_first)

    def find(self, ids: Collection[str], kinds: Sequence[MemoryKind]) -> dict[str, RawEntry]:
        """The entries of these ids; of several with one id the last in its file, of the first of `kinds`."""
        found: dict[str, RawEntry] = {}
        for kind in reversed(kinds):
            snapshot = self.snapshot(kind)
            if snapshot is not None:
                with snapshot:
                    for line in lines_with_ids(snapshot, kind, ids):
                        found[line.entry.id] = line.entry
        return found

    def stats(self, kind: MemoryKind, cap: int | None = None) -> KindStats:
        """One kind in numbers; `cap` is the configured one."""
        with contextlib.ExitStack() as stack:
            snapshot = self.snapshot(kind)
            if snapshot is None:
                size, zone_map = 0, zones.ZoneMap((), torn_tail=False)
            else:
                stack.enter_context(snapshot)
                size, zone_map = snapshot.size, self._zone_map(snapshot, kind)
            return KindStats(
                size_bytes=size,
                entries=zone_map.entries,
                corrupt=zone_map.corrupt,
                torn_tail=zone_map.torn_tail,
                max_bytes=cap,
                oldest=zone_map.oldest,
                newest=zone_map.newest,
            )

    def _zone_map(self, snapshot: Snapshot, kind: MemoryKind) -> zones.ZoneMap:
        """The zone map of a snapshot. Damage is logged once per generation, and again when there is more."""
        zone_map = zones.build(snapshot, kind)
        # A torn tail may be a record that another process is just writing: the next writer tells of it.
        damaged = zone_map.corrupt - zone_map.torn_tail
        told = (snapshot.status.st_dev, snapshot.status.st_ino, damaged)
        if damaged and self._told.get(kind) != told:
            self._told[kind] = told
            self._logger.warning(
                "%d of the lines of %r cannot be read as entries; they are skipped and kept",
                damaged,
                snapshot.file.path,
            )
        return zone_map


class Scan(Iterator[MemoryEntry]):
    """An iterator that keeps files open, and closes them at its end or when it is thrown away."""

    def __init__(self, entries: Iterator[RawEntry], files: contextlib.ExitStack) -> None:
        self._entries = entries
        self._files = files

    def __next__(self) -> MemoryEntry:
        try:
            return next(self._entries).model()
        except BaseException:
            self._files.close()
            raise

    def __del__(self) -> None:
        self._files.close()

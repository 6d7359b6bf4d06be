"""The zone map of a file that changes in every way is that of a file that is met for the first time."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gotong_memfile import MemoryFileHandle, fileio, open_memory
from gotong_memfile.codec import decode_line, is_blank
from gotong_memfile.log import KindLog
from gotong_memfile.zones import KindMap, ZoneMap

CAP = 3_000


def truth(data: bytes) -> dict[str, Any]:
    """What a map should say, found by decoding each line."""
    times, entry_bytes, corrupt = [], 0, 0
    lines = data.split(b"\n")
    for number, line in enumerate(lines):
        size = len(line) + (number < len(lines) - 1)
        entry = decode_line(line, "episodic")
        if entry is not None:
            times.append(entry.ts)
            entry_bytes += size
        elif not is_blank(line):
            corrupt += 1
    return {"times": times, "entry_bytes": entry_bytes, "corrupt": corrupt}


def require_true(zone_map: ZoneMap, data: bytes) -> None:
    """Fail when the map says anything about `data` that is not so."""
    zones = zone_map.zones
    edges = [0, *[zone.end for zone in zones]]
    assert [zone.start for zone in zones] == edges[:-1], "zones lie side by side"
    assert edges[-1] == len(data) == zone_map.snapshot.size
    latest = -inf
    all_in_order = True
    for zone in zones:
        block = data[zone.start : zone.end]
        assert zone.end == len(data) or block.endswith(b"\n")
        times = truth(block)["times"]
        assert all(zone.low <= ts <= zone.high for ts in times)
        if zone.in_order:
            assert times == sorted(times)
        if zone.entries is not None:
            assert zone.entries == len(times)
        all_in_order = all_in_order and times == sorted(times) and (not times or latest <= times[0])
        latest = max([latest, *times])
    assert all_in_order or not zone_map.in_order
    whole = truth(data)
    counted = zone_map.counted()
    assert sum(zone.entries or 0 for zone in counted) == len(whole["times"])
    assert sum(zone.entry_bytes for zone in counted) == whole["entry_bytes"]
    assert sum(zone.corrupt for zone in counted) == whole["corrupt"]
    lows = [zone.low for zone in counted if zone.entries]
    highs = [zone.high for zone in counted if zone.entries]
    assert min(lows, default=None) == min(whole["times"], default=None)
    assert max(highs, default=None) == max(whole["times"], default=None)


def line(n: int, ts: float) -> bytes:
    return json.dumps({"id": f"f{n}", "kind": "episodic", "text": f"foreign {n}", "ts": ts}).encode() + b"\n"


class World:
    """A memory and the other hands in its file."""

    def __init__(self, root: Path) -> None:
        self.memory: MemoryFileHandle = open_memory(
            root, "agent/a", max_episodic_bytes=CAP, process_lock=False
        )
        self.log = root / "agent" / "a" / "episodic.jsonl"
        self.number = 0

    def data(self) -> bytes:
        return self.log.read_bytes() if self.log.exists() else b""

    def ids(self) -> list[str]:
        decoded = [decode_line(line, "episodic") for line in self.data().split(b"\n")]
        return [one.id for one in decoded if one is not None]

    def step(self, verb: str, n: int) -> None:
        self.number += 1
        getattr(self, verb)(n)

    def remember(self, n: int) -> None:
        for _ in range(1 + n % 3):
            self.memory.remember("own " * (n % 40 + 1))

    def remember_many(self, n: int) -> None:
        self.memory.remember_many([{"text": "many"}] * n)

    def forget(self, n: int) -> None:
        if ids := self.ids():
            self.memory.forget(ids[n % len(ids)])

    def forget_many(self, n: int) -> None:
        self.memory.forget_many(self.ids()[n % 3 :: 3])

    def patch(self, n: int) -> None:
        if ids := self.ids():
            self.memory.patch_meta(ids[n % len(ids)], {"n": "x" * n})

    def clear(self, n: int) -> None:
        if n % 4 == 0:
            self.memory.clear("episodic")

    def compact(self, n: int) -> None:
        self.memory.compact()

    def recall(self, n: int) -> None:
        self.memory.recall("own", k=n + 1)

    def failing(self, n: int) -> None:
        """An append that fails at its last step, and is taken back."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fileio.KeptFile, "position", fileio.KeptFile.position)
            status = fileio.KeptFile.status

            def fail(file: Any) -> Any:
                found = status(file)
                if found.st_size > before:
                    raise OSError(5, "Input/output error")
                return found

            before = len(self.data())
            patch.setattr(fileio.KeptFile, "status", fail)
            with pytest.raises(OSError, match="Input/output"):
                self.memory.remember("never")

    def other_appends(self, n: int) -> None:
        self.hand("ab", line(self.number, [1.5, 10**15, 1_764_500_000_000 + n][n % 3]))

    def other_appends_damage(self, n: int) -> None:
        self.hand("ab", [b"{torn\n", b"\n", b"\r\n", b"no json\n\n"][n % 4])

    def other_appends_half_a_line(self, n: int) -> None:
        self.hand("ab", line(self.number, n)[: 5 + n])

    def other_ends_the_line(self, n: int) -> None:
        self.hand("ab", b"\n")

    def other_cuts(self, n: int) -> None:
        data = self.data()
        self.hand("r+b", None, cut=len(data) * n // 40)

    def other_edits_in_place(self, n: int) -> None:
        lines = self.data().split(b"\n")
        lines[n % len(lines)] = b'{"id":"e","kind":"episodic","text":"edited","ts":%d}' % n
        self.hand("wb", b"\n".join(lines))

    def other_replaces(self, n: int) -> None:
        new = self.log.with_suffix(".new")
        new.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(b"".join(line(k, 10**12 + (k * n) % 17) for k in range(n)))
        new.replace(self.log)

    def other_removes(self, n: int) -> None:
        self.log.unlink(missing_ok=True)

    def hand(self, mode: str, data: bytes | None, cut: int | None = None) -> None:
        if not self.log.exists():
            return
        with self.log.open(mode) as file:
            if data is not None:
                file.write(data)
            if cut is not None:
                file.truncate(cut)
        # What changes a file without a change of its size shows in its times, which count in ticks.
        os.utime(self.log, ns=(10**9 * self.number, 10**9 * self.number))


verbs = st.sampled_from(
    [name for name in vars(World) if name not in {"data", "ids", "step", "hand"} and not name.startswith("_")]
)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(verbs, st.integers(0, 39)), max_size=25), st.sampled_from([60, 500, 65_536]))
@pytest.mark.timeout(170)
def test_a_map_that_is_kept_says_what_a_new_one_would(steps: list[tuple[str, int]], block: int) -> None:
    """Over own appends, rewrites and failures, and over appends, cuts, edits and replacements by others."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr("gotong_memfile.log.BLOCK_BYTES", block)
        patch.setattr("gotong_memfile.store._A_MOMENT", 0)
        patch.setattr(fileio.os, "fsync", lambda descriptor: None)
        logging.getLogger("gotong_memfile").setLevel(logging.CRITICAL)
        world = World(Path(directory))
        try:
            for verb, n in steps:
                world.step(verb, n)
                world.memory.flush()
                kept = world.memory._store.reader.zone_map("episodic")
                if kept is None:
                    assert not world.log.exists()
                else:
                    require_true(kept, world.data())
                assert [one.id for one in world.memory.scan(newest_first=False)] == _in_time(world.data())
        finally:
            world.memory.close()
            logging.getLogger("gotong_memfile").setLevel(logging.NOTSET)


def _in_time(data: bytes) -> list[str]:
    decoded = [decode_line(line, "episodic") for line in data.split(b"\n")]
    entries = [one for one in decoded if one is not None]
    return [one.id for one in sorted(entries, key=lambda entry: entry.ts)]


@pytest.fixture
def log(tmp_path: Path) -> Callable[[bytes], KindMap]:
    def make(data: bytes) -> KindMap:
        path = tmp_path / "episodic.jsonl"
        path.write_bytes(data)
        return KindMap(KindLog(str(path), "episodic", logging.getLogger("gotong_memfile"), lambda: None))

    return make


def test_the_judge_notices_what_a_wrong_map_says(log: Callable[[bytes], KindMap]) -> None:
    data = b"".join(line(n, n) for n in range(9))
    good = log(data).current(1)
    assert good is not None
    require_true(good, data)
    for other in (data + line(9, 9), data[: -len(line(8, 8))], line(5, 10**9) + data[len(line(0, 0)) :]):
        with pytest.raises(AssertionError):
            require_true(good, other)


def test_what_is_known_is_not_read_again(
    log: Callable[[bytes], KindMap], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"".join(line(n, n) for n in range(5_000))
    kept = log(data)
    assert kept.current(1) is not None
    read = 0
    real = fileio.KeptFile.read_at

    def counted(file: fileio.KeptFile, offset: int, size: int) -> bytes:
        nonlocal read
        read += size
        return real(file, offset, size)

    monkeypatch.setattr(fileio.KeptFile, "read_at", counted)
    assert kept.current(1) is not None
    assert read == 0, "nothing has changed"
    path = Path(kept._log.path)
    with path.open("ab") as file:
        file.write(line(5_000, 5_000))
    grown = kept.current(1)
    assert grown is not None
    require_true(grown, path.read_bytes())
    assert 0 < read < 4_000 + 2 * len(path.read_bytes()), "the judge counts each line once"
    read = 0
    with path.open("ab") as file:
        file.write(line(5_001, 5_001))
    assert kept.current(1) is not None
    assert 0 < read < 2_000


def test_reading_needs_little_memory_whatever_the_size_of_the_file(tmp_path: Path) -> None:
    """60 MB, out of order, are searched and counted within a few MB: no whole file, no object for each line."""
    folder = tmp_path / "agent" / "a"
    folder.mkdir(parents=True)
    block = b"".join(
        line(n, n) + b'{"id":"%d","kind":"episodic","text":"%s","ts":%d}\n' % (n, b"x" * 900, n)
        for n in range(500)
    )
    with (folder / "episodic.jsonl").open("wb") as file:
        for _ in range(120):
            file.write(block)
    code = """
import sys
from pathlib import Path
import gotong_memfile
def peak():
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
with gotong_memfile.open_memory(sys.argv[1], "agent/a") as memory:
    memory.remember("warm")
    before = peak()
    memory.recall(k=20), memory.recall("nowhere to be found"), memory.recall("foreign 77", k=5), memory.list(limit=500)
    memory.get("unknown"), memory.stats()
    assert sum(1 for _ in memory.scan()) == sum(1 for _ in memory.scan(newest_first=False)) == 120_001
    print(peak() - before)
"""
    told = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=True, text=True
    )
    assert int(told.stdout) < 16_000, "kB"

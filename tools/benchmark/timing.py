"""How long a thing takes, how much memory it needs, and the least that it could take."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec


def once(call: Callable[[], object]) -> float:
    """How long one call takes, in seconds."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def per_call(call: Callable[[], object], budget: float) -> float:
    """How long one call takes, in seconds: the mean of as many as `budget` seconds allow."""
    calls, passed = 0, 0.0
    started = time.perf_counter()
    while not calls or passed < budget:
        call()
        calls += 1
        passed = time.perf_counter() - started
    return passed / calls


def beside(job: Callable[[], object], write: Callable[[], object]) -> float:
    """Of the writes that another thread does while `job` is done the 99th percentile of their times, in
    seconds.
    """
    pauses: list[float] = []
    done = threading.Event()
    failure: list[BaseException] = []

    def work() -> None:
        try:
            while not pauses or not done.is_set():
                pauses.append(once(write))
        except BaseException as error:  # noqa: BLE001 - told by the thread that waits for this one
            failure.append(error)

    writer = threading.Thread(target=work)
    writer.start()
    try:
        job()
    finally:
        done.set()
        writer.join()
    if failure:
        raise failure[0]
    return sorted(pauses)[int(len(pauses) * 0.99)]


def shared(write: Callable[[], object], threads: int, budget: float) -> float:
    """How long one write takes, in seconds, of all that so many threads do at once."""
    done = [0] * threads
    end = time.perf_counter() + budget

    def work(number: int) -> None:
        while not done[number] or time.perf_counter() < end:
            write()
            done[number] += 1

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return (time.perf_counter() - started) / sum(done)


def peak_memory() -> int:
    """The most that this process has held, in bytes. `getrusage` would count what its parent held."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def copy_in_kernel(source: Path, target: Path, start: int = 0) -> None:
    """Copy a file from `start`, and bring it to the disk: the least that a rewrite has to do."""
    with source.open("rb") as old, target.open("wb") as new:
        size = os.fstat(old.fileno()).st_size
        while start < size:
            start += os.copy_file_range(old.fileno(), new.fileno(), size - start, start)
        os.fsync(new.fileno())


class _Times(msgspec.Struct):
    ts: int | float


def decode_times(file: Path) -> None:
    """Decode the `ts` of all lines: the least that a first look at a file has to do."""
    decode = msgspec.json.Decoder(_Times).decode_lines
    with file.open("rb") as lines:
        while block := lines.read(1 << 16):
            decode(block + lines.readline())

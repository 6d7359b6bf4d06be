"""Stress one memory for as long as you like: threads, processes, compaction, kills, foreign hands.

Worker processes write one owner under a small cap and keep, outside of the store, a journal of what was
acknowledged. They are killed again and again. After each kill, with all workers stopped, a judge that does
not use the library compares the files with the journals: nothing acknowledged may be missing that
compaction has not dropped, nothing forgotten may be back, no entry may be there twice.

    python tools/stress.py --minutes 10 --seed 1
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gotong_memfile import MemoryFileHandle, MemoryKind, fileio, open_memory

KINDS: tuple[MemoryKind, ...] = ("episodic", "semantic", "working")
Note = Callable[..., None]
OWNER = "agent/stressed"
CAP = 64 * 1024


# -- a worker ---------------------------------------------------------------------------------------------


def work(root: Path, journal: Path, seed: int, threads: int, capped: bool) -> None:
    """Use all verbs from several threads until killed, journaling what is about to be and what was done."""
    descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(sign: str, entry_id: str, more: str = "") -> None:
        # One write, so that a kill leaves whole lines; the journal survives the process as the store does.
        os.write(descriptor, f"{sign} {entry_id} {more}\n".encode())

    caps = {"max_episodic_bytes": CAP, "max_semantic_bytes": CAP} if capped else {}
    with open_memory(root, OWNER, **caps) as memory:
        workers = [
            threading.Thread(target=_thread, args=(memory, random.Random(f"{seed}/{n}"), f"{seed}.{n}", note))
            for n in range(threads)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def _thread(memory: MemoryFileHandle, chance: random.Random, name: str, note: Note) -> None:
    mine: list[str] = []
    for number in range(10**9):
        try:
            _step(memory, chance, f"{name}-{number}", mine, note)
        except Exception:
            logging.exception("a thread of a worker failed")
            os._exit(4)  # the run ends with that as a fault


def _step(memory: MemoryFileHandle, chance: random.Random, name: str, mine: list[str], note: Note) -> None:
    dice = chance.random()
    if mine and dice < 0.15:
        victim = mine.pop(chance.randrange(len(mine)))
        note("?-", victim)
        memory.forget(victim)
        note("-", victim)
    elif mine and dice < 0.25:
        memory.patch_meta(chance.choice(mine), {"patched": name})
    elif dice < 0.3:
        seen = [entry.id for entry in memory.scan()]
        if len(seen) != len(set(seen)):
            os._exit(3)  # a reader sees an entry twice: the run ends with that as a fault
    elif dice < 0.35:
        memory.recall(name[:3], k=5)
    elif dice < 0.36:
        memory.compact()
    else:
        kind = chance.choice(KINDS)
        text = "x" * chance.choice([10, 100, 1_000, 20_000])
        note("?+", name, kind)
        memory.remember(text, kind=kind, id=name)
        note("+", name, kind)
        if kind == "working" or chance.random() < 0.5:
            mine.append(name)


# -- the judge --------------------------------------------------------------------------------------------


@dataclass
class Ledger:
    """What the journals say: order of acknowledgement by writer and kind, and what is not certain."""

    stored: dict[str, str] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    operations: int = 0


def read_journals(journals: list[Path]) -> Ledger:
    """Add up all journals; what was begun and not acknowledged is doubtful."""
    ledger = Ledger()
    for journal in journals:
        for line in journal.read_text().splitlines():
            sign, entry_id, *more = line.split()
            if sign in {"?+", "?-"}:
                ledger.doubtful.add(entry_id)
                continue
            ledger.operations += 1
            ledger.doubtful.discard(entry_id)
            if sign == "+":
                ledger.stored[entry_id] = more[0]
            else:
                ledger.forgotten.add(entry_id)
    return ledger


def entries_on_disk(folder: Path) -> dict[str, list[str]]:
    """The ids in each file, in order, read without the library. Half records were never acknowledged."""
    found: dict[str, list[str]] = {}
    for kind in KINDS:
        log = folder / f"{kind}.jsonl"
        found[kind] = []
        for line in log.read_bytes().split(b"\n") if log.exists() else []:
            try:
                found[kind].append(json.loads(line)["id"])
            except ValueError:
                continue
    return found


def verdict(folder: Path, ledger: Ledger) -> list[str]:
    """What is wrong with the files; nothing is what is hoped for."""
    faults = []
    on_disk = entries_on_disk(folder)
    for kind, ids in on_disk.items():
        if len(ids) != len(set(ids)):
            faults.append(f"{kind}: an entry is there twice")
        back = [one for one in ids if one in ledger.forgotten]
        if back:
            faults.append(f"{kind}: {len(back)} forgotten entries are back, such as {back[0]}")
        unknown = [one for one in ids if one not in ledger.stored and one not in ledger.doubtful]
        if unknown:
            faults.append(f"{kind}: {len(unknown)} entries that nobody stored, such as {unknown[0]}")
        faults += [f"{kind}: {one}" for one in _losses(kind, set(ids), ledger)]
    return faults


def _losses(kind: str, there: set[str], ledger: Ledger) -> Iterator[str]:
    """Of each writer what is missing must be older than all that is there: dropped by compaction."""
    certain = [
        entry_id
        for entry_id, of_kind in ledger.stored.items()
        if of_kind == kind and entry_id not in ledger.forgotten and entry_id not in ledger.doubtful
    ]
    by_writer: dict[str, list[str]] = {}
    for entry_id in certain:
        by_writer.setdefault(entry_id.rpartition("-")[0], []).append(entry_id)
    for writer, ids in by_writer.items():
        ids.sort(key=lambda entry_id: int(entry_id.rpartition("-")[2]))
        present = [entry_id in there for entry_id in ids]
        if kind == "working" and not all(present):
            yield f"{present.count(False)} acknowledged entries of writer {writer} are gone"
        elif True in present and not all(present[present.index(True) :]):
            yield f"an acknowledged entry of writer {writer} is gone, though older ones are there"


# -- figures ----------------------------------------------------------------------------------------------


def measure(megabytes: int) -> None:
    """Print how long writers wait beside a compaction of so many MB, and how often threads share a write."""
    directory = Path(tempfile.mkdtemp(prefix="stress-"))
    try:
        with (
            open_memory(directory, OWNER) as writer,
            open_memory(directory, OWNER, max_episodic_bytes=megabytes * 600_000) as capped,
        ):
            for _ in range(megabytes):
                writer.remember_many([{"text": "x" * 920}] * 1_000)
            quiet = _pauses(writer, lambda: time.sleep(2))
            started = time.monotonic()
            beside = _pauses(writer, capped.compact)
            whole = time.monotonic() - started
        print(f"compaction of {megabytes} MB: {whole:.2f} s in all")
        for name, pauses in (("without", quiet), ("beside", beside)):
            pauses.sort()
            p50, p99 = (pauses[int(len(pauses) * part)] * 1e3 for part in (0.5, 0.99))
            print(f"a remember {name} it: p50 {p50:.2f} ms, p99 {p99:.2f} ms, max {pauses[-1] * 1e3:.1f} ms")
        for durability in ("process", "power"):
            with open_memory(directory, f"agent/{durability}", durability=durability) as memory:
                print(_shared_writes(memory, durability))
    finally:
        shutil.rmtree(directory)


def _pauses(memory: MemoryFileHandle, job: Callable[[], object]) -> list[float]:
    """How long each remember of another thread took while `job` was done, in seconds."""
    pauses: list[float] = []
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            started = time.perf_counter()
            memory.remember("beside", kind="episodic")
            pauses.append(time.perf_counter() - started)

    thread = threading.Thread(target=write)
    thread.start()
    job()
    done.set()
    thread.join()
    return pauses


def _shared_writes(memory: MemoryFileHandle, durability: str, threads: int = 8, each: int = 200) -> str:
    """Let threads remember at once, and count the system calls that write."""
    writes = 0
    write = fileio.File.write

    def counted(file: fileio.File, data: bytes | memoryview) -> int:
        nonlocal writes
        writes += 1
        return write(file, data)

    fileio.File.write = counted  # type: ignore[assignment, method-assign]
    try:
        workers = [
            threading.Thread(target=lambda: [memory.remember("x") for _ in range(each)])
            for _ in range(threads)
        ]
        started = time.monotonic()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        rate = threads * each / (time.monotonic() - started)
    finally:
        fileio.File.write = write  # type: ignore[method-assign]
    return f"{durability}: {threads * each} remembers of {threads} threads in {writes} writes, {rate:.0f}/s"


# -- the run ----------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """How a run went."""

    kills: int = 0
    operations: int = 0
    faults: list[str] = field(default_factory=list)


def run(seconds: float, seed: int, *, processes: int = 3, threads: int = 4, live: bool = False) -> Tally:
    """Stress a memory in a temporary directory for so many seconds."""
    directory = Path(tempfile.mkdtemp(prefix="stress-"))
    root, tally, chance = directory / "root", Tally(), random.Random(seed)
    folder = root.joinpath(*OWNER.split("/"))
    end = time.monotonic() + seconds
    journals: list[Path] = []
    by_hand: dict[str, str] = {}
    try:
        while time.monotonic() < end and not tally.faults:
            running = []
            for _ in range(processes):
                journals.append(directory / f"journal-{len(journals)}")
                arguments = [str(root), str(journals[-1]), f"{seed}{len(journals)}", str(threads)]
                command = [sys.executable, __file__, "--worker", *arguments]
                running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
            time.sleep(chance.uniform(0.6, 2.0))
            by_hand.update(_foreign_hand(folder, chance, len(journals)))
            for worker in running:
                if worker.poll() is not None:
                    tally.faults.append(f"a worker ended by itself with code {worker.returncode}")
                worker.send_signal(signal.SIGKILL)
                worker.wait()
                tally.kills += 1
            ledger = read_journals([journal for journal in journals if journal.exists()])
            ledger.stored.update(by_hand)
            tally.operations = ledger.operations
            tally.faults += verdict(folder, ledger)
            if live:
                left = max(0, end - time.monotonic())
                print(
                    f"\r{tally.kills} kills, {tally.operations} operations, {left:.0f} s left ",
                    end="",
                    flush=True,
                )
    finally:
        if tally.faults:
            print(f"\nthe evidence stays in {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory)
    return tally


def _foreign_hand(folder: Path, chance: random.Random, number: int) -> dict[str, str]:
    """Append a line as a program without locks does; what it was, for the ledger, if it was certain."""
    log = folder / "working.jsonl"
    if not log.exists() or chance.random() < 0.5:
        return {}
    entry_id = f"hand.{number}-0"
    with log.open("ab") as file:
        # On a line of its own: the file may end in the half record of a writer at work.
        file.write(f'\n{{"id":"{entry_id}","kind":"working","text":"by hand","ts":1}}\n'.encode())
    # A kill between a swap and the last look at the old file can leave it behind: it may be there, no more.
    return {entry_id: "by hand"}


def main() -> int:
    """Run by arguments; 0 when nothing was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (default: 1)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="to do the same again")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--threads", type=int, default=4, help="per process")
    parser.add_argument(
        "--worker", nargs=4, metavar=("ROOT", "JOURNAL", "SEED", "THREADS"), help=argparse.SUPPRESS
    )
    parser.add_argument("--measure", type=int, metavar="MB", help="print figures instead")
    given = parser.parse_args()
    if given.measure:
        measure(given.measure)
        return 0
    if given.worker:
        root, journal, seed, threads = given.worker
        work(Path(root), Path(journal), int(seed), int(threads), capped=True)
        return 0
    print(f"seed {given.seed}")
    tally = run(given.minutes * 60, given.seed, processes=given.processes, threads=given.threads, live=True)
    print(f"\n{tally.kills} kills survived, {tally.operations} acknowledged operations checked")
    for fault in tally.faults:
        print(f"FAULT: {fault}")
    print("verdict: " + ("FAULTS FOUND" if tally.faults else "nothing lost, nothing twice, nothing back"))
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())

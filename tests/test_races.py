"""Threads, handles, plugins and processes on one owner: every acknowledged entry is there once."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import operator
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import in_threads, judge

from gotong_memfile import (
    MemoryFileHandle,
    MemoryFilePlugin,
    ServiceInitCtx,
    TrashNotFoundError,
    TrashRestoreConflictError,
    open_memory,
)

KINDS = ("episodic", "semantic", "working")


def on_disk(root: Path) -> list[dict[str, Any]]:
    return [line for kind in KINDS for line in judge(root / "agent" / "a" / f"{kind}.jsonl")]


def all_verbs(memory: MemoryFileHandle, name: str, rounds: int) -> tuple[set[str], set[str]]:
    """Use every verb on entries of one's own and read everything; the ids that must be there, and must not."""
    chance = random.Random(name)
    alive: dict[str, int | None] = {}
    gone: set[str] = set()
    for n in range(rounds):
        kind: Any = chance.choice(KINDS)
        verb = chance.choice(
            ["remember", "remember", "many", "forget", "forget_many", "patch", "read", "scan", "retry"]
        )
        if verb == "remember":
            alive[memory.remember(f"{name} {n}", kind=kind).id] = None
        elif verb == "many":
            batch = [{"text": f"{name} {n} {i}", "kind": chance.choice(KINDS)} for i in range(4)]
            alive.update(dict.fromkeys(entry.id for entry in memory.remember_many(batch)))
        elif verb == "retry":
            entry = memory.remember(f"{name} {n}", id=f"{name}-{n}")
            assert memory.remember(f"{name} {n}", id=f"{name}-{n}") == entry
            alive[entry.id] = None
        elif verb == "forget" and alive:
            gone.add(victim := chance.choice(list(alive)))
            del alive[victim]
            assert memory.forget(victim)
        elif verb == "forget_many" and alive:
            victims = chance.sample(list(alive), min(3, len(alive)))
            assert memory.forget_many(victims) == len(victims)
            gone.update(victims)
            for victim in victims:
                del alive[victim]
        elif verb == "patch" and alive:
            lucky = chance.choice(list(alive))
            assert memory.patch_meta(lucky, {"n": n})
            alive[lucky] = n
        elif verb == "scan":
            seen = [entry.id for entry in memory.scan()]
            assert len(seen) == len(set(seen))
            assert set(alive) <= set(seen)
            assert gone.isdisjoint(seen)
        else:
            mine = memory.recall(name, k=200)
            assert [entry.ts for entry in mine] == sorted((entry.ts for entry in mine), reverse=True)
    for entry_id, n in alive.items():
        entry = memory.get(entry_id)
        assert entry is not None
        assert (entry.meta or {}).get("n") == n
    return set(alive), gone


def test_eight_threads_on_four_handles_of_two_plugins_mix_all_verbs(root: Path) -> None:
    plugins = [MemoryFilePlugin(), MemoryFilePlugin()]
    for plugin in plugins:
        plugin.init(ServiceInitCtx(root_dir=root))
    handles = [
        *(plugin.attach("agent/a") for plugin in plugins),
        *(open_memory(root, "agent/a") for _ in range(2)),
    ]
    jobs: list[Callable[[], Any]] = [
        lambda n=n: all_verbs(handles[n % 4], f"thread-{n}", 60)  # type: ignore[misc]
        for n in range(8)
    ]
    results = in_threads(*jobs)
    lines = on_disk(root)
    assert len(lines) == len({line["id"] for line in lines})
    assert {line["id"] for line in lines} == set().union(*(alive for alive, _ in results))
    for handle in handles:
        handle.close()


def test_appends_are_in_the_order_of_their_times_and_ids(root: Path) -> None:
    with open_memory(root, "agent/a") as memory:
        in_threads(*[lambda: [memory.remember("x") for _ in range(50)]] * 8)
    lines = on_disk(root)
    assert len(lines) == 400
    assert [line["ts"] for line in lines] == sorted(line["ts"] for line in lines)
    assert [line["id"] for line in lines] == sorted(line["id"] for line in lines)


def test_one_of_many_retries_of_one_id_writes_and_all_get_the_same_entry(root: Path) -> None:
    with open_memory(root, "agent/a") as memory:
        entries = in_threads(*[lambda: memory.remember("once", id="retry")] * 16)
    assert len(set(entries)) == 1
    assert len(on_disk(root)) == 1


def test_closing_while_others_write_ends_them_with_an_error_or_with_their_entry(root: Path) -> None:
    from gotong_memfile import HandleClosedError

    memory = open_memory(root, "agent/a")
    acknowledged: list[str] = []

    def remember_until_closed() -> None:
        with pytest.raises(HandleClosedError):
            while True:
                acknowledged.append(memory.remember("x").id)

    def close() -> None:
        while len(acknowledged) < 50:
            pass
        memory.close()

    in_threads(remember_until_closed, remember_until_closed, close)
    assert {line["id"] for line in on_disk(root)} == set(acknowledged)


def process_of_verbs(root: Path, name: str, results: Any) -> None:
    with open_memory(root, "agent/a") as memory:
        results.put(all_verbs(memory, name, 60))


def process_of_records(root: Path, name: str, size: int, count: int, results: Any) -> None:
    with open_memory(root, "agent/a") as memory:
        results.put([memory.remember(f"{name} {n} " + "x" * size).id for n in range(count)])


def in_processes(target: Callable[..., None], arguments: list[tuple[Any, ...]]) -> list[Any]:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=target, args=(*one, results)) for one in arguments]
    for process in processes:
        process.start()
    collected = [results.get(timeout=180) for _ in processes]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    return collected


def test_processes_mix_all_verbs_on_one_owner(root: Path) -> None:
    results = in_processes(process_of_verbs, [(root, f"process-{n}") for n in range(4)])
    lines = on_disk(root)
    assert len(lines) == len({line["id"] for line in lines})
    assert {line["id"] for line in lines} == set().union(*(alive for alive, _ in results))


def process_of_lives(root: Path, name: str, seconds: float, results: Any) -> None:
    """Remember for a while, from a handle under which the owner is deleted and brought back."""
    end = time.monotonic() + seconds
    stored = []
    with open_memory(root, "agent/a") as memory:
        while time.monotonic() < end:
            stored.append(memory.remember(f"{name} {len(stored)}").id)
            memory.recall(name, k=3)
    results.put(stored)


def process_of_deletions(root: Path, name: str, seconds: float, results: Any) -> None:
    """Delete the owner and bring it back, again and again."""
    end = time.monotonic() + seconds
    plugin = MemoryFilePlugin()
    plugin.init(ServiceInitCtx(root_dir=root))
    while time.monotonic() < end:
        ref = plugin.soft_delete("agent/a")
        time.sleep(0.01)
        with contextlib.suppress(TrashRestoreConflictError, TrashNotFoundError):
            plugin.restore(ref)
        time.sleep(0.01)
    plugin.shutdown()
    results.put([])


def test_processes_delete_and_restore_an_owner_that_others_write(root: Path) -> None:
    """Each acknowledged entry is in one of its lives, once."""
    results = in_processes(
        lives_or_deletions,
        [(root, name, 3.0) for name in ("write one", "write two", "delete one", "delete two")],
    )
    logs = [*root.glob("agent/a/episodic.jsonl"), *root.glob(".trash/*/payload*/episodic.jsonl")]
    there = [line["id"] for log in logs for line in judge(log)]
    stored = [entry_id for of_process in results for entry_id in of_process]
    assert len(stored) > 50
    assert sorted(there) == sorted(stored)

    plugin = MemoryFilePlugin()
    plugin.init(ServiceInitCtx(root_dir=root))
    plugin.soft_delete("agent/a")
    brought_back = []
    while refs := plugin.list_trash():
        plugin.restore(refs[0])
        if (root / "agent" / "a").exists():
            brought_back += [line["id"] for line in on_disk(root)]
            (root / "agent" / "a").rename(root / f"life {len(brought_back)}")
    assert sorted(brought_back) == sorted(stored)
    plugin.shutdown()


def lives_or_deletions(root: Path, name: str, seconds: float, results: Any) -> None:
    (process_of_lives if name.startswith("write") else process_of_deletions)(root, name, seconds, results)


def process_of_threads(root: Path, name: str, threads: int, seconds: float, results: Any) -> None:
    """Remember under a small cap from many threads; how many entries each thread has stored."""

    def write(writer: str) -> tuple[str, int]:
        end = time.monotonic() + seconds
        number = 0
        while time.monotonic() < end:
            memory.remember(f"{writer}:{number}")
            number += 1
        return writer, number

    with open_memory(root, "agent/a", max_episodic_bytes=64 * 1024) as memory:
        jobs = [lambda n=n: write(f"{name}.{n}") for n in range(threads)]  # type: ignore[misc]
        results.put(in_threads(*jobs, patience=seconds + 60))


@pytest.mark.parametrize(
    ("threads", "seconds"),
    [(4, 2), pytest.param(64, 60, marks=[pytest.mark.stress, pytest.mark.timeout(200)])],
)
def test_of_each_of_many_writers_under_a_cap_the_newest_are_there_in_order(
    root: Path, threads: int, seconds: float
) -> None:
    arguments = [(root, f"process-{n}", threads, seconds) for n in range(4)]
    stored = dict(one for of_process in in_processes(process_of_threads, arguments) for one in of_process)
    assert len(stored) == 4 * threads
    there: dict[str, list[int]] = {}
    for line in on_disk(root):
        writer, _, number = line["text"].rpartition(":")
        there.setdefault(writer, []).append(int(number))
    assert there
    for writer, numbers in there.items():
        assert numbers == list(range(stored[writer] - len(numbers), stored[writer]))


@pytest.mark.parametrize(("size", "count"), [(300_000, 20), (5_000_000, 3)])
def test_records_larger_than_any_buffer_do_not_interleave(root: Path, size: int, count: int) -> None:
    results = in_processes(process_of_records, [(root, f"process-{n}", size, count) for n in range(6)])
    assert sorted(line["id"] for line in on_disk(root)) == sorted(
        functools.reduce(operator.iadd, results, [])
    )

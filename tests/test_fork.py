"""Forked children and spawned ones: own locks, own threads, own ids, and no harm to the parent."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import judge

from gotong_memfile import HandleClosedError, MemoryFileHandle, MemoryFilePlugin, ServiceInitCtx, open_memory

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def in_child(job: Callable[[], Any], seconds: float = 20) -> None:
    """Run the job in a forked child, which must end well and in time."""
    child = os.fork()
    if not child:
        try:
            job()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0, "the child failed"
            return
        time.sleep(0.005)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")


def test_a_handle_works_in_a_forked_child_and_both_see_all(memory: MemoryFileHandle) -> None:
    before = memory.remember("before")
    in_child(lambda: (memory.remember("of the child"), memory.forget(before.id), memory.list()))
    memory.remember("after")
    assert [entry.text for entry in memory.list()] == ["after", "of the child"]


def test_ids_of_parent_and_child_differ_in_the_same_ms(root: Path) -> None:
    with open_memory(root, "agent/a", clock=lambda: 5) as memory:
        memory.remember("before")
        in_child(lambda: [memory.remember("child") for _ in range(50)])
        for _ in range(50):
            memory.remember("parent")
    assert len({line["id"] for line in judge(root / "agent/a/episodic.jsonl")}) == 101


def test_a_child_forked_while_other_threads_write_does_not_wait_for_them(
    memory: MemoryFileHandle, root: Path
) -> None:
    """Locks and turns of threads that are not in the child must not be held there for ever."""
    stop = threading.Event()
    written: list[str] = []

    def write() -> None:
        while not stop.is_set():
            written.append(memory.remember("of a thread").id)

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(15):
            in_child(lambda: [memory.remember("of a child") for _ in range(3)])
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    texts = [line["text"] for line in judge(root / "agent/writer/episodic.jsonl")]
    assert texts.count("of a child") == 45
    assert texts.count("of a thread") == len(written)


def test_a_child_forked_in_the_midst_of_a_write_does_not_keep_the_lock(
    memory: MemoryFileHandle, root: Path
) -> None:
    """Not even when the parent dies while the child lives on: it has no copy of the locked file."""
    memory.remember("before")
    ready, go_on = os.pipe(), os.pipe()
    parent = os.fork()
    if not parent:

        def forking_clock() -> int:
            if not os.fork():
                os.close(go_on[1])
                os.read(go_on[0], 1)  # lives until the test ends
                os._exit(0)
            os.write(ready[1], b"x")
            os.kill(os.getpid(), 9)
            return 1

        memory._now = forking_clock
        memory.remember("never written")
        os._exit(1)
    os.read(ready[0], 1)
    os.waitpid(parent, 0)
    memory.remember("after")
    os.close(go_on[1])
    assert [entry.text for entry in memory.list()] == ["after", "before"]


def test_the_child_has_its_own_compactor(root: Path) -> None:
    with open_memory(root, "agent/a", max_episodic_bytes=2_000) as memory:
        memory.remember_many([{"text": f"n{n}"} for n in range(60)])

        def job() -> None:
            memory.remember_many([{"text": f"child {n}"} for n in range(60)])
            memory.flush()
            assert memory.stats().kinds["episodic"].size_bytes <= 2_000

        in_child(job)


def test_closing_in_the_child_leaves_the_parents_handle_open(root: Path) -> None:
    plugin = MemoryFilePlugin()
    plugin.init(ServiceInitCtx(root_dir=root))
    memory = plugin.attach("agent/a")
    in_child(
        lambda: (
            plugin.shutdown(),
            plugin.init(ServiceInitCtx(root_dir=root)),
            plugin.attach("agent/a").list(),
        )
    )
    memory.remember("still open")
    plugin.shutdown()


def remember_in(memory: MemoryFileHandle, text: str) -> str:
    return memory.remember(text).id


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_pickled_handle_is_a_handle_on_the_same_owner_in_any_pool(root: Path, method: str) -> None:
    with open_memory(root, "agent/a", max_episodic_bytes=10**6, lock_timeout=30) as memory:
        context: Any = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            ids = pool.starmap(remember_in, [(memory, f"n{n}") for n in range(8)])
        assert {entry.id for entry in memory.list()} == set(ids)


def test_a_pickled_handle_keeps_its_settings_and_a_closed_one_is_not_pickled(root: Path) -> None:
    memory = open_memory(root, "agent/a", kinds=["semantic"], durability="power", max_semantic_bytes=5)
    copy = pickle.loads(pickle.dumps(memory))
    assert (copy.owner, copy.config, copy.path) == (memory.owner, memory.config, memory.path)
    assert copy._options == memory._options
    assert copy._store is memory._store
    memory.close()
    copy.remember("still open", kind="semantic")
    copy.close()
    with pytest.raises(HandleClosedError):
        pickle.dumps(memory)

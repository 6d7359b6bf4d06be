"""What is kept from call to call, open files and maps, is never in the way: of others, of limits, of what is so."""

from __future__ import annotations

import errno
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import FaultyOS, in_threads

from gotong_memfile import DiskFullError, MemoryFileHandle, open_memory, registry

LOOKER = """
import json, sys
from gotong_memfile import open_memory
with open_memory(sys.argv[1], "agent/writer") as memory:
    for _ in sys.stdin:
        seen = {
            "recall": [entry.text for entry in memory.recall(k=200)],
            "text": sorted(entry.text for entry in memory.recall("e", k=200)),
            "scan": [entry.text for entry in memory.scan()],
            "stats": memory.stats().entries,
            "first": getattr(memory.get("first"), "text", None),
        }
        print(json.dumps(seen), flush=True)
"""


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def looker(root: Path) -> Iterator[Callable[[], dict[str, Any]]]:
    """Another process that has the memory open all the time, and tells what it sees."""
    other = subprocess.Popen(
        [sys.executable, "-c", LOOKER, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdin is not None
    assert other.stdout is not None

    def look() -> dict[str, Any]:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdin.write("\n")
        other.stdin.flush()
        seen: dict[str, Any] = json.loads(other.stdout.readline())
        return seen

    yield look
    other.stdin.close()
    assert other.wait(20) == 0
    other.stdout.close()


def test_each_change_is_seen_at_once_by_a_process_that_has_the_memory_open(
    memory: MemoryFileHandle, folder: Path, looker: Callable[[], dict[str, Any]]
) -> None:
    """Looks follow changes within microseconds: less than the ticks in which file times are counted."""

    def changes() -> Iterator[None]:
        memory.remember("one", id="first")
        yield
        memory.remember("three", kind="semantic")
        yield
        for n in range(20):
            memory.remember(f"more {n}")
            yield
        memory.patch_meta("first", {"n": 1})
        yield
        memory.forget(memory.list()[3].id)
        yield
        memory.forget("first")
        yield
        memory.remember("one", id="first")
        yield
        memory.forget_many([entry.id for entry in memory.list()][::2])
        yield
        memory.clear("semantic")
        yield
        memory.remember("the end")
        yield
        memory.clear()
        yield
        memory.remember("anew")
        yield
        folder.rename(folder.parent / "elsewhere")
        yield
        memory.remember("in a new folder")
        yield

    for _ in changes():
        texts = [entry.text for entry in memory.scan()]
        first = memory.get("first")
        assert looker() == {
            "recall": texts,
            "text": sorted(text for text in texts if "e" in text),
            "scan": texts,
            "stats": len(texts),
            "first": None if first is None else first.text,
        }


def test_many_owners_keep_few_files_open(root: Path) -> None:
    before = open_files()
    handles = [open_memory(root, f"agent/a{n}") for n in range(60)]
    most = before
    for handle in [*handles, *reversed(handles)]:
        handle.remember("x")
        handle.remember("x", kind="semantic")
        assert len(handle.recall()) in {2, 4}
        most = max(most, open_files())
    assert most - before <= registry._MOST_KEEPING * 7
    for handle in handles:
        assert len(handle.list()) == 4
        handle.close()
    assert open_files() == before


def test_threads_on_many_owners_close_files_of_each_other_without_harm(root: Path) -> None:
    """Each closes what others keep, while those read, write, rewrite and hold their lock."""
    handles = [open_memory(root, f"agent/a{n}") for n in range(40)]
    before = open_files()

    def use(handles: list[MemoryFileHandle]) -> None:
        for turn in range(12):
            for handle in handles:
                entry = handle.remember(f"turn {turn}")
                scanned = handle.scan()
                assert next(scanned) == entry
                handle.patch_meta(entry.id, {"turn": turn})
                assert sum(1 for _ in scanned) == turn
                assert handle.recall(f"turn {turn}", k=1)[0].meta == {"turn": turn}

    in_threads(*[lambda n=n: use(handles[n::4]) for n in range(4)])  # type: ignore[misc]
    for handle in handles:
        assert handle.stats().entries == 12
        handle.close()
    assert open_files() <= before


def test_an_append_that_fails_leaves_no_file_open_without_a_collector(
    memory: MemoryFileHandle, disk: FaultyOS
) -> None:
    memory.remember("before")
    gc.disable()
    try:
        before = open_files()
        disk.fail("write", errno.ENOSPC)
        for _ in range(10):
            with pytest.raises(DiskFullError):
                memory.remember("never")
        disk.heal()
        assert open_files() <= before
    finally:
        gc.enable()
    assert [entry.text for entry in memory.list()] == ["before"]


def test_a_generation_that_was_replaced_is_let_go_by_the_next_look(
    memory: MemoryFileHandle, folder: Path
) -> None:
    """Its space on the disk comes free, once those who still read it are done."""
    for n in range(5):
        memory.remember(f"{n}")
    memory.recall()
    scanned = memory.scan()
    next(scanned)

    def deleted() -> list[str]:
        names = []
        for descriptor in os.listdir("/proc/self/fd"):
            try:
                names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            except FileNotFoundError:
                continue  # the listing's own
        return [name for name in names if name.startswith(str(folder)) and name.endswith("(deleted)")]

    memory.forget(memory.list()[0].id)
    assert len(deleted()) == 1, "the one that is being read"
    assert [entry.text for entry in scanned] == ["3", "2", "1", "0"]
    memory.recall()
    assert deleted() == []


def test_a_child_forked_with_files_kept_sees_and_does_the_right_thing(memory: MemoryFileHandle) -> None:
    for n in range(5):
        memory.remember(f"{n}")
    memory.recall("1")
    to_child, from_parent = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.read(to_child, 1)  # by now the parent has rewritten the file
            assert [entry.text for entry in memory.recall()] == ["after", "4", "3", "2", "1"]
            memory.remember("child")
            memory.forget(memory.recall("after")[0].id)
            os._exit(0)
        finally:
            os._exit(1)
    memory.forget(memory.list()[-1].id)
    memory.remember("after")
    os.write(from_parent, b"x")
    assert os.waitpid(child, 0)[1] == 0
    assert [entry.text for entry in memory.recall()] == ["child", "4", "3", "2", "1"]
    os.close(to_child)
    os.close(from_parent)

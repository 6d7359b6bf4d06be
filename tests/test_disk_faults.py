"""Full disks, I/O errors and short writes: an error means that nothing was stored or changed."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import FaultyOS, judge, tree

from gotong_memfile import (
    DiskFullError,
    MemoryFileHandle,
    MemoryFilePlugin,
    NotWritableError,
    ServiceInitCtx,
    StorageError,
    SyncFailedError,
    open_memory,
    search,
)
from gotong_memfile.compactor import COMPACTOR

Verb = Callable[[MemoryFileHandle], Any]
WRITES: dict[str, Verb] = {
    "remember": lambda memory: memory.remember("new " * 50),
    "remember_many": lambda memory: memory.remember_many([{"text": f"n{n} " * 30} for n in range(20)]),
    "remember in two kinds": lambda memory: memory.remember_many(
        [{"text": "new " * 50, "kind": kind} for kind in ("semantic", "episodic", "working")]
    ),
    "forget": lambda memory: memory.forget("one"),
    "forget in two kinds": lambda memory: memory.forget_many(["one", "two"]),
    "patch_meta": lambda memory: memory.patch_meta("one", {"a": "x" * 100}),
    "clear": lambda memory: memory.clear(),
}


@pytest.fixture
def filled(memory: MemoryFileHandle, folder: Path) -> MemoryFileHandle:
    memory.remember("text one " * 30, id="one")
    memory.remember("text two " * 30, kind="semantic", id="two")
    for n in range(5):
        memory.remember(f"more {n}")
    with (folder / "episodic.jsonl").open("ab") as file:
        file.write(b'{"torn')
    return memory


@contextlib.contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    before = tree(folder)
    yield
    assert tree(folder) == before, "an error means that nothing was changed, and no temporary is left"


@pytest.mark.parametrize("verb", WRITES.values(), ids=WRITES.keys())
@pytest.mark.parametrize("left", [0, 1, 37, 150, 300])
def test_a_disk_that_fills_up_in_the_midst_changes_nothing(
    filled: MemoryFileHandle, folder: Path, disk: FaultyOS, verb: Verb, left: int
) -> None:
    writes = 0 if verb is WRITES["clear"] else 250  # clearing writes the torn tail only
    with unchanged(folder) if left <= writes else contextlib.nullcontext():
        disk.fill_disk(left)
        if left <= writes:
            with pytest.raises(DiskFullError, match="free some space") as caught:
                verb(filled)
            assert caught.value.errno == errno.ENOSPC
    disk.heal()
    verb(filled)


FAILING = [
    ("write", errno.EIO), ("write", errno.EDQUOT), ("fsync", errno.EIO), ("pread", errno.EIO), ("open", errno.EMFILE),
    ("open", errno.EACCES), ("replace", errno.EIO), ("copy_file_range", errno.EIO), ("fchmod", errno.EPERM),
]  # fmt: skip


@pytest.mark.parametrize("verb", WRITES.values(), ids=WRITES.keys())
@pytest.mark.parametrize(
    ("call", "code"), FAILING, ids=[f"{call} {errno.errorcode[code]}" for call, code in FAILING]
)
def test_an_error_at_any_call_of_a_write_changes_nothing(
    filled: MemoryFileHandle, folder: Path, disk: FaultyOS, verb: Verb, call: str, code: int
) -> None:
    """Let the first call fail, then the second, …, until one run of the verb meets no failing call."""
    for after in range(100):
        disk.heal()
        disk.fail(call, code, after=after, times=1)
        before = tree(folder)
        try:
            verb(filled)
        except StorageError as error:
            if "files had been rewritten before" in str(error):
                assert (call, after > 0) == ("replace", True), "only a rename after another comes too late"
                continue
            assert error.errno == code
            assert tree(folder) == before
        else:
            break
    else:
        pytest.fail("the verb never came to its end")
    copies_only = verb in (WRITES["clear"], WRITES["forget"], WRITES["forget in two kinds"])
    touched = {"open", "pread", "replace", "copy_file_range"} if copies_only else {"open", "pread", "write"}
    if verb is WRITES["clear"]:
        touched.remove("copy_file_range")  # but for the torn tail there is nothing to copy
    assert after or call not in touched, "the call was met at least once"
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_after_the_swap_a_failing_directory_sync_is_told_not_raised(
    filled: MemoryFileHandle, folder: Path, disk: FaultyOS, caplog: pytest.LogCaptureFixture
) -> None:
    disk.fail("fsync", errno.EIO, after=1)
    assert filled.forget("one") is True
    assert "may not survive a loss of power" in caplog.text
    assert filled.get("one") is None


def test_with_power_durability_a_failing_directory_sync_after_the_swap_is_an_error_that_says_what_is(
    root: Path, disk: FaultyOS
) -> None:
    with open_memory(root, "agent/a", durability="power") as memory:
        memory.remember("x", id="one")
        disk.fail("fsync", errno.EIO, after=1)
        with pytest.raises(SyncFailedError, match="was rewritten, but that may not survive a loss of power"):
            memory.forget("one")
        disk.heal()
        assert memory.get("one") is None


def test_power_durability_brings_names_to_the_disk_that_others_made_without(
    root: Path, disk: FaultyOS
) -> None:
    """A file, and folders, made by a handle that did not ask for it; and a generation that a rewrite made."""
    synced: list[str] = []

    def fsync(real: Callable[[int], None], descriptor: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), root))
        real(descriptor)

    with open_memory(root, "agent/a") as memory, open_memory(root, "agent/a", durability="power") as safe:
        memory.remember("x", id="one")
        disk.hook("fsync", fsync)
        safe.remember("y")
        assert synced == ["agent/a/episodic.jsonl", "agent/a", "agent", "."]
        synced.clear()
        safe.remember("z")
        assert synced == ["agent/a/episodic.jsonl"]
        memory.forget("one")
        synced.clear()
        safe.remember("in another generation")
        assert synced == ["agent/a/episodic.jsonl", "agent/a", "agent", "."]
        os.unlink(root / "agent/a/episodic.jsonl")  # the next file is likely to get its inode
        memory.remember("made without")
        synced.clear()
        safe.remember("in a new file")
        assert synced == ["agent/a/episodic.jsonl", "agent/a", "agent", "."]


def test_short_writes_are_completed(filled: MemoryFileHandle, disk: FaultyOS) -> None:
    disk.hook("write", lambda real, descriptor, data: real(descriptor, bytes(data)[:7]))
    entry = filled.remember("x" * 500)
    filled.patch_meta("one", {"a": 1})
    assert filled.get(entry.id) == entry


def test_an_interrupt_in_the_midst_of_a_write_leaves_no_half_line(
    filled: MemoryFileHandle, folder: Path, disk: FaultyOS
) -> None:
    def interrupted(real: Any, descriptor: int, data: Any) -> int:
        if len(data) < 100:
            raise KeyboardInterrupt
        return int(real(descriptor, bytes(data)[:100]))

    with unchanged(folder):
        disk.hook("write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            filled.remember("x" * 150)
    disk.heal()
    assert filled.remember("after").text == "after"


def test_what_another_program_appends_behind_a_failing_write_is_kept(
    memory: MemoryFileHandle, folder: Path, disk: FaultyOS
) -> None:
    memory.remember("first")
    log = folder / "episodic.jsonl"
    theirs = b'{"id":"theirs","kind":"episodic","text":"theirs","ts":1}\n'

    def write(real: Any, descriptor: int, data: Any) -> int:
        if len(data) < 80:
            with log.open("ab") as file:
                file.write(b"\n" + theirs)
            raise OSError(errno.EIO, "I/O error")
        return int(real(descriptor, bytes(data)[:50]))

    disk.hook("write", write)
    with pytest.raises(StorageError):
        memory.remember("ours, which fails" * 4)
    disk.heal()
    assert {entry.text for entry in memory.list()} == {"first", "theirs"}
    assert memory.stats().corrupt == 0
    assert b"ours" not in log.read_bytes()


def test_a_read_that_fails_half_way_gives_up_the_rewrite(
    root: Path, disk: FaultyOS, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never from what could be read: the rest would be lost."""
    monkeypatch.setattr(search, "_SEARCH_BYTES", 65_536)
    with open_memory(root, "agent/a", max_episodic_bytes=10**9) as memory:
        memory.remember_many([{"text": f"n{n} " * 100, "id": f"n{n}"} for n in range(2_000)])
    log = root / "agent" / "a" / "episodic.jsonl"
    before = log.read_bytes()
    faults: list[Callable[[], None]] = [
        lambda: disk.fail("pread", errno.EIO, after=3),
        lambda: disk.fail("pread", errno.EACCES, after=3),
        lambda: disk.hook("pread", ends_after(3)),
        lambda: disk.hook("copy_file_range", lambda real, *arguments: 0),
    ]
    for fault in faults:
        with open_memory(root, "agent/a", max_episodic_bytes=100_000) as memory:
            fault()
            for call in (
                lambda: memory.forget_many(f"n{n}" for n in range(0, 2_000, 2)),
                lambda: memory.patch_meta("n1999", {"a": 1}),
                memory.compact,
            ):
                with pytest.raises(StorageError):
                    call()
                assert log.read_bytes() == before
            disk.heal()


def ends_after(calls: int) -> Callable[..., bytes]:
    """A file system that says, wrongly, that the file has ended."""
    seen = 0

    def pread(real: Any, *arguments: Any) -> bytes:
        nonlocal seen
        seen += 1
        return bytes(real(*arguments)) if seen <= calls else b""

    return pread


def test_without_copies_in_the_kernel_bytes_are_copied_by_hand(
    filled: MemoryFileHandle, folder: Path, disk: FaultyOS
) -> None:
    for code in (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP):
        disk.fail("copy_file_range", code)
        entry = filled.remember("to go")
        assert filled.forget(entry.id)
    assert [line["id"] for line in map(dict, judge_without_tail(folder / "episodic.jsonl"))][:1] == ["one"]


def judge_without_tail(path: Path) -> list[dict[str, Any]]:
    import json

    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line.endswith(b"}")]


def test_a_compaction_that_fails_does_not_fail_what_was_remembered(
    root: Path, disk: FaultyOS, caplog: pytest.LogCaptureFixture
) -> None:
    with open_memory(root, "agent/a", max_episodic_bytes=300) as memory:
        for n in range(3):
            memory.remember(f"n{n}")
        disk.fail("fsync", errno.ENOSPC)
        entries = [memory.remember(f"over the cap {n}") for n in range(4)]
        COMPACTOR.wait()
        assert memory.list(limit=4) == list(reversed(entries))
        assert "stays over its cap for now" in caplog.text
        disk.heal()
        memory.remember("and now it works")
        memory.flush()
        assert (root / "agent" / "a" / "episodic.jsonl").stat().st_size <= 300


def test_power_durability_syncs_before_it_acknowledges_and_process_durability_does_not(
    root: Path, disk: FaultyOS
) -> None:
    for durability, syncs in (("power", True), ("process", False)):
        with open_memory(root, f"agent/{durability}", durability=durability) as memory:
            disk.calls.clear()
            memory.remember("x")
            assert ("fsync" in disk.calls) is syncs
            memory.remember("y")
            assert disk.calls.count("fsync") == (disk.calls.count("write") + 3 if syncs else 0)
            memory.flush()
            assert "fsync" in disk.calls


def test_with_power_durability_a_failed_sync_is_an_error_and_nothing_is_stored(
    root: Path, disk: FaultyOS
) -> None:
    with open_memory(root, "agent/a", durability="power") as memory:
        first = memory.remember("first")
        disk.fail("fsync", errno.EIO)
        with pytest.raises(StorageError):
            memory.remember("second")
        disk.heal()
        assert memory.list() == [first]


def test_no_file_is_left_where_the_first_write_fails(
    memory: MemoryFileHandle, folder: Path, disk: FaultyOS
) -> None:
    memory.remember("x", kind="working")
    disk.fail("write", errno.ENOSPC)
    with pytest.raises(DiskFullError):
        memory.remember("y")
    assert [path.name for path in folder.iterdir()] == ["working.jsonl"]


def test_a_batch_that_fails_at_its_second_file_leaves_no_first_file(
    memory: MemoryFileHandle, folder: Path, disk: FaultyOS
) -> None:
    memory.remember("x", kind="working")
    disk.fail("write", errno.ENOSPC, after=1)
    with pytest.raises(DiskFullError):
        memory.remember_many([{"text": "a", "kind": "semantic"}, {"text": "b"}])
    assert [path.name for path in folder.iterdir()] == ["working.jsonl"]


def test_what_of_a_batch_cannot_be_taken_back_is_logged(
    memory: MemoryFileHandle, disk: FaultyOS, caplog: pytest.LogCaptureFixture
) -> None:
    disk.fail("write", errno.ENOSPC, after=1)
    disk.fail("ftruncate", errno.EIO)
    with pytest.raises(DiskFullError):
        memory.remember_many([{"text": "a", "kind": "semantic"}, {"text": "b"}])
    assert "entries of a batch that failed stay" in caplog.text


def test_what_cannot_be_taken_back_is_logged_and_the_first_error_raised(
    memory: MemoryFileHandle, disk: FaultyOS, caplog: pytest.LogCaptureFixture
) -> None:
    memory.remember("x")
    disk.fill_disk(10)
    disk.fail("ftruncate", errno.EIO)
    with pytest.raises(DiskFullError):
        memory.remember("y")
    assert "stays at the end" in caplog.text
    disk.heal()
    memory.remember("z")
    assert [entry.text for entry in memory.list()] == ["z", "x"]


@pytest.mark.parametrize("call", ["rename", "replace", "mkdir", "fsync", "write", "open"])
def test_a_soft_delete_that_fails_anywhere_can_be_made_again(
    plugin: MemoryFilePlugin, root: Path, disk: FaultyOS, call: str
) -> None:
    entry = plugin.attach("agent/a").remember("precious")
    for after in range(30):
        disk.heal()
        disk.fail(call, errno.EIO, after=after, times=1)
        try:
            ref = plugin.soft_delete("agent/a")
        except StorageError:
            continue
        break
    disk.heal()
    assert after
    assert plugin.list_trash() == [ref]
    plugin.restore(ref)
    assert plugin.attach("agent/a").list() == [entry]
    assert list((root / ".trash").iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KiB."""
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("this machine lets nobody mount")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_on_a_disk_that_is_really_full_everything_acknowledged_is_there(small_disk: Path) -> None:
    with open_memory(small_disk / "root", "agent/a") as memory:
        acknowledged = []
        with pytest.raises(DiskFullError):
            for n in range(100_000):
                acknowledged.append(memory.remember(f"entry {n} " + "x" * (n % 700)).id)
        log = small_disk / "root" / "agent" / "a" / "episodic.jsonl"
        assert [line["id"] for line in judge(log)] == acknowledged
        with pytest.raises(DiskFullError):
            memory.forget(acknowledged[0])
        with pytest.raises(DiskFullError):
            memory.remember_many([{"text": "x" * 5_000, "kind": kind} for kind in ("working", "episodic")])
        assert [line["id"] for line in judge(log)] == acknowledged
        assert memory.clear() == len(acknowledged), "clearing needs no space to speak of"
        memory.remember("room again")


def test_under_a_mount_that_becomes_read_only_reads_go_on(small_disk: Path) -> None:
    plugin = MemoryFilePlugin()
    plugin.init(ServiceInitCtx(root_dir=small_disk / "root"))
    memory = plugin.attach("agent/a")
    entry = memory.remember("x")
    memory._store.let_go()  # no mount becomes read-only while a file in it is open for writing
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    try:
        assert memory.recall("x") == [entry]
        for call in (
            lambda: memory.remember("y"),
            memory.clear,
            lambda: plugin.soft_delete("agent/a"),
        ):
            with pytest.raises(NotWritableError):
                call()
        assert plugin.attach("agent/b").list() == []
        assert memory.list() == [entry]
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    memory.remember("y")
    plugin.shutdown()


def test_bytes_written_are_at_most_three_times_those_of_the_entries(root: Path, disk: FaultyOS) -> None:
    """A cap must not make every append rewrite the file."""
    written = 0

    def counting(size_of: Callable[[Any], int]) -> Callable[..., Any]:
        def hook(real: Any, *arguments: Any) -> Any:
            nonlocal written
            done = real(*arguments)
            written += size_of(done)
            return done

        return hook

    disk.hook("write", counting(int))
    disk.hook("copy_file_range", counting(int))
    disk.hook("fsync", lambda real, descriptor: None)
    size = 0
    with open_memory(root, "agent/a", max_episodic_bytes=64 * 1024) as memory:
        for n in range(10_000):
            memory.remember(f"entry {n} with some words in it")
            size += 95
    assert os.path.getsize(root / "agent" / "a" / "episodic.jsonl") <= 64 * 1024
    assert size < written < 3 * size

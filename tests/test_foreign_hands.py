"""People and programs without locks work on the files under a live handle: their work is kept and seen."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import FaultyOS, judge

from gotong_memfile import MemoryFileHandle, StorageError, fileio, open_memory


def line(text: str, **fields: Any) -> bytes:
    entry = {"id": f"id of {text}", "kind": "episodic", "text": text, "ts": 1, **fields}
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def texts(memory: MemoryFileHandle) -> set[str]:
    return {entry.text for entry in memory.scan()}


@pytest.fixture
def log(memory: MemoryFileHandle, folder: Path) -> Path:
    """The file of a live handle that has been used for everything before."""
    memory.remember("first", id="first")
    memory.remember("second", id="second")
    assert len(memory.recall("s")) == 2
    memory.patch_meta("second", {"a": 1})
    return folder / "episodic.jsonl"


def append(log: Path) -> None:
    with log.open("ab") as file:
        file.write(line("by hand"))


def edit_in_place(log: Path) -> None:
    data = log.read_bytes().replace(b"first", b"FIRST")
    with log.open("r+b") as file:
        file.write(data)


HANDS: dict[str, tuple[Callable[[Path], Any], set[str]]] = {
    "append a line": (append, {"first", "second", "by hand"}),
    "edit in place, same size": (edit_in_place, {"FIRST", "second"}),
    "sed -i": (
        lambda log: subprocess.run(["sed", "-i", "s/first/1st/g", log], check=True),
        {"1st", "second"},
    ),
    "empty it": (lambda log: log.write_bytes(b""), set()),
    "empty it and write anew": (lambda log: log.write_bytes(line("anew")), {"anew"}),
    "remove it": (lambda log: log.unlink(), set()),
    "put a backup in its place": (
        lambda log: (
            log.with_name("backup").write_bytes(line("backup")),
            os.replace(log.with_name("backup"), log),
        ),
        {"backup"},
    ),
    "cut it in the midst of a line": (lambda log: os.truncate(log, log.stat().st_size - 10), {"first"}),
    "remove the folder": (lambda log: shutil.rmtree(log.parent), set()),
    "move the folder away": (lambda log: log.parent.rename(log.parent.with_name("moved")), set()),
    "remove everything": (
        lambda log: shutil.rmtree(log.parent.parent.parent / ".locks"),
        {"first", "second"},
    ),
}


@pytest.mark.parametrize(("hand", "left"), HANDS.values(), ids=HANDS.keys())
@pytest.mark.parametrize("then", ["read", "remember", "forget", "patch_meta", "clear"])
def test_the_next_call_works_on_what_is_there_now(
    memory: MemoryFileHandle, log: Path, hand: Callable[[Path], Any], left: set[str], then: str
) -> None:
    hand(log)
    if then == "read":
        assert texts(memory) == left
    elif then == "remember":
        memory.remember("new")
        assert texts(memory) == left | {"new"}
    elif then == "forget":
        assert memory.forget("second") is ("second" in left)
        assert texts(memory) == left - {"second"}
    elif then == "patch_meta":
        assert memory.patch_meta("second", {"b": 2}) is ("second" in left)
        assert texts(memory) == left
    else:
        assert memory.clear() == len(left)
        assert texts(memory) == set()
    memory.remember("and after that")
    assert "and after that" in texts(memory)


def test_a_reader_keeps_its_generation_whatever_is_done_to_the_file(
    memory: MemoryFileHandle, root: Path
) -> None:
    entries = memory.remember_many([{"text": f"n{n} " + "x" * 200} for n in range(2_000)])
    for change in (
        lambda: memory.remember("new"),
        lambda: memory.forget_many(entry.id for entry in entries[:1_900]),
        memory.clear,
    ):
        before = [entry.text for entry in memory.list(limit=500)]
        scan = memory.scan()
        head = [next(scan).text for _ in range(50)]
        change()
        seen = [*head, *(entry.text for entry in scan)]
        assert seen[: len(before)] == before
        assert len(seen) == len(set(seen))


def test_a_scan_over_a_file_that_is_cut_ends_early_and_does_not_raise(
    memory: MemoryFileHandle, folder: Path
) -> None:
    memory.remember_many([{"text": f"n{n} " + "x" * 200} for n in range(2_000)])
    scan = memory.scan(newest_first=False)
    first = [next(scan).text for _ in range(10)]
    os.truncate(folder / "episodic.jsonl", 5_000)
    assert [text.split()[0] for text in first] == [f"n{n}" for n in range(10)]
    assert len(list(scan)) < 1_990


def test_a_scan_that_is_thrown_away_closes_its_files(memory: MemoryFileHandle) -> None:
    """The generation that it reads, if that was replaced; scans of one generation share it."""
    memory.remember("x")
    memory.patch_meta(memory.list()[0].id, {"n": -1})
    memory.list()
    before = len(os.listdir("/proc/self/fd"))
    scans = []
    for n in range(10):
        memory.patch_meta(memory.list()[0].id, {"n": n})
        scans += [memory.scan(), memory.scan()]
    next(scans[0])
    assert before + 9 <= len(os.listdir("/proc/self/fd")) <= before + 10
    scans.clear()
    assert len(os.listdir("/proc/self/fd")) <= before


class DuringRewrite:
    """Do something by hand just before a rewrite's swap, or just after it."""

    def __init__(
        self, disk: FaultyOS, log: Path, hand: Callable[[], Any], *, after: bool = False, times: int = 1
    ) -> None:
        self.left = times

        def replace(real: Callable[..., Any], source: str, target: str) -> None:
            real(source, target)
            if after and target == str(log) and self.left:
                self.left -= 1
                hand()

        def fsync(real: Callable[..., Any], descriptor: int) -> None:
            real(descriptor)
            if not after and self.left and ".memfile-" in os.readlink(f"/proc/self/fd/{descriptor}"):
                self.left -= 1
                hand()

        disk.hook("replace", replace)
        disk.hook("fsync", fsync)


@pytest.mark.parametrize("verb", ["forget", "patch_meta", "clear", "compact"])
def test_what_is_appended_without_a_lock_during_a_rewrite_is_carried_over(
    root: Path, folder: Path, disk: FaultyOS, verb: str
) -> None:
    with open_memory(root, "agent/writer") as memory:
        memory.remember_many([{"text": f"n{n}", "id": f"n{n}"} for n in range(10)])
    log = folder / "episodic.jsonl"
    late: list[str] = []

    def hand() -> None:
        late.append(f"late {len(late)}")
        with log.open("ab") as file:
            file.write(line(late[-1]))

    with open_memory(root, "agent/writer", max_episodic_bytes=600) as memory:
        DuringRewrite(disk, log, hand, times=3)
        if verb == "forget":
            assert memory.forget("n3")
        elif verb == "patch_meta":
            assert memory.patch_meta("n3", {"a": 1})
        elif verb == "clear":
            assert memory.clear() == 10
        else:
            assert memory.compact() == 5
        disk.heal()
        assert late[:2] == ["late 0", "late 1"]
        assert set(late) <= texts(memory)
        memory.flush()
        expected = {
            "forget": 9 + len(late),
            "patch_meta": (10 + len(late)) // 2,  # it grows the file over its cap
            "clear": len(late),
            "compact": 5 + len(late),
        }
        assert len(judge(log)) == expected[verb]


@pytest.mark.parametrize("moment", ["just before the swap", "just after the swap"])
def test_what_was_written_into_the_old_generation_around_the_swap_is_carried_over(
    memory: MemoryFileHandle, log: Path, folder: Path, disk: FaultyOS, moment: str
) -> None:
    """A program that has opened the file before the swap writes after the last look at it."""
    with log.open("ab") as theirs:

        def write() -> None:
            theirs.write(line("opened before"))
            theirs.flush()

        def replace(real: Callable[..., Any], source: str, target: str) -> None:
            write()
            real(source, target)

        def fsync(real: Callable[..., Any], descriptor: int) -> None:
            if os.readlink(f"/proc/self/fd/{descriptor}") == str(folder):
                write()
            real(descriptor)

        if moment == "just before the swap":
            disk.hook("replace", replace)
        else:
            disk.hook("fsync", fsync)
        assert memory.forget("first")
    assert texts(memory) == {"second", "opened before"}


def test_a_line_still_being_written_is_carried_over_unfinished(
    memory: MemoryFileHandle, log: Path, disk: FaultyOS
) -> None:
    half, rest = line("slow writer")[:30], line("slow writer")[30:]
    with log.open("ab") as theirs:
        theirs.write(half)
        theirs.flush()

        def replace(real: Callable[..., Any], source: str, target: str) -> None:
            theirs.write(rest[:10])
            theirs.flush()
            real(source, target)

        def fsync(real: Callable[..., Any], descriptor: int) -> None:
            if os.readlink(f"/proc/self/fd/{descriptor}") == str(log.parent):
                theirs.write(rest[10:])
                theirs.flush()
            real(descriptor)

        disk.hook("replace", replace)
        disk.hook("fsync", fsync)
        assert memory.forget("first")
    assert texts(memory) == {"second", "slow writer"}


@pytest.mark.parametrize("how", ["replaced", "edited in place", "removed", "cut"])
def test_a_file_changed_by_hand_during_a_rewrite_is_looked_at_anew(
    memory: MemoryFileHandle, log: Path, disk: FaultyOS, how: str
) -> None:
    def hand() -> None:
        if how == "replaced":
            log.with_name("new").write_bytes(line("by hand") + line("victim", id="first"))
            os.replace(log.with_name("new"), log)
        elif how == "edited in place":
            stat = log.stat()
            edit_in_place(log)
            os.utime(log, ns=(stat.st_atime_ns, stat.st_mtime_ns + 10_000_000))
        elif how == "cut":
            os.truncate(log, len(line("second")) // 2)
        else:
            log.unlink()

    DuringRewrite(disk, log, hand)
    patched = memory.patch_meta("second", {"b": 2})
    disk.heal()
    expected = {
        "replaced": {"by hand", "victim"},
        "edited in place": {"FIRST", "second"},
        "removed": set(),
        "cut": set(),
    }
    assert texts(memory) == expected[how]
    assert patched is (how not in {"replaced", "cut"}), "whether it was there when it was last looked for"
    memory.remember("after")
    assert "after" in texts(memory)


def test_a_file_that_never_stands_still_gives_an_error_and_loses_nothing(
    memory: MemoryFileHandle, log: Path, folder: Path, disk: FaultyOS
) -> None:
    def hand() -> None:
        log.with_name("new").write_bytes(log.read_bytes())
        os.replace(log.with_name("new"), log)

    before = log.read_bytes()
    DuringRewrite(disk, log, hand, times=10**9)
    with pytest.raises(StorageError, match="stop that program and try again"):
        memory.forget("first")
    assert log.read_bytes() == before
    assert [path.name for path in folder.iterdir()] == ["episodic.jsonl"]


def test_two_spellings_that_the_file_system_holds_for_one_do_not_share_a_folder(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fake of a file system that folds case: looking up another spelling finds the first folder."""
    from gotong_memfile import OwnerCollisionError

    real = fileio.status

    def folding(path: str) -> Any:
        parent, name = os.path.split(path)
        if os.path.basename(parent) == "agent" and os.path.isdir(parent):
            name = next((one for one in os.listdir(parent) if one.casefold() == name.casefold()), name)
        return real(os.path.join(parent, name))

    monkeypatch.setattr(fileio, "status", folding)
    with open_memory(root, "agent/Writer") as memory:
        memory.remember("x")
        with pytest.raises(OwnerCollisionError, match=r"'Writer' and 'writer' are one folder"):
            open_memory(root, "agent/writer")
    with open_memory(root, "agent/Writer") as memory:
        assert len(memory.list()) == 1


def test_on_a_file_system_that_folds_case_the_second_spelling_is_refused(tmp_path: Path) -> None:
    from gotong_memfile import OwnerCollisionError

    mount = tmp_path / "vfat"
    mount.mkdir()
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(4 * 1024 * 1024)
    for command in (["mkfs.vfat", str(image)], ["mount", "-o", "loop", str(image), str(mount)]):
        if (
            not shutil.which(command[0])
            or subprocess.run(command, capture_output=True, check=False).returncode
        ):
            pytest.skip("this machine cannot make a file system that folds case")
    try:
        with open_memory(mount / "root", "agent/Writer") as memory:
            memory.remember("x")
            with pytest.raises(OwnerCollisionError):
                open_memory(mount / "root", "agent/writer")
    finally:
        subprocess.run(["umount", str(mount)], check=True)

"""Damaged and odd files are read around: good entries come back, bad lines stay on disk and are counted."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from support import FaultyOS

from gotong_memfile import (
    DuplicateIdError,
    InvalidEntryError,
    MemoryFileHandle,
    MutationPendingError,
    open_memory,
)

GOOD = [
    json.dumps({"id": f"good-{n}", "kind": "episodic", "text": f"good {n}", "ts": n}).encode()
    for n in range(3)
]


def entry_line(**fields: Any) -> bytes:
    return json.dumps({"id": "bad", "kind": "episodic", "text": "bad", "ts": 9, **fields}).encode()


DAMAGE = {
    "garbage": b"garbage",
    "binary": bytes(range(256)).replace(b"\n", b""),
    "invalid UTF-8": entry_line().replace(b"bad", b"\xc3\x28"),
    "UTF-16": entry_line().decode().encode("utf-16").replace(b"\n", b""),
    "half a line": entry_line()[:30],
    "two lines glued": entry_line() + entry_line(),
    "NUL": b"\0" * 1_000_000,
    "NUL in the midst": entry_line()[:20] + b"\0\0\0" + entry_line()[20:],
    "array": b"[]",
    "null": b"null",
    "string": b'"x"',
    "empty object": b"{}",
    "NaN": b"NaN",
    "number": b"17",
    "nested bomb": b"[" * 200_000,
    "wrong kind": entry_line(kind="semantic"),
    "unknown kind": entry_line(kind="dreams"),
    "no ts": b'{"id":"bad","kind":"episodic","text":"bad"}',
    "ts is null": entry_line(ts=None),
    "ts is a string": entry_line(ts="9"),
    "ts is a bool": entry_line(ts=True),
    "ts is beyond a double": entry_line().replace(b"9", b"1e999"),
    "empty text": entry_line(text=""),
    "meta is a list": entry_line(meta=[]),
    "id is a number": entry_line(id=5),
}


@pytest.fixture
def log(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder / "episodic.jsonl"


def texts(memory: MemoryFileHandle) -> list[str]:
    return [entry.text for entry in memory.list()]


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize("place", [0, 1, 3], ids=["first", "between", "last"])
def test_damage_is_skipped_counted_kept_and_told_once(
    memory: MemoryFileHandle, log: Path, caplog: pytest.LogCaptureFixture, damage: bytes, place: int
) -> None:
    lines = [*GOOD[:place], damage, *GOOD[place:]]
    log.write_bytes(b"".join(line + b"\n" for line in lines))
    with caplog.at_level(logging.WARNING):
        assert texts(memory) == ["good 2", "good 1", "good 0"]
        assert memory.recall("bad") == []
        assert memory.get("bad") is None
        assert memory.forget("bad") is False
    assert len([record for record in caplog.records if "cannot be read" in record.message]) == 1
    stats = memory.stats().kinds["episodic"]
    assert (stats.entries, stats.corrupt, stats.torn_tail) == (3, 1, False)
    assert log.read_bytes() == b"".join(line + b"\n" for line in lines)

    # Every rewrite carries it over, byte for byte and in its place.
    memory.remember("new")
    memory.forget("good-0")
    memory.patch_meta("good-1", {"a": 1})
    kept = log.read_bytes().split(b"\n")
    assert kept.index(damage) == {0: 0, 1: 0, 3: 2}[place]
    assert memory.clear() == 3
    assert log.read_bytes() == damage + b"\n"
    assert memory.stats().corrupt == 1


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_torn_tail_is_counted_kept_and_never_glued_to(
    memory: MemoryFileHandle, log: Path, damage: bytes
) -> None:
    log.write_bytes(GOOD[0] + b"\n" + damage)
    stats = memory.stats().kinds["episodic"]
    assert (stats.entries, stats.corrupt, stats.torn_tail) == (1, 1, True)
    memory.forget("good-0")
    assert log.read_bytes() == damage, "an unfinished last line is carried over as it is"
    memory.remember("new")
    assert log.read_bytes().startswith(damage + b'\n{"id":')
    assert texts(memory) == ["new"]


def test_a_whole_record_without_its_end_of_line_counts(memory: MemoryFileHandle, log: Path) -> None:
    log.write_bytes(GOOD[0] + b"\n" + GOOD[1])
    assert texts(memory) == ["good 1", "good 0"]
    assert memory.stats().corrupt == 0
    memory.remember("new")
    assert log.read_bytes().startswith(GOOD[0] + b"\n" + GOOD[1] + b"\n{")
    assert texts(memory) == ["new", "good 1", "good 0"]


def test_the_last_line_without_its_end_can_be_patched_and_forgotten(
    memory: MemoryFileHandle, log: Path
) -> None:
    log.write_bytes(GOOD[0] + b"\n" + GOOD[1])
    assert memory.patch_meta("good-1", {"a": 1})
    assert log.read_bytes().endswith(b'"meta":{"a":1}}\n')
    log.write_bytes(GOOD[0] + b"\n" + GOOD[1])
    assert memory.forget("good-1")
    assert log.read_bytes() == GOOD[0] + b"\n"


@pytest.mark.parametrize("cut", range(1, len(GOOD[1])))
def test_a_file_cut_anywhere_loses_the_cut_line_only(memory: MemoryFileHandle, log: Path, cut: int) -> None:
    log.write_bytes(GOOD[0] + b"\n" + GOOD[1][:cut])
    assert texts(memory) == ["good 0"]
    memory.remember("new")
    assert texts(memory) == ["new", "good 0"]


def test_bom_crlf_and_blank_lines_are_no_damage(memory: MemoryFileHandle, log: Path) -> None:
    log.write_bytes(
        b"\xef\xbb\xbf" + b"\r\n".join([GOOD[0], b"", b" \t", GOOD[1], b"\xef\xbb\xbf" + GOOD[2]]) + b"\r\n\n"
    )
    assert texts(memory) == ["good 2", "good 1", "good 0"]
    assert memory.stats().corrupt == 0


def test_other_line_separators_stay_inside_a_record(memory: MemoryFileHandle, log: Path) -> None:
    odd = "a\u2028b\u2029c\x85d\x1ce\x1df\x1eg\x0bh\x0ci\rj"
    entry = memory.remember(odd, meta={odd: odd}, id=odd)
    log.write_bytes(
        log.read_bytes() + json.dumps(dict(entry, id="raw", text=odd), ensure_ascii=False).encode() + b"\n"
    )
    assert [one.text for one in memory.list()] == [odd, odd]
    assert memory.get(odd) == entry
    assert memory.stats().corrupt == 0


def test_a_line_of_50_mb_is_read_and_read_around(memory: MemoryFileHandle, log: Path) -> None:
    big = json.dumps({"id": "big", "kind": "episodic", "text": "x" * 50_000_000, "ts": 1}).encode()
    log.write_bytes(b"\n".join([GOOD[0], b"y" * 50_000_000, big, GOOD[2]]) + b"\n")
    assert [len(text) for text in texts(memory)] == [6, 50_000_000, 6]
    assert memory.stats().corrupt == 1
    assert memory.forget("big")
    assert log.stat().st_size == 50_000_000 + 1 + len(GOOD[0]) + len(GOOD[2]) + 2


def test_duplicate_ids_are_all_shown_and_go_together(memory: MemoryFileHandle, log: Path) -> None:
    twin = GOOD[0].replace(b"good 0", b"twin").replace(b'"ts": 0', b'"ts": 5')
    log.write_bytes(b"\n".join([GOOD[0], GOOD[1], twin]) + b"\n")
    assert texts(memory) == ["twin", "good 1", "good 0"]
    found = memory.get("good-0")
    assert found is not None
    assert found.text == "twin", "of several the last in the file"
    assert memory.patch_meta("good-0", {"a": 1})
    assert [entry.meta for entry in memory.list()] == [{"a": 1}, None, {"a": 1}]
    assert memory.forget_many(["good-0"]) == 1
    assert texts(memory) == ["good 1"]


@pytest.mark.parametrize(
    "line",
    [
        b'{"id":"far","kind":"episodic","text":"far","ts":1,"meta":{"n":1e400}}',
        b'{"id":"far","kind":"episodic","text":"far","ts":1,"meta":{"\\ud83d":1},"x":1e400}',
    ],
)
def test_a_number_beyond_a_double_is_read_and_what_would_write_it_anew_is_refused(
    memory: MemoryFileHandle, log: Path, line: bytes
) -> None:
    log.write_bytes(line + b"\n" + GOOD[0] + b"\n")
    assert texts(memory) == ["far", "good 0"]
    with pytest.raises(InvalidEntryError, match="'far' holds a number beyond a double"):
        memory.patch_meta("far", {"a": 1})
    with pytest.raises(DuplicateIdError):
        memory.remember("far", id="far", meta={"n": 1})
    assert log.read_bytes() == line + b"\n" + GOOD[0] + b"\n"
    assert memory.forget("far")


def test_what_is_forgotten_is_gone_from_the_bytes_of_the_whole_folder(
    memory: MemoryFileHandle, folder: Path
) -> None:
    entry = memory.remember("the secret word is xyzzy", meta={"also": "xyzzy"})
    memory.remember("harmless")
    memory.forget(entry.id)
    assert not [path for path in folder.rglob("*") if path.is_file() and b"xyzzy" in path.read_bytes()]


def test_damage_does_not_push_good_entries_over_the_cap(root: Path, folder: Path, log: Path) -> None:
    """A megabyte of NUL in a file with a cap of 600 bytes must not cost what can be read."""
    log.write_bytes(b"\0" * 1_000_000 + b"\n" + b"\n".join(GOOD) + b"\n")
    with open_memory(root, "agent/writer", max_episodic_bytes=600) as memory:
        memory.remember("new")
        assert texts(memory) == ["new", "good 2", "good 1", "good 0"]
        for n in range(20):
            memory.remember(f"newer {n}")
        memory.flush()
        assert 2 <= len(texts(memory)) <= 8
        assert memory.stats().corrupt == 1


def test_blank_lines_do_not_count_against_a_cap_either(root: Path, log: Path, disk: FaultyOS) -> None:
    log.write_bytes(b"\n" * 10_000 + b"\n".join(GOOD) + b"\n")
    with open_memory(root, "agent/writer", max_episodic_bytes=2_000) as memory:
        memory.remember("new")
        assert len(memory.list()) == 4
        disk.calls.clear()
        memory.remember("newer")
        assert disk.calls.count("pread") <= 1, "and the file is not looked through at every write"
        assert memory.stats().corrupt == 0


@pytest.mark.parametrize("marker", [".mutation.prepare", ".mutation.pending"])
def test_beside_a_cut_off_rewrite_of_the_other_side_reads_go_on_and_writes_wait(
    memory: MemoryFileHandle, folder: Path, marker: str
) -> None:
    entry = memory.remember("x")
    (folder / marker).write_text("{}")
    before = (folder / "episodic.jsonl").read_bytes()
    assert memory.list() == [entry]
    for call in (
        lambda: memory.remember("y"),
        lambda: memory.forget(entry.id),
        lambda: memory.patch_meta(entry.id, {"a": 1}),
        memory.clear,
    ):
        with pytest.raises(MutationPendingError, match="start that side once"):
            call()
    assert (folder / "episodic.jsonl").read_bytes() == before
    (folder / marker).unlink()
    assert memory.forget(entry.id)


def test_neighbours_in_the_folder_are_never_touched(memory: MemoryFileHandle, folder: Path) -> None:
    memory.remember("x")
    neighbours = {
        "recall-index.json": b"{}",
        "STATUS.md": b"# ok",
        "notes.jsonl": b"not ours",
        ".git/HEAD": b"ref",
    }
    for name, data in neighbours.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    memory.clear()
    memory.remember("y")
    memory.forget(memory.list()[0].id)
    assert {name: (folder / name).read_bytes() for name in neighbours} == neighbours


def test_modes_are_private_by_default_whatever_the_umask_and_a_rewrite_keeps_what_a_file_has(
    root: Path,
) -> None:
    for umask in (0o000, 0o022, 0o077):
        old = os.umask(umask)
        try:
            with open_memory(root / str(umask), "agent/a") as memory:
                entry = memory.remember("x")
                memory.remember("y")
                paths = [root / str(umask), *(root / str(umask)).rglob("*")]
                modes = {path.stat().st_mode & 0o7777 for path in paths if path.is_file()}
                assert modes == {0o600}
                assert {path.stat().st_mode & 0o7777 for path in paths if path.is_dir()} == {0o700}
                log = root / str(umask) / "agent" / "a" / "episodic.jsonl"
                log.chmod(0o664)
                memory.forget(entry.id)
                assert log.stat().st_mode & 0o7777 == 0o664
        finally:
            os.umask(old)


def test_a_group_can_share_a_memory(root: Path) -> None:
    with open_memory(root, "shared/team", file_mode=0o660, directory_mode=0o2770) as memory:
        memory.remember("x")
        memory.remember("y")
        memory.forget(memory.list()[0].id)
    assert {path.stat().st_mode & 0o7777 for path in root.rglob("*") if path.is_file()} == {0o660}
    assert {path.stat().st_mode & 0o7777 for path in root.rglob("*") if path.is_dir()} == {0o2770}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_writes_belongs_to_the_owner_of_the_memory(open_to_all: Path) -> None:
    """An operator who compacts or remembers as root must not lock the agent out of its own files."""
    from support import NOBODY, unprivileged

    root = open_to_all / "root"
    with unprivileged(), open_memory(root, "agent/a") as memory:
        entry = memory.remember("by the agent")
    with open_memory(root, "agent/a") as memory, open_memory(root, "agent/b") as other:
        memory.forget(entry.id)
        memory.remember("by root", kind="semantic")
        other.remember("by root")
    assert {path.stat().st_uid for path in root.rglob("*")} == {NOBODY}
    with unprivileged():
        for owner in ("agent/a", "agent/b"):
            with open_memory(root, owner) as memory:
                memory.remember("by the agent")
                memory.clear()

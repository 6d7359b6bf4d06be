"""The TypeScript implementation's own files and answers, under tests/data/interop."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from conftest import DATA
from support import Clock, Host, judge, tree

from gotong_memfile import (
    MemoryEntry,
    MemoryFilePlugin,
    Owner,
    ServiceInitCtx,
    TrashRestoreConflictError,
    open_memory,
)
from gotong_memfile.codec import decode_line, encode_entry

EXPECTED = json.loads((DATA / "interop" / "expected.json").read_text(encoding="utf-8"))
NOW = EXPECTED["now"]
LOGS = sorted((DATA / "interop").rglob("*.jsonl"))
WRITER = "agent/writer-中文"


def as_json(entry: MemoryEntry) -> dict[str, Any]:
    return {key: value for key, value in dict(entry).items() if key != "meta" or value is not None}


def by_ts(entries: list[dict[str, Any]]) -> list[tuple[int, list[str]]]:
    """Entries grouped by their time: of equal times each side has its own order."""
    return [
        (ts, sorted(json.dumps(entry, sort_keys=True) for entry in group))
        for ts, group in groupby(entries, key=lambda entry: entry["ts"])
    ]


@pytest.mark.parametrize("owner", EXPECTED["list"])
def test_list_gives_the_entries_that_typescript_gives(interop_root: Path, owner: str) -> None:
    with open_memory(interop_root, owner) as memory:
        ours = [as_json(entry) for entry in memory.list(limit=500)]
    assert by_ts(ours) == by_ts(EXPECTED["list"][owner])


def test_of_equal_times_ours_is_the_later_first(interop_root: Path) -> None:
    with open_memory(interop_root, WRITER) as memory:
        texts = [entry.text for entry in memory.recall("same-ms")]
    assert texts == [f"same-ms {n}" for n in (4, 3, 2, 1, 0)]


@pytest.mark.parametrize("asked", EXPECTED["recall"], ids=lambda asked: json.dumps(asked["query"]))
def test_recall_gives_the_entries_that_typescript_gives(interop_root: Path, asked: dict[str, Any]) -> None:
    with open_memory(interop_root, asked["owner"], clock=lambda: NOW) as memory:
        ours = [as_json(entry) for entry in memory.recall(**asked["query"])]
        everything = {entry.id: as_json(entry) for entry in memory.scan()}
    theirs = [everything[entry_id] for entry_id in asked["ids"]]
    if asked["query"] == {"text": "same-MS", "k": 3}:
        # Five entries of one ms: which three are newest is for each side to say.
        assert [entry["text"] for entry in ours] == ["same-ms 4", "same-ms 3", "same-ms 2"]
    else:
        assert by_ts(ours) == by_ts(theirs)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: str(log.relative_to(DATA)))
def test_every_line_encoded_anew_has_the_same_bytes(log: Path) -> None:
    lines = log.read_bytes().split(b"\n")[:-1]
    assert lines
    for line in lines:
        raw = decode_line(line, log.stem)  # type: ignore[arg-type]
        assert raw is not None
        assert encode_entry(raw.model()) == line + b"\n"


def plugin_on(root: Path) -> MemoryFilePlugin:
    plugin = MemoryFilePlugin()
    plugin.init(ServiceInitCtx(root_dir=root, hub=Host(Clock(NOW))))
    return plugin


def test_the_trash_list_is_the_same(interop_root: Path) -> None:
    refs = [ref.model_dump(exclude_none=True) for ref in plugin_on(interop_root).list_trash()]
    assert refs == EXPECTED["trash"]


def test_restoring_twice_brings_back_both_lives(interop_root: Path) -> None:
    plugin = plugin_on(interop_root)
    before = tree(interop_root / ".trash" / "3990cf824cb0a4c9")
    ref = next(ref for ref in plugin.list_trash() if ref.owner_id == "gone")
    gone = interop_root / "agent" / "gone"

    assert plugin.restore(ref) == Owner.parse("agent/gone")
    assert (gone / "episodic.jsonl").read_bytes() == before["payload/episodic.jsonl"]
    assert ref in plugin.list_trash(), "the second life is still in the trash"
    with pytest.raises(TrashRestoreConflictError):
        plugin.restore(ref)

    gone.rename(interop_root / "agent" / "first-life")
    plugin.restore(ref)
    assert (gone / "episodic.jsonl").read_bytes() == before["payload-1764500019000/episodic.jsonl"]
    assert ref not in plugin.list_trash()
    assert not (interop_root / ".trash" / ref.id).exists()


def test_restoring_an_owner_without_data_only_empties_the_trash(interop_root: Path) -> None:
    plugin = plugin_on(interop_root)
    plugin.restore("285abbd59f1e1334")
    assert not (interop_root / "agent" / "never-wrote").exists()
    assert [ref.owner_id for ref in plugin.list_trash()] == ["gone"]


def test_deleting_again_that_day_goes_into_the_entry_that_typescript_made(interop_root: Path) -> None:
    plugin = plugin_on(interop_root)
    plugin.attach("agent/gone").remember("third life")
    ref = plugin.soft_delete("agent/gone", reason="again")
    assert ref.model_dump(exclude_none=True) == EXPECTED["trash"][1]
    lives = sorted(path.name for path in (interop_root / ".trash" / ref.id).iterdir() if path.is_dir())
    assert len(lives) == 3
    plugin.shutdown()


@pytest.mark.parametrize("change", ["forget", "patch_meta", "compact"])
def test_changes_leave_all_other_lines_byte_for_byte(interop_root: Path, change: str) -> None:
    log = interop_root / "agent" / "writer-中文" / "semantic.jsonl"
    alien = b'{"id":"alien", "kind":"semantic","text":"caf\\u00e9 \\/","ts":1.5e12,"x":[1e400,1e-7]}\r\n'
    broken = b'{"id":"broken","kind":"seman\n\xff\xfe\x00 binary\n'
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:2], broken, alien, *lines[2:]]))
    last_id = "millr0ds-s7w3zb"
    with open_memory(interop_root, WRITER, max_semantic_bytes=1_000) as memory:
        if change == "forget":
            assert memory.forget(last_id)
            expected = [*lines[:2], broken, alien, *lines[2:-1]]
        elif change == "patch_meta":
            assert memory.patch_meta(last_id, {"importance": 6}) is True
            memory.flush()
            changed = lines[-1].replace(b'"importance":5', b'"importance":6')
            # The patch is followed by a compaction, as the file is over its cap: 3 of 7 entries stay.
            expected = [broken, *lines[3:-1], changed]
        else:
            assert memory.compact() == 4
            expected = [broken, *lines[3:]]
        assert log.read_bytes() == b"".join(expected)


def test_what_we_write_has_the_form_of_what_typescript_writes(interop_root: Path) -> None:
    theirs = judge(interop_root / "agent" / "writer-中文" / "episodic.jsonl")
    with open_memory(interop_root, WRITER) as memory:
        memory.remember("ours", meta={"n": 1})
        memory.remember("ours too")
    ours = judge(interop_root / "agent" / "writer-中文" / "episodic.jsonl")
    assert ours[: len(theirs)] == theirs
    assert [list(entry) for entry in ours[len(theirs) :]] == [
        ["id", "kind", "text", "ts", "meta"],
        ["id", "kind", "text", "ts"],
    ]

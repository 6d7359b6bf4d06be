"""The plugin's life, its reports, and its trash when that was damaged or touched by hand."""

from __future__ import annotations

import enum
import errno
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support import Clock, FaultyOS, Host, judge, tree

from gotong_memfile import (
    InvalidQueryError,
    MemoryFileHandle,
    MemoryFilePlugin,
    MemoryHandle,
    ServiceInitCtx,
    StorageError,
    TrashDamagedError,
    TrashNotFoundError,
    UnsafePathError,
    fileio,
    ids,
    locks,
    open_memory,
)


def test_init_works_again_after_shutdown_also_on_another_root(tmp_path: Path) -> None:
    plugin = MemoryFilePlugin()
    for name in ("one", "two", "one"):
        plugin.init(ServiceInitCtx(root_dir=tmp_path / name))
        plugin.attach("agent/a").remember(f"in {name}")
        plugin.shutdown()
    assert [len(judge(tmp_path / name / "agent/a/episodic.jsonl")) for name in ("one", "two")] == [2, 1]


def test_two_plugins_and_open_memory_share_one_store_and_keep_their_own_settings(root: Path) -> None:
    one, other = MemoryFilePlugin(), MemoryFilePlugin(durability="power")
    for plugin in (one, other):
        plugin.init(ServiceInitCtx(root_dir=root))
    first = one.attach("agent/a", {"kinds": ["episodic"]})
    second = other.attach("agent/a")
    assert first is not second
    entry = first.remember("x")
    assert second.list() == [entry]
    one.shutdown()
    assert first.closed
    assert not second.closed
    second.remember("y", kind="semantic")
    other.shutdown()


def test_a_handle_closed_by_hand_is_replaced_at_the_next_attach(plugin: MemoryFilePlugin) -> None:
    handle = plugin.attach("agent/a")
    handle.close()
    assert plugin.attach("agent/a") is not handle


def test_the_handle_has_the_surface_that_all_implementations_share(plugin: MemoryFilePlugin) -> None:
    handle = plugin.attach("agent/a")
    assert isinstance(handle, MemoryHandle)
    with handle as entered:
        assert entered is handle
    assert repr(handle) == f"<MemoryFileHandle of 'agent/a' in {handle.path!r}, closed>"


def test_nothing_is_made_for_an_owner_that_only_reads(plugin: MemoryFilePlugin, root: Path) -> None:
    before = tree(root)
    memory = plugin.attach("agent/a")
    assert (memory.list(), memory.recall("x"), list(memory.scan()), memory.get("x")) == ([], [], [], None)
    assert (memory.forget("x"), memory.clear(), memory.compact(), memory.patch_meta("x", {})) == (
        False,
        0,
        0,
        False,
    )
    memory.flush()
    plugin.detach("agent/a")
    assert tree(root) == before


def test_a_compaction_is_published_with_no_lock_held(
    plugin: MemoryFilePlugin, host: Host, root: Path
) -> None:
    memory = plugin.attach("agent/a", {"maxEpisodicBytes": 400})
    sizes = []

    def publish(kind: str, data: Any) -> None:
        Host.publish_event(host, kind, data)
        memory.remember("the hub calls back", kind="working")
        sizes.append((root / "agent/a/episodic.jsonl").stat().st_size)

    plugin._hub.publish_event = publish  # type: ignore[method-assign]
    for n in range(6):
        memory.remember(f"n{n}")
    memory.flush()
    [(kind, data)] = host.events
    assert kind == "memory_compacted"
    assert data == {
        "owner": "agent/a", "kind": "episodic", "linesBefore": 6, "linesAfter": 3,
        "bytesBefore": data["bytesBefore"], "bytesAfter": sizes[0],
    }  # fmt: skip
    assert data["bytesBefore"] > 400 >= data["bytesAfter"]


def test_leftovers_of_a_killed_rewrite_go_at_the_next_attach_and_are_never_read(
    plugin: MemoryFilePlugin, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plugin.attach("agent/a").remember("x")
    plugin.detach("agent/a")
    leftover = root / "agent" / "a" / ".memfile-episodic-0123456789ab.tmp"
    leftover.write_text('{"id":"ghost","kind":"episodic","text":"ghost","ts":1}\n')
    assert plugin.describe("agent/a").item_count == 1
    assert [entry.text for entry in plugin.attach("agent/a").list()] == ["x"]
    assert not leftover.exists()


def test_the_temporary_file_of_a_rewrite_under_way_is_no_leftover(
    plugin: MemoryFilePlugin, root: Path, disk: FaultyOS
) -> None:
    """Another process attaches while a compaction copies without holding the owner's lock."""
    memory = plugin.attach("agent/a", {"maxEpisodicBytes": 10_000})
    code = f"from gotong_memfile import open_memory; open_memory({str(root)!r}, 'agent/a').close()"
    attached = []

    def copy(real: Any, *arguments: Any) -> Any:
        if not attached:
            attached.append(subprocess.run([sys.executable, "-c", code], check=True))
        return real(*arguments)

    disk.hook("copy_file_range", copy)
    memory.remember_many([{"text": f"n{n}"} for n in range(200)])
    memory.flush()
    assert attached
    assert memory.stats().kinds["episodic"].size_bytes <= 10_000


def test_a_temporary_file_removed_in_the_moment_before_it_is_locked_is_made_again(
    plugin: MemoryFilePlugin, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = plugin.attach("agent/a")
    entries = [memory.remember(f"n{n}") for n in range(3)]
    real, removed = fileio.create, []

    def create(path: str, mode: int, **options: Any) -> fileio.File:
        file = real(path, mode, **options)
        if ".memfile-" in path and len(removed) < 2:
            os.unlink(path)
            removed.append(path)
        return file

    monkeypatch.setattr(fileio, "create", create)
    assert memory.forget(entries[0].id)
    assert len(removed) == 2
    assert memory.list() == entries[:0:-1]
    assert os.listdir(memory.path) == ["episodic.jsonl"]


@pytest.mark.parametrize("age", [10, 10_000])
def test_without_locks_a_temporary_file_is_a_leftover_after_an_hour(
    plugin: MemoryFilePlugin, root: Path, monkeypatch: pytest.MonkeyPatch, age: int
) -> None:
    def refused(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    plugin.attach("agent/a").remember("x")
    plugin.detach("agent/a")
    leftover = root / "agent" / "a" / ".memfile-x.tmp"
    leftover.touch()
    os.utime(leftover, (time.time() - age,) * 2)
    monkeypatch.setattr(locks, "_flock", lambda: locks._Flock(refused, 6, 8))
    plugin.attach("agent/a")
    assert leftover.exists() is (age < 3_600)


def test_leftovers_that_cannot_be_removed_are_told_and_do_not_stop_the_attach(
    plugin: MemoryFilePlugin, root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.attach("agent/a").remember("x")
    plugin.detach("agent/a")
    (root / "agent" / "a" / ".memfile-x.tmp").touch()

    def refuse(path: str) -> None:
        raise StorageError("cannot remove")

    monkeypatch.setattr(fileio, "remove", refuse)
    assert len(plugin.attach("agent/a").list()) == 1
    assert "stays there: cannot remove" in caplog.text


class TestDescribe:
    def test_it_previews_the_file_changed_last(self, plugin: MemoryFilePlugin, root: Path) -> None:
        memory = plugin.attach("agent/a")
        for n, kind in enumerate(("semantic", "working", "episodic")):
            memory.remember(f"in {kind}", kind=kind)  # type: ignore[arg-type]
            os.utime(
                root / "agent" / "a" / f"{kind}.jsonl",
                (n, {"semantic": 30, "working": 40, "episodic": 20}[kind]),
            )
        snapshot = plugin.describe("agent/a")
        assert "in working" in snapshot.preview
        assert snapshot.last_access == 40_000
        assert snapshot.item_count == 3

    def test_it_counts_damage_and_previews_any_bytes(self, plugin: MemoryFilePlugin, root: Path) -> None:
        folder = root / "agent" / "a"
        folder.mkdir(parents=True)
        (folder / "episodic.jsonl").write_bytes(
            b'\xff\xfe\n{"id":"a","kind":"episodic","text":"\\ud83d","ts":1}\n'
        )
        snapshot = plugin.describe("agent/a")
        assert (snapshot.item_count, snapshot.corrupt_count) == (1, 1)
        assert snapshot.preview.startswith("\ufffd\ufffd\n{")
        snapshot.model_dump_json().encode()

    def test_a_single_line_over_32_kib_leaves_an_empty_preview(self, plugin: MemoryFilePlugin) -> None:
        plugin.attach("agent/a").remember("x" * 40_000)
        snapshot = plugin.describe("agent/a")
        assert (snapshot.preview, snapshot.preview_truncated) == ("", True)

    @pytest.mark.parametrize("over", [-1, 0, 1])
    def test_at_the_very_limit_no_line_is_lost(self, plugin: MemoryFilePlugin, root: Path, over: int) -> None:
        folder = root / "agent" / "a"
        folder.mkdir(parents=True)
        lines = [b"x" * 1023 + b"\n"] * 32
        lines[0] = b"x" * (1023 + over) + b"\n"
        (folder / "working.jsonl").write_bytes(b"".join(lines))
        snapshot = plugin.describe("agent/a")
        assert snapshot.preview.count("\n") == (31 if over > 0 else 32)
        assert snapshot.preview_truncated is (over > 0)

    def test_a_file_cut_at_the_start_of_a_line_keeps_that_line(
        self, plugin: MemoryFilePlugin, root: Path
    ) -> None:
        folder = root / "agent" / "a"
        folder.mkdir(parents=True)
        (folder / "working.jsonl").write_bytes(b"first\n" + (b"y" * 1023 + b"\n") * 32)
        assert plugin.describe("agent/a").preview.count("\n") == 32


BROKEN = {
    "empty": b"",
    "no JSON": b"{",
    "NUL": b"\0" * 100,
    "no object": b"[]",
    "bomb": b"[" * 100_000,
    "keys missing": b'{"id":"x"}',
    "another id": json.dumps({**dict.fromkeys(("type", "impl", "ownerKind", "ownerId"), "x"), "id": "1" * 16, "deletedAt": 1, "expiresAt": 2}).encode(),
}  # fmt: skip


class TestTrash:
    def broken(self, plugin: MemoryFilePlugin, root: Path, data: bytes) -> tuple[str, Path]:
        plugin.attach("agent/a").remember("precious")
        ref = plugin.soft_delete("agent/a")
        meta = root / ".trash" / ref.id / "meta.json"
        meta.write_bytes(data)
        return ref.id, meta

    @pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
    def test_a_broken_reference_is_told_left_out_and_kept(
        self, plugin: MemoryFilePlugin, root: Path, caplog: pytest.LogCaptureFixture, data: bytes
    ) -> None:
        trash_id, _ = self.broken(plugin, root, data)
        before = tree(root / ".trash")
        assert plugin.list_trash() == []
        assert plugin.sweep_trash(10**15) == []
        assert trash_id in caplog.text
        for call in (plugin.restore, plugin.hard_delete):
            with pytest.raises(TrashDamagedError, match=r"meta\.json"):
                call(trash_id)
        assert tree(root / ".trash") == before

    @pytest.mark.parametrize(
        "forged",
        [
            {"ownerKind": "robot"},
            {"ownerId": "../../out"},
            {"ownerId": ""},
            {"type": "vector"},
            {"impl": "db"},
            {"deletedAt": "5"},
        ],
    )
    def test_a_reference_forged_on_disk_leads_nowhere(
        self, plugin: MemoryFilePlugin, root: Path, tmp_path: Path, forged: dict[str, Any]
    ) -> None:
        plugin.attach("agent/a").remember("precious")
        ref = plugin.soft_delete("agent/a")
        meta = root / ".trash" / ref.id / "meta.json"
        meta.write_text(json.dumps({**json.loads(meta.read_text()), **forged}))
        before = tree(tmp_path)
        for call in (plugin.restore, plugin.hard_delete):
            with pytest.raises(TrashDamagedError):
                call(ref.id)
        assert plugin.list_trash() == []
        assert tree(tmp_path) == before

    def test_deleting_again_over_a_broken_reference_keeps_it_aside_and_makes_a_new_one(
        self, plugin: MemoryFilePlugin, root: Path
    ) -> None:
        trash_id, meta = self.broken(plugin, root, b"{broken")
        plugin.attach("agent/a").remember("second life")
        ref = plugin.soft_delete("agent/a")
        assert ref.id == trash_id
        assert plugin.list_trash() == [ref]
        asides = [path for path in meta.parent.iterdir() if path.name.startswith("meta.json.broken-")]
        assert [path.read_bytes() for path in asides] == [b"{broken"]
        assert len([path for path in meta.parent.iterdir() if path.is_dir()]) == 2

        plugin.restore(ref)
        (root / "agent" / "a").rename(root / "agent" / "b")
        plugin.restore(ref)
        assert plugin.list_trash() == []
        assert asides[0].exists(), "what is not ours to judge stays"

    def test_the_oldest_sibling_comes_first_when_the_payload_is_gone(
        self, plugin: MemoryFilePlugin, root: Path
    ) -> None:
        lives = []
        for n in range(4):
            plugin.attach("agent/a").remember(f"life {n}")
            ref = plugin.soft_delete("agent/a")
        while plugin.list_trash():
            plugin.restore(ref)
            lives.append(plugin.attach("agent/a").list()[0].text)
            (root / "agent" / "a").rename(root / "agent" / f"out {len(lives)}")
        assert lives == [f"life {n}" for n in range(4)]

    def test_two_deletions_in_one_ms_overwrite_nothing(
        self, plugin: MemoryFilePlugin, host: Host, root: Path
    ) -> None:
        host.clock.step = 0
        for n in range(4):
            plugin.attach("agent/a").remember(f"life {n}")
            ref = plugin.soft_delete("agent/a")
        payloads = sorted((root / ".trash" / ref.id).glob("payload*/episodic.jsonl"))
        assert sorted(judge(path)[0]["text"] for path in payloads) == [f"life {n}" for n in range(4)]

    def test_an_empty_folder_is_no_life(self, plugin: MemoryFilePlugin, root: Path) -> None:
        (root / "agent" / "a").mkdir(parents=True)
        ref = plugin.soft_delete("agent/a")
        assert not (root / ".trash" / ref.id / "payload").exists()
        plugin.attach("agent/b").remember("x")
        ref = plugin.soft_delete("agent/b")
        (root / "agent" / "b").mkdir()
        plugin.restore(ref)
        assert len(plugin.attach("agent/b").list()) == 1

    def test_neighbours_in_the_folder_are_moved_along_and_back(
        self, plugin: MemoryFilePlugin, root: Path
    ) -> None:
        plugin.attach("agent/a").remember("x")
        folder = root / "agent" / "a"
        (folder / "STATUS.md").write_text("ok")
        (folder / "knowledge").mkdir()
        (folder / "knowledge" / "notes.md").write_text("notes")
        (folder / ".mutation.pending").write_text("{}")
        before = tree(folder)
        plugin.restore(plugin.soft_delete("agent/a"))
        assert tree(folder) == before

    def test_a_live_handle_begins_a_new_life_after_its_owner_was_deleted(
        self, plugin: MemoryFilePlugin
    ) -> None:
        memory = plugin.attach("agent/a")
        memory.remember("first life")
        plugin.soft_delete("agent/a")
        assert memory.list() == []
        memory.remember("second life")
        assert [entry.text for entry in memory.list()] == ["second life"]

    def test_a_sweep_goes_on_after_a_failure_and_finishes_what_was_cut_off(
        self,
        plugin: MemoryFilePlugin,
        root: Path,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        refs = []
        for name in ("a", "b"):
            plugin.attach(f"agent/{name}").remember("x")
            refs.append(plugin.soft_delete(f"agent/{name}"))
        real = fileio.move_directory

        def refuse(source: str, target: str) -> None:
            if refs[1].id in source:
                raise StorageError("cannot move")
            real(source, target)

        monkeypatch.setattr(fileio, "move_directory", refuse)
        (root / ".trash" / ".purge-0123456789abcdef-00000000" / "payload").mkdir(parents=True)
        assert plugin.sweep_trash(10**15) == [refs[0]]
        assert "could not be swept: cannot move" in caplog.text
        assert [path.name for path in (root / ".trash").iterdir()] == [refs[1].id]
        monkeypatch.undo()
        assert plugin.sweep_trash(10**15) == [refs[1]]

    def test_names_that_are_no_trash_ids_are_left_alone(self, plugin: MemoryFilePlugin, root: Path) -> None:
        (root / ".trash" / "README").write_text("by hand")
        (root / ".trash" / "old-stuff").mkdir()
        assert plugin.list_trash() == plugin.sweep_trash(10**15) == []
        assert sorted(path.name for path in (root / ".trash").iterdir()) == ["README", "old-stuff"]

    def test_a_link_in_place_of_the_trash_is_refused_at_init(self, root: Path, tmp_path: Path) -> None:
        root.mkdir()
        (root / ".trash").symlink_to(tmp_path)
        with pytest.raises(UnsafePathError):
            MemoryFilePlugin().init(ServiceInitCtx(root_dir=root))

    def test_an_entry_that_goes_while_it_is_restored_is_not_found(
        self, plugin: MemoryFilePlugin, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two restore the same entry at once: the second finds it gone once it has the lock."""
        plugin.attach("agent/a").remember("x")
        ref = plugin.soft_delete("agent/a")
        checked = type(plugin._trash)._checked

        def slow(trash: Any, given: Any) -> Any:
            found = checked(trash, given)
            monkeypatch.undo()
            plugin.restore(ref)
            return found

        monkeypatch.setattr(type(plugin._trash), "_checked", slow)
        with pytest.raises(TrashNotFoundError):
            plugin.restore(ref)


class TestClocks:
    @pytest.mark.parametrize("step", [-5, 0, 1])
    def test_ids_are_unique_and_file_order_is_kept_whatever_the_clock_does(
        self, root: Path, step: int
    ) -> None:
        with open_memory(root, "agent/a", clock=Clock(step=step)) as memory:
            entries = [memory.remember(f"n{n}") for n in range(200)]
            memory.remember_many([{"text": "same moment"}] * 200)
            lines = judge(root / "agent" / "a" / "episodic.jsonl")
            assert len({line["id"] for line in lines}) == 400
            assert [line["text"] for line in lines[:200]] == [f"n{n}" for n in range(200)]
            if step == 0:
                assert [line["id"] for line in lines] == sorted(line["id"] for line in lines)
                assert memory.recall("n199", k=1) == [entries[199]]
            if step < 0:
                assert memory.list(limit=1) == [entries[0]], "recall is by ts"

    @pytest.mark.parametrize("now", [0, -5, 4_102_444_800_000, 10**15])
    def test_a_clock_far_off_is_no_trouble(self, root: Path, now: int) -> None:
        with open_memory(root, "agent/a", clock=lambda: now) as memory:
            entry = memory.remember("x")
            assert entry.ts == now
            assert memory.list() == [entry]
            assert len(entry.id.partition("-")[0]) >= 8

    def test_a_clock_that_fails_stores_nothing(self, root: Path) -> None:
        def broken() -> int:
            raise RuntimeError("no time")

        with open_memory(root, "agent/a", clock=broken) as memory:
            with pytest.raises(RuntimeError, match="no time"):
                memory.remember("x")
            assert memory.list() == []

    def test_without_a_clock_the_time_is_the_systems(self, root: Path) -> None:
        with open_memory(root, "agent/a") as memory:
            before = time.time_ns() // 1_000_000
            assert before <= memory.remember("x").ts <= time.time_ns() // 1_000_000

    def test_a_suffix_that_overflows_stays_unique(self) -> None:
        source = ids.EntryIdSource()
        source.next(5)
        source._suffix = 36**6 - 2
        assert [source.next(5)[-6:] for _ in range(2)] == ["zzzzzz", "000000"]


class TestRetries:
    def test_the_same_content_is_the_same_entry_and_writes_nothing(
        self, memory: MemoryFileHandle, folder: Path
    ) -> None:
        first = memory.remember("x", kind="semantic", meta={"a": [1]}, id="own")
        before = (folder / "semantic.jsonl").stat()
        assert memory.remember("x", kind="semantic", meta={"a": [1]}, id="own") == first
        assert memory.remember_many([{"text": "x", "kind": "semantic", "meta": {"a": [1]}, "id": "own"}]) == [
            first
        ]
        assert (folder / "semantic.jsonl").stat() == before

    @pytest.mark.parametrize(
        "other",
        [
            {"text": "y"},
            {"kind": "episodic"},
            {"kind": "working"},
            {"meta": None},
            {"meta": {"a": [2]}},
            {"meta": {"a": [1], "b": None}},
            {"meta": {"a": [1.0]}},
            {"meta": {"a": [True]}},
        ],
    )
    def test_other_content_or_kind_is_a_duplicate(
        self, memory: MemoryFileHandle, root: Path, other: Any
    ) -> None:
        from gotong_memfile import DuplicateIdError

        same: dict[str, Any] = {"text": "x", "kind": "semantic", "meta": {"a": [1]}, "id": "own"}
        memory.remember_many([same])
        before = tree(root)
        for call in (
            lambda: memory.remember_many([{"text": "fine"}, {**same, **other}]),
            lambda: memory.remember_many([{**same, "id": "new"}, {**same, **other, "id": "new"}]),
        ):
            with pytest.raises(DuplicateIdError, match=r"is taken by another semantic entry of agent/writer"):
                call()
        assert tree(root) == before

    def test_the_id_is_free_again_once_its_entry_was_forgotten(self, memory: MemoryFileHandle) -> None:
        memory.remember("x", id="own")
        memory.forget("own")
        assert memory.remember("y", kind="working", id="own").text == "y"

    def test_ids_are_unique_per_owner_also_in_kinds_that_this_handle_does_not_have(self, root: Path) -> None:
        from gotong_memfile import DuplicateIdError

        with open_memory(root, "agent/a") as memory:
            memory.remember("x", kind="semantic", id="own")
        with open_memory(root, "agent/a", kinds=["episodic"]) as memory, pytest.raises(DuplicateIdError):
            memory.remember("x", id="own")

    def test_an_id_written_with_escapes_by_others_is_found(
        self, memory: MemoryFileHandle, folder: Path
    ) -> None:
        folder.mkdir(parents=True)
        (folder / "semantic.jsonl").write_bytes(
            rb'{"id":"\u006fwn\/1","kind":"semantic","text":"x","ts":1}' + b"\n"
        )
        found = memory.get("own/1")
        assert found is not None
        assert memory.remember("x", kind="semantic", id="own/1") == found
        assert memory.forget("own/1")

    def test_what_is_returned_shares_nothing_with_what_was_given(self, memory: MemoryFileHandle) -> None:
        meta = {"list": [1], "text": "x"}
        entry = memory.remember("x", meta=meta, id="own")
        meta["list"].append(2)  # type: ignore[attr-defined]
        assert entry.meta == {"list": [1], "text": "x"} == memory.list()[0].meta


class Kind(str, enum.Enum):
    SEMANTIC = "semantic"
    EPISODIC = "episodic"


class TestStringsThatAreMore:
    """A member of an enum of strings equals its string, but hashes and prints otherwise."""

    def test_as_a_kind_it_is_that_kind_in_every_verb(self, memory: MemoryFileHandle, folder: Path) -> None:
        kind: Any = Kind.SEMANTIC
        entry = memory.remember("x", kind=kind)
        [other] = memory.remember_many([{"text": "y", "kind": kind}])
        assert [line["kind"] for line in judge(folder / "semantic.jsonl")] == ["semantic"] * 2
        assert type(entry.kind) is str
        assert memory.list(kind) == memory.recall(kinds=[kind]) == list(memory.scan(kind)) == [other, entry]
        assert memory.compact(kind) == 0
        assert memory.clear(kind) == 2

    def test_as_text_id_meta_and_needle_it_is_its_content(
        self, memory: MemoryFileHandle, folder: Path
    ) -> None:
        entry = memory.remember(Kind.SEMANTIC, id=Kind.SEMANTIC, meta={Kind.SEMANTIC: Kind.EPISODIC})
        assert judge(folder / "episodic.jsonl") == [{**dict(entry)}]
        assert dict(entry) == {
            "id": "semantic", "kind": "episodic", "text": "semantic", "ts": entry.ts, "meta": {"semantic": "episodic"},
        }  # fmt: skip
        assert {type(value) for value in (entry.id, entry.text, *(entry.meta or {}))} == {str}
        assert memory.recall(Kind.SEMANTIC) == [entry] == [memory.get(Kind.SEMANTIC)]
        assert memory.forget(Kind.SEMANTIC)


def test_a_hub_that_fails_at_an_event_does_not_fail_what_was_remembered(
    plugin: MemoryFilePlugin, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(kind: str, data: Any) -> None:
        raise RuntimeError("hub down")

    plugin._hub.publish_event = broken  # type: ignore[method-assign]
    memory = plugin.attach("agent/a", {"maxEpisodicBytes": 100})
    entries = [memory.remember(f"n{n}") for n in range(5)]
    memory.flush()
    assert memory.list() == [entries[-1]]
    assert "the hub failed" in caplog.text


def test_a_plugin_without_logger_and_hub_uses_its_own(root: Path) -> None:
    plugin = MemoryFilePlugin()
    plugin.init(ServiceInitCtx(root, None, None))
    assert plugin.attach("agent/a").remember("x").ts > 1_700_000_000_000
    plugin.shutdown()


def test_a_sweep_takes_no_other_time_than_ms(plugin: MemoryFilePlugin) -> None:
    for bad in ("x", 1.5, True):
        with pytest.raises(InvalidQueryError, match="now must be epoch ms"):
            plugin.sweep_trash(bad)  # type: ignore[arg-type]


def test_loggers_get_warnings_not_the_terminal(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("a host")
    records: list[logging.LogRecord] = []
    logger.addHandler(
        type("Keep", (logging.Handler,), {"emit": lambda self, record: records.append(record)})()
    )
    logger.propagate = False
    plugin = MemoryFilePlugin()
    plugin.init(ServiceInitCtx(root_dir=root, logger=logger))
    (root / ".trash" / ("0" * 16)).mkdir()
    (root / ".trash" / ("0" * 16) / "meta.json").write_text("{")
    assert plugin.list_trash() == []
    assert len(records) == 1
    assert capfd.readouterr() == ("", "")

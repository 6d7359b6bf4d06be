"""What the TypeScript implementation is tested for, statement by statement, in Python's names."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Clock, Host, in_threads, judge

from gotong_memfile import (
    InvalidConfigError,
    InvalidEntryError,
    InvalidOwnerError,
    KindNotAllowedError,
    MemoryFileConfig,
    MemoryFileHandle,
    MemoryFilePlugin,
    Owner,
    TrashNotFoundError,
    TrashRestoreConflictError,
    open_memory,
)

ALL_KINDS = ("episodic", "semantic", "working")


class TestConfig:
    @pytest.mark.parametrize("raw", [None, {}, {"scope": "private"}, {"maxEpisodicBytes": None}])
    def test_an_empty_config_gives_all_kinds_and_no_caps(self, raw: Any) -> None:
        config = MemoryFileConfig.parse(raw)
        assert config.kinds == ALL_KINDS
        assert [config.cap(kind) for kind in config.kinds] == [None, None, None]

    def test_kinds_keep_their_order_and_lose_duplicates(self) -> None:
        config = MemoryFileConfig.parse({"kinds": ["working", "episodic", "working"]})
        assert config.kinds == ("working", "episodic")

    @pytest.mark.parametrize(
        ("raw", "named"),
        [
            ({"kinds": ["episodic", "dreams"]}, "kinds"),
            ({"kinds": []}, "kinds"),
            ({"kinds": "episodic"}, "kinds"),
            ({"kinds": None}, "kinds"),
            ([], "mapping"),
            ("episodic", "mapping"),
            ({"maxEpisodicBytes": 0}, "maxEpisodicBytes"),
            ({"maxSemanticBytes": -1}, "maxSemanticBytes"),
            ({"maxSemanticBytes": 1.5}, "maxSemanticBytes"),
            ({"maxEpisodicBytes": True}, "maxEpisodicBytes"),
            ({"maxEpisodicBytes": "600"}, "maxEpisodicBytes"),
            ({"maxEpisodicByte": 600}, "maxEpisodicByte"),
            ({1: 2}, "1"),
        ],
    )
    def test_what_makes_no_sense_is_refused_by_its_name(self, raw: Any, named: str) -> None:
        with pytest.raises(InvalidConfigError, match=re.escape(named)):
            MemoryFileConfig.parse(raw)

    def test_snake_case_names_work_too(self) -> None:
        assert MemoryFileConfig.parse({"max_episodic_bytes": 5}) == MemoryFileConfig.parse(
            {"maxEpisodicBytes": 5}
        )


class TestHandle:
    def test_remember_gives_id_and_ts_and_writes_into_the_file_of_the_kind(
        self, memory: MemoryFileHandle, folder: Path
    ) -> None:
        for kind in ALL_KINDS:
            entry = memory.remember(f"of {kind}", kind=kind)
            assert judge(folder / f"{kind}.jsonl") == [
                {"id": entry.id, "kind": kind, "text": f"of {kind}", "ts": entry.ts}
            ]
            assert re.fullmatch(r"[0-9a-z]{8}-[0-9a-z]{6}", entry.id)

    def test_list_is_newest_first_across_kinds(self, memory: MemoryFileHandle) -> None:
        for n, kind in enumerate(ALL_KINDS * 2):
            memory.remember(f"n{n}", kind=kind)
        assert [entry.text for entry in memory.list()] == ["n5", "n4", "n3", "n2", "n1", "n0"]
        assert [entry.text for entry in memory.list("semantic", limit=1)] == ["n4"]

    def test_recall_finds_substrings_whatever_their_case_in_any_script(
        self, memory: MemoryFileHandle
    ) -> None:
        memory.remember("Asked about COFFEE")
        memory.remember("客户复购：上周的订单")
        assert [entry.text for entry in memory.recall("coffee")] == ["Asked about COFFEE"]
        assert [entry.text for entry in memory.recall("复购")] == ["客户复购：上周的订单"]
        assert memory.recall("tea") == []

    def test_since_is_inclusive_and_k_limits(self, memory: MemoryFileHandle) -> None:
        entries = [memory.remember(f"n{n}") for n in range(5)]
        assert memory.recall(since=entries[2].ts) == [entries[4], entries[3], entries[2]]
        assert memory.recall(k=2) == [entries[4], entries[3]]

    def test_kinds_outside_the_config_give_nothing_and_take_nothing(self, root: Path) -> None:
        with open_memory(root, "agent/a") as everything:
            everything.remember("a fact", kind="semantic")
        with open_memory(root, "agent/a", kinds=["episodic"]) as memory:
            assert memory.recall(kinds=["semantic"]) == []
            assert memory.list("semantic") == []
            assert list(memory.scan("semantic")) == []
            with pytest.raises(KindNotAllowedError, match="semantic"):
                memory.remember("a fact", kind="semantic")
            with pytest.raises(KindNotAllowedError):
                memory.clear("semantic")

    def test_meta_comes_back(self, memory: MemoryFileHandle) -> None:
        meta = {"z": 1, "a": [True, None, {"x": 2**70}], "é": ""}
        memory.remember("with meta", meta=meta)
        [entry] = memory.recall()
        assert entry.meta == meta
        assert list(entry.meta) == ["z", "a", "é"]

    def test_forget_by_id_and_an_unknown_id_is_no_error(self, memory: MemoryFileHandle) -> None:
        kept, gone = memory.remember("kept"), memory.remember("gone")
        assert memory.forget(gone.id) is True
        assert memory.forget(gone.id) is False
        assert memory.list() == [kept]

    def test_clear_of_all_kinds_of_one_and_of_an_empty_one(self, memory: MemoryFileHandle) -> None:
        for kind in ALL_KINDS:
            memory.remember("x", kind=kind)
        assert memory.clear("episodic") == 1
        assert memory.clear("episodic") == 0
        assert {entry.kind for entry in memory.list()} == {"semantic", "working"}
        assert memory.clear() == 2
        assert memory.list() == []

    def test_empty_text_is_refused(self, memory: MemoryFileHandle) -> None:
        with pytest.raises(InvalidEntryError, match="text is empty"):
            memory.remember("")

    def test_fifty_remembers_at_once_give_fifty_lines_and_fifty_ids(
        self, memory: MemoryFileHandle, folder: Path
    ) -> None:
        jobs: list[Callable[[], Any]] = [lambda n=n: memory.remember(f"n{n}") for n in range(50)]  # type: ignore[misc]
        entries = in_threads(*jobs)
        lines = judge(folder / "episodic.jsonl")
        assert {line["id"] for line in lines} == {entry.id for entry in entries}
        assert len(lines) == 50

    def test_a_forget_on_one_handle_loses_nothing_that_another_appends(self, root: Path) -> None:
        with open_memory(root, "agent/a") as one, open_memory(root, "agent/a") as other:
            victims = [one.remember(f"victim {n}").id for n in range(20)]
            in_threads(
                lambda: [one.forget(victim) for victim in victims],
                lambda: [other.remember(f"kept {n}") for n in range(20)],
            )
            assert [entry.text for entry in one.list()] == [f"kept {n}" for n in reversed(range(20))]

    def test_owners_are_isolated_also_under_the_same_id(self, root: Path) -> None:
        for owner in ("agent/x", "user/x", "agent/y"):
            with open_memory(root, owner) as memory:
                memory.remember(owner)
        for owner in ("agent/x", "user/x", "agent/y"):
            with open_memory(root, owner) as memory:
                assert [entry.text for entry in memory.list()] == [owner]

    def test_over_its_cap_a_file_keeps_the_newest_and_stays_near_the_cap(self, root: Path) -> None:
        with open_memory(root, "agent/a", max_episodic_bytes=600) as memory:
            for n in range(10):
                memory.remember(f"entry number {n}")
            texts = [entry.text for entry in memory.list()]
        assert texts[0] == "entry number 9"
        assert texts == [f"entry number {n}" for n in range(9, 9 - len(texts), -1)]
        assert (root / "agent/a/episodic.jsonl").stat().st_size <= 600

    def test_a_corrupt_line_in_the_middle_is_skipped(self, memory: MemoryFileHandle, folder: Path) -> None:
        memory.remember("before")
        with (folder / "episodic.jsonl").open("a") as file:
            file.write('{"id": "half\n')
        memory.remember("after")
        assert [entry.text for entry in memory.list()] == ["after", "before"]


class TestPatchMeta:
    def test_it_merges_shallowly_and_keeps_all_else(self, memory: MemoryFileHandle) -> None:
        entry = memory.remember("x", kind="semantic", meta={"a": {"deep": 1}, "b": 2})
        assert memory.patch_meta(entry.id, {"a": {"other": 3}, "c": None}) is True
        assert memory.get(entry.id) == entry.model_copy(
            update={"meta": {"a": {"other": 3}, "b": 2, "c": None}}
        )

    def test_it_makes_meta_where_there_was_none(self, memory: MemoryFileHandle) -> None:
        entry = memory.remember("x")
        assert memory.patch_meta(entry.id, {"a": 1})
        assert memory.get(entry.id) == entry.model_copy(update={"meta": {"a": 1}})

    def test_an_unknown_id_changes_nothing(self, memory: MemoryFileHandle, folder: Path) -> None:
        memory.remember("x")
        before = (folder / "episodic.jsonl").read_bytes()
        assert memory.patch_meta("unknown", {"a": 1}) is False
        assert (folder / "episodic.jsonl").read_bytes() == before

    @pytest.mark.parametrize("kind", ALL_KINDS)
    def test_it_finds_the_entry_in_any_kind(self, memory: MemoryFileHandle, kind: Any) -> None:
        entry = memory.remember("x", kind=kind)
        assert memory.patch_meta(entry.id, {"a": 1})

    def test_other_lines_stay_byte_for_byte(self, memory: MemoryFileHandle, folder: Path) -> None:
        log = folder / "episodic.jsonl"
        first, second = memory.remember("first"), memory.remember("second")
        odd = b'{ "id":"odd","kind":"episodic","text":"\\u0041","ts":1e3 }\r\n\n{"half": \n\xff\n'
        log.write_bytes(odd + log.read_bytes() + odd)
        memory.patch_meta(second.id, {"a": 1})
        data = log.read_bytes()
        assert data.startswith(odd)
        assert data.endswith(odd)
        assert first.id.encode() in data


class TestPlugin:
    def test_init_makes_root_and_trash(self, plugin: MemoryFilePlugin, root: Path) -> None:
        assert (root / ".trash").is_dir()

    def test_it_names_itself(self) -> None:
        assert (MemoryFilePlugin.type, MemoryFilePlugin.impl) == ("memory", "file")
        assert MemoryFilePlugin.version.startswith("0.")
        assert MemoryFilePlugin.description

    def test_attach_gives_the_same_handle_until_it_is_detached(self, plugin: MemoryFilePlugin) -> None:
        handle = plugin.attach("agent/a")
        assert plugin.attach(Owner(kind="agent", id="a")) is handle
        plugin.detach("agent/a")
        plugin.detach("agent/a")
        assert plugin.attach("agent/a") is not handle

    def test_a_stranger_has_nothing(self, plugin: MemoryFilePlugin) -> None:
        snapshot = plugin.describe("agent/stranger")
        assert (snapshot.size_bytes, snapshot.item_count, snapshot.preview) == (0, 0, "")
        assert snapshot.last_access is None

    def test_describe_tells_size_count_and_the_tail(self, plugin: MemoryFilePlugin, root: Path) -> None:
        memory = plugin.attach("agent/a")
        memory.remember("first", kind="semantic")
        memory.remember("second", kind="semantic")
        snapshot = plugin.describe("agent/a")
        data = (root / "agent/a/semantic.jsonl").read_bytes()
        assert (snapshot.size_bytes, snapshot.item_count) == (len(data), 2)
        assert snapshot.preview_type == "application/x-ndjson"
        assert snapshot.preview == data.decode()
        assert not snapshot.preview_truncated

    def test_a_preview_over_32_kib_is_whole_lines_and_marked(self, plugin: MemoryFilePlugin) -> None:
        plugin.attach("agent/a").remember_many([{"text": f"n{n} " + "x" * 900} for n in range(60)])
        snapshot = plugin.describe("agent/a")
        assert snapshot.preview_truncated
        assert 31 * 1024 < len(snapshot.preview) <= 32 * 1024
        assert all(line.startswith('{"id":') and line.endswith("}") for line in snapshot.preview.splitlines())

    def test_soft_delete_moves_the_folder_and_describes_the_deletion(
        self, plugin: MemoryFilePlugin, root: Path
    ) -> None:
        plugin.attach("agent/a").remember("x")
        ref = plugin.soft_delete("agent/a", reason="retired")
        assert re.fullmatch("[0-9a-f]{16}", ref.id)
        assert (root / ".trash" / ref.id / "payload" / "episodic.jsonl").is_file()
        assert (root / ".trash" / ref.id / "meta.json").is_file()
        assert ref.expires_at > ref.deleted_at
        assert ref.reason == "retired"
        assert plugin.describe("agent/a").size_bytes == 0
        assert plugin.soft_delete("agent/a").id == ref.id

    def test_without_data_there_is_a_reference_and_no_payload(
        self, plugin: MemoryFilePlugin, root: Path
    ) -> None:
        ref = plugin.soft_delete("agent/never-wrote")
        assert [path.name for path in (root / ".trash" / ref.id).iterdir()] == ["meta.json"]

    def test_restore_brings_the_data_back_and_ends_the_trash_entry(
        self, plugin: MemoryFilePlugin, root: Path
    ) -> None:
        entry = plugin.attach("agent/a").remember("x")
        ref = plugin.soft_delete("agent/a")
        plugin.restore(ref)
        assert plugin.attach("agent/a").list() == [entry]
        assert not (root / ".trash" / ref.id).exists()
        assert plugin.list_trash() == []

    def test_restore_into_a_taken_slot_is_an_error_of_its_own(self, plugin: MemoryFilePlugin) -> None:
        plugin.attach("agent/a").remember("first life")
        ref = plugin.soft_delete("agent/a")
        plugin.attach("agent/a").remember("second life")
        with pytest.raises(TrashRestoreConflictError, match="agent/a has data again"):
            plugin.restore(ref)
        assert [entry.text for entry in plugin.attach("agent/a").list()] == ["second life"]

    def test_a_second_life_of_the_day_lies_beside_the_first_and_both_come_back(
        self, plugin: MemoryFilePlugin, root: Path
    ) -> None:
        plugin.attach("agent/a").remember("first life")
        ref = plugin.soft_delete("agent/a")
        plugin.attach("agent/a").remember("second life")
        assert plugin.soft_delete("agent/a") == ref
        names = sorted(path.name for path in (root / ".trash" / ref.id).iterdir())
        assert names[:2] == ["meta.json", "payload"]
        assert re.fullmatch(r"payload-\d{13}", names[2])

        plugin.restore(ref)
        assert [entry.text for entry in plugin.attach("agent/a").list()] == ["first life"]
        assert plugin.list_trash() == [ref]
        (root / "agent" / "a").rename(root / "agent" / "b")
        plugin.restore(ref)
        assert [entry.text for entry in plugin.attach("agent/a").list()] == ["second life"]
        assert plugin.list_trash() == []

    def test_hard_delete_removes_the_entry(self, plugin: MemoryFilePlugin, root: Path) -> None:
        plugin.attach("agent/a").remember("x")
        ref = plugin.soft_delete("agent/a")
        plugin.hard_delete(ref)
        assert list((root / ".trash").iterdir()) == []
        with pytest.raises(TrashNotFoundError):
            plugin.restore(ref)

    def test_list_trash_shows_what_was_made_and_skips_a_broken_reference(
        self, plugin: MemoryFilePlugin, root: Path
    ) -> None:
        assert plugin.list_trash() == []
        first, second = plugin.soft_delete("agent/a"), plugin.soft_delete("agent/b")
        assert plugin.list_trash() == [second, first]
        (root / ".trash" / second.id / "meta.json").write_text("{")
        assert plugin.list_trash() == [first]

    @pytest.mark.parametrize("owner_id", ["a/b", "a\\b", "..", "a\0b"])
    def test_owner_ids_that_are_no_folder_names_are_refused_at_attach(
        self, plugin: MemoryFilePlugin, owner_id: str
    ) -> None:
        owner = Owner(kind="agent", id=owner_id)
        assert str(owner) == f"agent/{owner_id}"
        with pytest.raises(InvalidOwnerError):
            plugin.attach(owner)

    def test_the_contract_of_any_plugin(self, plugin: MemoryFilePlugin, host: Host) -> None:
        entry = plugin.attach("agent/a").remember("persists")
        plugin.detach("agent/a")
        assert plugin.attach("agent/a").list() == [entry]
        assert plugin.describe("agent/a").size_bytes > 0
        ref = plugin.soft_delete("agent/a")
        assert plugin.soft_delete("agent/a").id == ref.id
        plugin.restore(ref)
        assert plugin.attach("agent/a").list() == [entry]


class TestConstants:
    def test_recall_gives_20_and_at_most_200_list_100_and_at_most_500(self, memory: MemoryFileHandle) -> None:
        memory.remember_many([{"text": f"n{n}"} for n in range(600)])
        assert len(memory.recall()) == 20
        assert len(memory.recall(k=10_000)) == 200
        assert len(memory.recall(k=0)) == len(memory.recall(k=-5)) == 1
        assert len(memory.list()) == 100
        assert len(memory.list(limit=10_000)) == 500
        assert len(memory.list(limit=0)) == 1

    def test_the_trash_keeps_30_days_and_its_day_is_utc(self, plugin: MemoryFilePlugin, host: Host) -> None:
        host.clock.ms, host.clock.step = 86_400_000 * 20_000 - 1, 0
        last_of_day = plugin.soft_delete("agent/a")
        assert last_of_day.expires_at - last_of_day.deleted_at == 30 * 86_400_000
        host.clock.ms += 1
        first_of_next = plugin.soft_delete("agent/a")
        assert first_of_next.id != last_of_day.id
        assert plugin.sweep_trash(last_of_day.expires_at - 1) == []
        assert plugin.sweep_trash(last_of_day.expires_at) == [last_of_day]
        assert plugin.list_trash() == [first_of_next]


def test_reading_125_000_lines_and_more_is_no_trouble(root: Path) -> None:
    """There, recall and list end in a stack overflow from that size on."""
    with open_memory(root, "agent/a", clock=Clock()) as memory:
        memory.remember_many([{"text": "filler"}] * 130_000)
        newest = memory.remember("the newest")
        assert memory.list(limit=1) == [newest]
        assert memory.stats().entries == 130_001

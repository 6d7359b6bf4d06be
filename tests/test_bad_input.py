"""Bad input gets an error of its own class, with a message that helps, before any file is touched."""

from __future__ import annotations

import datetime
import decimal
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import tree, unprivileged

from gotong_memfile import (
    ConfigConflictError,
    HandleClosedError,
    InvalidConfigError,
    InvalidEntryError,
    InvalidOwnerError,
    InvalidQueryError,
    InvalidTrashIdError,
    KindNotAllowedError,
    MemoryFileError,
    MemoryFileHandle,
    MemoryFilePlugin,
    NewMemoryEntry,
    NotInitializedError,
    NotReadableError,
    NotWritableError,
    Owner,
    RootNotDirectoryError,
    ServiceInitCtx,
    TrashNotFoundError,
    TrashRefMismatchError,
    UnsafePathError,
    open_memory,
)


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"x": value}
    return value


def cycle() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = [value]
    return value


BAD_META: list[tuple[Any, str]] = [
    ({"a": math.nan}, "meta.a is nan"),
    ({"a": [1, {"b": math.inf}]}, "meta.a[1].b is inf"),
    ({"a": -math.inf}, "meta.a is -inf"),
    ({"a": b"x"}, "meta.a is a bytes, which JSON cannot hold unchanged; pass text, such as base64"),
    ({"a": bytearray()}, "meta.a is a bytearray"),
    ({"a": {1, 2}}, "meta.a is a set, which JSON cannot hold unchanged; pass a list"),
    ({"a": (1, 2)}, "meta.a is a tuple, which JSON cannot hold unchanged; pass a list"),
    (
        {"a": datetime.datetime(2026, 1, 1)},
        "meta.a is a datetime, which JSON cannot hold unchanged; pass value.isoformat()",
    ),
    ({"a": datetime.date(2026, 1, 1)}, "meta.a is a date"),
    ({"a": object()}, "meta.a is a object"),
    ({"a": decimal.Decimal(1)}, "meta.a is a Decimal"),
    ({"a": 1j}, "meta.a is a complex"),
    ({"a": {"b": {5: 1}}}, "meta.a.b has the key 5, a int"),
    ({None: 1}, "meta has the key None"),
    ({"a": deep(5_000)}, "nested deeper than 200 levels"),
    (cycle(), "or contains itself"),
    ({"a": 10**5_000}, "meta.a is an integer with too many digits"),
    ([1], "meta must be a mapping with string keys, not list"),
    ("x", "meta must be a mapping"),
    (5, "meta must be a mapping"),
]


@pytest.fixture
def untouched(memory: MemoryFileHandle, root: Path) -> Any:
    """The tree must be as it was before the bad call."""
    memory.remember("here before")
    before = tree(root)
    yield
    assert tree(root) == before


@pytest.mark.usefixtures("untouched")
class TestEntries:
    @pytest.mark.parametrize(("meta", "said"), BAD_META, ids=[said[:40] for _, said in BAD_META])
    def test_meta_that_json_cannot_hold_is_named_by_its_path(
        self, memory: MemoryFileHandle, meta: Any, said: str
    ) -> None:
        for call in (
            lambda: memory.remember("x", meta=meta),
            lambda: memory.remember_many([{"text": "fine"}, {"text": "x", "meta": meta}]),
            lambda: memory.patch_meta("here before", meta),
        ):
            with pytest.raises(InvalidEntryError, match=re.escape(said)):
                call()

    @pytest.mark.parametrize("text", [None, 5, b"x", ["x"]])
    def test_a_text_that_is_no_string(self, memory: MemoryFileHandle, text: Any) -> None:
        with pytest.raises(InvalidEntryError, match="text must be a string"):
            memory.remember(text)

    def test_an_empty_text_or_id(self, memory: MemoryFileHandle) -> None:
        with pytest.raises(InvalidEntryError, match="text is empty"):
            memory.remember("")
        with pytest.raises(InvalidEntryError, match="id is empty"):
            memory.remember("x", id="")

    @pytest.mark.parametrize("entry_id", [5, b"x", ["x"]])
    def test_an_id_that_is_no_string(self, memory: MemoryFileHandle, entry_id: Any) -> None:
        calls: list[Callable[[Any], Any]] = [
            lambda one: memory.remember("x", id=one),
            memory.get,
            memory.forget,
            lambda one: memory.forget_many([one]),
            lambda one: memory.patch_meta(one, {}),
        ]
        for call in calls:
            with pytest.raises(InvalidEntryError, match="id must be a string, not"):
                call(entry_id)

    def test_forget_many_of_one_string_is_not_taken_for_its_letters(self, memory: MemoryFileHandle) -> None:
        with pytest.raises(InvalidEntryError, match="an iterable of ids"):
            memory.forget_many("abc")

    @pytest.mark.parametrize("kind", ["dreams", "", None, 5, ["episodic"], "Episodic"])
    def test_a_kind_that_is_none(self, memory: MemoryFileHandle, kind: Any) -> None:
        with pytest.raises(KindNotAllowedError, match=r"memory kind .* is unknown; use one of episodic"):
            memory.remember("x", kind=kind)
        if kind is not None:
            for verb in (memory.clear, memory.compact):
                with pytest.raises(KindNotAllowedError):
                    verb(kind)

    @pytest.mark.parametrize(
        ("entry", "said"),
        [
            ("x", "entries[1] must be a NewMemoryEntry or a mapping, not str"),
            (None, "entries[1] must be"),
            ({}, "entries[1] lacks its text"),
            (
                {"text": "x", "txet": 1},
                "entries[1] has the unknown key 'txet'; its keys are text, kind, meta and id",
            ),
            ({"text": ""}, "entries[1]: text is empty"),
            ({"text": "x", "kind": "dreams"}, "entries[1]: memory kind 'dreams'"),
        ],
    )
    def test_one_bad_entry_of_many_is_named_and_none_is_stored(
        self, memory: MemoryFileHandle, entry: Any, said: str
    ) -> None:
        with pytest.raises((InvalidEntryError, KindNotAllowedError), match=re.escape(said)):
            memory.remember_many([NewMemoryEntry(text="fine"), entry])


@pytest.mark.usefixtures("untouched")
class TestQueries:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"text": 5}, "text: "),
            ({"text": b"x"}, "text: "),
            ({"kinds": ["dreams"]}, "kinds.0: "),
            ({"kinds": 5}, "kinds: "),
            ({"kinds": "dreams"}, "kinds.0: "),
            ({"since": "yesterday"}, "since"),
            ({"since": datetime.datetime(2026, 1, 1)}, "a datetime without time zone is ambiguous"),
            ({"since": math.nan}, "since"),
            ({"since": True}, "since"),
            ({"k": "5"}, "k: "),
            ({"k": 2.5}, "k: "),
            ({"k": True}, "k: "),
            ({"k": None}, "k: "),
        ],
    )
    def test_recall_says_which_argument_is_wrong(
        self, memory: MemoryFileHandle, arguments: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(InvalidQueryError, match=re.escape(said)):
            memory.recall(**arguments)

    def test_list_and_scan_say_which_argument_is_wrong(self, memory: MemoryFileHandle) -> None:
        bad: Any = "dreams"
        for call in (
            lambda: memory.list(bad),
            lambda: memory.list(limit=bad),
            lambda: memory.scan(bad),
            lambda: memory.scan(since=bad),
            lambda: memory.scan(newest_first=bad),
        ):
            with pytest.raises(InvalidQueryError, match=r"got 'dreams'|not 'dreams'"):
                call()


class TestOwners:
    @pytest.mark.parametrize(
        ("owner_id", "said"),
        [
            ("", "it is empty"),
            (".", "leads out"),
            ("..", "leads out"),
            ("a/b", "path separator '/'"),
            ("../../etc", "path separator '/'"),
            ("a\\b", "path separator '\\\\'"),
            ("a\0b", "control character '\\x00'"),
            ("a\nb", "control character '\\n'"),
            ("\x85", "control character"),
            ("x" * 256, "longer than 255 bytes"),
            ("é" * 150, "longer than 255 bytes"),
            ("cut \ud83d", "half a character ('\\ud83d')"),
        ],
    )
    def test_ids_that_are_no_folder_names_touch_nothing(
        self, plugin: MemoryFilePlugin, root: Path, tmp_path: Path, owner_id: str, said: str
    ) -> None:
        owner = Owner(kind="agent", id=owner_id)
        before = tree(tmp_path)
        for call in (plugin.attach, plugin.soft_delete, plugin.describe, lambda one: open_memory(root, one)):
            with pytest.raises(InvalidOwnerError, match=re.escape(said)) as caught:
                call(owner)  # type: ignore[operator]
            str(caught.value).encode()
        assert tree(tmp_path) == before

    @pytest.mark.parametrize("owner", ["", "writer", "/x", "robot/x", "Agent/x", 5, None, b"agent/x"])
    def test_what_names_no_owner(self, root: Path, owner: Any) -> None:
        with pytest.raises(InvalidOwnerError, match="agent/writer"):
            open_memory(root, owner)
        assert not root.exists()

    def test_255_bytes_and_odd_but_harmless_ids_are_fine(self, root: Path) -> None:
        for owner_id in (
            "x" * 255,
            "é" * 127,
            "...",
            " ",
            "-rf",
            "con",
            "a:b",
            "~",
            "$HOME",
            "a\u2028b",
            "🐍",
        ):
            with open_memory(root, Owner(kind="agent", id=owner_id)) as memory:
                memory.remember("here")
            assert (root / "agent" / owner_id / "episodic.jsonl").is_file()


class TestSettings:
    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"maxEpisodicByte": 5}, "there is no setting 'maxEpisodicByte'"),
            ({"durabilty": "power"}, "did you mean 'durability'?"),
            ({"max_episodic_bytes": 0}, "max_episodic_bytes: input should be greater than 0 (got 0)"),
            ({"durability": "forever"}, "durability must be 'process' or 'power', not 'forever'"),
            ({"process_lock": "no"}, "process_lock must be True or False"),
            ({"lock_timeout": -1}, "lock_timeout must be seconds"),
            ({"lock_timeout": math.inf}, "lock_timeout must be seconds"),
            ({"lock_timeout": math.nan}, "lock_timeout must be seconds"),
            ({"file_mode": 0o400}, "file_mode must let its owner read and write"),
            ({"file_mode": "600"}, "file_mode"),
            ({"directory_mode": 0o600}, "directory_mode must let its owner"),
            ({"clock": 5}, "clock must be a function"),
        ],
    )
    def test_a_bad_setting_is_named_and_no_root_is_made(
        self, root: Path, settings: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(InvalidConfigError, match=re.escape(said)):
            open_memory(root, "agent/a", **settings)
        assert not root.exists()

    def test_a_plugin_takes_options_only(self) -> None:
        with pytest.raises(InvalidConfigError, match="there is no option 'kinds'"):
            MemoryFilePlugin(kinds=["episodic"])

    def test_attaching_again_with_another_config_is_an_error(self, plugin: MemoryFilePlugin) -> None:
        handle = plugin.attach("agent/a", {"kinds": ["episodic"]})
        assert plugin.attach("agent/a", {"kinds": ["episodic", "episodic"]}) is handle
        with pytest.raises(ConfigConflictError, match="detach it first"):
            plugin.attach("agent/a")


class TestLife:
    def test_a_closed_handle_says_so_on_every_verb(self, root: Path) -> None:
        memory = open_memory(root, "agent/a")
        memory.close()
        memory.close()
        assert memory.closed
        calls: list[Callable[[], Any]] = [
            lambda: memory.remember("x"),
            lambda: memory.remember_many([]),
            memory.recall,
            memory.list,
            memory.scan,
            lambda: memory.get("x"),
            lambda: memory.forget("x"),
            lambda: memory.forget_many([]),
            memory.clear,
            lambda: memory.patch_meta("x", {}),
            memory.stats,
            memory.compact,
            memory.flush,
            memory.__enter__,
        ]
        for call in calls:
            with pytest.raises(HandleClosedError, match="open or attach it again"):
                call()

    def test_a_plugin_outside_of_init_and_shutdown_says_so(
        self, plugin: MemoryFilePlugin, root: Path
    ) -> None:
        handle = plugin.attach("agent/a")
        plugin.shutdown()
        plugin.shutdown()
        assert handle.closed
        calls: list[Callable[[], Any]] = [
            lambda: plugin.attach("agent/a"),
            lambda: plugin.describe("agent/a"),
            lambda: plugin.soft_delete("agent/a"),
            lambda: plugin.restore("0" * 16),
            lambda: plugin.hard_delete("0" * 16),
            plugin.list_trash,
            plugin.sweep_trash,
        ]
        for call in calls:
            with pytest.raises(NotInitializedError, match="call init"):
                call()
        plugin.init(ServiceInitCtx(root_dir=root))
        assert plugin.attach("agent/a") is not handle


class TestTrashReferences:
    @pytest.mark.parametrize(
        "forged",
        ["../../agent/x", "", "..", "0" * 15, "0" * 17, "0" * 15 + "G", "0" * 16 + "\n", "/etc", None, 5],
    )
    def test_an_id_of_another_form_leads_nowhere(
        self, plugin: MemoryFilePlugin, tmp_path: Path, forged: Any
    ) -> None:
        plugin.attach("agent/x").remember("precious")
        ref = plugin.soft_delete("agent/y")
        before = tree(tmp_path)
        for call in (plugin.restore, plugin.hard_delete):
            with pytest.raises(InvalidTrashIdError, match="not 16 hex digits"):
                call(forged)
            with pytest.raises(InvalidTrashIdError, match="not 16 hex digits"):
                call(ref.model_copy(update={"id": forged}))
        assert tree(tmp_path) == before

    @pytest.mark.parametrize("forged", [{"owner_id": "other"}, {"owner_kind": "user"}, {"impl": "vector"}])
    def test_an_owner_that_is_not_that_of_the_disk_is_refused(
        self, plugin: MemoryFilePlugin, tmp_path: Path, forged: dict[str, str]
    ) -> None:
        plugin.attach("agent/x").remember("precious")
        ref = plugin.soft_delete("agent/x").model_copy(update=forged)
        before = tree(tmp_path)
        for call in (plugin.restore, plugin.hard_delete):
            with pytest.raises(TrashRefMismatchError, match="take the reference from list_trash"):
                call(ref)
        assert tree(tmp_path) == before

    def test_the_disk_is_trusted_over_the_copy_for_everything_else(self, plugin: MemoryFilePlugin) -> None:
        entry = plugin.attach("agent/x").remember("precious")
        ref = plugin.soft_delete("agent/x")
        plugin.restore(ref.model_copy(update={"deleted_at": 0, "expires_at": 0, "reason": "forged"}))
        assert plugin.attach("agent/x").list() == [entry]

    def test_an_unknown_one_is_not_found(self, plugin: MemoryFilePlugin) -> None:
        for call in (plugin.restore, plugin.hard_delete):
            with pytest.raises(TrashNotFoundError, match="list_trash"):
                call("0" * 16)

    def test_a_reason_must_be_a_string(self, plugin: MemoryFilePlugin, tmp_path: Path) -> None:
        bad: Any = 5
        before = tree(tmp_path)
        with pytest.raises(InvalidEntryError, match="reason must be a string"):
            plugin.soft_delete("agent/a", reason=bad)
        assert tree(tmp_path) == before


class TestLinksAndFiles:
    @pytest.fixture
    def outside(self, tmp_path: Path) -> Path:
        target = tmp_path / "outside"
        target.mkdir()
        (target / "episodic.jsonl").write_text('{"id":"a","kind":"episodic","text":"secret","ts":1}\n')
        return target

    @pytest.mark.parametrize("where", ["agent", "agent/x", "agent/x/episodic.jsonl", "agent/x/working.jsonl"])
    def test_a_link_under_the_root_is_not_followed(
        self, plugin: MemoryFilePlugin, root: Path, tmp_path: Path, outside: Path, where: str
    ) -> None:
        link = root / where
        link.parent.mkdir(parents=True, exist_ok=True)
        target = outside / "episodic.jsonl" if where.endswith("jsonl") else outside
        link.symlink_to(target)
        before = tree(tmp_path)
        with pytest.raises(UnsafePathError, match="symbolic link"):
            plugin.attach("agent/x")
        with pytest.raises(UnsafePathError, match="symbolic link"):
            plugin.describe("agent/x")
        if not where.endswith("jsonl"):
            with pytest.raises(UnsafePathError, match="symbolic link"):
                plugin.soft_delete("agent/x")
        assert tree(tmp_path) == before

    @pytest.mark.parametrize("where", ["", "episodic.jsonl"])
    def test_a_link_put_there_under_a_live_handle_is_not_followed(
        self, memory: MemoryFileHandle, folder: Path, outside: Path, where: str
    ) -> None:
        memory.remember("x")
        before = tree(outside)
        place = folder / where if where else folder
        place.rename(place.with_name("moved"))
        place.symlink_to(outside / where if where else outside)
        for call in (lambda: memory.remember("y"), memory.list, memory.clear, lambda: memory.forget("a")):
            with pytest.raises(UnsafePathError, match="symbolic link"):
                call()
        assert tree(outside) == before

    def test_a_dangling_link_is_not_written_through(
        self, memory: MemoryFileHandle, folder: Path, tmp_path: Path
    ) -> None:
        memory.remember("x", kind="working")
        (folder / "episodic.jsonl").symlink_to(tmp_path / "new")
        with pytest.raises(UnsafePathError):
            memory.remember("y")
        assert not (tmp_path / "new").exists()

    @pytest.mark.parametrize("where", ["", "{id}", "{id}/payload", "{id}/meta.json"])
    def test_a_link_in_the_trash_is_not_followed(
        self, plugin: MemoryFilePlugin, root: Path, tmp_path: Path, where: str
    ) -> None:
        plugin.attach("agent/x").remember("precious")
        ref = plugin.soft_delete("agent/x")
        place = root / ".trash" / where.format(id=ref.id)
        moved = tmp_path / "moved"
        place.rename(moved)
        place.symlink_to(moved)
        before = tree(tmp_path)
        with pytest.raises(UnsafePathError, match="symbolic link"):
            plugin.restore(ref)
        if where != "{id}/payload":
            with pytest.raises(UnsafePathError, match="symbolic link"):
                plugin.hard_delete(ref)
        assert tree(tmp_path) == before

    def test_hard_delete_removes_links_in_a_payload_not_what_they_lead_to(
        self, plugin: MemoryFilePlugin, root: Path, outside: Path
    ) -> None:
        plugin.attach("agent/x").remember("x")
        (root / "agent" / "x" / "knowledge").symlink_to(outside)
        plugin.hard_delete(plugin.soft_delete("agent/x"))
        assert (outside / "episodic.jsonl").is_file()

    @pytest.mark.parametrize("where", ["agent", "agent/x"])
    def test_a_file_in_place_of_a_folder(self, plugin: MemoryFilePlugin, root: Path, where: str) -> None:
        place = root / where
        place.parent.mkdir(exist_ok=True)
        place.write_text("a file")
        before = tree(root)
        for call in (plugin.attach, plugin.describe, plugin.soft_delete):
            with pytest.raises(RootNotDirectoryError, match="should be a directory"):
                call("agent/x")
        assert tree(root) == before

    @pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
    def test_what_is_no_regular_file_in_place_of_a_log_is_not_opened(
        self, memory: MemoryFileHandle, plugin: MemoryFilePlugin, folder: Path, make: Callable[[Path], None]
    ) -> None:
        memory.remember("x", kind="working")
        make(folder / "episodic.jsonl")
        for call in (
            lambda: memory.remember("y"),
            memory.list,
            memory.stats,
            lambda: plugin.attach("agent/writer"),
        ):
            with pytest.raises(UnsafePathError, match="no regular file"):
                call()

    def test_a_root_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("precious")
        for root in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(RootNotDirectoryError):
                open_memory(root, "agent/a")
        assert (tmp_path / "file").read_text() == "precious"

    @pytest.mark.parametrize("root", ["", None, 5])
    def test_a_root_that_is_no_path(self, root: Any) -> None:
        with pytest.raises(InvalidConfigError, match="root_dir"):
            open_memory(root, "agent/a")

    def test_a_link_to_the_root_itself_is_the_users_to_make(self, root: Path, tmp_path: Path) -> None:
        root.mkdir()
        (tmp_path / "link").symlink_to(root)
        with open_memory(tmp_path / "link", "agent/a") as one, open_memory(root, "agent/a") as other:
            entry = one.remember("x")
            assert one._store is other._store, "one directory, one store, whatever its name"
            assert other.list() == [entry]


class TestPermissions:
    def test_a_root_that_may_not_be_written_serves_reads_and_only_writes_fail(
        self, open_to_all: Path
    ) -> None:
        root = open_to_all / "root"
        with unprivileged():
            with open_memory(root, "agent/a") as memory:
                entry = memory.remember("x")
            everything = [root, *root.rglob("*")]
            for path in everything:
                path.chmod(0o555 if path.is_dir() else 0o444)
            before = tree(root)
            plugin = MemoryFilePlugin()
            plugin.init(ServiceInitCtx(root_dir=root))
            memory = plugin.attach("agent/a")
            assert memory.list() == [entry]
            assert memory.recall("X") == [entry]
            assert plugin.describe("agent/a").item_count == 1
            assert plugin.attach("agent/stranger").list() == []
            calls: list[Callable[[], Any]] = [
                lambda: memory.remember("y"),
                lambda: memory.forget(entry.id),
                memory.clear,
                lambda: memory.patch_meta(entry.id, {"a": 1}),
                lambda: plugin.soft_delete("agent/a"),
                lambda: plugin.attach("agent/stranger").remember("y"),
            ]
            for call in calls:
                with pytest.raises(NotWritableError, match="reading goes on") as caught:
                    call()
                assert isinstance(caught.value, PermissionError)
                assert caught.value.errno
            plugin.shutdown()
            assert tree(root) == before
            for path in everything:
                path.chmod(0o755)

    def test_a_root_that_cannot_be_made(self, open_to_all: Path) -> None:
        with unprivileged():
            open_to_all.chmod(0o555)
            with pytest.raises(NotWritableError, match="cannot create"):
                open_memory(open_to_all / "root", "agent/a")
            open_to_all.chmod(0o755)

    def test_a_file_that_may_not_be_read_says_so(self, open_to_all: Path) -> None:
        with unprivileged(), open_memory(open_to_all / "root", "agent/a") as memory:
            memory.remember("x")
            (open_to_all / "root" / "agent" / "a" / "episodic.jsonl").chmod(0)
            with pytest.raises(NotReadableError, match="give this user read permission"):
                memory.list()


def test_every_error_has_a_code_of_its_own_and_derives_from_a_builtin() -> None:
    def below(cls: type[MemoryFileError]) -> list[type[MemoryFileError]]:
        return [one for sub in cls.__subclasses__() for one in (sub, *below(sub))]

    classes = below(MemoryFileError)
    assert len({cls.code for cls in classes}) == len(classes)
    builtin = (ValueError, LookupError, OSError, RuntimeError)
    assert all(issubclass(cls, builtin) for cls in classes)

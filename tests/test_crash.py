"""A process is killed at every step of a verb: all that was acknowledged is there, and nothing is torn."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import FaultyOS, Host, judge

from gotong_memfile import MemoryFilePlugin, ServiceInitCtx, fileio, open_memory, store

KINDS = ("episodic", "semantic", "working")
Step = Callable[[MemoryFilePlugin], Any]

BATCH = [{"text": f"batch {n}", "kind": KINDS[n % 3], "id": f"batch {n}"} for n in range(6)]


def memory_of(plugin: MemoryFilePlugin) -> Any:
    return plugin.attach("agent/a", {"maxEpisodicBytes": 900})


STEPS: dict[str, Step] = {
    "first": lambda plugin: memory_of(plugin).remember("first", id="first"),
    "other kind": lambda plugin: memory_of(plugin).remember("fact", kind="semantic", id="fact"),
    "batch": lambda plugin: memory_of(plugin).remember_many(BATCH),
    "patch": lambda plugin: memory_of(plugin).patch_meta("first", {"a": 1}),
    "forget": lambda plugin: memory_of(plugin).forget("fact"),
    "forget many": lambda plugin: memory_of(plugin).forget_many(["batch 0", "batch 1"]),
    "long": lambda plugin: (memory_of(plugin).remember("long " * 140, id="long"), memory_of(plugin).flush()),
    "over": lambda plugin: (memory_of(plugin).remember("over", id="over"), memory_of(plugin).flush()),
    "clear": lambda plugin: memory_of(plugin).clear("semantic"),
    "last": lambda plugin: memory_of(plugin).remember("last", kind="semantic", id="last"),
}
TRASH_STEPS: dict[str, Step] = {
    "first life": lambda plugin: memory_of(plugin).remember("first life", id="one"),
    "delete": lambda plugin: plugin.soft_delete("agent/a"),
    "second life": lambda plugin: memory_of(plugin).remember("second life", id="two"),
    "delete again": lambda plugin: plugin.soft_delete("agent/a"),
    "restore": lambda plugin: plugin.restore(plugin.list_trash()[0]),
    "delete once more": lambda plugin: plugin.soft_delete("agent/a"),
}
CALLS = [
    "open",
    "write",
    "fsync",
    "replace",
    "rename",
    "copy_file_range",
    "mkdir",
    "chmod",
    "unlink",
    "rmdir",
    "fchmod",
]


def plugin_on(root: Path) -> MemoryFilePlugin:
    plugin = MemoryFilePlugin()
    plugin.init(ServiceInitCtx(root_dir=root, hub=Host()))
    return plugin


def dying_at(call: str, count: int, *, after: bool) -> Callable[[FaultyOS], None]:
    """What lets a disk kill its process at the `count`th `call` of the file layer, before or after that is done."""
    seen = 0

    def hook(real: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == count and call == "write":
            real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        if seen == count and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return real(*arguments, **options)
        finally:
            if seen == count:
                os.kill(os.getpid(), signal.SIGKILL)

    return lambda disk: disk.hook(call, hook)


def run_in_child(root: Path, steps: dict[str, Step], prepare: Callable[[FaultyOS], None]) -> tuple[int, bool]:
    """Do the steps in a child process; how many it acknowledged, and whether it came to its end."""
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            disk = FaultyOS()
            prepare(disk)
            store._A_MOMENT = 0  # type: ignore[misc]
            fileio.os = disk  # type: ignore[attr-defined]
            plugin = plugin_on(root)
            for step in steps.values():
                step(plugin)
                os.write(sending, b".")
            code = 0
        finally:
            os._exit(code)
    os.close(sending)
    acknowledged = b""
    while data := os.read(receiving, 4096):
        acknowledged += data
    os.close(receiving)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or status == 0, "the child failed in another way than by being killed"
    return len(acknowledged), status == 0


def on_disk(folder: Path) -> dict[str, dict[str, Any]]:
    """All entries by id, read without the library. Half of a record that was never acknowledged is none."""
    found: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        log = folder / f"{kind}.jsonl"
        for line in log.read_bytes().split(b"\n") if log.exists() else []:
            try:
                entry = json.loads(line)
            except ValueError:
                assert not line.endswith(b"}"), "a whole record that cannot be read"
                continue
            assert entry["id"] not in found, "an entry is there twice"
            found[entry["id"]] = {"text": entry["text"], "meta": entry.get("meta"), "kind": kind}
    return found


def states_after(tmp_path: Path, steps: dict[str, Step], look: Callable[[Path], Any]) -> list[Any]:
    """What the disk holds after each step of a run in which nobody is killed."""
    root = tmp_path / "undisturbed"
    plugin = plugin_on(root)
    states = [look(root)]
    for step in steps.values():
        step(plugin)
        states.append(look(root))
    plugin.shutdown()
    return states


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", CALLS)
def test_killed_at_any_call_all_that_was_acknowledged_is_there(
    tmp_path: Path, call: str, after: bool
) -> None:
    def look(root: Path) -> dict[str, dict[str, Any]]:
        return on_disk(root / "agent" / "a") if (root / "agent" / "a").exists() else {}

    states = states_after(tmp_path, STEPS, look)
    batch_step = list(STEPS).index("batch")
    kills = 0
    for count in range(1, 1_000):
        root = tmp_path / f"killed at {count}"
        done, finished = run_in_child(root, STEPS, dying_at(call, count, after=after))
        if finished:
            break
        kills += 1
        found = look(root)
        allowed = [states[done], states[done + 1]]
        if done == batch_step:
            part = {entry: value for entry, value in found.items() if entry.startswith("batch")}
            allowed = [states[done] | part]
        if list(STEPS)[done] in {"long", "over"}:
            # Remembered, but killed before the compaction that comes with it.
            new = list(STEPS)[done]
            allowed.append(states[done] | {new: states[done + 1][new]})
        if list(STEPS)[done] == "forget many":
            # Not acknowledged, and killed between the files of two kinds.
            allowed.append({key: value for key, value in states[done].items() if key != "batch 0"})
        assert found in allowed, (count, done)
        with open_memory(root, "agent/a") as memory:
            assert {entry.id for entry in memory.scan()} == set(found)
            assert not list(root.rglob("agent/a/.memfile-*")), (
                "what the rewrite left is cleaned at the attach"
            )
            memory.remember("life goes on", id="on")
        assert on_disk(root / "agent" / "a") == found | {
            "on": {"text": "life goes on", "meta": None, "kind": "episodic"}
        }
    assert kills or call in {"rename", "rmdir", "unlink"}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", CALLS)
def test_killed_at_any_call_the_trash_goes_on_from_there(tmp_path: Path, call: str, after: bool) -> None:
    """Each life is in one place, whole, and can be brought back."""

    def lives(root: Path) -> set[str]:
        logs = [*root.glob("agent/*/episodic.jsonl"), *root.glob(".trash/*/payload*/episodic.jsonl")]
        texts = [
            judge(log)[0]["text"] for log in logs if log.stat().st_size and log.read_bytes().endswith(b"\n")
        ]
        assert len(set(texts)) == len(texts), "a life is there twice"
        return set(texts)

    states = states_after(tmp_path, TRASH_STEPS, lives)
    for count in range(1, 1_000):
        root = tmp_path / f"killed at {count}"
        done, finished = run_in_child(root, TRASH_STEPS, dying_at(call, count, after=after))
        if finished:
            break
        assert lives(root) in (states[done], states[done + 1])

        plugin = plugin_on(root)
        plugin.soft_delete("agent/a")
        brought_back = set()
        while refs := plugin.list_trash():
            plugin.restore(refs[0])
            folder = root / "agent" / "a"
            if folder.exists():
                brought_back |= {entry["text"] for entry in on_disk(folder).values()}
                folder.rename(tmp_path / f"out {count} {len(list(tmp_path.iterdir()))}")
        assert brought_back == lives_expected(states, done, brought_back)
        assert list((root / ".trash").iterdir()) == []
        plugin.shutdown()
    assert count > 1 or call in {"unlink", "copy_file_range"}


def lives_expected(states: list[set[str]], done: int, found: set[str]) -> set[str]:
    return states[done + 1] if found == states[done + 1] else states[done]


def test_killed_in_a_hard_delete_nothing_of_it_comes_back(tmp_path: Path) -> None:
    for call in ("rename", "unlink", "rmdir", "open"):
        for after in (False, True):
            for count in range(1, 100):
                root = tmp_path / f"{call}{after}{count}"
                plugin = plugin_on(root)
                memory_of(plugin).remember("x", id="x")
                memory_of(plugin).remember("y", kind="semantic", id="y")
                ref = plugin.soft_delete("agent/a")
                plugin.shutdown()
                steps: dict[str, Step] = {"purge": lambda plugin, ref=ref: plugin.hard_delete(ref)}  # type: ignore[misc]
                _, finished = run_in_child(root, steps, dying_at(call, count, after=after))
                plugin = plugin_on(root)
                if plugin.list_trash():
                    plugin.restore(ref)
                    assert set(on_disk(root / "agent" / "a")) == {"x", "y"}, "restored whole or not at all"
                plugin.sweep_trash()
                assert not list((root / ".trash").iterdir())
                plugin.shutdown()
                if finished:
                    break


def writer(root: Path, sending: int, seed: int) -> None:
    """Remember, forget and patch for ever, and say of each what is certain now."""
    chance = random.Random(seed)
    alive: list[str] = []
    with open_memory(root, "agent/a") as memory:
        alive = [entry.id for entry in memory.scan()]
        for n in range(10**9):
            if alive and chance.random() < 0.3:
                victim = alive.pop(chance.randrange(len(alive)))
                os.write(sending, f"? {victim}\n".encode())
                memory.forget(victim)
                os.write(sending, f"- {victim}\n".encode())
            elif alive and chance.random() < 0.2:
                memory.patch_meta(chance.choice(alive), {"n": n})
            else:
                kind: Any = chance.choice(KINDS)
                entry = memory.remember("x" * chance.choice([5, 50, 5_000, 200_000]), kind=kind)
                os.write(sending, f"+ {entry.id}\n".encode())
                alive.append(entry.id)


def kill_at_random(root: Path, seconds: float, seed: int) -> int:
    """Kill the writer again and again; after each kill exactly what it said must be there. Kills survived."""
    chance = random.Random(seed)
    certain: set[str] = set()
    kills = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        receiving, sending = os.pipe()
        child = os.fork()
        if not child:
            try:
                writer(root, sending, seed + kills)
            finally:
                os._exit(1)
        os.close(sending)
        time.sleep(chance.uniform(0.01, 0.15))
        os.kill(child, signal.SIGKILL)
        said = b""
        while data := os.read(receiving, 65_536):
            said += data
        os.close(receiving)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"the writer failed by itself (seed {seed}, kill {kills})"
        kills += 1
        doubtful: set[str] = set()
        for line in said.decode().splitlines():
            sign, entry_id = line.split()
            {"+": certain.add, "-": certain.discard, "?": doubtful.add}[sign](entry_id)
            if sign == "-":
                doubtful.discard(entry_id)
        found = set(on_disk(root / "agent" / "a")) if (root / "agent" / "a").exists() else set()
        unsaid = found - certain
        assert certain - found <= doubtful, f"acknowledged and gone (seed {seed}, kill {kills})"
        assert len(unsaid) <= 1, f"forgotten and back (seed {seed}, kill {kills})"
        certain = found
    return kills


def test_killed_at_random_exactly_what_was_acknowledged_is_there(root: Path) -> None:
    assert kill_at_random(root, seconds=4, seed=2) > 10


@pytest.mark.stress
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_for_half_a_minute(root: Path, seed: int) -> None:
    assert kill_at_random(root, seconds=30, seed=seed) > 100

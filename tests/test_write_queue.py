"""The queue of writers: first come, first served, shared writes, and callers that are interrupted."""

from __future__ import annotations

import errno
import itertools
import linecache
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import FaultyOS, in_threads, judge

from gotong_memfile import (
    DiskFullError,
    DuplicateIdError,
    LockTimeoutError,
    MemoryFileHandle,
    StorageError,
    SyncFailedError,
    fileio,
    open_memory,
)
from gotong_memfile.write_queue import Commit, Turn, WriteQueue


class Desk:
    """A queue whose leader can be stopped in the midst of its work."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.go_on = threading.Event()
        self.started = threading.Event()
        self.fail_with: BaseException | None = None
        self.queue: WriteQueue[str, str] = WriteQueue(
            self.commit,
            joinable=lambda one, other: one[0] == other[0],
            costly=lambda request: request.startswith("costly"),
        )

    def commit(self, turns: Sequence[Turn[str, str]]) -> None:
        self.groups.append([str(turn.request) for turn in turns])
        self.started.set()
        assert self.go_on.wait(20)
        if self.fail_with is not None:
            error, self.fail_with = self.fail_with, None
            raise error
        done = Commit()
        for turn in turns:
            turn.promise(f"done {turn.request}", done)
        done.done = True

    def behind(self, request: str, results: dict[str, Any]) -> threading.Thread:
        """A thread that waits with its request, and is in the queue when this returns."""
        before = len(self.queue._turns)

        def submit() -> None:
            try:
                results[request] = self.queue.submit(request)
            except BaseException as error:
                results[request] = error

        thread = threading.Thread(target=submit)
        thread.start()
        while len(self.queue._turns) == before:
            time.sleep(0.001)
        return thread


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    assert not made.queue._turns, "nobody is left in the queue"


def test_what_waits_is_written_together_in_order_of_arrival(desk: Desk) -> None:
    results: dict[str, Any] = {}
    threads = [desk.behind(f"a{n}", results) for n in range(5)]
    desk.go_on.set()
    for thread in threads:
        thread.join(10)
    assert desk.groups == [["a0"], ["a1", "a2", "a3", "a4"]]
    assert results == {f"a{n}": f"done a{n}" for n in range(5)}


def test_what_may_not_share_a_write_keeps_its_place(desk: Desk) -> None:
    results: dict[str, Any] = {}
    threads = [desk.behind(request, results) for request in ("a1", "a2", "b1", "a3", "a4")]
    desk.go_on.set()
    for thread in threads:
        thread.join(10)
    assert desk.groups == [["a1"], ["a2"], ["b1"], ["a3", "a4"]]


def test_who_works_alone_waits_for_his_turn_and_holds_up_the_others(desk: Desk) -> None:
    results: dict[str, Any] = {}
    first = desk.behind("a1", results)
    order: list[str] = []

    def alone() -> None:
        with desk.queue.alone():
            order.append(f"alone after {desk.groups}")
            time.sleep(0.05)
            order.append(f"still alone after {desk.groups}")

    thread = threading.Thread(target=alone)
    thread.start()
    while len(desk.queue._turns) < 2:
        time.sleep(0.001)
    last = desk.behind("a2", results)
    desk.go_on.set()
    for one in (first, thread, last):
        one.join(10)
    assert order == ["alone after [['a1']]", "still alone after [['a1']]"]
    assert desk.groups == [["a1"], ["a2"]]


def test_an_error_of_the_leader_is_its_own_and_the_next_one_leads(desk: Desk) -> None:
    results: dict[str, Any] = {}
    threads = [desk.behind("b0", results), *(desk.behind(f"a{n}", results) for n in range(3))]
    desk.fail_with = None
    desk.go_on.set()
    threads[0].join(10)
    for thread in threads:
        thread.join(10)
    assert results["a2"] == "done a2"

    desk.go_on.clear()
    desk.groups.clear()
    results.clear()
    threads = [desk.behind(f"a{n}", results) for n in range(3)]
    desk.fail_with = LockTimeoutError("held")
    desk.go_on.set()
    for thread in threads:
        thread.join(10)
    assert isinstance(results.pop("a0"), LockTimeoutError)
    assert results == {"a1": "done a1", "a2": "done a2"}


def test_followers_whose_leader_was_interrupted_write_for_themselves(desk: Desk) -> None:
    results: dict[str, Any] = {}
    threads = [desk.behind(request, results) for request in ("b", "a0", "a1", "a2")]

    def interrupting(turns: Sequence[Turn[str, str]]) -> None:
        if len(turns) == 3:
            raise KeyboardInterrupt
        Desk.commit(desk, turns)

    desk.queue._commit = interrupting  # type: ignore[method-assign]
    desk.go_on.set()
    for thread in threads:
        thread.join(10)
    assert isinstance(results["a0"], KeyboardInterrupt)
    assert (results["a1"], results["a2"]) == ("done a1", "done a2")


@pytest.mark.parametrize("taken", [False, True], ids=["waiting", "being written"])
def test_a_caller_interrupted_while_it_waits_leaves_the_queue_sound(desk: Desk, taken: bool) -> None:
    """Ctrl-C in a notebook, in the main thread, while another thread is at work."""
    results: dict[str, Any] = {}
    threads = [desk.behind("b" if taken else "a0", results)]
    if taken:
        threads.append(desk.behind("a1", results))

    def interrupt() -> None:
        while len(desk.queue._turns) < len(threads) + 1:
            time.sleep(0.001)
        if taken:
            # Let the first go, so that the second is at work on its own request and on the main thread's.
            original = desk.commit

            def slow(turns: Sequence[Turn[str, str]]) -> None:
                if len(turns) == 2:
                    signal.pthread_kill(main, signal.SIGINT)
                    time.sleep(0.1)
                original(turns)

            desk.queue._commit = slow  # type: ignore[method-assign]
            desk.go_on.set()
        else:
            signal.pthread_kill(main, signal.SIGINT)

    main = threading.main_thread().ident
    assert main is not None
    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        desk.queue.submit("a of the main thread")
    helper.join(10)
    later = desk.behind("a later", results) if not taken else None
    desk.go_on.set()
    for thread in [*threads, *([later] if later else [])]:
        thread.join(10)
        assert not thread.is_alive()
    assert desk.queue.submit("a at last") == "done a at last"
    written = [request for group in desk.groups for request in group]
    assert ("a of the main thread" in written) is taken


def test_a_leader_that_is_interrupted_while_it_leaves_keeps_nobody_waiting(desk: Desk) -> None:
    """At each line of it: Ctrl-C comes when it comes, and all who wait would wait for ever."""
    for nth in itertools.count():
        desk.started.clear()
        desk.go_on.clear()
        results: dict[str, Any] = {}
        threads = [desk.behind("b0", results)]

        def others(threads: list[threading.Thread] = threads, results: dict[str, Any] = results) -> None:
            while len(desk.queue._turns) < 2:
                time.sleep(0.001)
            threads += [desk.behind(request, results) for request in ("a1", "a2", "b1")]
            desk.go_on.set()

        helper = threading.Thread(target=others)
        helper.start()
        interrupted = _interrupted_at(nth, lambda: desk.queue.submit("a0"))
        helper.join(10)
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive(), nth
        assert results == {request: f"done {request}" for request in ("b0", "a1", "a2", "b1")}
        assert not desk.queue._turns
        if not interrupted:
            assert nth > 15, "each line of it was tried"
            break


def _interrupted_at(nth: int, call: Callable[[], object]) -> bool:
    """Whether the `nth` line that `call` runs of leaving the queue was reached, and interrupted."""
    reached = 0
    seen: set[tuple[int, int]] = set()

    def trace(frame: Any, event: str, argument: object) -> Any:
        nonlocal reached
        if frame.f_code.co_name not in {"_leave", "_release_group", "_wake"}:
            return None
        if event == "line":
            line = frame.f_lineno, id(frame)
            text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            # Its second time on a `with` line a frame leaves the block, where no signal is looked for.
            if not (text.startswith("with ") and line in seen):
                reached += 1
                if reached == nth + 1:
                    raise KeyboardInterrupt
            seen.add(line)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


class TestCompany:
    """Who leads a costly write waits for those that shared the last one."""

    def shared(self, desk: Desk, threads: int) -> dict[str, Any]:
        """Let so many share a costly write."""
        results: dict[str, Any] = {}
        waiting = [desk.behind("c", results), *(desk.behind(f"costly {n}", results) for n in range(threads))]
        desk.go_on.set()
        for thread in waiting:
            thread.join(10)
        assert desk.groups == [["c"], [f"costly {n}" for n in range(threads)]]
        desk.groups.clear()
        return results

    def test_the_next_write_is_shared_by_as_many_though_the_first_of_them_comes_early(
        self, desk: Desk
    ) -> None:
        self.shared(desk, 3)
        desk.queue._took = 20.0
        results: dict[str, Any] = {}
        threads = [desk.behind(f"costly {n}", results) for n in range(3)]
        for thread in threads:
            thread.join(10)
        assert desk.groups == [["costly 0", "costly 1", "costly 2"]]
        assert results == {f"costly {n}": f"done costly {n}" for n in range(3)}

    def test_who_waits_in_vain_waits_once_and_no_longer_than_the_last_write_took(self, desk: Desk) -> None:
        self.shared(desk, 3)
        desk.queue._took = 0.2
        started = time.monotonic()
        assert desk.queue.submit("costly alone") == "done costly alone"
        assert 0.19 < time.monotonic() - started < 5
        desk.queue._took = 20.0
        started = time.monotonic()
        assert desk.queue.submit("costly again") == "done costly again"
        assert time.monotonic() - started < 5
        assert desk.groups == [["costly alone"], ["costly again"]]

    def test_nobody_waits_for_a_write_that_costs_little(self, desk: Desk) -> None:
        self.shared(desk, 3)
        desk.queue._took = 20.0
        started = time.monotonic()
        assert desk.queue.submit("a") == "done a"
        assert time.monotonic() - started < 5

    def test_an_interrupt_while_a_leader_waits_leaves_the_queue_sound(self, desk: Desk) -> None:
        self.shared(desk, 3)
        desk.queue._took = 20.0
        results: dict[str, Any] = {}

        def interrupt() -> None:
            while not desk.queue._turns:
                time.sleep(0.001)
            threads.append(desk.behind("costly behind", results))
            time.sleep(0.05)
            signal.pthread_kill(main, signal.SIGINT)

        main = threading.main_thread().ident
        assert main is not None
        threads = [threading.Thread(target=interrupt)]
        threads[0].start()
        with pytest.raises(KeyboardInterrupt):
            desk.queue.submit("costly")
        desk.queue._company = 1
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert results == {"costly behind": "done costly behind"}
        assert desk.groups == [["costly behind"]]


class TestGroupCommit:
    """The same, on files."""

    @pytest.fixture
    def slow(self, disk: FaultyOS) -> Callable[[], None]:
        """Let the first write wait until others are in the queue behind it."""

        def arm(waiting: int, memory: MemoryFileHandle) -> None:
            first = True

            def write(real: Any, descriptor: int, data: Any) -> Any:
                nonlocal first
                if first:
                    first = False
                    while len(memory._store._queue._turns) < waiting:
                        time.sleep(0.001)
                return real(descriptor, data)

            disk.hook("write", write)

        return arm  # type: ignore[return-value]

    def test_threads_share_writes_and_syncs(self, root: Path, disk: FaultyOS, slow: Any) -> None:
        with open_memory(root, "agent/a", durability="power") as memory:
            memory.remember("the file is there")
            slow(8, memory)
            disk.calls.clear()
            entries = in_threads(*[lambda n=n: memory.remember(f"n{n}") for n in range(8)])
            assert disk.calls.count("write") == disk.calls.count("fsync") == 2
        assert {line["id"] for line in judge(root / "agent/a/episodic.jsonl")[1:]} == {
            entry.id for entry in entries
        }

    def test_an_error_reaches_exactly_those_whose_records_failed(
        self, root: Path, disk: FaultyOS, slow: Any
    ) -> None:
        with open_memory(root, "agent/a") as memory:
            memory.remember("taken", id="taken")
            slow(4, memory)
            inner = disk._hooks["write"]

            def full_for_large_ones(real: Any, descriptor: int, data: Any) -> Any:
                if len(data) > 50_000:
                    raise OSError(errno.ENOSPC, "full")
                return inner(real, descriptor, data)

            disk.hook("write", full_for_large_ones)

            def attempt(text: str, own_id: str | None = None) -> Any:
                try:
                    return memory.remember(text, id=own_id)
                except StorageError as error:
                    return error
                except DuplicateIdError as error:
                    return error

            results = in_threads(
                *[lambda n=n: attempt(f"small {n}") for n in range(4)],
                lambda: attempt("large " * 10_000),
                lambda: attempt("other content", "taken"),
            )
            assert [type(one).__name__ for one in results] == ["MemoryEntry"] * 4 + [
                "DiskFullError",
                "DuplicateIdError",
            ]
            disk.heal()
            assert {entry.text for entry in memory.scan()} == {"taken", *(f"small {n}" for n in range(4))}

    def test_a_failed_sync_is_an_error_of_all_who_shared_it_and_nothing_of_them_is_stored(
        self, root: Path, disk: FaultyOS, slow: Any
    ) -> None:
        with open_memory(root, "agent/a", durability="power") as memory:
            memory.remember("before")
            slow(5, memory)
            disk.fail("fsync", errno.EIO, times=2)

            def attempt(n: int) -> Any:
                with pytest.raises(SyncFailedError, match="it is not acknowledged"):
                    memory.remember(f"n{n}")

            in_threads(*[lambda n=n: attempt(n) for n in range(5)])
            disk.heal()
            assert [entry.text for entry in memory.list()] == ["before"]
            memory.remember("after")
            assert [entry.text for entry in memory.list()] == ["after", "before"]

    @pytest.mark.parametrize("moment", ["before the write is done", "after the write is done"])
    def test_a_leader_interrupted_around_the_write_leaves_its_followers_with_one_entry_each(
        self, root: Path, disk: FaultyOS, slow: Any, monkeypatch: pytest.MonkeyPatch, moment: str
    ) -> None:
        """Ctrl-C between the write and its acknowledgement must not have followers write a second time."""
        with open_memory(root, "agent/a") as memory:
            memory.remember("before")
            slow(6, memory)
            real = memory._store._group_commit._append_lines
            interrupted = []

            def append_lines(lines: Any, version: int, options: Any, commit: Any) -> None:
                shared = sum(len(of_kind) for of_kind, _ in lines.values()) > 1
                if shared and moment.startswith("before"):
                    interrupted.append(True)
                    raise KeyboardInterrupt
                real(lines, version, options, commit)
                if shared:
                    interrupted.append(True)
                    raise KeyboardInterrupt

            monkeypatch.setattr(memory._store._group_commit, "_append_lines", append_lines)

            def attempt(n: int) -> Any:
                try:
                    return memory.remember(f"n{n}").text
                except KeyboardInterrupt:
                    return None

            texts = in_threads(*[lambda n=n: attempt(n) for n in range(6)])
            assert interrupted
            on_disk = [line["text"] for line in judge(root / "agent/a/episodic.jsonl")]
        assert len(on_disk) == len(set(on_disk))
        assert {text for text in texts if text} <= set(on_disk)
        assert texts.count(None) == len(interrupted)

    def test_a_retry_of_an_id_in_the_same_group_is_the_same_entry(
        self, root: Path, disk: FaultyOS, slow: Any
    ) -> None:
        with open_memory(root, "agent/a") as memory:
            memory.remember("before")
            slow(6, memory)
            entries = in_threads(
                lambda: memory.remember("first in the queue"),
                *[lambda: memory.remember("once", id="own")] * 5,
            )
            assert len(set(entries[1:])) == 1
            assert len(memory.list()) == 3

    def test_who_waits_too_long_for_another_process_fails_alone(self, root: Path) -> None:
        import portalocker

        with open_memory(root, "agent/a", lock_timeout=0.1) as hasty, open_memory(root, "agent/a") as patient:
            hasty.remember("before")
            with fileio.open_for_overwriting(str(root / ".locks/agent/a/write.lock")) as other:
                portalocker.lock(other.descriptor, portalocker.LOCK_EX)
                results: list[Any] = []
                threads = []
                for memory in (hasty, patient):

                    def attempt(memory: MemoryFileHandle = memory) -> None:
                        try:
                            results.append(memory.remember("x"))
                        except LockTimeoutError as error:
                            results.append(error)

                    threads.append(threading.Thread(target=attempt))
                    threads[-1].start()
                    time.sleep(0.02)
                threads[0].join(10)
                assert isinstance(results[0], LockTimeoutError)
            threads[1].join(10)
            assert results[1].text == "x"

    def test_disk_full_for_all_is_an_error_of_all(self, root: Path, disk: FaultyOS, slow: Any) -> None:
        with open_memory(root, "agent/a") as memory:
            memory.remember("before")
            slow(4, memory)
            inner = disk._hooks["write"]

            def full(real: Any, descriptor: int, data: Any) -> Any:
                inner(lambda *arguments: len(data), descriptor, data)
                raise OSError(errno.ENOSPC, "full")

            disk.hook("write", full)

            def attempt() -> None:
                with pytest.raises(DiskFullError):
                    memory.remember("x")

            in_threads(*[attempt] * 4)
            disk.heal()
            assert len(memory.list()) == 1

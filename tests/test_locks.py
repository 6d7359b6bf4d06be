"""The lock between processes: waited for, given up, done without, and never in the way of readers."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import portalocker
import pytest

from gotong_memfile import LockTimeoutError, MemoryFileHandle, StorageError, locks, open_memory


@pytest.fixture
def lock_file(memory: MemoryFileHandle, root: Path) -> Path:
    memory.remember("before")
    return root / ".locks" / "agent" / "writer" / "write.lock"


@pytest.fixture
def held(lock_file: Path) -> Iterator[int]:
    """Somebody else holds the lock: a descriptor of its own is to the kernel what another process is."""
    descriptor = os.open(lock_file, os.O_RDWR)
    portalocker.lock(descriptor, portalocker.LOCK_EX)
    yield descriptor
    os.close(descriptor)


def test_waiting_ends_with_an_error_that_names_the_lock(root: Path, held: int, lock_file: Path) -> None:
    with open_memory(root, "agent/writer", lock_timeout=0.05) as memory:
        for call in (lambda: memory.remember("x"), lambda: memory.forget("x"), memory.clear):
            with pytest.raises(LockTimeoutError, match=r"write\.lock' for 0\.05 s; find it with") as caught:
                call()
            assert isinstance(caught.value, TimeoutError)
        assert [entry.text for entry in memory.list()] == ["before"], "readers wait for nobody"
        os.close(os.dup(held))
        portalocker.unlock(held)
        memory.remember("after")


def test_a_lock_that_comes_free_is_taken(memory: MemoryFileHandle, held: int) -> None:
    done = threading.Event()

    def remember() -> None:
        memory.remember("waited")
        done.set()

    thread = threading.Thread(target=remember)
    thread.start()
    assert not done.wait(0.1)
    portalocker.unlock(held)
    assert done.wait(10)
    thread.join()


def test_while_one_thread_waits_for_the_lock_an_interrupt_leaves_the_store_usable(
    memory: MemoryFileHandle, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            memory.remember("x")
    portalocker.unlock(held)
    assert memory.remember("y").text == "y"


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF])
def test_a_file_system_without_locks_gives_one_warning_and_work_goes_on(
    memory: MemoryFileHandle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    def refused(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(locks, "_flock", lambda: locks._Flock(refused, 6, 8))
    entries = [memory.remember(f"n{n}") for n in range(3)]
    assert memory.forget(entries[0].id)
    assert memory.list() == entries[:0:-1]
    warnings = [record for record in caplog.records if "file system without locks" in record.message]
    assert len(warnings) == 1
    assert "agent/writer" in warnings[0].getMessage()


def test_any_other_refusal_is_an_error(memory: MemoryFileHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object) -> None:
        raise OSError(errno.EIO, "I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(locks, "_flock", lambda: locks._Flock(refused, 6, 8))
        with pytest.raises(StorageError, match="cannot lock"):
            memory.remember("x")
    memory.remember("y")


def test_where_there_is_no_flock_portalocker_locks_in_its_own_way(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(portalocker.portalocker, "FlockLocker")
    locks._flock.cache_clear()
    try:
        with open_memory(root, "agent/a", lock_timeout=0.05) as memory:
            memory.remember("x")
            other = os.open(root / ".locks" / "agent" / "a" / "write.lock", os.O_RDWR)
            portalocker.lock(other, portalocker.LOCK_EX | portalocker.LOCK_NB)
            with pytest.raises(LockTimeoutError):
                memory.remember("y")
            os.close(other)
            memory.remember("z")
            monkeypatch.setattr(portalocker, "lock", _refusing("odd"))
            with pytest.raises(StorageError, match="cannot lock"):
                memory.remember("y")
            assert [entry.text for entry in memory.list()] == ["z", "x"]
    finally:
        locks._flock.cache_clear()


def _refusing(cause: object) -> Callable[..., None]:
    def refuse(*arguments: object) -> None:
        raise portalocker.LockException(cause, "refused")

    return refuse


def test_another_process_gets_its_turn_beside_a_writer_that_never_rests(root: Path) -> None:
    stop = threading.Event()
    with open_memory(root, "agent/a") as memory:

        def write() -> None:
            while not stop.is_set():
                memory.remember("x")

        writer = threading.Thread(target=write)
        memory.remember("first")
        writer.start()
        try:
            code = (
                "import sys, time\n"
                "from gotong_memfile import open_memory\n"
                "memory = open_memory(sys.argv[1], 'agent/a', lock_timeout=1.0)\n"
                "for n in range(20):\n"
                "    memory.remember(f'mine {n}')\n"
                "    time.sleep(0.001)\n"
            )
            subprocess.run([sys.executable, "-c", code, str(root)], check=True, timeout=60)
        finally:
            stop.set()
            writer.join()
        assert len(memory.recall("mine", k=200)) == 20


def test_without_process_lock_no_lock_file_is_made(root: Path) -> None:
    with open_memory(root, "agent/a", process_lock=False) as memory:
        memory.forget(memory.remember("x").id)
    assert not (root / ".locks").exists()


def test_a_lock_file_that_was_removed_or_replaced_meanwhile_is_not_trusted(
    memory: MemoryFileHandle, lock_file: Path, held: int
) -> None:
    """Two would hold it at once: one the old file, one the new."""
    thread = threading.Thread(target=memory.remember, args=("waited",))
    thread.start()
    time.sleep(0.05)
    lock_file.unlink()
    thread.join(10)
    assert not thread.is_alive(), "the removed file's lock is nobody's any more"
    assert lock_file.exists()

    current = os.open(lock_file, os.O_RDWR)
    portalocker.lock(current, portalocker.LOCK_EX)
    thread = threading.Thread(target=memory.remember, args=("waited for the new one",))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    os.close(current)
    thread.join(10)
    assert [entry.text for entry in memory.list()] == ["waited for the new one", "waited", "before"]


def test_the_lock_is_given_up_also_when_a_child_was_forked_under_it(
    memory: MemoryFileHandle, lock_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child shares the open lock file; closing it here would not be enough."""
    children = []

    def forking_clock() -> int:
        child = os.fork()
        if not child:
            time.sleep(30)
            os._exit(0)
        children.append(child)
        return 1

    monkeypatch.setattr(memory, "_now", forking_clock)
    memory.remember("x")
    other = os.open(lock_file, os.O_RDWR)
    portalocker.lock(other, portalocker.LOCK_EX | portalocker.LOCK_NB)
    os.close(other)
    os.kill(children[0], 9)
    os.waitpid(children[0], 0)


def test_a_process_that_dies_gives_the_lock_up(memory: MemoryFileHandle, lock_file: Path) -> None:
    child = os.fork()
    if not child:
        portalocker.lock(os.open(lock_file, os.O_RDWR), portalocker.LOCK_EX)
        os._exit(0)
    os.waitpid(child, 0)
    memory.remember("x")

"""Two hosts on one owner: both are told, markers come and go, clocks need not agree."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import Host

from gotong_memfile import MemoryFileHandle, MemoryFilePlugin, MultiHostWarning, ServiceInitCtx, open_memory

DURATION = 1.0


@pytest.fixture
def locks(root: Path) -> Path:
    return root / ".locks" / "agent" / "a"


def markers(locks: Path) -> list[str]:
    return sorted(path.name for path in locks.glob("*.lease")) if locks.exists() else []


def attach(root: Path, **options: Any) -> MemoryFileHandle:
    return open_memory(root, "agent/a", advisory_lock=True, lease_duration=DURATION, **options)


def forge(locks: Path, host: str = "elsewhere", pid: int = 4711) -> Path:
    """The marker of a process on another host, as filelock writes it."""
    locks.mkdir(parents=True, exist_ok=True)
    marker = locks / f"{host}-{pid}.lease"
    token = "0123456789abcdef" * 2
    marker.write_text(f"filelock/2\npid={pid}\nhost={host}\nmode=lease\ntoken={token}\nduration={DURATION}\n")
    return marker


def until(condition: Callable[[], bool], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def quiet() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def test_without_the_option_there_is_no_marker(root: Path, locks: Path) -> None:
    with open_memory(root, "agent/a") as memory:
        memory.remember("x")
        assert markers(locks) == []


def test_a_process_has_one_marker_however_many_handles_and_it_goes_with_the_last(
    root: Path, locks: Path
) -> None:
    plugin = MemoryFilePlugin(advisory_lock=True, lease_duration=DURATION)
    plugin.init(ServiceInitCtx(root_dir=root, hub=Host()))
    plugin.attach("agent/a")
    with attach(root), attach(root):
        [marker] = markers(locks)
        assert marker.endswith(f"-{os.getpid()}.lease")
        assert (locks / marker).stat().st_mode & 0o777 == 0o600
    assert markers(locks) == [marker]
    plugin.shutdown()
    assert markers(locks) == []


def test_a_live_marker_of_another_host_gives_a_warning_and_the_attach_goes_on(
    root: Path, locks: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forge(locks)
    with pytest.warns(
        MultiHostWarning,
        match=r"agent/a is attached on host 'elsewhere' too \(pid 4711, last sign of life 0 s ago\)",
    ):
        memory = attach(root)
    assert "'elsewhere'" in caplog.text
    assert memory.remember("x").text == "x"
    memory.close()
    assert issubclass(MultiHostWarning, UserWarning)


def test_a_marker_that_stands_still_expires_and_is_removed(
    root: Path, locks: Path, quiet: list[warnings.WarningMessage]
) -> None:
    marker = forge(locks)
    with attach(root):
        assert marker.exists()
        assert until(lambda: not marker.exists())
    assert len(quiet) == 1, "it is warned once"


@pytest.mark.parametrize("skew", [-10_000, 10_000], ids=["long ago", "in the future"])
def test_clocks_that_differ_neither_hide_a_live_host_nor_keep_a_dead_one(
    root: Path, locks: Path, quiet: list[warnings.WarningMessage], skew: int
) -> None:
    marker = forge(locks)
    os.utime(marker, (time.time() + skew,) * 2)
    with attach(root):
        for beat in range(1, 8):
            time.sleep(DURATION / 4)
            os.utime(marker, (time.time() + skew + beat,) * 2)
        assert marker.exists(), "it shows signs of life"
        assert len(quiet) == 1
        assert until(lambda: not marker.exists())


def test_who_was_there_first_is_told_too(
    root: Path, locks: Path, quiet: list[warnings.WarningMessage], caplog: pytest.LogCaptureFixture
) -> None:
    with attach(root):
        assert not quiet
        forge(locks)
        assert until(lambda: bool(quiet), DURATION + 1)
    assert quiet[0].category is MultiHostWarning
    assert any("elsewhere" in record.getMessage() for record in caplog.records)


def test_a_warning_made_an_error_does_not_end_the_watch(
    root: Path, locks: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The suite makes warnings errors: in the watcher's thread that must not be its end."""
    with attach(root):
        forge(locks)
        assert until(lambda: "goes on" in caplog.text)
        second = forge(locks, "third-host")
        assert until(lambda: "third-host" in caplog.text)
        assert until(lambda: not second.exists())


def test_a_marker_of_a_dead_process_of_this_host_goes_at_the_next_attach(root: Path, locks: Path) -> None:
    code = f"import os; from gotong_memfile import open_memory; open_memory({str(root)!r}, 'agent/a', advisory_lock=True, lease_duration={DURATION}); os._exit(0)"
    subprocess.run([sys.executable, "-c", code], check=True)
    [dead] = markers(locks)
    with attach(root):
        assert dead not in markers(locks)
        assert len(markers(locks)) == 1


def test_a_process_that_ends_without_closing_takes_its_marker_along(root: Path, locks: Path) -> None:
    code = f"from gotong_memfile import open_memory; memory = open_memory({str(root)!r}, 'agent/a', advisory_lock=True)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert markers(locks) == []


def test_processes_of_one_host_come_and_go_without_a_word(
    root: Path, locks: Path, quiet: list[warnings.WarningMessage]
) -> None:
    code = (
        "import sys, time; from gotong_memfile import open_memory\n"
        f"with open_memory({str(root)!r}, 'agent/a', advisory_lock=True, lease_duration={DURATION}) as memory:\n"
        "    memory.remember('x'); print('in', flush=True); sys.stdin.read()\n"
    )
    with attach(root):
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(3)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "in\n"
        assert len(markers(locks)) == 4
        time.sleep(2 * DURATION)
        assert len(markers(locks)) == 4, "the markers of live processes stay"
        for process in processes:
            assert process.communicate("", timeout=30) == ("", "")
        assert len(markers(locks)) == 1
    assert not quiet


def test_a_lease_that_is_lost_is_told_and_taken_again(
    root: Path, locks: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with attach(root) as memory:
        [marker] = markers(locks)
        (locks / marker).unlink()
        assert until(lambda: "was lost" in caplog.text)
        assert until(lambda: markers(locks) == [marker])
        memory.remember("x")
    assert markers(locks) == []


def test_where_no_marker_can_be_set_the_attach_goes_on(
    root: Path, locks: Path, caplog: pytest.LogCaptureFixture
) -> None:
    locks.parent.mkdir(parents=True)
    locks.write_text("a file in the way")
    with attach(root) as memory:
        assert memory.list() == []
        assert "other hosts are not warned" in caplog.text


def test_a_forked_child_has_no_lease_and_leaves_the_parents_alone(root: Path, locks: Path) -> None:
    with attach(root) as memory:
        child = os.fork()
        if not child:
            memory.remember("of the child")
            memory.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert len(markers(locks)) == 1
        time.sleep(DURATION)
        assert len(markers(locks)) == 1


@pytest.mark.skipif(not shutil.which("unshare") or os.geteuid() != 0, reason="needs UTS namespaces")
def test_real_processes_on_two_hosts_are_both_told(root: Path) -> None:
    code = (
        "import sys, time, warnings; from gotong_memfile import open_memory\n"
        "warnings.simplefilter('always')\n"
        f"with open_memory({str(root)!r}, 'agent/a', advisory_lock=True, lease_duration={DURATION}) as memory:\n"
        "    memory.remember('x'); print('in', flush=True); sys.stdin.read()\n"
    )
    processes = []
    for host in ("north", "south"):
        command = ["unshare", "-u", "sh", "-c", f'hostname {host}; exec "$0" -c "$1"', sys.executable, code]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        if process.stdout.readline() != "in\n":
            pytest.skip(f"no UTS namespaces here: {process.communicate()[1]}")
        processes.append(process)
    time.sleep(2 * DURATION)
    said = {
        host: process.communicate("", timeout=30)[1]
        for host, process in zip(("north", "south"), processes, strict=True)
    }
    assert "MultiHostWarning: agent/a is attached on host 'south' too" in said["north"]
    assert "MultiHostWarning: agent/a is attached on host 'north' too" in said["south"]
    assert [
        len(re_found)
        for re_found in (said["north"].split("MultiHostWarning:"), said["south"].split("MultiHostWarning:"))
    ] == [2, 2]


def test_the_warning_is_also_a_log_record(
    root: Path, locks: Path, quiet: Any, caplog: pytest.LogCaptureFixture
) -> None:
    forge(locks)
    with caplog.at_level(logging.WARNING), attach(root):
        records = [record for record in caplog.records if "elsewhere" in record.getMessage()]
        assert [record.levelname for record in records] == ["WARNING"]

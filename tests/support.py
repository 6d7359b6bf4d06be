"""What tests share: a clock to set, a reader that is not the library's, disk faults, an unprivileged user."""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NOBODY = 65534


class Clock:
    """A clock that ticks by `step` ms on each look."""

    def __init__(self, start: int = 1_764_500_000_000, step: int = 1) -> None:
        self.ms = start
        self.step = step

    def __call__(self) -> int:
        self.ms += self.step
        return self.ms


class Host:
    """A hub that has a settable clock and keeps the events that it gets."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.events: list[tuple[str, dict[str, Any]]] = []

    def now(self) -> int:
        return self.clock()

    def publish_event(self, kind: str, data: Any) -> None:
        self.events.append((kind, dict(data)))


def judge(path: Path) -> list[dict[str, Any]]:
    """All lines of a file as JSON objects, read without the library. Fails on a line that is none."""
    if not path.exists():
        return []
    data = path.read_bytes()
    assert data == b"" or data.endswith(b"\n"), "the last line lacks its end"
    lines = data.decode().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def tree(root: Path) -> dict[str, bytes | str]:
    """Everything under a directory: contents of files, targets of links, marks of directories."""
    found: dict[str, bytes | str] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_dir():
            found[name] = "directory"
        else:
            found[name] = path.read_bytes()
    return found


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Run as a user without rights, where the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    importlib.import_module("portalocker")  # which this user may not be able to read
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


class FaultyOS:
    """Stands in for `os` in the file layer: passes everything on, but for the calls that are to fail."""

    def __init__(self) -> None:
        self._hooks: dict[str, Callable[..., Any]] = {}
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if not callable(real) or isinstance(real, type):
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            hook = self._hooks.get(name)
            return real(*args, **kwargs) if hook is None else hook(real, *args, **kwargs)

        return call

    def fail(self, name: str, code: int, after: int = 0, times: int = 10**9) -> None:
        """Let `os.<name>` fail with the errno `code`, after so many good calls, so many times."""
        seen = 0

        def hook(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            nonlocal seen
            seen += 1
            if after < seen <= after + times:
                raise OSError(code, os.strerror(code))
            return real(*args, **kwargs)

        self._hooks[name] = hook

    def hook(self, name: str, hook: Callable[..., Any]) -> None:
        """Let `hook(real, *args)` stand for `os.<name>`."""
        self._hooks[name] = hook

    def fill_disk(self, left: int) -> None:
        """Let the disk have `left` bytes: a write gives a short count, then ENOSPC."""

        def write(real: Callable[..., Any], descriptor: int, data: Any) -> Any:
            nonlocal left
            if not left:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written = real(descriptor, bytes(data)[:left])
            left -= written
            return written

        def copy(real: Callable[..., Any], source: int, target: int, count: int, offset: int) -> Any:
            nonlocal left
            if not left:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            copied = real(source, target, min(count, left), offset)
            left -= copied
            return copied

        self._hooks["write"] = write
        self._hooks["copy_file_range"] = copy

    def heal(self) -> None:
        """Let everything work again."""
        self._hooks.clear()


def in_threads(*jobs: Callable[[], Any], patience: float = 60) -> list[Any]:
    """Run the jobs at once, one thread each, from a common start; their results, or the first exception.

    They may take `patience` seconds in all.
    """
    until = time.monotonic() + patience
    barrier = threading.Barrier(len(jobs))
    results: list[Any] = [None] * len(jobs)
    failures: list[BaseException] = []

    def run(index: int, job: Callable[[], Any]) -> None:
        try:
            barrier.wait(30)
            results[index] = job()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=item) for item in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0, until - time.monotonic()))
        assert not thread.is_alive(), "a thread hangs"
    if failures:
        raise failures[0]
    return results

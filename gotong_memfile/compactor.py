"""The background thread that keeps files under their byte caps, so that writers need not.

One per process: started when there is something to compact, gone when there is nothing more. A compaction
under way when the interpreter exits is brought to its end. Where no thread can be started any more, the
caller compacts.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gotong_memfile.compaction import Compaction
from gotong_memfile.config import StoreOptions
from gotong_memfile.errors import MemoryFileError
from gotong_memfile.layout import MemoryKind
from gotong_memfile.registry import close_store, open_store
from gotong_memfile.store import OwnerStore

_logger: Final = logging.getLogger("gotong_memfile")


@dataclass(frozen=True, slots=True)
class Job:
    """The file of `kind` of an owner has passed `cap` bytes. `tell` is called with what was done, if any
    thing was, while no lock is held.
    """

    store: OwnerStore
    kind: MemoryKind
    cap: int
    options: StoreOptions
    tell: Callable[[Compaction], None]

    @property
    def log(self) -> tuple[str, MemoryKind]:
        """Which file it is about."""
        return self.store.paths.directory, self.kind


class Compactor:
    """Does jobs, one after the other, in a daemon thread of its own.

    Invariants, under `_changed`:
    - `_jobs` holds at most one job per log that waits; `_current` is the log that is being compacted.
    - `_thread` is alive, or about to be, when and only when `_jobs` is not empty or `_current` is set.
    """

    def __init__(self) -> None:
        self.start_anew_in_child()

    def start_anew_in_child(self) -> None:
        """Begin without jobs and thread; in a forked child those are the parent's."""
        self._changed = threading.Condition(threading.Lock())
        self._jobs: dict[tuple[str, MemoryKind], Job] = {}
        self._current: tuple[str, MemoryKind] | None = None
        self._thread: threading.Thread | None = None
        self._ending = False

    def request(self, job: Job) -> None:
        """Have a job done soon, or now where no thread can be started. Asking twice is asking once."""
        with self._changed:
            if job.log in self._jobs:
                return
            open_store(job.store.paths)
            self._jobs[job.log] = job
            if self._thread is not None:
                return
            started = not self._ending and self._start()
        if not started:
            self._run()

    def wait(self, log: tuple[str, MemoryKind] | None = None, directory: str | None = None) -> None:
        """Return when nothing is left to do for one log, for one owner's `directory`, or at all.

        In the compactor's own thread, where a host may write while it is told of a compaction, at once.
        """
        if threading.current_thread() is self._thread:
            return

        def concerned(one: tuple[str, MemoryKind] | None) -> bool:
            return one is not None and log in {None, one} and directory in {None, one[0]}

        with self._changed:
            while concerned(self._current) or any(map(concerned, self._jobs)):
                self._changed.wait()

    def end(self) -> None:
        """Bring everything to its end, and start no thread from now on: the interpreter is shutting down.

        A thread that is started later may never get to run, and who waits for that waits for ever.
        """
        self._ending = True
        self.wait()

    def _start(self) -> bool:
        """Whether the thread could be started. Requires: `_changed`."""
        thread = threading.Thread(target=self._run, name="gotong-memfile-compactor", daemon=True)
        self._thread = thread
        try:
            thread.start()
        except RuntimeError:  # "can't start new thread": there are too many
            self._thread = None
        return self._thread is not None

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    self._thread = None
                    return
                log = next(iter(self._jobs))
                job = self._jobs.pop(log)
                self._current = log
            try:
                done = job.store.compact(job.kind, job.cap, job.options)
                if done is not None:
                    job.tell(done)
            except MemoryFileError as error:
                _logger.warning("%s of %r stays over its cap for now: %s", *reversed(log), error)
            except Exception:  # the thread lives on, whatever goes wrong
                _logger.exception("%s of %r stays over its cap for now", *reversed(log))
            finally:
                close_store(job.store)
                with self._changed:
                    self._current = None
                    self._changed.notify_all()


COMPACTOR: Final = Compactor()
"""The compactor of this process."""

atexit.register(COMPACTOR.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=COMPACTOR.start_anew_in_child)

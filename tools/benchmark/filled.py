"""What is measured of stores that are filled with the same entries."""

from __future__ import annotations

import contextlib
import gc
import itertools
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from benchmark import data, timing
from benchmark.packages import PACKAGES
from benchmark.report import LIMIT, OURS, Finding
from benchmark.stores import OWNER, Memfile, NotOffered, Sqlite, SqliteFts, Store

STORES: Final[tuple[type[Store], ...]] = (Memfile, Sqlite, SqliteFts, *PACKAGES)
SLOW: Final = 4.0
"""What takes longer than this, in seconds, is done once."""

PATIENCE: Final = 240.0
"""How long, in seconds, a store may take to be filled."""

FIRST_RECALL: Final = "cold process, first recall"
PEAK_MEMORY: Final = "peak memory of reading"
FORGET: Final = "forget the oldest"
PATCH: Final = "patch_meta"
COMPACTION: Final = "compaction to the newer half"
RARE: Final = "recall a rare text"
RARE_NON_ASCII: Final = "recall a rare non-ASCII text"

Tell = Callable[[str], None]
"""Called with what is being done."""


@dataclass(frozen=True)
class Plan:
    """How often all is measured, how long (in s) a run repeats what is quick, and what tells of progress."""

    runs: int
    budget: float
    tell: Tell


@dataclass(frozen=True)
class Sample:
    """The entries that are asked for, out of all that every store holds."""

    middle: dict[str, Any]
    recent_ts: int
    oldest: list[str]
    last: list[dict[str, Any]]

    @classmethod
    def of(cls, entries: Sequence[dict[str, Any]], runs: int) -> Sample:
        """So many of the oldest that each run has one to forget."""
        oldest = [one["id"] for one in entries[: runs + 1]]
        return cls(entries[len(entries) // 2], entries[-100]["ts"], oldest, list(entries[-1_000:]))


QUESTIONS: Final[dict[str, Callable[[Sample, Store], object]]] = {
    "recall newest 20": lambda _, store: store.newest(20),
    RARE: lambda _, store: store.containing(data.RARE.lower(), 20),
    RARE_NON_ASCII: lambda _, store: store.containing(data.RARE_NON_ASCII.upper(), 20),
    "recall a common text": lambda _, store: store.containing(data.COMMON.upper(), 20),
    "recall the last 100 by since": lambda sample, store: store.since(sample.recent_ts, 100),
    "list 500": lambda _, store: store.newest(500),
    "get": lambda sample, store: store.get(sample.middle["id"]),
}


class FilledStores:
    """All stores with the same `count` entries, below `directory`, and what was found of them."""

    def __init__(self, directory: Path, count: int, plan: Plan, tool: Path) -> None:
        self.findings: list[Finding] = []
        self._directory = directory
        self._count = count
        self._plan = plan
        self._tool = tool
        entries = list(data.entries(count))
        self._sample = Sample.of(entries, plan.runs)
        self._stores: dict[str, Store] = {}
        self._opened = contextlib.ExitStack()
        for cls in STORES:
            self._fill(cls, entries)
        self._limits = self._find_limits(directory / OURS / OWNER / "episodic.jsonl")
        del entries
        gc.collect()
        gc.freeze()  # what stores in memory hold must not slow down the others

    def close(self) -> None:
        """Release the stores."""
        self._opened.close()
        gc.unfreeze()

    def measure(self) -> None:
        """Measure everything. Questions come first, so that they find the same in all stores."""
        sample = self._sample
        for operation, ask in QUESTIONS.items():
            self._compare(operation, partial(ask, sample), answers=True)
        self._probe(FIRST_RECALL, "first")
        self._probe(PEAK_MEMORY, "memory", "B")
        texts = itertools.cycle(sample.last)
        self._compare("remember", lambda store: remember(store, next(texts)))
        many = len(sample.last)
        self._compare(f"remember_many, of {many}", lambda store: store.remember_many(sample.last), per=many)
        oldest = {name: iter(sample.oldest) for name in self._stores}
        self._compare(FORGET, lambda store: store.forget(next(oldest[store.name])), once=True)
        numbers = itertools.count()
        self._compare(
            PATCH, lambda store: store.patch_meta(sample.middle["id"], {"seen": next(numbers)}), once=True
        )
        self._in_turns(COMPACTION, {name: partial(self._halve, name) for name in self._stores})
        beside = {name: partial(self._halve, name, beside=True) for name in self._stores}
        self._in_turns("a writer's pause beside it, p99", beside)

    def _fill(self, cls: type[Store], entries: list[dict[str, Any]]) -> None:
        operation = "fill with all entries"
        self._plan.tell(f"{self._count:,}: filling {cls.name}")
        if cls.most_entries is not None and self._count > cls.most_entries:
            reason = f"one operation takes too long with more than {cls.most_entries:,} entries"
            self._note(operation, cls.name, missing=reason)
            return
        home = self._home(cls.name)
        try:
            started = time.perf_counter()
            store = self._opened.enter_context(contextlib.closing(cls(home)))
            store.fill(_patiently(entries))
            took = time.perf_counter() - started
        except Exception as reason:  # noqa: BLE001 - a store that fails is reported as that
            self._note(operation, cls.name, missing=why(reason))
            return
        self._stores[cls.name] = store
        if cls is Memfile:
            self._note(operation, cls.name, missing="a file is used as it is")
        else:
            self._note(operation, cls.name, [took])
        size = sum(path.stat().st_size for path in home.rglob("*") if path.is_file())
        if size:
            self._note("size on disk", cls.name, [float(size)], unit="B")

    def _home(self, store: str) -> Path:
        return self._directory / store.replace(" ", "-")

    def _compare(
        self,
        operation: str,
        ask: Callable[[Store], object],
        *,
        answers: bool = False,
        once: bool = False,
        per: int = 1,
    ) -> None:
        """Let all stores do it in turns: `once` in each run, or as often as there is time for."""
        wanted: object = None
        differs, slow = set(), {}
        calls: dict[str, Callable[[], float]] = {}
        for name, store in self._stores.items():
            call = partial(ask, store)
            try:
                started = time.perf_counter()
                answer = call()
                took = time.perf_counter() - started
            except Exception as reason:  # noqa: BLE001 - a store that fails is reported as that
                self._note(operation, name, missing=why(reason))
                continue
            wanted = answer if name == OURS else wanted
            if answers and answer != wanted:
                differs.add(name)
            if took > SLOW:
                slow[name] = took / per
            elif once:
                calls[name] = partial(timing.once, call)
            else:
                calls[name] = partial(timing.per_call, call, self._plan.budget)
        self._in_turns(operation, calls, per=per, differs=differs)
        for name, took in slow.items():
            self._note(operation, name, [took], differs=name in differs)

    def _in_turns(
        self,
        operation: str,
        calls: Mapping[str, Callable[[], float]],
        *,
        unit: Literal["s", "B"] = "s",
        per: int = 1,
        differs: Iterable[str] = (),
    ) -> None:
        """Note what the calls give, run by run, so that what slows down the machine hits all alike."""
        self._plan.tell(f"{self._count:,}: {operation}")
        values: dict[str, list[float]] = {name: [] for name in calls}
        if operation in self._limits:
            calls = {**calls, LIMIT: self._limits[operation]}
            values[LIMIT] = []
        for _ in range(self._plan.runs):
            for name, call in calls.items():
                if name in values:
                    try:
                        values[name].append(call() / (per if name != LIMIT else 1))
                    except Exception as reason:  # noqa: BLE001 - a store that fails is reported as that
                        self._note(operation, name, missing=why(reason), unit=unit)
                        del values[name]
        for name, measured in values.items():
            self._note(operation, name, measured, unit=unit, differs=name in differs)

    def _probe(self, operation: str, what: str, unit: Literal["s", "B"] = "s") -> None:
        """Ask a new process for each figure: what it has to do, or to hold, that this one did before."""

        def ask(name: str) -> float:
            command = [sys.executable, str(self._tool), "--probe", what, name, str(self._home(name))]
            told = subprocess.run(command, capture_output=True, check=False, text=True)
            if told.returncode:
                raise NotOffered(told.stderr.strip().splitlines()[-1])
            return float(told.stdout)

        self._in_turns(
            operation,
            {name: partial(ask, name) for name in self._stores},
            unit=unit,
        )

    def _halve(self, name: str, *, beside: bool = False) -> float:
        """Drop the older half of a copy of a store: how long that takes, or the writes `beside` it."""
        home, copy = self._home(name), self._directory / "copy"
        if not home.is_dir():
            raise NotOffered("keeps nothing on disk")
        cls = next(one for one in STORES if one.name == name)
        middle = self._sample.middle
        try:
            shutil.copytree(home, copy)
            with contextlib.closing(cls(copy)) as store:
                store.newest(20)
                halve = partial(store.drop_older_half, middle["ts"])
                if not beside:
                    return timing.once(halve)
                return timing.beside(halve, partial(remember, store, middle))
        finally:
            shutil.rmtree(copy, ignore_errors=True)

    def _find_limits(self, file: Path) -> dict[str, Callable[[], float]]:
        """The least that can be done, in seconds, by operation."""
        copy = self._directory / "limit"
        whole = partial(timing.copy_in_kernel, file, copy)
        half = partial(timing.copy_in_kernel, file, copy, file.stat().st_size // 2)
        least: dict[str, Callable[[], object]] = {
            FIRST_RECALL: partial(timing.decode_times, file),
            FORGET: whole,
            PATCH: whole,
            COMPACTION: half,
        }
        ripgrep = shutil.which("rg")
        for operation, text in ((RARE, data.RARE.lower()), (RARE_NON_ASCII, data.RARE_NON_ASCII.upper())):
            if ripgrep is None:
                self._note(operation, LIMIT, missing="ripgrep is missing")
                continue
            command = [ripgrep, "-i", "-F", "-j1", "-c", text, str(file)]
            least[operation] = partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)
        return {operation: partial(timing.once, call) for operation, call in least.items()}

    def _note(
        self,
        operation: str,
        store: str,
        values: Sequence[float] = (),
        *,
        unit: Literal["s", "B"] = "s",
        differs: bool = False,
        missing: str = "",
    ) -> None:
        self.findings.append(
            Finding(self._count, operation, store, tuple(values), unit, differs=differs, missing=missing)
        )


def remember(store: Store, entry: dict[str, Any]) -> None:
    """Store the text and meta of an entry as a new one."""
    store.remember(entry["text"], entry.get("meta"))


def why(error: BaseException) -> str:
    """Why there is no figure."""
    if isinstance(error, ModuleNotFoundError):
        return f"the package {error.name} is missing"
    return str(error) if isinstance(error, (NotOffered, _TooSlowError)) else f"failed: {error!r}"


class _TooSlowError(Exception):
    """A store took longer than `PATIENCE`."""


def _patiently(entries: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    end = time.monotonic() + PATIENCE
    for entry in entries:
        if time.monotonic() > end:
            raise _TooSlowError(f"filling it takes more than {PATIENCE:.0f} s")
        yield entry

"""How fast it is, beside what people would use in its place: same data, same machine, same run.

    python -m pip install '.[bench]' && python tools/bench.py

Prints one table for each number of entries: medians of several runs, half of the range of their middle half,
and in parentheses how many times as long as this library. A mark ≠ says that the store gave another answer
(SQLite's LIKE knows of case in ASCII only). `limit` is the least that can be done: `rg -i -F -j1` for a
search, a copy in the kernel with fsync for what rewrites a file, decoding all `ts` for a first look, and for
the import that of pydantic with one model made.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmark import data, report, timing
from benchmark.filled import QUESTIONS, STORES, FilledStores, Plan, Sample, remember, why
from benchmark.report import LIMIT, Finding
from benchmark.stores import NotOffered, Store

THREADS: Final = 8
ONE_THREAD: Final = "remember, fsync"
MANY_THREADS: Final = f"{ONE_THREAD}, {THREADS} threads"
TOO_FEW: Final = 100
QUICKLY: Final = 0.03
THOROUGHLY: Final = 0.15
"""How long, in seconds, a run repeats a quick operation."""


def main() -> int:
    """Run by arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--entries", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], metavar="N", help="how many"
    )
    parser.add_argument("--runs", type=int, default=5, help="how often all is measured (default: 5)")
    parser.add_argument("--quick", action="store_true", help="10,000 entries, 3 runs: under a minute")
    parser.add_argument("--directory", type=Path, help="where to put the stores (default: a temporary one)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw a picture, too")
    parser.add_argument("--readme", type=Path, help="put the results into this README")
    parser.add_argument("--probe", nargs=3, metavar=("WHAT", "STORE", "PATH"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.probe:
        print(probe(given.probe[0], given.probe[1], Path(given.probe[2])))
        return 0
    if min(given.entries) < TOO_FEW or given.runs < 1:
        parser.error(f"--entries must be {TOO_FEW} or more, --runs 1 or more")
    if given.quick:
        counts, plan = [10_000], Plan(3, QUICKLY, tell)
    else:
        counts, plan = sorted(set(given.entries)), Plan(given.runs, THOROUGHLY, tell)
    directory = given.directory or Path(tempfile.gettempdir())
    findings = measure(counts, plan, directory)
    about = report.machine(directory, [cls.package for cls in STORES if cls.package])
    if given.json:
        print(report.as_json(findings, about), end="")
    else:
        print(report.as_text(findings, about), end="")
    if given.plot:
        report.plot(findings, given.plot)
    if given.readme:
        report.write_section(given.readme, findings, about)
    return 0


def tell(what: str) -> None:
    """Say on stderr what is being done; on a terminal in one line."""
    on_terminal = sys.stderr.isatty()
    print(f"\r\033[K{what} … " if on_terminal else what, end="" if on_terminal else "\n", file=sys.stderr)
    sys.stderr.flush()


def measure(counts: Sequence[int], plan: Plan, home: Path) -> list[Finding]:
    """All findings, for each number of entries; 0 stands for those that do not depend on it."""
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=home))
    try:
        findings = [*imports(plan), *durable(directory, plan)]
        for count in counts:
            with contextlib.closing(
                FilledStores(directory / str(count), count, plan, Path(__file__))
            ) as stores:
                stores.measure()
            findings += stores.findings
            shutil.rmtree(directory / str(count))
        return findings
    finally:
        shutil.rmtree(directory)


def imports(plan: Plan) -> list[Finding]:
    """How long `import` takes, in new processes."""
    plan.tell("import")
    statements = {cls.name: f"import {cls.module}" for cls in STORES}
    statements[LIMIT] = "import pydantic\nclass Model(pydantic.BaseModel):\n text: str"
    values: dict[str, list[float]] = {}
    missing: dict[str, str] = {}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for run in range(plan.runs + 1):
        for name, statement in statements.items():
            code = f"from time import perf_counter as now\nt = now()\n{statement}\nprint(now() - t)\n"
            command = [sys.executable, "-c", code]
            told = subprocess.run(command, capture_output=True, check=False, text=True, env=environment)
            if told.returncode:
                missing[name] = told.stderr.strip().splitlines()[-1]
            elif run:  # the first one compiles
                values.setdefault(name, []).append(float(told.stdout))
    found = [Finding(0, "import", name, tuple(measured)) for name, measured in values.items()]
    return found + [Finding(0, "import", name, missing=reason) for name, reason in missing.items()]


def durable(directory: Path, plan: Plan) -> list[Finding]:
    """How long a remember takes that survives a loss of power, by one thread and by several at once."""
    findings = []
    with contextlib.ExitStack() as opened:
        stores: dict[str, Store] = {}
        for cls in STORES:
            try:
                store = cls(directory / f"durable-{cls.name.replace(' ', '-')}", fsync=True)
            except (ImportError, NotOffered) as reason:
                findings.append(Finding(0, ONE_THREAD, cls.name, missing=why(reason)))
                continue
            stores[cls.name] = opened.enter_context(contextlib.closing(store))
        texts = itertools.cycle(list(data.entries(1_000)))
        for operation, threads in {ONE_THREAD: 1, MANY_THREADS: THREADS}.items():
            plan.tell(operation)
            values: dict[str, list[float]] = {name: [] for name in stores}
            for _ in range(plan.runs):
                for name, store in stores.items():
                    write = functools.partial(_remember_next, store, texts)
                    values[name].append(timing.shared(write, threads, 2 * plan.budget))
            findings += [Finding(0, operation, name, tuple(measured)) for name, measured in values.items()]
    return findings


def _remember_next(store: Store, texts: itertools.cycle[data.Entry]) -> None:
    remember(store, next(texts))


def probe(what: str, name: str, directory: Path) -> float:
    """In a process of its own: the seconds that a first recall takes, or the bytes that reading needs."""
    cls = next(one for one in STORES if one.name == name)
    importlib.import_module(cls.module)
    before = timing.peak_memory() if what == "memory" else 0
    started = time.perf_counter()
    store = cls(directory)
    try:
        store.newest(20)
        if what == "first":
            return time.perf_counter() - started
        nothing = Sample({"id": "none"}, 0, [], [])
        for ask in QUESTIONS.values():
            with contextlib.suppress(NotOffered):
                ask(nothing, store)
        return timing.peak_memory() - before
    except NotOffered as reason:
        sys.exit(str(reason))


if __name__ == "__main__":
    sys.exit(main())

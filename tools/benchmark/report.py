"""What the benchmark has found, for people and machines: a table, JSON, a picture, the README's section."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import sqlite3
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

OURS: Final = "gotong_memfile"
LIMIT: Final = "limit"
BEGIN: Final = "<!-- written by tools/bench.py -->"
END: Final = "<!-- end of what tools/bench.py writes -->"

_STEPS: Final = {"s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")), "B": ((1e6, "MB"), (1e3, "kB"), (1.0, "B"))}


@dataclass(frozen=True)
class Finding:
    """How one store did one operation with so many entries: a value per run, in seconds or bytes.

    `differs`: it gave another answer than this library did. `missing`: why there are no values.
    """

    entries: int
    operation: str
    store: str
    values: tuple[float, ...] = ()
    unit: Literal["s", "B"] = "s"
    differs: bool = False
    missing: str = ""

    @property
    def median(self) -> float:
        """Of the runs."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Half of the range of the middle half of the runs, as a part of the median."""
        if len(self.values) == 1:
            return 0.0
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return (high - low) / 2 / (self.median or 1)


def shown(value: float, unit: str) -> str:
    """A value with three digits.

    >>> shown(0.000_015_53, "s"), shown(228_000_000, "B")
    ('15.5 µs', '228 MB')
    """
    size, name = next((step for step in _STEPS[unit] if abs(value) >= step[0]), _STEPS[unit][-1])
    scaled = value / size
    return f"{scaled:.{0 if scaled >= 99.95 else 1 if scaled >= 9.995 else 2}f} {name}"


def table(findings: Sequence[Finding]) -> str:
    """A Markdown table: a row for each operation, a column for each store, and what is missing below."""
    stores = _in_order(finding.store for finding in findings)
    ours = {finding.operation: finding for finding in findings if finding.store == OURS and finding.values}
    rows = [["", *stores], ["---", *["---:" for _ in stores]]]
    for operation in _in_order(finding.operation for finding in findings):
        cells = {finding.store: finding for finding in findings if finding.operation == operation}
        rows.append(
            [operation, *[_cell(cells.get(store), ours.get(operation)) for store in stores]],
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(stores) + 1)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(finding: Finding | None, ours: Finding | None) -> str:
    if finding is None or not finding.values:
        return "-"
    cell = f"{shown(finding.median, finding.unit)} ±{finding.spread:.0%}"
    if finding.store != OURS and ours is not None and ours.median:
        cell += f" ({_times(finding.median / ours.median)})"
    return cell + (" ≠" if finding.differs else "")


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}×" if ratio >= 9.95 else f"{ratio:.1f}×" if ratio >= 0.95 else f"{ratio:.2g}×"


def missing(findings: Iterable[Finding]) -> list[str]:
    """Why stores have no figures: one line for each store and reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        if finding.missing:
            reasons.setdefault((finding.store, finding.missing), []).append(finding.operation)
    return [f"{store}: {reason} ({', '.join(operations)})" for (store, reason), operations in reasons.items()]


def machine(directory: Path, packages: Sequence[str]) -> str:
    """What it was measured on, in a few sentences: hardware, system, versions."""
    versions = [f"SQLite {sqlite3.sqlite_version}"]
    for package in packages:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{package} (missing)")
    ripgrep = shutil.which("rg")
    if ripgrep is not None:
        told = subprocess.run([ripgrep, "--version"], capture_output=True, check=True, text=True).stdout
        versions.append(" ".join(told.split()[:2]))
    return (
        f"{_processor()}, {os.cpu_count()} cores; {platform.system()} {platform.release()}, "
        f"{_file_system(directory)}; Python {platform.python_version()}, {', '.join(versions)}."
    )


def _processor() -> str:
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        told = []
    names = (line.partition(":")[2].strip() for line in told if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _file_system(directory: Path) -> str:
    """The type of the file system that holds `directory`, as Linux tells it."""
    best, kind = "", "an unknown file system"
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return kind
    for line in mounts:
        _, point, name, *_ = line.split()
        if directory.resolve().is_relative_to(point) and len(point) >= len(best):
            best, kind = point, name
    return kind


def as_json(findings: Iterable[Finding], about: str) -> str:
    """Everything, for machines."""
    rows = [{**asdict(finding), "median": finding.median if finding.values else None} for finding in findings]
    return json.dumps({"machine": about, "findings": rows}, ensure_ascii=False, indent=1) + "\n"


def as_text(findings: Sequence[Finding], about: str) -> str:
    """The machine, and for each number of entries a table and what it lacks, in Markdown."""
    parts = [about]
    for entries in sorted({finding.entries for finding in findings}):
        part = [finding for finding in findings if finding.entries == entries]
        notes = missing(part)
        parts.append(f"**{f'{entries:,} entries' if entries else 'Of any number of entries'}**")
        parts.append(table(part).rstrip())
        if notes:
            parts.append("Without a figure: " + "; ".join(notes) + ".")
    return "\n\n".join(parts) + "\n"


def write_section(readme: Path, findings: Sequence[Finding], about: str) -> None:
    """Put the results between the marks in the README. Raises `ValueError` when they are not there."""
    text = readme.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{readme} lacks the lines {BEGIN!r} and {END!r}, between which the results go")
    readme.write_text(f"{before}{begin}\n{as_text(findings, about)}{end}{after}", encoding="utf-8")


def plot(findings: Sequence[Finding], path: Path) -> None:
    """Draw how many times as long each store takes as this library, with the most entries."""
    pyplot = importlib.import_module("matplotlib.pyplot")
    entries = max(finding.entries for finding in findings)
    drawn = [one for one in findings if one.values and one.unit == "s" and one.entries in {0, entries}]
    ours = {one.operation: one.median for one in drawn if one.store == OURS}
    operations = list(reversed([name for name in _in_order(one.operation for one in drawn) if name in ours]))
    figure, axes = pyplot.subplots(figsize=(9, 0.36 * len(operations) + 1.6), layout="constrained")
    markers = "osD^vP*X"
    for number, store in enumerate(_in_order(one.store for one in drawn)):
        points = {one.operation: one.median for one in drawn if one.store == store}
        places = [place for place, name in enumerate(operations) if name in points]
        times = [points[operations[place]] / ours[operations[place]] for place in places]
        axes.plot(times, places, markers[number % len(markers)], label=store, linestyle="none")
    axes.set_xscale("log")
    axes.set_yticks(range(len(operations)), operations)
    axes.axvline(1, linewidth=1, zorder=0)
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel(f"times as long as {OURS}, {entries:,} entries (left is quicker)")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _in_order(names: Iterable[str]) -> list[str]:
    """Each once, as they first appear, the limit at the end."""
    once = list(dict.fromkeys(names))
    return sorted(once, key=lambda name: name == LIMIT)

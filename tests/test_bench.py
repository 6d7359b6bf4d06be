"""`tools/bench.py` with few entries: every store answers or says why not, and nothing is passed over in silence."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

TOOLS = Path(__file__).parent.parent / "tools"


@pytest.fixture(scope="module")
def tool() -> Iterator[Any]:
    """The modules of the benchmark, by their names."""
    sys.path.insert(0, str(TOOLS))
    try:
        names = ("data", "stores", "packages", "filled", "report", "timing")
        yield SimpleNamespace(
            bench=importlib.import_module("bench"),
            **{name: importlib.import_module(f"benchmark.{name}") for name in names},
        )
    finally:
        sys.path.remove(str(TOOLS))


@pytest.fixture(scope="module")
def findings(tool: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Of one run of everything."""
    plan = tool.filled.Plan(1, 0.001, lambda what: None)
    home = tmp_path_factory.mktemp("bench")
    found: list[Any] = tool.bench.measure([300], plan, home)
    assert list(home.iterdir()) == [], "the stores are removed"
    return found


def test_every_store_has_a_figure_or_a_reason_for_each_operation(tool: Any, findings: list[Any]) -> None:
    stores = {cls.name for cls in tool.filled.STORES}
    filled = {one.store for one in findings if one.operation == "get"} - {"limit"}
    for operation in {one.operation for one in findings if one.entries} - {"size on disk"}:
        of_operation = [one for one in findings if one.operation == operation]
        for store in stores if operation == "fill with all entries" else filled:
            of_store = [one for one in of_operation if one.store == store]
            assert of_store, (operation, store)
            assert all(bool(one.values) != bool(one.missing) for one in of_store), of_store


def test_this_library_and_sqlite_do_everything_and_agree(findings: list[Any]) -> None:
    for name in ("gotong_memfile", "SQLite", "SQLite FTS5"):
        own = [one for one in findings if one.store == name]
        assert {one.missing for one in own} <= {"", "a file is used as it is"}
        differs = {one.operation for one in own if one.differs}
        assert differs <= ({"recall a rare non-ASCII text"} if name == "SQLite" else set())
        assert all(value > 0 for one in own for value in one.values)


def test_a_package_that_is_missing_is_reported(tool: Any, tmp_path: Path, monkeypatch: Any) -> None:
    class Missing(tool.packages.TinyDb):  # type: ignore[misc, name-defined]
        name = "Missing"
        module = "no_such_package"

    class Failing(tool.stores.Sqlite):  # type: ignore[misc, name-defined]
        name = "Failing"

        def newest(self, count: int) -> list[str]:
            raise RuntimeError("broken")

    class Lying(tool.stores.Sqlite):  # type: ignore[misc, name-defined]
        name = "Lying"

        def newest(self, count: int) -> list[str]:
            return ["none"]

    monkeypatch.setattr(tool.filled, "STORES", (tool.stores.Memfile, Missing, Failing, Lying))
    monkeypatch.setattr(tool.bench, "STORES", tool.filled.STORES)
    plan = tool.filled.Plan(1, 0.001, lambda what: None)
    stores = tool.filled.FilledStores(tmp_path / "stores", 200, plan, TOOLS / "bench.py")
    stores.measure()
    stores.close()
    told = {(one.operation, one.store): one for one in stores.findings}
    assert told["fill with all entries", "Missing"].missing == "the package no_such_package is missing"
    assert told["recall newest 20", "Failing"].missing == "failed: RuntimeError('broken')"
    assert told["recall newest 20", "Lying"].differs
    assert not told["get", "Lying"].differs
    shown = tool.report.as_text(stores.findings, "a machine")
    assert "Failing: failed: RuntimeError('broken')" in shown
    assert "≠" in shown


def test_results_go_between_the_marks_of_a_readme(tool: Any, findings: list[Any], tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(
        f"before\n{tool.report.BEGIN}\nwhat was there\n{tool.report.END}\nafter\n", encoding="utf-8"
    )
    tool.report.write_section(readme, findings, "A machine.")
    text = readme.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{tool.report.BEGIN}\nA machine.\n")
    assert text.endswith(f"{tool.report.END}\nafter\n")
    assert "what was there" not in text
    assert "**300 entries**" in text
    unmarked = tmp_path / "other.md"
    unmarked.write_text("no marks", encoding="utf-8")
    with pytest.raises(ValueError, match="lacks the lines"):
        tool.report.write_section(unmarked, findings, "A machine.")
    assert unmarked.read_text(encoding="utf-8") == "no marks"


def test_the_readme_has_the_marks(tool: Any) -> None:
    readme = (TOOLS.parent / "README.md").read_text(encoding="utf-8")
    assert readme.index(tool.report.BEGIN) < readme.index(tool.report.END)


def test_results_are_json_for_machines(tool: Any, findings: list[Any]) -> None:
    told = json.loads(tool.report.as_json(findings, "A machine."))
    assert told["machine"] == "A machine."
    assert len(told["findings"]) == len(findings)
    assert {"entries", "operation", "store", "values", "median", "missing", "differs"} <= set(
        told["findings"][0]
    )


def test_medians_and_spreads_are_what_they_say(tool: Any) -> None:
    one = tool.report.Finding(5, "get", "a store", (1.0, 2.0, 3.0, 4.0, 100.0))
    assert one.median == 3.0
    assert one.spread == pytest.approx((4.0 - 2.0) / 2 / 3.0)
    ours = tool.report.Finding(5, "get", tool.report.OURS, (1.5,))
    assert "| 3.00 s ±33% (2.0×) |" in tool.report.table([ours, one])


def test_a_picture_can_be_drawn_where_matplotlib_is(tool: Any, findings: list[Any], tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    tool.report.plot(findings, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_lines_are_about_250_bytes_and_hold_what_is_looked_for(tool: Any, tmp_path: Path) -> None:
    tool.data.write(tmp_path / "some.jsonl", tool.data.entries(6_000))
    lines = (tmp_path / "some.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    assert 220 < sum(map(len, lines)) / len(lines) < 260
    assert sum(tool.data.RARE in line for line in lines) == 1
    assert sum(tool.data.RARE_NON_ASCII in line for line in lines) in {1, 2}
    assert 0.3 < sum(tool.data.COMMON in line for line in lines) / len(lines) < 0.5
    assert lines[:100] == [
        json.dumps(one, ensure_ascii=False, separators=(",", ":"))
        for one in islice(tool.data.entries(6_000), 100)
    ]


@pytest.mark.parametrize("arguments", [["--entries", "5"], ["--runs", "0"], ["--nonsense"]])
def test_misuse_is_told_without_a_traceback(arguments: list[str]) -> None:
    told = subprocess.run(
        [sys.executable, str(TOOLS / "bench.py"), *arguments], capture_output=True, check=False, text=True
    )
    assert told.returncode == 2
    assert "usage:" in told.stderr
    assert "Traceback" not in told.stderr

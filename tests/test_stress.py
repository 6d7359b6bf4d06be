"""`tools/stress.py` with a short budget, and its judge, which must be able to say no."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parent.parent / "tools" / "stress.py"


@pytest.fixture(scope="module")
def stress() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stress_tool", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["stress_tool"] = module
    spec.loader.exec_module(module)
    return module


def test_a_short_run_finds_nothing(stress: ModuleType) -> None:
    tally = stress.run(4, seed=1, processes=2, threads=2)
    assert tally.faults == []
    assert tally.kills >= 4
    assert tally.operations > 20


@pytest.mark.stress
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [2])
def test_a_long_run_finds_nothing(stress: ModuleType, seed: int) -> None:
    tally = stress.run(60, seed=seed)
    assert tally.faults == []
    assert tally.kills > 50


def test_the_command_shows_its_seed_and_verdict() -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL), "--minutes", "0.03", "--seed", "5", "--processes", "1"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("seed 5\n")
    assert done.stdout.endswith("verdict: nothing lost, nothing twice, nothing back\n")


JOURNAL = ["?+ w-0 working", "+ w-0 working", "?+ w-1 working", "+ w-1 working", "?+ w-2 episodic", "+ w-2 episodic",
           "?+ w-3 episodic", "+ w-3 episodic", "?- w-1 ", "- w-1 ", "?+ w-4 working"]  # fmt: skip


@pytest.mark.parametrize(
    ("working", "episodic", "found"),
    [
        (["w-0"], ["w-2", "w-3"], None),
        (["w-0", "w-4"], ["w-3"], None),
        (["w-0"], [], None),
        ([], ["w-3"], "1 acknowledged entries of writer w are gone"),
        (["w-0"], ["w-2"], "an acknowledged entry of writer w is gone, though older ones are there"),
        (["w-0", "w-1"], ["w-3"], "1 forgotten entries are back, such as w-1"),
        (["w-0", "w-0"], ["w-3"], "an entry is there twice"),
        (["w-0", "x-9"], ["w-3"], "1 entries that nobody stored, such as x-9"),
    ],
)
def test_the_judge_sees_what_is_lost_twice_or_back(
    stress: ModuleType, tmp_path: Path, working: list[str], episodic: list[str], found: str | None
) -> None:
    journal = tmp_path / "journal"
    journal.write_text("\n".join(JOURNAL) + "\n")
    for kind, ids in (("working", working), ("episodic", episodic)):
        (tmp_path / f"{kind}.jsonl").write_text("".join(json.dumps({"id": one}) + "\n" for one in ids))
    faults = stress.verdict(tmp_path, stress.read_journals([journal]))
    assert [found] == [fault.partition(": ")[2] for fault in faults] if found else not faults

"""The floors of the design show in the imports, and the file system has one seam."""

from __future__ import annotations

import ast
import logging
import subprocess
import sys
from pathlib import Path

import pytest

import gotong_memfile

PACKAGE = Path(gotong_memfile.__file__).parent
FLOORS = [
    ["_version", "errors", "ids"],
    ["layout"],
    ["models"],
    ["surface", "config"],
    ["codec", "fileio"],
    ["draft", "bulk", "folder", "locks", "lease", "write_queue"],
    ["log"],
    ["zones"],
    ["search", "compaction", "rewrite"],
    ["ordering", "edits"],
    ["reader"],
    ["group_commit"],
    ["store"],
    ["registry"],
    ["compactor"],
    ["trash", "handle"],
    ["plugin"],
    ["__init__"],
]
"""From the ground up; modules of one floor do not know each other."""

FLOOR_OF = {module: number for number, floor in enumerate(FLOORS) for module in floor}
MODULES = sorted(PACKAGE.glob("*.py"))


def imports_of(path: Path) -> set[str]:
    """The modules of the package that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gotong_memfile"):
            inner = (node.module or "").partition(".")[2]
            found |= {inner} if inner else {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_imports_from_the_floors_below_only(path: Path) -> None:
    assert path.stem in FLOOR_OF, "a new module needs a floor"
    above = {name for name in imports_of(path) if FLOOR_OF[name] >= FLOOR_OF[path.stem]}
    assert not above


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_is_one_idea_of_at_most_400_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400
    assert path.stem in {"_version", "__init__"} or ast.get_docstring(
        ast.parse(path.read_text(encoding="utf-8"))
    )


HARMLESS = {"path", "getpid", "register_at_fork", "fspath", "PathLike", "stat_result", "strerror", "name"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_only_the_file_layer_touches_the_disk(path: Path) -> None:
    """So that tests can play every disk fault in one place."""
    if path.stem == "fileio":
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in {"os", "shutil"}
        ):
            assert node.attr in HARMLESS, f"{path.name}:{node.lineno} uses os.{node.attr}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "open", f"{path.name}:{node.lineno} opens a file"


def test_there_is_no_global_state_but_the_registry_of_stores() -> None:
    for path in MODULES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(
                node.value, (ast.Dict, ast.List, ast.Set)
            ):
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                assert isinstance(target, ast.Name)
                assert target.id in {"_stores", "__all__"}, f"{path.name} holds {target.id}"


def test_importing_the_package_imports_no_more_than_it_needs() -> None:
    code = "import sys, gotong_memfile; print(*sorted(name.partition('.')[0] for name in sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    ).stdout.split()
    assert not {"portalocker", "pandas", "matplotlib", "tqdm", "yaml", "filelock", "asyncio"} & set(loaded)


def test_the_library_logs_under_its_own_name_and_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with gotong_memfile.open_memory(tmp_path, "agent/a", max_episodic_bytes=200) as memory:
        for n in range(10):
            memory.remember(f"n{n}")
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("gotong_memfile").handlers == []

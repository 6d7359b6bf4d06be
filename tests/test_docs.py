"""Everything that the docs show is run, and everything that there is to use is in the docs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import Clock

import gotong_memfile
from gotong_memfile import MemoryFileHandle, MemoryFilePlugin, open_memory

PROJECT = Path(__file__).parent.parent
README = (PROJECT / "README.md").read_text(encoding="utf-8")
MODULES = [name for _, name, _ in pkgutil.iter_modules(gotong_memfile.__path__, "gotong_memfile.")]


def doctests() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found: dict[str, doctest.DocTest] = {}
    for name in ["gotong_memfile", *MODULES]:
        for test in finder.find(importlib.import_module(name)):
            if test.examples:
                found[test.name] = test
    return list(found.values())


@pytest.mark.parametrize("test", doctests(), ids=lambda test: test.name)
def test_examples_in_docstrings_do_what_they_show(
    test: doctest.DocTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may use `memory`, in which three entries are."""
    monkeypatch.chdir(tmp_path)
    with open_memory("memory", "agent/example", clock=Clock()) as memory:
        memory.remember("Prefers dark mode", kind="semantic")
        memory.remember("Asked about coffee")
        memory.remember("Ordered tea")
        test.globs["memory"] = memory
        output: list[str] = []
        results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=output.append)
        assert results.failed == 0, "".join(output)


def public_methods(cls: type) -> list[str]:
    return [name for name, _ in inspect.getmembers(cls, callable) if not name.startswith("_")]


@pytest.mark.parametrize("cls", [MemoryFileHandle, MemoryFilePlugin])
def test_every_method_has_a_docstring_and_is_in_the_readme(cls: type) -> None:
    for name in public_methods(cls):
        assert inspect.getdoc(getattr(cls, name)), name
        assert re.search(rf"\b{name}\(", README), f"the README does not tell of {cls.__name__}.{name}"


@pytest.mark.parametrize("name", gotong_memfile.__all__)
def test_every_public_name_has_a_docstring_or_is_a_constant(name: str) -> None:
    thing = getattr(gotong_memfile, name)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        assert inspect.getdoc(thing)


@pytest.mark.parametrize(
    "name", [name for name in gotong_memfile.__all__ if name.endswith("Error") and name != "MemoryFileError"]
)
def test_every_error_is_in_the_readme(name: str) -> None:
    assert f"`{name}`" in README


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_every_python_block_of_the_readme_runs_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "readme"}
    assert len(blocks("python")) >= 8
    for number, block in enumerate(blocks("python")):
        try:
            exec(compile(block, f"README block {number}", "exec"), namespace)
        except BaseException as error:
            pytest.fail(f"README block {number} fails with {error!r}:\n{block}")


def test_the_commands_of_the_readme_are_those_that_ci_runs() -> None:
    first, second = blocks("sh")
    script = (PROJECT / ".ci" / "run").read_text(encoding="utf-8")
    assert "README.md" in script, "CI takes the commands from the README"
    assert len(first.strip().splitlines()) == len(second.strip().splitlines()) == 1
    assert "pytest" in second


def test_the_first_command_shows_a_memory_written_recalled_and_read_back(tmp_path: Path) -> None:
    """All of it but the set-up, which CI runs as it stands."""
    command = shlex.split(blocks("sh")[0].split("&&")[-1])
    assert command[0] == ".venv/bin/python"
    done = subprocess.run(
        [sys.executable, *(str(PROJECT / part) for part in command[1:])],
        cwd=tmp_path, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONUTF8": "1"},
    )  # fmt: skip
    assert re.search(r"remembered.*recalled.*read back", done.stdout, re.DOTALL | re.IGNORECASE)
    log = next(tmp_path.rglob("semantic.jsonl"))
    assert log.read_text(encoding="utf-8").splitlines()[0] in done.stdout


def test_every_other_block_of_the_readme_is_checked_too() -> None:
    languages = set(re.findall(r"^```(\w+)$", README, re.MULTILINE))
    assert languages <= {"sh", "python", "text", "json"}


def test_the_lines_shown_as_json_are_lines_of_the_format() -> None:
    from gotong_memfile.codec import decode_line, encode_entry

    for block in blocks("json"):
        for line in block.encode().splitlines(keepends=True):
            raw = decode_line(line, "semantic")
            assert raw is not None
            assert encode_entry(raw.model()) == line


def test_no_fact_stands_in_both_configuration_files() -> None:
    import configparser

    setup = configparser.ConfigParser()
    setup.read(PROJECT / "setup.cfg", encoding="utf-8")
    project = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    assert set(setup.sections()) == {"metadata", "options", "options.package_data", "options.extras_require"}
    assert "[project]" not in project
    assert not re.search(r"[\"'](pydantic|msgspec|portalocker)[ <>=~\"']", project)


def test_the_top_level_holds_what_was_agreed() -> None:
    """And nothing that the project does not need."""
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    if files.returncode:
        pytest.skip("not a git checkout")
    top = {line.split("/")[0] for line in files.stdout.split("\0") if line}
    agreed = {
        "setup.cfg",
        "pyproject.toml",
        "gotong_memfile",
        "tests",
        "tools",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
    }
    assert {name for name in top if not name.startswith(".")} == agreed

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import NOBODY, Clock, FaultyOS, Host

from gotong_memfile import MemoryFileHandle, MemoryFilePlugin, ServiceInitCtx, fileio, open_memory, registry

DATA = Path(__file__).parent / "data"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where a memory root may be made."""
    return tmp_path / "memory"


@pytest.fixture
def memory(root: Path, clock: Clock) -> Iterator[MemoryFileHandle]:
    with open_memory(root, "agent/writer", clock=clock) as handle:
        yield handle


@pytest.fixture
def folder(root: Path) -> Path:
    """The folder of the owner of `memory`."""
    return root / "agent" / "writer"


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def plugin(root: Path, host: Host) -> Iterator[MemoryFilePlugin]:
    made = MemoryFilePlugin()
    made.init(ServiceInitCtx(root_dir=root, hub=host))
    yield made
    made.shutdown()


@pytest.fixture
def interop_root(tmp_path: Path) -> Path:
    """A copy of a root that the TypeScript implementation wrote."""
    copy = tmp_path / "interop"
    shutil.copytree(DATA / "interop" / "root", copy)
    return copy


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FaultyOS:
    """The file layer's `os`, which can be told to fail."""
    faulty = FaultyOS()
    monkeypatch.setattr(fileio, "os", faulty)
    return faulty


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory that a user without rights can reach and owns."""
    path = Path(tempfile.mkdtemp())
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    yield path
    shutil.rmtree(path)


@pytest.fixture(autouse=True)
def _no_store_is_left_open() -> Iterator[None]:
    """Every test gives back what it opened: the registry is the one global state."""
    yield
    assert not registry._stores

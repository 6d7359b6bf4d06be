"""By one look at an owner's folder it is known whether its names mean what they meant before."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gotong_memfile import MutationPendingError
from gotong_memfile.folder import OwnerFolder
from gotong_memfile.layout import owner_paths

LONG_AGO = 1_700_000_000_123_456_789


@pytest.fixture
def owner(tmp_path: Path) -> OwnerFolder:
    made = OwnerFolder(owner_paths(str(tmp_path), "agent", "writer"))
    path = tmp_path / "agent" / "writer"
    path.mkdir(parents=True)
    (path / "episodic.jsonl").write_bytes(b"one\n")
    settle(path)
    return made


def settle(path: Path) -> None:
    """Let the last change of the folder be long ago."""
    os.utime(path, ns=(LONG_AGO, LONG_AGO))


def create(path: Path) -> None:
    (path / "semantic.jsonl").write_bytes(b"")


def replace(path: Path) -> None:
    (path / "new").write_bytes(b"two\n")
    settle(path)
    (path / "new").rename(path / "episodic.jsonl")


def remove(path: Path) -> None:
    (path / "episodic.jsonl").unlink()


def move_away_and_make_anew(path: Path) -> None:
    path.rename(path.parent / "away")
    shutil.copytree(path.parent / "away", path)
    settle(path)


CHANGES = [create, replace, remove, move_away_and_make_anew]


def test_the_version_stays_while_nothing_changes(owner: OwnerFolder, tmp_path: Path) -> None:
    first = owner.version()
    assert first is not None
    with (tmp_path / "agent" / "writer" / "episodic.jsonl").open("ab") as file:
        file.write(b"two\n")
    (tmp_path / "agent" / "other").mkdir()
    assert owner.version() == first


@pytest.mark.parametrize("change", CHANGES)
def test_the_version_changes_with_the_meaning_of_a_name(
    owner: OwnerFolder, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    first = owner.version()
    change(tmp_path / "agent" / "writer")
    assert owner.version() not in {first, None}


def test_no_version_is_given_twice_while_a_change_may_not_show(owner: OwnerFolder, tmp_path: Path) -> None:
    """The folder's times are counted in ticks: a second change within one would leave them as they are."""
    create(tmp_path / "agent" / "writer")
    assert owner.version() != owner.version()


def test_times_in_whole_seconds_are_trusted_only_when_they_are_older(
    owner: OwnerFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAT and HFS+ count in seconds."""
    path = tmp_path / "agent" / "writer"
    os.utime(path, ns=(5_000_000_000, 5_000_000_000))
    monkeypatch.setattr("gotong_memfile.folder.time.time_ns", lambda: 6_900_000_000)
    assert owner.version() != owner.version()
    monkeypatch.setattr("gotong_memfile.folder.time.time_ns", lambda: 7_900_000_000)
    assert owner.version() == owner.version()


def test_without_a_folder_there_is_no_version(owner: OwnerFolder, tmp_path: Path) -> None:
    assert owner.version() is not None
    shutil.rmtree(tmp_path / "agent" / "writer")
    assert owner.version() is None
    assert owner.writable_version() is None
    assert owner.make(0o700) is not None


def test_a_rewrite_of_the_other_side_that_was_cut_off_is_seen_whenever_it_appears(
    owner: OwnerFolder, tmp_path: Path
) -> None:
    marker = tmp_path / "agent" / "writer" / ".mutation.prepare"
    assert owner.writable_version() is not None
    marker.write_bytes(b"")
    settle(marker.parent)
    with pytest.raises(MutationPendingError):
        owner.writable_version()
    with pytest.raises(MutationPendingError):
        owner.writable_version()
    assert owner.version() is not None, "reading goes on"
    marker.unlink()
    assert owner.writable_version() is not None

"""What a forget, a clear and a patch leave of a file: every line that they need not change, byte for byte."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gotong_memfile import zones
from gotong_memfile.codec import encode_patched
from gotong_memfile.log import Piece, Snapshot
from gotong_memfile.models import Json
from gotong_memfile.search import lines_with_ids

Pieces = Sequence[Piece] | None
"""What stays or takes the place of something; None: nothing is to be changed."""


def without_ids(snapshot: Snapshot, ids: Collection[str]) -> tuple[Pieces, set[str]]:
    """The file without the lines of these ids, and which of them there were."""
    pieces: list[Piece] = []
    erased: set[str] = set()
    position = 0
    for line in lines_with_ids(snapshot, ids):
        erased.add(line.entry.id)
        if position < line.start:
            pieces.append((position, line.start))
        position = line.end
    return [*pieces, (position, snapshot.size)] if erased else None, erased


def without_entries(snapshot: Snapshot) -> tuple[Pieces, int]:
    """What is in the file but entries: its corrupt lines; and how many entries there were."""
    damage: list[Piece] = []
    entries = 0
    for line in zones.lines(snapshot):
        if line.entry is None:
            damage.append((line.start, line.end))
        else:
            entries += 1
    return damage if entries else None, entries


def with_patch(snapshot: Snapshot, entry_id: str, patch: Json) -> tuple[Pieces, bool]:
    """The file with `patch` merged into the meta of the lines of this id, and whether there was one."""
    pieces: list[Piece] = []
    found = False
    position = 0
    for line in lines_with_ids(snapshot, {entry_id}):
        found = True
        old = snapshot.file.read_at(line.start, line.end - line.start)
        new = encode_patched(old, line.entry, patch)
        if new is not None:
            pieces += [(position, line.start), new]
            position = line.end
    return [*pieces, (position, snapshot.size)] if pieces else None, found

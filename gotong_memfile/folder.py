"""An owner's folder: whether it is there and its own, and whether anything in it got another name.

Who keeps a file open must know when its name has come to mean another file, or none. A directory's times
change whenever a name in it is made, changed or removed, so one look at the folder tells for all files in it.
"""

from __future__ import annotations

import itertools
import os
import time
from typing import Final

from gotong_memfile import fileio
from gotong_memfile.errors import MutationPendingError, OwnerCollisionError
from gotong_memfile.layout import FOREIGN_MUTATION_MARKERS, OwnerPaths, confusable_names

_TICK: Final = 100_000_000
_COARSE_TICK: Final = 2_500_000_000
"""In ns: within this time after a change, another one may leave a directory's times as they are. Linux counts
in ticks of up to 10 ms; file systems without fractions of a second (FAT, HFS+) in up to 2 s."""

_Times = tuple[int, int, int, int]


class OwnerFolder:
    """What is known of one owner's folder, for as long as its names stay as they are.

    Callers may rely on: `version` gives the same number again only while each name in the folder means the
    file that it meant at the first time.

    Thread-safe: what is known is one tuple, replaced as a whole.
    """

    def __init__(self, paths: OwnerPaths) -> None:
        self._paths = paths
        self._path = paths.directory
        self._known: tuple[_Times, int] | None = None
        self._writable = 0
        self._versions = itertools.count(1)

    def version(self) -> int | None:
        """A number for the names in the folder as they are now, or None when there is no folder.

        Raises `UnsafePathError` or `RootNotDirectoryError` where a link or a file is in its place.
        """
        known = self._known
        if known is not None:
            found = fileio.status(self._path)
            if found is not None and _times(found) == known[0]:
                return known[1]
        return self._look()

    def writable_version(self) -> int | None:
        """As `version`, when the folder may be written to. Raises also `MutationPendingError`,
        `OwnerCollisionError`.
        """
        version = self.version()
        if version is not None and version != self._writable:
            self._require_no_mutation()
            require_own_spelling(self._paths)
            self._writable = version
        return version

    def make(self, mode: int) -> int:
        """Make the folder, unless it is there; its `writable_version`. Raises as that does."""
        version = self.writable_version()
        while version is None:
            fileio.make_directory(self._paths.kind_directory, mode)
            fileio.make_directory(self._path, mode)
            version = self.writable_version()
        return version

    def _look(self) -> int | None:
        self._known = None
        found = fileio.status(self._path) if owner_exists(self._paths) else None
        if found is None:
            return None
        # Taken before anything in the folder is looked at: what changes from now on shows in the times,
        # if they are not so fresh that another change may leave them as they are.
        version = next(self._versions)
        tick = _TICK if found.st_mtime_ns % 1_000_000_000 else _COARSE_TICK
        if time.time_ns() - found.st_mtime_ns > tick:
            self._known = _times(found), version
        return version

    def _require_no_mutation(self) -> None:
        for marker in FOREIGN_MUTATION_MARKERS:
            path = os.path.join(self._path, marker)
            if fileio.exists(path):
                raise MutationPendingError(
                    f"{path!r} shows a rewrite by the TypeScript side that was cut off; reading goes on, "
                    "writing waits: start that side once, so that it recovers, and call again"
                )


def owner_exists(paths: OwnerPaths) -> bool:
    """Whether the owner has a folder. Raises `UnsafePathError` where a link leads to it."""
    return fileio.is_directory(paths.kind_directory) and fileio.is_directory(paths.directory)


def require_own_spelling(paths: OwnerPaths) -> None:
    """Raise `OwnerCollisionError` when the owner's folder belongs to another spelling of its id."""
    mine = fileio.status(paths.directory)
    if mine is None or not any(
        _same(mine, os.path.join(paths.kind_directory, other)) for other in confusable_names(paths.owner_id)
    ):
        return
    for name in fileio.listing(paths.kind_directory):
        if name != paths.owner_id and _same(mine, os.path.join(paths.kind_directory, name)):
            raise OwnerCollisionError(
                f"owner ids {name!r} and {paths.owner_id!r} are one folder on this file system; "
                f"rename one of the owners, so that they do not share {paths.directory!r}"
            )


def _same(mine: os.stat_result, path: str) -> bool:
    found = fileio.status(path)
    return found is not None and os.path.samestat(mine, found)


def _times(found: os.stat_result) -> _Times:
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns

"""The one store of each owner in this process: shared by every handle of every plugin.

The registry is the only global state of the library.
"""

from __future__ import annotations

import os
import threading
from typing import Final

from gotong_memfile.layout import OwnerPaths
from gotong_memfile.store import OwnerStore

_lock = threading.Lock()
_stores: Final[dict[str, tuple[OwnerStore, int]]] = {}


def open_store(paths: OwnerPaths) -> OwnerStore:
    """The one store of this owner in this process; give it back with `close_store`.

    Requires: the root in `paths` is a real path, so that one directory has one name.
    """
    with _lock:
        store, users = _stores.get(paths.directory) or (OwnerStore(paths), 0)
        _stores[paths.directory] = store, users + 1
        return store


def close_store(store: OwnerStore) -> None:
    """Give back a store; the last user's call forgets it."""
    with _lock:
        _, users = _stores[store.paths.directory]
        if users > 1:
            _stores[store.paths.directory] = store, users - 1
        else:
            del _stores[store.paths.directory]


def _start_anew_in_child() -> None:
    """After a fork: locks that other threads of the parent held would never be released in the child."""
    global _lock  # noqa: PLW0603 - a lock cannot be made free otherwise
    _lock = threading.Lock()
    for store, _ in _stores.values():
        store.start_anew_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew_in_child)

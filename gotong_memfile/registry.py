"""The one store of each owner in this process: shared by every handle of every plugin.

The registry is the only global state of the library.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from typing import Final

from gotong_memfile.layout import OwnerPaths
from gotong_memfile.store import OwnerStore

_MOST_KEEPING: Final = 16
"""How many stores keep files open from call to call, seven at most each: processes may have 256 in all."""

_lock = threading.Lock()
_stores: Final[dict[str, tuple[OwnerStore, int]]] = {}
_keeping: Final[deque[OwnerStore]] = deque()


def open_store(paths: OwnerPaths) -> OwnerStore:
    """The one store of this owner in this process; give it back with `close_store`.

    Requires: the root in `paths` is a real path, so that one directory has one name.
    """
    with _lock:
        store, users = _stores.get(paths.directory) or (OwnerStore(paths, _keeps), 0)
        _stores[paths.directory] = store, users + 1
        return store


def close_store(store: OwnerStore) -> None:
    """Give back a store; the last user's call forgets it."""
    with _lock:
        _, users = _stores[store.paths.directory]
        if users > 1:
            _stores[store.paths.directory] = store, users - 1
            return
        del _stores[store.paths.directory]
    _lets_go(store)


def _keeps(store: OwnerStore) -> None:
    """Note that a store keeps files open; of too many the one that has done so for longest lets go."""
    if store in _keeping:
        return
    _keeping.append(store)
    while len(_keeping) > _MOST_KEEPING:
        _lets_go(_keeping[0])


def _lets_go(store: OwnerStore) -> None:
    with contextlib.suppress(ValueError):  # another thread was quicker
        _keeping.remove(store)
    store.let_go()


def _start_anew_in_child() -> None:
    """After a fork: locks that other threads of the parent held would never be released in the child."""
    global _lock  # noqa: PLW0603 - a lock cannot be made free otherwise
    _lock = threading.Lock()
    for store, _ in _stores.values():
        store.start_anew_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew_in_child)

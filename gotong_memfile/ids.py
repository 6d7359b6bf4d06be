"""Entry ids that sort by creation, and trash ids that are stable for a day."""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Final

DAY_MS: Final = 86_400_000
"""Length of a trash day bucket in ms, counted in UTC from the epoch (DESIGN §2)."""

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_SUFFIX_SPACE: Final = 36**6
_PAIRS: Final = tuple(high + low for high in _DIGITS for low in _DIGITS)
_ENTRY_ID: Final = re.compile(r"([0-9a-z]{8,12})-[0-9a-z]{6}\Z")
_TRASH_ID: Final = re.compile(r"[0-9a-f]{16}\Z")


def base36(number: int, width: int) -> str:
    """`number` (not negative) in base 36, padded with zeros to at least `width` digits.

    >>> base36(1764500014000, 8)
    'millr0ds'
    """
    digits = []
    while number:
        number, rest = divmod(number, 36)
        digits.append(_DIGITS[rest])
    return "".join(reversed(digits)).rjust(width, "0")


class EntryIdSource:
    """Gives out entry ids: `<ms in base 36, at least 8 digits>-<6 characters of a-z0-9>`.

    Callers may rely on: ids given for one and the same ms differ and sort in the order in which they were
    given, so a clock that stands still is no danger. Between sources, and after the clock was set back to
    a ms that was used before, ids differ by chance only (one in 2.2 billion for each pair).

    Not thread-safe: the owner's queue serializes its use.
    """

    def __init__(self) -> None:
        self._ms = -1
        self._time = ""
        self._suffix = 0

    def next(self, ms: int) -> str:
        """A new id for an entry made at epoch `ms`; times before the epoch count as 0."""
        ms = max(ms, 0)
        if ms != self._ms:
            self._ms = ms
            self._time = base36(ms, 8)
            # The upper half stays free, so that counting up does not wrap within this ms.
            self._suffix = secrets.randbelow(_SUFFIX_SPACE // 2)
        else:
            self._suffix = (self._suffix + 1) % _SUFFIX_SPACE
        high, rest = divmod(self._suffix, 36**4)
        return f"{self._time}-{_PAIRS[high]}{_PAIRS[rest // 36**2]}{_PAIRS[rest % 36**2]}"


def time_in(entry_id: str) -> int | None:
    """The epoch ms in an entry id, or None when it is of another form: a caller's own.

    >>> time_in("millr0ds-k3x9ab"), time_in("task-17")
    (1764500014000, None)
    """
    found = _ENTRY_ID.match(entry_id)
    return None if found is None else int(found[1], 36)


def trash_id(owner_kind: str, owner_id: str, deleted_at: int) -> str:
    """The trash id of an owner deleted at epoch ms `deleted_at`: the same all day, in UTC.

    >>> trash_id("agent", "gone", 1764500018000)
    '3990cf824cb0a4c9'
    """
    key = f"memory|file|{owner_kind}|{owner_id}|{deleted_at // DAY_MS}"
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def is_trash_id(value: str) -> bool:
    """Whether `value` has the form of a trash id, and so can name nothing outside the trash.

    >>> is_trash_id("3990cf824cb0a4c9"), is_trash_id("../../agent/x")
    (True, False)
    """
    return _TRASH_ID.match(value) is not None

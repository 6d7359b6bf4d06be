"""What the benchmark stores: made-up memories of agents, the same for every peer and every run.

Lines are about 250 bytes: sentences in several languages and scripts, emoji, quotes, line breaks and paths
that JSON must escape, and `meta` on two of three.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

Entry = dict[str, Any]
"""An entry as the file holds it."""

RARE: Final = "Xylophone-Needle"
"""Is in one entry, a third from the beginning: all newer ones have to be passed."""

RARE_NON_ASCII: Final = "Zwölftonmusik"
"""Is in one of 5,000 entries."""

COMMON: Final = "deploy"
"""Is in two of five entries."""

_FIRST_TIME: Final = 1_764_500_000_000
_MEAN_STEP_MS: Final = 1_000
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_WORDS: Final = (
    "the",
    "user",
    "asked",
    "about",
    "deploy",
    "pipeline",
    "coffee",
    "report",
    "weekly",
    "summary",
    "agent",
    "failed",
    "test",
    "memory",
    "index",
    "build",
    "schedule",
    "meeting",
    "budget",
    "travel",
    "note",
    "idea",
    "draft",
    "review",
    "prefers",
    "dark",
    "mode",
    "because",
    "tickets",
    "were",
    "closed",
    "late",
)
_PHRASES: Final = (
    "Überprüfung der Größe",
    "Straße nach Gießen",
    "日本語の設定を確認",
    "客户复购, 上周的订单",
    "задача закрыта",
    "مرحبا بالعالم",
    "línea de montaje",
    "🚀 shipped",
    "✅ done 👩‍👩‍👧",
    'said "not today"',
    "first line\nsecond line",
    "C:\\reports\\2025",
    "col\tcol",
)


def entries(count: int) -> Iterator[Entry]:
    """The first `count` entries of the endless made-up memory, oldest first, as the file holds them."""
    for number, entry in enumerate(islice(_endless(), count)):
        if number == count // 3:
            entry["text"] += f" {RARE}"
        yield entry


def write(path: Path, some: Iterable[Entry]) -> None:
    """Write entries as a kind's file holds them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        for entry in some:
            file.write(json.dumps(entry, ensure_ascii=False, separators=(",", ":")) + "\n")


def _endless() -> Iterator[Entry]:
    chance = random.Random(4)
    ts = _FIRST_TIME
    number = 0
    while True:
        ts += chance.randrange(1, 2 * _MEAN_STEP_MS)
        words = chance.choices(_WORDS, k=chance.randrange(10, 24))
        if chance.random() < 0.6:
            words.insert(chance.randrange(len(words)), chance.choice(_PHRASES))
        if number % 5_000 == 2_500:
            words.append(RARE_NON_ASCII)
        entry: Entry = {
            "id": f"{_base36(ts)}-{''.join(chance.choices(_DIGITS, k=6))}",
            "kind": "episodic",
            "text": " ".join(words),
            "ts": ts,
        }
        if number % 3:
            entry["meta"] = {
                "task": f"task-{chance.randrange(10_000)}",
                "importance": chance.randrange(10),
                "tags": chance.sample(_WORDS, k=2),
            }
        yield entry
        number += 1


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits.rjust(8, "0")

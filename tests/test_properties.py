"""Random sequences of all verbs, compared with a model that is small enough to be obviously right."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import Host, judge

from gotong_memfile import (
    DuplicateIdError,
    MemoryEntry,
    MemoryFileHandle,
    MemoryFilePlugin,
    ServiceInitCtx,
    fileio,
    open_memory,
)
from gotong_memfile.codec import decode_line, encode_entry
from gotong_memfile.errors import InvalidEntryError

KINDS = ("episodic", "semantic", "working")

letters = st.text(st.characters(exclude_categories=[]), min_size=1, max_size=12)
words = st.sampled_from(
    ["Straße", "STRASSE", "ﬁne", "FINE", "İstanbul", "ΟΔΟΣ", "οδος", '"q"', "a\\nb", "\n", "/", "\\u0041"]
)
texts = st.one_of(words, letters, st.lists(words, min_size=1, max_size=4).map(" ".join))
metas = st.none() | st.dictionaries(
    letters,
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | letters,
    max_size=3,
)
kinds = st.sampled_from(KINDS)
own_ids = st.none() | st.sampled_from(["one", "two", 'thr"ee/\n', "четыре", "\ud83d"])
which = st.integers(0, 40)

operations = st.one_of(
    st.tuples(st.just("remember"), texts, kinds, metas, own_ids),
    st.tuples(st.just("remember_many"), st.lists(st.tuples(texts, kinds, metas, own_ids), max_size=5)),
    st.tuples(st.just("forget"), which),
    st.tuples(st.just("forget_many"), st.lists(which, max_size=4)),
    st.tuples(st.just("patch_meta"), which, st.dictionaries(letters, st.integers() | letters, max_size=2)),
    st.tuples(st.just("clear"), st.none() | kinds),
    st.tuples(st.just("compact"), st.none() | kinds),
    st.tuples(
        st.just("recall"), st.none() | texts, st.none() | st.sets(kinds), st.none() | which, st.integers(1, 9)
    ),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("delete_and_restore")),
)


def norm(value: Any) -> Any:
    """A value as JSON text holds it: halves of a character side by side become that character."""
    return json.loads(json.dumps(value))


class Model:
    """What the memory should hold: a list of entries per kind, in file order."""

    def __init__(self, caps: dict[str, int]) -> None:
        self.logs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
        self.caps = caps

    def entries(self) -> list[dict[str, Any]]:
        return [entry for kind in KINDS for entry in self.logs[kind]]

    def clashes(self, drafts: list[tuple[str, str, Any, str | None]]) -> bool:
        seen = {entry["id"]: entry for entry in self.entries()}
        for text, kind, meta, own_id in drafts:
            new = {"text": norm(text), "kind": kind, "meta": norm(meta)}
            if own_id is not None:
                old = seen.setdefault(norm(own_id), new)
                if json.dumps([old["text"], old["kind"], old["meta"]]) != json.dumps(
                    [new["text"], new["kind"], new["meta"]]
                ):
                    return True
        return False

    def add(self, entries: list[MemoryEntry]) -> None:
        known = {entry["id"] for entry in self.entries()}
        for entry in entries:
            if entry.id not in known:
                known.add(entry.id)
                self.logs[entry.kind].append(dict(entry))
        self.keep_caps({entry.kind for entry in entries})

    def keep_caps(self, kinds: Any) -> None:
        for kind in kinds:
            sizes = [len(encode_entry(MemoryEntry(**entry))) for entry in self.logs[kind]]
            while kind in self.caps and sum(sizes) > self.caps[kind] and len(sizes) > 1:
                keep = max(1, len(sizes) // 2)
                sizes, self.logs[kind] = sizes[-keep:], self.logs[kind][-keep:]

    def newest_first(
        self, kinds: Any, wanted: Callable[[dict[str, Any]], bool] = lambda entry: True
    ) -> list[dict[str, Any]]:
        """What each kind has, newest first, and of the newest ones always that of the greater time and id."""
        streams = [
            [entry for entry in reversed(self.logs[kind]) if wanted(entry)] for kind in KINDS if kind in kinds
        ]
        merged = []
        while streams := [stream for stream in streams if stream]:
            best = max(streams, key=lambda stream: (stream[0]["ts"], stream[0]["id"]))
            merged.append(best.pop(0))
        return merged


class Run:
    def __init__(self, root: Path, caps: dict[str, int]) -> None:
        self.root = root
        self.host = Host()
        self.config = {f"max_{kind}_bytes": cap for kind, cap in caps.items()}
        self.model = Model(caps)
        self.plugin = MemoryFilePlugin()
        self.memory = self.open()

    def open(self) -> MemoryFileHandle:
        self.plugin.init(ServiceInitCtx(root_dir=self.root, hub=self.host))
        return self.plugin.attach("agent/a", self.config)

    def pick(self, index: int) -> str:
        entries = self.model.entries()
        return entries[index % len(entries)]["id"] if entries and index < 35 else "unknown"

    def step(self, verb: str, *arguments: Any) -> None:
        getattr(self, verb)(*arguments)
        self.memory.flush()
        assert [dict(entry) for entry in self.memory.scan()] == self.model.newest_first(KINDS)

    def remember(self, text: str, kind: Any, meta: Any, own_id: str | None) -> None:
        if self.model.clashes([(text, kind, meta, own_id)]):
            with pytest.raises(DuplicateIdError):
                self.memory.remember(text, kind=kind, meta=meta, id=own_id)
        else:
            entry = self.memory.remember(text, kind=kind, meta=meta, id=own_id)
            assert (entry.text, entry.kind, entry.meta) == (norm(text), kind, norm(meta))
            self.model.add([entry])

    def remember_many(self, drafts: list[tuple[Any, Any, Any, Any]]) -> None:
        entries = [dict(zip(("text", "kind", "meta", "id"), made, strict=True)) for made in drafts]
        if self.model.clashes(drafts):
            with pytest.raises(DuplicateIdError):
                self.memory.remember_many(entries)
        else:
            self.model.add(self.memory.remember_many(entries))

    def forget(self, index: int) -> None:
        wanted = self.pick(index)
        assert self.memory.forget(wanted) == self.drop({wanted})

    def forget_many(self, indexes: list[int]) -> None:
        wanted = {self.pick(index) for index in indexes}
        assert self.memory.forget_many(wanted) == self.drop(wanted)

    def drop(self, ids: set[str]) -> int:
        before = len(self.model.entries())
        for kind in KINDS:
            self.model.logs[kind] = [entry for entry in self.model.logs[kind] if entry["id"] not in ids]
        return before - len(self.model.entries())

    def patch_meta(self, index: int, patch: dict[str, Any]) -> None:
        wanted = self.pick(index)
        found = [entry for entry in self.model.entries() if entry["id"] == wanted]
        assert self.memory.patch_meta(wanted, patch) == bool(found)
        for entry in found:
            entry["meta"] = {**(entry["meta"] or {}), **norm(patch)}
        if found:
            self.model.keep_caps(KINDS)

    def clear(self, kind: Any) -> None:
        cleared = [one for one in KINDS if kind in {None, one}]
        assert self.memory.clear(kind) == sum(len(self.model.logs[one]) for one in cleared)
        for one in cleared:
            self.model.logs[one] = []

    def compact(self, kind: Any) -> None:
        assert self.memory.compact(kind) == 0, "each write leaves the files within their caps"

    def recall(self, text: str | None, wanted: Any, index: int | None, k: int) -> None:
        entries = self.model.newest_first(KINDS if wanted is None else wanted)
        since = entries[index % len(entries)]["ts"] if entries and index is not None else None
        folded = (norm(text) or "").casefold()
        expected = self.model.newest_first(
            KINDS if wanted is None else wanted,
            lambda entry: folded in entry["text"].casefold() and (since is None or entry["ts"] >= since),
        )
        assert [
            dict(entry) for entry in self.memory.recall(text, kinds=wanted, since=since, k=k)
        ] == expected[:k]
        for entry in entries[:1]:
            assert dict(self.memory.get(entry["id"]) or {}) == entry

    def reopen(self) -> None:
        self.plugin.shutdown()
        self.memory = self.open()

    def delete_and_restore(self) -> None:
        self.plugin.restore(self.plugin.soft_delete("agent/a"))


def run(steps: list[tuple[Any, ...]], caps: dict[str, int]) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        # What fsync does cannot be seen from here, and it is nine tenths of the time.
        patch.setattr(fileio.os, "fsync", lambda descriptor: None)
        patch.setattr("gotong_memfile.store._A_MOMENT", 0)
        tried = Run(Path(directory) / "memory", caps)
        try:
            for verb, *arguments in steps:
                tried.step(verb, *arguments)
            on_disk = {kind: judge(tried.root / "agent" / "a" / f"{kind}.jsonl") for kind in KINDS}
            in_model = {
                kind: [
                    {k: v for k, v in entry.items() if (k, v) != ("meta", None)}
                    for entry in tried.model.logs[kind]
                ]
                for kind in KINDS
            }
            assert on_disk == in_model
        finally:
            tried.plugin.shutdown()


caps_of = st.fixed_dictionaries(
    {}, optional={kind: st.integers(100, 900) for kind in ("episodic", "semantic")}
)
quietly = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=2_000, **quietly)
@given(st.lists(operations, min_size=1, max_size=12), caps_of)
@pytest.mark.timeout(170)
def test_random_sequences_of_all_verbs_do_what_the_model_does(steps: list[Any], caps: dict[str, int]) -> None:
    """From the contract, DESIGN §3: every verb, caps, reopening, deleting and restoring in between."""
    run(steps, caps)


@pytest.mark.stress
@pytest.mark.timeout(900)
@settings(max_examples=3_000, **quietly)
@given(st.lists(operations, min_size=10, max_size=40), caps_of)
def test_long_random_sequences_do_what_the_model_does(steps: list[Any], caps: dict[str, int]) -> None:
    run(steps, caps)


stamps = st.one_of(
    st.integers(0, 5),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.just(0.5),
)
foreign_lines = st.lists(
    st.tuples(texts, stamps, st.booleans(), st.sampled_from(["", "\r", " "]), st.integers(0, 9)), max_size=30
)


@settings(max_examples=600, **quietly)
@given(
    foreign_lines,
    st.none() | texts,
    st.none() | stamps,
    st.integers(1, 30),
    st.sampled_from([40, 300, 65_536]),
)
def test_files_of_other_writers_in_any_order_are_read_as_the_model_reads_them(
    lines: list[Any], needle: str | None, since: float | None, k: int, block: int
) -> None:
    """Times out of order, equal, huge, negative, floats; escapes; carriage returns; damage; every zone size."""
    entries, data = [], b""
    for n, (text, ts, ascii_only, ending, damage) in enumerate(lines):
        entry = {"id": str(n), "kind": "working", "text": norm(text), "ts": ts, "extra": {"text": "needle"}}
        encoded = (
            json.dumps(entry, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass") + ending.encode()
        )
        try:
            encoded.decode()
        except UnicodeDecodeError:
            damage = 0  # a raw half of a character is no UTF-8
        if damage == 0:
            encoded = encoded[:-5] if encoded.endswith(b"}") else b"{" + encoded
        else:
            entries.append({"text": norm(text), "ts": ts, "id": str(n)})
        data += encoded + b"\n"
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr("gotong_memfile.log.BLOCK_BYTES", block)
        patch.setattr("gotong_memfile.ordering._LARGEST_BATCH", 8)
        tried = Run(Path(directory) / "memory", {})
        try:
            log = tried.root / "agent" / "a" / "working.jsonl"
            log.parent.mkdir(parents=True)
            log.write_bytes(data)
            ordered = sorted(entries, key=lambda entry: (entry["ts"], int(entry["id"])), reverse=True)
            assert [entry.id for entry in tried.memory.scan()] == [entry["id"] for entry in ordered]
            oldest_first = list(tried.memory.scan(newest_first=False))
            assert [entry.id for entry in oldest_first] == [entry["id"] for entry in reversed(ordered)]
            folded = (norm(needle) or "").casefold()
            expected = [
                entry["id"]
                for entry in ordered
                if folded in entry["text"].casefold() and (since is None or entry["ts"] >= since)
            ]
            assert [entry.id for entry in tried.memory.recall(needle, since=since, k=k)] == expected[:k]
            assert tried.memory.stats().entries == len(entries)
            assert tried.memory.stats().corrupt == len(lines) - len(entries)
            assert log.read_bytes() == data
        finally:
            tried.plugin.shutdown()


@settings(**quietly)
@given(texts, metas, st.none() | texts, st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_what_is_encoded_is_decoded_and_is_json_for_anyone(
    text: str, meta: Any, own_id: str | None, ts: float
) -> None:
    entry = MemoryEntry(id=own_id or "x", kind="semantic", text=text, ts=ts, meta=meta)
    line = encode_entry(entry)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    raw = decode_line(line, "semantic")
    assert raw is not None
    assert dict(raw.model()) == norm(dict(entry))
    assert norm(json.loads(line)) == {
        key: value for key, value in norm(dict(entry)).items() if (key, value) != ("meta", None)
    }
    assert encode_entry(raw.model()) == line


@settings(**quietly)
@given(st.binary(max_size=80) | texts.map(lambda text: text.encode("utf-8", "replace")))
def test_no_bytes_whatever_make_the_reader_raise(line: bytes) -> None:
    assert decode_line(line, "working") is None


@settings(max_examples=300, **quietly)
@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 9)), min_size=1, max_size=40),
    st.integers(1, 9_000),
    st.sampled_from([80, 700, 65_536]),
)
def test_compaction_halves_by_lines_until_the_rest_fits(
    lines: list[tuple[int, int]], cap: int, block: int
) -> None:
    """Damage and blank lines between, and any size of zones, change nothing of what stays."""
    entries, data = [], b""
    for n, (size, damage) in enumerate(lines):
        entry = encode_entry(MemoryEntry(id=str(n), kind="episodic", text="x" * size, ts=n))
        entries.append(entry)
        data += entry + {0: b"{torn\n", 1: b"\n", 2: b"\r\n"}.get(damage, b"")
    kept = entries
    while sum(map(len, kept)) > cap and len(kept) > 1:
        kept = kept[-max(1, len(kept) // 2) :]
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr("gotong_memfile.log.BLOCK_BYTES", block)
        log = Path(directory) / "agent" / "a" / "episodic.jsonl"
        log.parent.mkdir(parents=True)
        log.write_bytes(data)
        with open_memory(directory, "agent/a", max_episodic_bytes=cap) as memory:
            assert memory.compact() == len(entries) - len(kept)
            assert [encode_entry(one) for one in memory.scan(newest_first=False)] == kept
            assert memory.stats().corrupt == sum(damage == 0 for _, damage in lines)


@settings(**quietly)
@given(st.integers(0, 10**10))
def test_since_as_timedelta_is_since_as_ms(back: int) -> None:
    from gotong_memfile import MemoryQuery

    assert MemoryQuery(since=timedelta(milliseconds=back)).since_ms(lambda: 10**13) == 10**13 - back


def test_the_model_notices_what_a_toy_would_do_wrong() -> None:
    """The judge must be able to say no: a memory that loses an entry fails the comparison."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gotong_memfile.store.OwnerStore.erase", lambda *arguments: 0)
        with pytest.raises(AssertionError):
            run([("remember", "x", "working", None, None), ("forget", 0)], {})
    with pytest.raises(InvalidEntryError):
        run([("remember", "", "working", None, None)], {})

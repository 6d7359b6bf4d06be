"""Owners, entries, queries, reports: what callers put in and get back."""

from __future__ import annotations

import json
import pickle
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gotong_memfile import (
    EntryList,
    InvalidOwnerError,
    InvalidScopeError,
    MemoryEntry,
    MemoryFileConfig,
    MemoryQuery,
    NewMemoryEntry,
    Owner,
    TrashRef,
    resolve_owner,
)


def entry(**fields: Any) -> MemoryEntry:
    return MemoryEntry(**{"id": "a", "kind": "working", "text": "x", "ts": 5, **fields})


class TestOwner:
    def test_str_and_parse_go_round_for_any_id(self) -> None:
        for owner_id in ("writer", "a/b", "", "中文", "a:b", "\0"):
            owner = Owner(kind="workflow-run", id=owner_id)
            assert Owner.parse(str(owner)) == owner
            assert hash(Owner.parse(str(owner))) == hash(owner)

    @pytest.mark.parametrize("bad", ["writer", "robot/x", "", "/", 5])
    def test_what_names_no_owner_is_refused(self, bad: Any) -> None:
        with pytest.raises(InvalidOwnerError):
            Owner.of(bad)

    @pytest.mark.parametrize(
        ("scope", "expected"),
        [
            ("private", "agent/writer"),
            ("workflow", "workflow-run/run-1"),
            ("org", "org/self"),
            ("shared:team", "shared/team"),
            ("user:u-7", "user/u-7"),
            ("peer:other:hub", "peer/other:hub"),
        ],
    )
    def test_a_scope_means_an_owner(self, scope: str, expected: str) -> None:
        assert str(resolve_owner(scope, agent_id="writer", run_id="run-1")) == expected

    @pytest.mark.parametrize(
        ("scope", "said"),
        [
            ("private", "scope 'private' needs agent_id"),
            ("workflow", "scope 'workflow' needs run_id"),
            ("shared:", "scope 'shared:' needs an id after the colon"),
            ("shared", "scope 'shared' is unknown; use private"),
            ("agent:x", "unknown"),
            ("", "unknown"),
        ],
    )
    def test_a_scope_that_means_none_says_what_is_missing(self, scope: str, said: str) -> None:
        with pytest.raises(InvalidScopeError, match=said):
            resolve_owner(scope)

    @pytest.mark.parametrize("scope", [None, 5])
    def test_a_scope_that_is_no_string_is_unknown(self, scope: Any) -> None:
        with pytest.raises(InvalidScopeError, match="unknown"):
            resolve_owner(scope)


class TestEntry:
    def test_it_is_frozen_and_equal_by_value(self) -> None:
        with pytest.raises(ValidationError):
            entry().text = "y"  # type: ignore[misc]
        assert entry(meta={"a": 1}) == entry(meta={"a": 1}) != entry(meta={"a": 2})
        assert len({entry(meta={"a": 1}), entry(meta={"a": 1}), entry(id="b")}) == 2

    @pytest.mark.parametrize(
        "bad", [{"ts": True}, {"ts": "5"}, {"ts": float("nan")}, {"text": 5}, {"kind": "x"}, {"more": 1}]
    )
    def test_it_takes_no_other_types_and_no_other_keys(self, bad: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            entry(**bad)

    @pytest.mark.parametrize(
        ("ts", "expected"),
        [
            (0, "1970-01-01T00:00:00+00:00"),
            (1_764_500_018_123, "2025-11-30T10:53:38.123000+00:00"),
            (-1.5, "1969-12-31T23:59:59.998500+00:00"),
            (10**40, "9999-12-31T23:59:59.999999+00:00"),
            (-(10**40), "0001-01-01T00:00:00+00:00"),
            (1e300, "9999-12-31T23:59:59.999999+00:00"),
        ],
    )
    def test_when_is_an_aware_datetime_whatever_the_time(self, ts: float, expected: str) -> None:
        assert entry(ts=ts).when.isoformat() == expected

    def test_as_json_half_a_character_is_u_fffd_and_nothing_raises(self) -> None:
        cut = entry(id="\ud83d", text="cut \ud83d", meta={"k\ude00": ["\ud83d", {"x": 1}]})
        expected = {
            "id": "\ufffd",
            "kind": "working",
            "text": "cut \ufffd",
            "ts": 5,
            "meta": {"k\ufffd": ["\ufffd", {"x": 1}]},
        }
        assert json.loads(cut.model_dump_json()) == cut.model_dump(mode="json") == expected
        assert cut.model_dump()["text"] == "cut \ud83d", "in Python it stays verbatim"
        for shown in (repr(cut), str(cut), repr(EntryList([cut]))):
            shown.encode()

    @given(
        st.text(),
        st.integers() | st.floats(allow_nan=False, allow_infinity=False),
        st.none() | st.just({"a": [1]}),
    )
    def test_one_that_is_trusted_cannot_be_told_from_one_that_was_checked(
        self, text: str, ts: float, meta: Any
    ) -> None:
        checked = MemoryEntry(id="a", kind="working", text=text, ts=ts, meta=meta)
        trusted = MemoryEntry.trusted("a", "working", text, ts, meta)
        assert trusted == checked
        assert hash(trusted) == hash(checked)
        assert repr(trusted) == repr(checked)
        assert vars(pickle.loads(pickle.dumps(trusted))) == vars(pickle.loads(pickle.dumps(checked)))
        assert trusted.model_dump() == checked.model_dump()
        assert trusted.model_dump_json() == checked.model_dump_json()
        assert trusted.model_dump(exclude_unset=True) == checked.model_dump(exclude_unset=True)
        assert vars(trusted) == vars(checked)
        assert trusted.model_fields_set == checked.model_fields_set
        assert trusted.model_copy(update={"text": "y"}).text == "y"
        assert trusted.model_extra is checked.model_extra is None
        with pytest.raises(ValidationError, match="frozen"):
            trusted.text = "z"  # type: ignore[misc]

    def test_entries_go_through_pickle(self) -> None:
        entries = EntryList([entry(meta={"a": [1]})])
        assert pickle.loads(pickle.dumps(entries)) == entries


class TestEntryList:
    def test_it_is_a_list_and_prints_one_line_per_entry(self) -> None:
        entries = EntryList([entry(text="two\nlines \x1b[31m"), entry(text="long " * 100, ts=10**40)])
        assert isinstance(entries, list)
        assert entries == [entries[0], entries[1]]
        first, second, third = repr(entries).splitlines()
        assert first == "EntryList of 2:"
        assert second == "  1970-01-01 00:00:00Z  working   two lines \\x1b[31m"
        assert third.startswith("  9999-12-31 23:59:59Z")
        assert third.endswith("…")
        assert repr(EntryList()) == "EntryList of 0"


class TestQuery:
    def test_since_can_be_given_in_three_ways(self) -> None:
        moment = datetime(2025, 11, 30, 10, 53, 38, 5_000, tzinfo=timezone(timedelta(hours=8)))
        ms = int(moment.timestamp() * 1000)
        assert MemoryQuery(since=moment).since_ms(lambda: 0) == ms
        assert MemoryQuery(since=timedelta(seconds=1)).since_ms(lambda: ms) == ms - 1_000
        assert MemoryQuery(since=ms).since_ms(lambda: 0) == ms
        assert MemoryQuery().since_ms(lambda: 0) is None

    def test_kinds_may_be_any_collection_or_one(self) -> None:
        for kinds in (
            ["semantic"],
            ("semantic",),
            {"semantic"},
            "semantic",
            {"semantic": 1}.keys(),
            iter(["semantic"]),
        ):
            assert MemoryQuery(kinds=kinds).kinds == ("semantic",)  # type: ignore[arg-type]
        assert MemoryQuery(kinds=[]).kinds == ()  # type: ignore[arg-type]


REF = {
    "id": "0" * 16, "type": "memory", "impl": "file", "ownerKind": "agent", "ownerId": "x",
    "deletedAt": 5, "expiresAt": 10,
}  # fmt: skip


class TestReports:
    def test_a_trash_reference_is_camel_case_in_json_and_snake_case_in_python(self) -> None:
        ref = TrashRef.model_validate({**REF, "addedLater": True})
        assert (ref.owner_kind, ref.owner_id, ref.deleted_at, ref.reason) == ("agent", "x", 5, None)
        assert json.loads(ref.model_dump_json(exclude_none=True)) == REF
        assert TrashRef(**dict(ref)) == ref

    def test_half_a_character_in_a_report_does_not_raise(self) -> None:
        ref = TrashRef.model_validate({**REF, "reason": "cut \ud83d"})
        assert json.loads(ref.model_dump_json())["reason"] == "cut \ufffd"
        assert json.loads(Owner(kind="agent", id="\ud83d").model_dump_json())["id"] == "\ufffd"

    def test_it_expires_at_its_time(self) -> None:
        ref = TrashRef.model_validate(REF)
        assert [ref.is_expired(now) for now in (9, 10, 11)] == [False, True, True]

    def test_a_config_takes_both_spellings_and_writes_the_one_of_yaml(self) -> None:
        config = MemoryFileConfig(kinds=("semantic",), max_semantic_bytes=5)
        assert json.loads(config.model_dump_json(exclude_none=True)) == {
            "kinds": ["semantic"],
            "maxSemanticBytes": 5,
        }
        assert MemoryFileConfig.parse(config.model_dump(exclude_none=True)) == config
        assert MemoryFileConfig.parse(config) is config

    def test_a_new_entry_has_the_defaults_of_remember(self) -> None:
        assert dict(NewMemoryEntry(text="x")) == {"text": "x", "kind": "episodic", "meta": None, "id": None}

"""What callers put in and get back: owners, entries, queries and lists of entries.

All models are frozen and strict. Strings may hold halves of a character (lone surrogates): a JavaScript
host cuts emoji in half, and what it stored must come back verbatim. Only what leaves Python as JSON text
shows U+FFFD in their place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any, Final, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    PlainSerializer,
    StrictFloat,
    StrictInt,
    ValidationError,
    field_serializer,
)

from gotong_memfile.errors import InvalidOwnerError, InvalidQueryError, InvalidScopeError
from gotong_memfile.layout import OWNER_KINDS, MemoryKind, OwnerKind

Json = dict[str, Any]
"""A JSON object as Python holds it."""

Timestamp = Annotated[StrictInt | StrictFloat, Field(allow_inf_nan=False)]
"""Epoch milliseconds, as JSON has them: an integer or a float."""

RECALL_DEFAULT: Final = 20
RECALL_MAX: Final = 200
LIST_DEFAULT: Final = 100
LIST_MAX: Final = 500

_set_fields: Final = BaseModel.__dict__["__dict__"].__set__
_set_names: Final = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_set_extra: Final = BaseModel.__dict__["__pydantic_extra__"].__set__
_set_private: Final = BaseModel.__dict__["__pydantic_private__"].__set__
_new: Final = object.__new__
_FIRST_MOMENT: Final = datetime.min.replace(tzinfo=timezone.utc)
_LAST_MOMENT: Final = datetime.max.replace(tzinfo=timezone.utc)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def printable(value: Any) -> Any:
    """`value` (a JSON value) with U+FFFD for each half of a character, which UTF-8 cannot hold.

    >>> printable({"cut \\ud83d": ["\\ude00", 1]})
    {'cut �': ['�', 1]}
    """
    if isinstance(value, str):
        return _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {printable(key): printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [printable(item) for item in value]
    return value


AnyStr = Annotated[InstanceOf[str], PlainSerializer(printable, return_type=str, when_used="json")]
"""Any `str`, lone surrogates included, which pydantic's own string type refuses."""


class Frozen(BaseModel):
    """Base of the models: frozen, strict, and no key that it does not know."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Owner(Frozen):
    """Whose memory it is. Any id can be named and printed; whether it may be a folder shows at attach.

    >>> owner = Owner.parse("agent/writer")
    >>> owner.kind, owner.id, str(owner)
    ('agent', 'writer', 'agent/writer')
    """

    kind: OwnerKind
    id: AnyStr

    @classmethod
    def parse(cls, text: str) -> Owner:
        """The owner that `str()` shows as `text`: `<kind>/<id>`. Raises `InvalidOwnerError`."""
        kind, slash, owner_id = text.partition("/")
        if not slash or kind not in OWNER_KINDS:
            raise InvalidOwnerError(
                f"owner {text!r} is not <kind>/<id> with one of the kinds {', '.join(OWNER_KINDS)}; "
                "for example agent/writer"
            )
        return cls(kind=kind, id=owner_id)

    @classmethod
    def of(cls, owner: Owner | str) -> Owner:
        """`owner` itself, or the owner that the string names. Raises `InvalidOwnerError`."""
        if isinstance(owner, cls):
            return owner
        if isinstance(owner, str):
            return cls.parse(owner)
        raise InvalidOwnerError(f"owner must be an Owner or a string such as agent/writer, not {owner!r}")

    def __str__(self) -> str:
        return f"{self.kind}/{self.id}"


def resolve_owner(scope: str = "private", *, agent_id: str | None = None, run_id: str | None = None) -> Owner:
    """The owner that a `scope` of a `uses:` entry means for this agent and run.

    `private` needs `agent_id`, `workflow` needs `run_id`. Raises `InvalidScopeError`.

    >>> str(resolve_owner("private", agent_id="writer")), str(resolve_owner("user:u-7"))
    ('agent/writer', 'user/u-7')
    >>> str(resolve_owner("workflow", run_id="run-1")), str(resolve_owner("org"))
    ('workflow-run/run-1', 'org/self')
    """
    needed: dict[str, tuple[OwnerKind, str, str | None]] = {
        "private": ("agent", "agent_id", agent_id),
        "workflow": ("workflow-run", "run_id", run_id),
    }
    if scope in needed:
        kind, argument, owner_id = needed[scope]
        if not owner_id:
            raise InvalidScopeError(f"scope {scope!r} needs {argument}")
        return Owner(kind=kind, id=owner_id)
    if scope == "org":
        return Owner(kind="org", id="self")
    prefix, colon, owner_id = scope.partition(":") if isinstance(scope, str) else ("", "", "")
    if colon and prefix in {"shared", "user", "peer"}:
        if not owner_id:
            raise InvalidScopeError(f"scope {scope!r} needs an id after the colon")
        return Owner.parse(f"{prefix}/{owner_id}")
    raise InvalidScopeError(
        f"scope {scope!r} is unknown; use private, workflow, org, shared:<group>, user:<id> or peer:<id>"
    )


class MemoryEntry(Frozen):
    """One remembered thing, as the file holds it.

    `ts` is epoch milliseconds (an int, or a float where another writer wrote one); `meta` is a JSON object
    or None. Entries are equal when all fields are.

    >>> entry = MemoryEntry(id="a", kind="semantic", text="lives in KL", ts=1764500018000)
    >>> entry.when.isoformat()
    '2025-11-30T10:53:38+00:00'
    """

    id: AnyStr
    kind: MemoryKind
    text: AnyStr
    ts: Timestamp
    meta: InstanceOf[Json] | None = None

    @property
    def when(self) -> datetime:
        """`ts` as an aware UTC datetime; times that datetime cannot hold give its first or last moment."""
        try:
            return _EPOCH + timedelta(milliseconds=self.ts)
        except OverflowError:
            return _LAST_MOMENT if self.ts > 0 else _FIRST_MOMENT

    @classmethod
    def trusted(
        cls, id: str, kind: MemoryKind, text: str, ts: float, meta: dict[str, Any] | None
    ) -> MemoryEntry:
        """The entry of values that were checked before, at a sixth of the cost of checking them again.

        For the library's own use: it skips every check. The result cannot be told from one that was checked.
        """
        entry = _new(cls)
        _set_fields(entry, {"id": id, "kind": kind, "text": text, "ts": ts, "meta": meta})
        _set_names(entry, {"id", "kind", "text", "ts", "meta"})
        _set_extra(entry, None)
        _set_private(entry, None)
        return entry

    def __hash__(self) -> int:
        return hash((self.id, self.ts))

    @field_serializer("meta", when_used="json")
    def _meta_to_json(self, value: Any) -> Any:
        return printable(value)


class NewMemoryEntry(Frozen):
    """An entry to be remembered: what `remember` takes, as one value for `remember_many`."""

    text: AnyStr
    kind: MemoryKind = "episodic"
    meta: InstanceOf[Json] | None = None
    id: AnyStr | None = None


def _clamp(low: int, high: int) -> Callable[[Any], Any]:
    def clamp(value: Any) -> Any:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return min(max(value, low), high) if whole else value

    return clamp


def _aware(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is None:
        raise ValueError(
            "a datetime without time zone is ambiguous; pass an aware one, such as datetime.now(timezone.utc)"
        )
    return value


def _known_kinds(value: Any) -> Any:
    if isinstance(value, str):
        value = (value,)
    return tuple(value) if isinstance(value, Iterable) else value


class MemoryQuery(Frozen):
    """The arguments of `recall`, checked: which entries are wanted.

    `text` is looked for in `entry.text` by full Unicode case folding; `kinds` (None: all) is narrowed to
    the configured ones; `since` is epoch ms, an aware datetime, or a timedelta back from now, inclusive;
    `k`, how many at most, is clamped to 1..200.
    """

    text: AnyStr | None = None
    kinds: Annotated[tuple[MemoryKind, ...] | None, BeforeValidator(_known_kinds)] = None
    since: Annotated[Timestamp | datetime | timedelta | None, BeforeValidator(_aware)] = None
    k: Annotated[int, BeforeValidator(_clamp(1, RECALL_MAX))] = RECALL_DEFAULT

    def since_ms(self, now: Callable[[], int]) -> int | float | None:
        """`since` as epoch ms; `now` gives the present, as epoch ms, where that is needed."""
        if isinstance(self.since, datetime):
            return (self.since - _EPOCH) / timedelta(milliseconds=1)
        if isinstance(self.since, timedelta):
            return now() - self.since / timedelta(milliseconds=1)
        return self.since


class ListQuery(Frozen):
    """The arguments of `list`, checked; `limit` is clamped to 1..500."""

    kind: MemoryKind | None = None
    limit: Annotated[int, BeforeValidator(_clamp(1, LIST_MAX))] = LIST_DEFAULT


class EntryList(list[MemoryEntry]):
    """A list of entries, newest first, that prints as one line per entry.

    >>> EntryList([MemoryEntry(id="a", kind="semantic", text="lives in KL", ts=1764500018000)])
    EntryList of 1:
      2025-11-30 10:53:38Z  semantic  lives in KL
    """

    def __repr__(self) -> str:
        if not self:
            return "EntryList of 0"
        lines = [f"EntryList of {len(self)}:"]
        for entry in self:
            when = f"{entry.when:%Y-%m-%d %H:%M:%S}Z"
            text = " ".join(printable(entry.text).split())
            text = text if len(text) <= 100 else text[:99] + "…"
            readable = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
            lines.append(f"  {when}  {entry.kind:<8}  {readable}")
        return "\n".join(lines)


def described(error: ValidationError) -> str:
    """The first complaint of pydantic in one line: where, what, and what was given."""
    first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(
        str(part) for part in first["loc"] if not str(part).startswith(("function-", "is-instance"))
    )
    given = repr(first.get("input"))
    given = given if len(given) <= 80 else given[:77] + "..."
    message = first["msg"].removeprefix("Value error, ")
    return f"{where or 'value'}: {message[:1].lower()}{message[1:]} (got {given})"


_Query = TypeVar("_Query", bound=BaseModel)


def checked_query(model: type[_Query], **arguments: Any) -> _Query:
    """The query of these arguments. Raises `InvalidQueryError`, which names the one that is wrong."""
    try:
        return model(**arguments)
    except ValidationError as error:
        raise InvalidQueryError(described(error)) from error

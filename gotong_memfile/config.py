"""What an owner's `config:` block may say, and how the store behaves: one is yaml, the other is Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, StrictInt, ValidationError
from pydantic.alias_generators import to_camel

from gotong_memfile.errors import InvalidConfigError
from gotong_memfile.layout import MEMORY_KINDS, MemoryKind
from gotong_memfile.models import Frozen, described

Durability = Literal["process", "power"]
"""What an acknowledged entry survives: the death of the process, or also the loss of power."""

_Cap = Annotated[StrictInt, Field(gt=0)] | None


def _kind_list(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _without_duplicates(kinds: tuple[MemoryKind, ...]) -> tuple[MemoryKind, ...]:
    if not kinds:
        raise ValueError(f"at least one of {', '.join(MEMORY_KINDS)} is needed")
    return tuple(dict.fromkeys(kinds))


class MemoryFileConfig(Frozen):
    """The `config:` block of a memory, the same for the TypeScript side: which kinds, and byte caps.

    Both the yaml's camelCase and Python's snake_case names are taken. `scope` is let through: it has been
    dealt with before.

    >>> MemoryFileConfig.parse({"kinds": ["semantic"], "maxSemanticBytes": 65536}).max_semantic_bytes
    65536
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, serialize_by_alias=True)

    kinds: Annotated[
        tuple[MemoryKind, ...], BeforeValidator(_kind_list), AfterValidator(_without_duplicates)
    ] = MEMORY_KINDS
    max_episodic_bytes: _Cap = None
    max_semantic_bytes: _Cap = None
    scope: Any = Field(default=None, exclude=True, repr=False)

    @classmethod
    def parse(cls, raw: MemoryFileConfig | Mapping[str, Any] | None) -> MemoryFileConfig:
        """The config that `raw` means; None and an empty mapping mean all kinds and no caps.

        Raises `InvalidConfigError`, which names the key.
        """
        if isinstance(raw, cls):
            return raw
        if raw is None:
            return cls()
        if not isinstance(raw, Mapping):
            raise InvalidConfigError(f"memory config must be a mapping, not {type(raw).__name__}")
        known = [to_camel(name) for name in cls.model_fields]
        for key in raw:
            if key not in cls.model_fields and key not in known:
                raise InvalidConfigError(f"memory config has no key {key!r}{_suggestion(key, known)}")
        try:
            return cls.model_validate({key: value for key, value in raw.items() if key != "scope"})
        except ValidationError as error:
            raise InvalidConfigError(f"memory config: {described(error)}") from error

    def cap(self, kind: MemoryKind) -> int | None:
        """The most bytes that the file of `kind` should have, or None. `working` has no cap."""
        return {"episodic": self.max_episodic_bytes, "semantic": self.max_semantic_bytes}.get(kind)


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How a plugin or `open_memory` stores; not part of the yaml, which other implementations share.

    - `durability`: `"process"`: an acknowledged entry survives the death of the process; `"power"`: it is
      on the disk before it is acknowledged.
    - `process_lock`: whether writers of other processes on this host are kept out during a write.
    - `lock_timeout`: how long to wait for such a writer, in seconds.
    - `file_mode`, `directory_mode`: permissions of what is created, whatever the umask; 0o660 and 0o2770
      let a group share the memory.
    - `advisory_lock`: whether to warn when another host has the owner attached, too.
    - `lease_duration`: after how many seconds without a sign of life a host counts as gone; the same on all.
    - `clock`: gives the present as epoch ms; None asks the host.

    Raises `InvalidConfigError` for a value that makes no sense.
    """

    durability: Durability = "process"
    process_lock: bool = True
    lock_timeout: float = 10.0
    file_mode: int = 0o600
    directory_mode: int = 0o700
    advisory_lock: bool = False
    lease_duration: float = 30.0
    clock: Callable[[], int] | None = None

    def __post_init__(self) -> None:
        if self.durability not in get_args(Durability):
            raise InvalidConfigError(f"durability must be 'process' or 'power', not {self.durability!r}")
        for name in ("process_lock", "advisory_lock"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidConfigError(f"{name} must be True or False, not {getattr(self, name)!r}")
        if not _is_number(self.lease_duration) or not 0 < self.lease_duration < float("inf"):
            raise InvalidConfigError(f"lease_duration must be seconds, not {self.lease_duration!r}")
        if not _is_number(self.lock_timeout) or not 0 <= self.lock_timeout < float("inf"):
            raise InvalidConfigError(f"lock_timeout must be seconds, 0 or more, not {self.lock_timeout!r}")
        if not _is_mode(self.file_mode) or self.file_mode & 0o600 != 0o600:
            raise InvalidConfigError(f"file_mode must let its owner read and write, not {self.file_mode!r}")
        if not _is_mode(self.directory_mode) or self.directory_mode & 0o700 != 0o700:
            raise InvalidConfigError(
                f"directory_mode must let its owner read, write and enter, not {self.directory_mode!r}"
            )
        if self.clock is not None and not callable(self.clock):
            raise InvalidConfigError(f"clock must be a function that returns epoch ms, not {self.clock!r}")

    @classmethod
    def names(cls) -> list[str]:
        """The names of the options."""
        return [option.name for option in fields(cls)]

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> StoreOptions:
        """The options of these names. Raises `InvalidConfigError` for a name that is none."""
        for name in options:
            if name not in cls.names():
                raise InvalidConfigError(f"there is no option {name!r}{_suggestion(name, cls.names())}")
        return cls(**options)


def split_settings(settings: Mapping[str, Any]) -> tuple[MemoryFileConfig, StoreOptions]:
    """Config and options out of one mapping of both. Raises `InvalidConfigError`, which names the key."""
    options = {name: value for name, value in settings.items() if name in StoreOptions.names()}
    config = {name: value for name, value in settings.items() if name not in options}
    known = [*MemoryFileConfig.model_fields, *StoreOptions.names()]
    for name in config:
        if name not in known and name not in map(to_camel, MemoryFileConfig.model_fields):
            raise InvalidConfigError(f"there is no setting {name!r}{_suggestion(name, known)}")
    return MemoryFileConfig.parse(config), StoreOptions.parse(options)


def _suggestion(name: object, known: list[str]) -> str:
    """How an error message goes on after a name that is not one of the `known`."""
    close = get_close_matches(str(name), known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; use {', '.join(known)}"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_mode(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 0o7777

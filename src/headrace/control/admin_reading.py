"""How is what somebody asks over the admin port understood? Each mistake becomes an error that names it."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from headrace.core import moments
from headrace.core.errors import ConfigError, InvalidRequest, NotFound
from headrace.stores import agreements
from headrace.stores.database import DatabaseUnavailable

T = TypeVar("T")


def existing(find: Callable[[str], T], name: str) -> T:
    """What has that name. Raises NotFound, in the store's words."""
    try:
        return find(name)
    except DatabaseUnavailable:
        raise  # nobody knows what there is
    except ConfigError as error:
        raise NotFound(error.message) from None


def parted(given: Mapping[str, Any], kind: type[T]) -> tuple[T, dict[str, Any]]:
    """The fields of that struct, and all others. Raises ConfigError for a value that one of the first can't hold."""
    mine = {name: value for name, value in given.items() if name in names(kind) and value is not None}
    others = {name: value for name, value in given.items() if name not in names(kind)}
    return agreements.read_strictly(mine, kind), others


def names(kind: type[Any]) -> tuple[str, ...]:
    """Of the struct's fields."""
    return tuple(field.name for field in msgspec.structs.fields(kind))


def moment_s(given: Mapping[str, str], name: str) -> float | None:
    """Unix seconds of a date or time, None where it isn't given."""
    text = given.get(name)
    if not text:
        return None
    try:
        return moments.unix_s(text)
    except ValueError:
        raise InvalidRequest(f"`{name}` is a date or time such as 2026-11-01T12:00Z", param=name) from None


def number(query: Mapping[str, str], name: str, *, least: int, default: int) -> int:
    text = query.get(name, str(default))
    if not text.isascii() or not text.isdecimal() or len(text) > 18 or int(text) < least:
        raise InvalidRequest(f"`{name}` is a whole number, at least {least}", param=name)
    return int(text)


def choice(query: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    """One of those words; "" where it isn't given."""
    text = query.get(name, "")
    if text and text not in known:
        raise InvalidRequest(f"`{name}` is one of {', '.join(known)}", param=name)
    return text

"""Can a configuration be made of what the file says? If not, it's told in the file's own words: the key, and what it takes."""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from headrace.core.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)

_KINDS = {
    "`int`": "a whole number",
    "`float`": "a number",
    "`bool`": "true or false",
    "`str`": "text in quotes",
    "`array`": "a list",
    "`object`": "a table",
    " | null": "",
    "`": "",
}
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_PATTERN = re.compile(r" matching regex .*", re.DOTALL)


def table(content: str, *, file: str) -> dict[str, Any]:
    """The TOML parsed. Raises ConfigError for what is none."""
    try:
        return tomllib.loads(content)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from error


def refuse(problems: Iterable[str], *, file: str) -> None:
    """Raises ConfigError with all of them, where there are any."""
    if found := [f"{file}: {each}" for each in problems]:
        raise ConfigError("\n".join(found))


def convert(raw: dict[str, Any], kind: type[T], *, file: str, forms: Mapping[str, str] | None = None) -> T:
    """The parsed TOML as that struct. Raises ConfigError naming file, key and nearest known key.

    Args:
        forms: What keys take whose text has a form, in words.
    """
    _refuse_unknown_keys(raw, kind, file=file, path="")
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{file}: {_told(error, raw, kind, forms or {})}") from error


def struct_in(annotation: Any) -> type[msgspec.Struct] | None:
    """The struct that a key of that type holds: itself, or none, or a list of it."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    return next((found for inner in get_args(annotation) if (found := struct_in(inner)) is not None), None)


def _has_any_key(annotation: Any) -> bool:
    """A table whose keys are the file's to choose."""
    return get_origin(annotation) is dict or any(_has_any_key(inner) for inner in get_args(annotation))


def _refuse_unknown_keys(raw: dict[str, Any], kind: type[msgspec.Struct], *, file: str, path: str) -> None:
    known = {f.encode_name: f.type for f in msgspec.structs.fields(kind)}
    for key, value in raw.items():
        where = f"{path}{key}"
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean `{path}{near[0]}`?" if near else f"accepted: {', '.join(known)}"
            raise ConfigError(f"{file}: unknown key `{where}`; {hint}")
        inner = struct_in(known[key])
        if inner is None:
            continue
        if isinstance(value, dict) and _has_any_key(known[key]):
            for name, item in value.items():
                if isinstance(item, dict):
                    _refuse_unknown_keys(item, inner, file=file, path=f"{where}.{name}.")
        elif isinstance(value, dict):
            _refuse_unknown_keys(value, inner, file=file, path=f"{where}.")
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, dict):
                    _refuse_unknown_keys(item, inner, file=file, path=f"{where}[{index}].")


def _told(
    error: msgspec.ValidationError,
    raw: dict[str, Any],
    kind: type[msgspec.Struct],
    forms: Mapping[str, str],
) -> str:
    """What msgspec found wrong, in the words of a TOML file: the key first, then what it takes."""
    found, _, path = str(error).partition(" - at `$")
    key = path.removesuffix("`").lstrip(".")
    if found.startswith("Object missing required field"):
        missing = found.split("`")[1]
        return f"`{key}.{missing}` is required" if key else f"`{missing}` is required"
    annotation, value = _at(key, raw, kind)
    if found.startswith("Invalid enum value"):
        return f"`{key}` must be one of {', '.join(map(repr, _accepted(annotation)))}, got {value!r}"
    if _PATTERN.search(found) is not None:
        form = forms.get(key, "text of another form")
        return f"`{key}` must be {form}, got {value!r}"
    for word, words in _KINDS.items():
        found = found.replace(word, words)
    return f"`{key}`: {found[0].lower()}{found[1:]}"


def _at(key: str, raw: Any, kind: type[msgspec.Struct]) -> tuple[Any, Any]:
    """The type of that key, and what the file says there."""
    annotation: Any = kind
    for name, index in _STEP.findall(key):
        if index:
            raw = raw[int(index)]
            continue
        held = struct_in(annotation)
        assert held is not None, "only structs have keys"
        # Of a table with keys of the file's own the path doesn't say which one it is.
        annotation, raw = get_type_hints(held)[name], raw.get(name)
    return annotation, raw


def _accepted(annotation: Any) -> list[Any]:
    """The values of an enumeration or a Literal, wherever it stands in the type."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [member.value for member in annotation]
    found: list[Any] = []
    for inner in get_args(annotation):
        found += _accepted(inner) if isinstance(inner, type) or get_args(inner) else [inner]
    return found

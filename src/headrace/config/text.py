"""Can a configuration be made of what the file says? If not, it's told in the file's own words: the key, and what it takes."""

import difflib
import re
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from headrace.core.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)
Tables = Mapping[str, type[msgspec.Struct]]

_KINDS = {
    "`int`": "a whole number",
    "`float`": "a number",
    "`bool`": "true or false",
    "`str`": "text in quotes",
    "`array`": "a list",
    "`object`": "a table",
}
_TABLE = re.compile(r"(.+)\[(\d+)\]")


def convert(raw: dict[str, Any], kind: type[T], *, tables: Tables, file: str) -> T:
    """The parsed TOML as that struct. Raises ConfigError naming file, key and nearest known key.

    Args:
        tables: What stands in the file more than once, as `[[...]]`.
    """
    _refuse_unknown_keys(raw, kind, tables=tables, file=file, path="")
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{file}: {_told(error, raw, kind, tables)}") from error


def _refuse_unknown_keys(
    raw: dict[str, Any], kind: type[msgspec.Struct], *, tables: Tables, file: str, path: str
) -> None:
    known = {f.name: f.type for f in msgspec.structs.fields(kind)}
    for key, value in raw.items():
        where = f"{path}{key}"
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean `{path}{near[0]}`?" if near else f"accepted: {', '.join(known)}"
            raise ConfigError(f"{file}: unknown key `{where}`; {hint}")
        inner = known[key]
        if isinstance(value, dict) and isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            _refuse_unknown_keys(value, inner, tables=tables, file=file, path=f"{where}.")
        elif where in tables and isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, dict):
                    _refuse_unknown_keys(
                        item, tables[where], tables=tables, file=file, path=f"{where}[{index}]."
                    )


def _told(
    error: msgspec.ValidationError, raw: dict[str, Any], kind: type[msgspec.Struct], tables: Tables
) -> str:
    """What msgspec found wrong, in the words of a TOML file: the key first, then what it takes."""
    found, _, path = str(error).partition(" - at `$")
    key = path.removesuffix("`").lstrip(".")
    if found.startswith("Object missing required field"):
        return f"`{key}.{found.split('`')[1]}` is required"
    if found.startswith("Invalid enum value"):
        section, value = _where(key, raw, kind, tables)
        accepted = get_args(get_type_hints(section)[key.rpartition(".")[2]])
        return f"`{key}` must be one of {', '.join(map(repr, accepted))}, got {value!r}"
    for word, words in _KINDS.items():
        found = found.replace(word, words)
    return f"`{key}`: {found[0].lower()}{found[1:]}"


def _where(
    key: str, raw: dict[str, Any], kind: type[msgspec.Struct], tables: Tables
) -> tuple[type[msgspec.Struct], Any]:
    """The struct that has that key as a field, and what the file says there."""
    section, _, name = key.rpartition(".")
    said: Any = raw
    for part in section.split("."):
        table = _TABLE.fullmatch(part)
        said = said[part] if table is None else said[table[1]][int(table[2])]
    if (table := _TABLE.fullmatch(section)) is not None:
        return tables[table[1]], said[name]
    held: type[msgspec.Struct] = get_type_hints(kind)[section]
    return held, said[name]

"""How is a price book written down? TOML, one `[[price]]` for each version, every price an exact decimal."""

import difflib
import json
import tomllib
from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Any

from headrace.core.errors import ConfigError
from headrace.core.prices import EVERY_MODEL, EVERY_TENANT, MEASURES, Item, Price
from headrace.stores.prices import Draft

_WORDS = ("model", "tenant", "currency", "valid_from", "withdrawn")
_KEYS = (*_WORDS, *(item.value for item in Item))


def read(text: str, *, file: str) -> list[Draft]:
    """The versions in a file. Raises ConfigError that names the entry and what would be accepted.

    Numbers are read as their digits, never as binary fractions.
    """
    try:
        document = tomllib.loads(text, parse_float=str)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: {error}") from error
    entries = document.pop("price", None)
    if document or not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{file}: a price file holds `[[price]]` tables and nothing else")
    return [
        _draft(entry, where=f"{file}: [[price]] number {number}")
        for number, entry in enumerate(entries, start=1)
    ]


def _draft(entry: dict[str, Any], *, where: str) -> Draft:
    for key in entry:
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(_KEYS)}"
            raise ConfigError(f"{where}: unknown key `{key}`; {hint}")
    stated = {item: _decimal(entry[item.value], f"{where}: {item}") for item in Item if item.value in entry}
    is_withdrawn = entry.get("withdrawn", False)
    if not isinstance(is_withdrawn, bool) or is_withdrawn == bool(stated):
        raise ConfigError(f"{where}: give at least one price, or `withdrawn = true` and none")
    moment = entry.get("valid_from")
    return Draft(
        model=_word(entry, "model", where, default=EVERY_MODEL),
        tenant=_word(entry, "tenant", where, default=EVERY_TENANT),
        currency=_word(entry, "currency", where),
        stated=None if is_withdrawn else stated,
        valid_from_s=None if moment is None else _unix_s(moment, f"{where}: valid_from"),
    )


def _word(entry: dict[str, Any], name: str, where: str, *, default: str | None = None) -> str:
    value = entry.get(name, default)
    if not isinstance(value, str):
        raise ConfigError(f"{where}: `{name}` is missing or is no text")
    return value


def _decimal(value: object, where: str) -> str:
    if isinstance(value, str | int) and not isinstance(value, bool):
        return str(value)
    raise ConfigError(f"{where}: a price is a decimal number, such as 0.15")


def _unix_s(value: object, where: str) -> float:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            value = None
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp()
    raise ConfigError(f"{where}: a date such as 2026-12-01, or a time such as 2026-12-01T12:00:00Z")


def write(prices: Iterable[Price]) -> str:
    """The file that `read` makes the same versions of."""
    return "\n".join(map(_entry, prices))


def _entry(price: Price) -> str:
    lines = ["[[price]]", f"# {price.version}"]
    if price.tenant != EVERY_TENANT:
        lines.append(f"tenant = {_text(price.tenant)}")
    lines.append(f"model = {_text(price.model)}")
    lines.append(f"currency = {_text(price.currency)}")
    lines.append(f"valid_from = {datetime.fromtimestamp(price.valid_from_s, tz=UTC).isoformat()}")
    if price.stated is None:
        lines.append("withdrawn = true")
    for item, text in (price.stated or {}).items():
        lines.append(f'{item.value} = "{text}"  # {MEASURES[item].label}')
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    """A basic string of TOML: what JSON escapes, it escapes alike; our names are printable."""
    return json.dumps(text, ensure_ascii=False)

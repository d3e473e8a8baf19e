"""`headrace tenants show`: what is agreed with one tenant, and how much of it is in use now?"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace import config
from headrace.cli import common, durations, identity, limit_text, status
from headrace.core.errors import HeadraceError
from headrace.core.tenant import RateUnit
from headrace.stores import views
from headrace.stores.keys import KeyRecord
from headrace.stores.tenant_rows import TenantRecord

# In force, these stand in the table of limits.
_IN_TABLE = frozenset({"tokens_per_minute", "tokens_burst", "model_limits"})


@dataclass(frozen=True, slots=True)
class Shown:
    """One tenant as its store and the running service know it.

    Attributes:
        use: The answer of the admin port; None where nothing runs, and then `absent` says so.
        now_s: Unix seconds.
    """

    record: TenantRecord
    keys: list[KeyRecord]
    use: Mapping[str, Any] | None
    absent: str
    now_s: float


def add(actions: Any) -> None:
    """Registers the command in its group."""
    parser = common.command(
        actions,
        "show",
        _show,
        help="show one tenant: its limits and what is left of them, its share, terms and keys",
        example="headrace tenants show acme",
        with_json=True,
    )
    parser.add_argument("name", metavar="NAME", help="as `tenants list` shows it")


def _show(arguments: argparse.Namespace) -> None:
    with identity.store(arguments, must_exist=True) as store:
        record = store.tenant(arguments.name)
        keys = store.keys(record.name)
    use, absent = None, ""
    try:
        _, use = status.fetch(config.data_directory(arguments.data), f"/admin/v1/tenants/{record.name}/use")
    except HeadraceError as error:
        absent = error.message
    shown = Shown(record, keys, use, absent, identity.CLOCK.wall_s())
    if arguments.json:
        now_s = shown.now_s
        common.print_json(
            {
                **views.tenant(record),
                "keys": [views.key(key, now_s=now_s) for key in keys],
                "use": None if use is None else {name: use[name] for name in use if name != "tenant"},
            }
        )
        return
    print("\n\n".join("\n".join(lines) for section in SECTIONS if (lines := section(shown))))


def _agreement(shown: Shown) -> list[str]:
    """What is agreed beyond the limits, each by the name under which it is set."""
    values = shown.record.agreement.values()
    terms = msgspec.to_builtins(shown.record.agreement.terms)  # without what is as it is by default
    lines = [f"tenant {shown.record.name}, created {durations.utc(shown.record.created_s)}"]
    lines += [f"{name.replace('_', ' ')} {values[name]}" for name in ("class", "weight", "reserved_slots")]
    for name in terms.keys() - _IN_TABLE:
        value = terms[name]
        if name == "shadow_models":
            value = limit_text.models_written(value)
        elif name in ("shadow", "shadow_key"):
            value = limit_text.written(value)
        elif isinstance(value, list | tuple):
            value = ", ".join(value)
        elif isinstance(value, bool):
            value = "yes" if value else "no"
        lines.append(f"{name.replace('_', ' ')} {value}")
    return [lines[0], *sorted(lines[1:])]


def _limits(shown: Shown) -> list[str]:
    if shown.use is None:
        return [f"use: unknown, {shown.absent}"]
    rows = [
        (
            each["level"],
            each["name"],
            _of(each["in_progress"], each["limits"]["concurrency_max"]),
            *(_rate(each, unit) for unit in RateUnit),
        )
        for each in shown.use["levels"]
    ]
    return common.table(rows, headings=("limit of", "name", "in progress", "requests left", "tokens left"))


def _rate(level: Mapping[str, Any], unit: RateUnit) -> str:
    view = level[unit.value]
    if view is None:
        return "no limit"
    return f"{view['remaining']} of {view['limit']} ({level['limits'][f'{unit.value}_per_minute']} a minute)"


def _of(count: int, limit: int) -> str:
    return f"{count} of {limit}" if limit else f"{count} (no limit)"


def _budgets(shown: Shown) -> list[str]:
    budgets = [] if shown.use is None else shown.use["budgets"]
    rows = [
        (
            each["quota"],
            each["key_id"] or "-",
            each["limit"],
            "unknown" if each["spent"] is None else each["spent"],
            "unknown" if each["reserved"] is None else each["reserved"],
            "never" if each["resets_s"] is None else durations.utc(each["resets_s"]),
        )
        for each in budgets
    ]
    return (
        common.table(rows, headings=("quota", "key", "limit", "spent", "reserved", "begins anew"))
        if rows
        else []
    )


def _shadow(shown: Shown) -> list[str]:
    shadow = {} if shown.use is None else shown.use["shadow"]
    if not shadow.get("levels"):
        return []
    refused = shadow["refused_last_hour"]
    why = ", ".join(f"{count} {reason}" for reason, count in refused.items())
    return [
        f"shadow limits would have refused {sum(refused.values())} of {shadow['requests_last_hour']} requests"
        f" in the last hour{f' ({why})' if why else ''}"
    ]


def _keys(shown: Shown) -> list[str]:
    rows = [
        (
            key.id,
            key.name or "-",
            key.state(shown.now_s),
            "never" if key.expires_s is None else durations.utc(key.expires_s),
            "never" if key.used_s is None else durations.utc(key.used_s),
        )
        for key in shown.keys
    ]
    return common.table(rows, headings=("key", "name", "state", "expires", "last used"))


SECTIONS: tuple[Callable[[Shown], list[str]], ...] = (_agreement, _limits, _budgets, _shadow, _keys)
"""What is shown, in its order; a section without lines is left out."""

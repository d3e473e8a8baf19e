"""Which keys of the configuration are in force at once when it is read anew, and which wait for a restart? One table.

Keys are as headrace.toml writes them, with dots; what stands in the file more than once, `[[upstreams]]`, is one key here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

Flat = Mapping[str, Any]


class Effect(StrEnum):
    """When a changed key is in force."""

    AT_ONCE = "at once"
    RESTART = "restart"


# By key or by section; the longest name that fits counts. What isn't here waits for a restart: a key that nobody has thought
# of must not be taken for one that is in force.
_EFFECTS: dict[str, Effect] = {
    "server.header_timeout_s": Effect.AT_ONCE,
    "server.idle_timeout_s": Effect.AT_ONCE,
    "server.body_bytes_per_s_min": Effect.AT_ONCE,
    "server.body_bytes_max": Effect.AT_ONCE,
    "server.websocket_origins": Effect.AT_ONCE,
    "server.trusted_proxies": Effect.AT_ONCE,
    "server.drain_s": Effect.AT_ONCE,
    "request": Effect.AT_ONCE,
    "admission": Effect.AT_ONCE,
    "health": Effect.AT_ONCE,
    "idempotency": Effect.AT_ONCE,
    "pressure": Effect.AT_ONCE,
    "tenant_defaults": Effect.AT_ONCE,
    "budgets": Effect.AT_ONCE,
    "media": Effect.AT_ONCE,
    "prefix_cache": Effect.AT_ONCE,
    "upstreams": Effect.AT_ONCE,
}


def effect_of(key: str) -> Effect:
    """When a change of that key is in force, such as of `request.deadline_s` or `upstreams[].slots`."""
    name = key.replace("[]", "")
    while name not in _EFFECTS and "." in name:
        name = name.rpartition(".")[0]
    return _EFFECTS.get(name, Effect.RESTART)


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every key with its value."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{name}."))
        else:
            found[prefix + name] = value
    return found


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a new version of the configuration changes, by key.

    Attributes:
        changed: In force at once.
        restart: Other than what runs, which only a restart ends.
        hidden: Changed in the file, and without effect: a flag, the environment or another key says otherwise.
    """

    changed: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


def compare(*, running: Flat, wanted: Flat, file_before: Flat, file_now: Flat) -> Comparison:
    """What is to be done and said about a configuration that was read anew.

    Args:
        running: What is in force.
        wanted: What the file says now, with environment and flags laid over it.
        file_before, file_now: What the file alone said at the last time, and says now.
    """
    other = [key for key, value in wanted.items() if running[key] != value]
    return Comparison(
        changed=tuple(key for key in other if effect_of(key) is Effect.AT_ONCE),
        restart=tuple(key for key in other if effect_of(key) is Effect.RESTART),
        hidden=tuple(
            key
            for key, value in file_now.items()
            if value != file_before[key] and value != wanted[key] and running[key] == wanted[key]
        ),
    )


class Reloaded(msgspec.Struct, frozen=True):
    """What has become of a reload.

    Attributes:
        version: Of the configuration in force.
        changed: Keys that are other than before.
        restart_required: Keys that only a restart puts in force, those of earlier reloads as well.
        hidden: Keys that were changed in the file and are given otherwise: by a flag, the environment or another key.
        silent: New upstreams that can't be used yet.
        late: Workers that don't go by it yet.
        is_controller_away: It will go by it when it is back; until then servers are watched, and offered, as before.
        is_audited: Whether the audit log has it.
        elapsed_s: From the first look at the file until it was in force everywhere.
    """

    version: int
    changed: tuple[str, ...]
    restart_required: tuple[str, ...]
    hidden: tuple[str, ...]
    silent: list[str]
    late: int
    is_controller_away: bool
    is_audited: bool
    elapsed_s: float


def told(done: Reloaded) -> list[str]:
    """For people: what has become of it, and what is left to do."""
    lines = [f"configuration version {done.version} is in force ({done.elapsed_s:.2f} s)"]
    lines += [f"  {key}: changed" for key in done.changed]
    lines += [f"  {key}: restart required" for key in done.restart_required]
    lines += [
        f"  {key}: changed in the file, and given otherwise by a flag, the environment or another key"
        for key in done.hidden
    ]
    lines += [f"  upstream {name}: no answer yet" for name in done.silent]
    if not (done.changed or done.restart_required or done.hidden):
        lines.append("  nothing has changed")
    if done.late:
        lines.append(f"  {done.late} workers don't go by it yet; see `headrace status`")
    if done.is_controller_away:
        lines.append("  the controller is away: upstreams are as before until it is back")
    if not done.is_audited:
        lines.append("  the database is away: the audit log lacks this reload")
    return lines

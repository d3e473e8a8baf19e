"""What of a configuration that was read anew can be in force, beside what runs already?"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from headrace.config.sections import Config
from headrace.policies import reloading
from headrace.policies.reloading import Comparison, Effect

T = TypeVar("T", bound=msgspec.Struct)


class Asked(NamedTuple):
    """What the operator asks for: `config` is what the `file` says, with environment and flags laid over it."""

    config: Config
    file: Config


def in_force(running: Config, wanted: Config) -> Config:
    """What is wanted, but for what needs a restart: that stays as it runs."""
    return _mixed(running, wanted, "")


def compare(running: Config, wanted: Asked, *, before: Config) -> Comparison:
    """What changes, by key. `before` is what the file said at the last time."""
    return reloading.compare(
        running=_flat(running),
        wanted=_flat(wanted.config),
        file_before=_flat(before),
        file_now=_flat(wanted.file),
    )


def changes(before: Config, after: Config, keys: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    """Old and new value of these keys; secrets are references in both."""
    old, new = _flat(before), _flat(after)
    return {key: (old[key], new[key]) for key in keys}


def _flat(config: Config) -> dict[str, Any]:
    return reloading.flat(msgspec.to_builtins(config))


def _mixed(running: T, wanted: T, prefix: str) -> T:
    kept: dict[str, Any] = {}
    for field in msgspec.structs.fields(wanted):
        key, old, new = prefix + field.name, getattr(running, field.name), getattr(wanted, field.name)
        if isinstance(new, msgspec.Struct):
            kept[field.name] = _mixed(old, new, f"{key}.")
        elif reloading.effect_of(key) is Effect.RESTART:
            kept[field.name] = old
    return msgspec.structs.replace(wanted, **kept)

"""How are limits written on the command line? `tokens_per_minute=20000,concurrency_max=4`, by their public names."""

import argparse
from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.core.tenant import TenantLimits

NONE = "none"
METAVAR = "LIMITS"
NAMES = tuple(field.name for field in msgspec.structs.fields(TenantLimits))


def limits(text: str) -> dict[str, int]:
    """The named limits; no limits for the word `none`. Their ranges are checked with the agreement."""
    if text == NONE:
        return {}
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in NAMES or name in found or not value.isascii() or not value.isdigit():
            raise argparse.ArgumentTypeError(
                f"{part!r}: NAME=NUMBER, separated by commas, with the names {', '.join(NAMES)}; or `{NONE}`"
            )
        found[name] = int(value)
    return found


def model_limits(text: str) -> dict[str, dict[str, int]]:
    """Limits by model, `MODEL:LIMITS` for each, separated by blanks; none for the word `none`."""
    found: dict[str, dict[str, int]] = {}
    for part in [] if text == NONE else text.split():
        # A model's name may have colons, and no limit's name has one.
        before, _, after = part.partition("=")
        model, _, first = before.rpartition(":")
        if not model or model in found:
            raise argparse.ArgumentTypeError(f"{part!r}: MODEL:LIMITS, such as small:tokens_per_minute=20000")
        found[model] = limits(f"{first}={after}")
    return found


def written(given: Mapping[str, Any]) -> str:
    """As it could be typed."""
    return ",".join(f"{name}={value}" for name, value in given.items()) or NONE


def models_written(given: Mapping[str, Mapping[str, Any]]) -> str:
    return " ".join(f"{model}:{written(each)}" for model, each in given.items()) or NONE

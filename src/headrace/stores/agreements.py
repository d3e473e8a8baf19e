"""What may be agreed with a tenant? Its limits, share and terms, read strictly and by one set of names.

A command and the admin API name the same fields; here is the one place where their values are checked.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar

import msgspec

from headrace.core.errors import ConfigError
from headrace.core.tenant import (
    PRIORITIES,
    RESERVED_SLOTS_MAX,
    WEIGHT_MAX,
    TenantLimits,
    TenantShare,
    TenantTerms,
)

_LIMIT_MAX = 1_000_000_000
Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class LimitOverrides:
    """A tenant's own limits on requests; None where the service's default applies. See core.tenant.TenantLimits."""

    requests_per_minute: int | None = None
    requests_burst: int | None = None
    concurrency_max: int | None = None

    def over(self, defaults: TenantLimits) -> TenantLimits:
        """The limits that are in force."""
        per_minute, burst, concurrency = self.requests_per_minute, self.requests_burst, self.concurrency_max
        return TenantLimits(
            requests_per_minute=defaults.requests_per_minute if per_minute is None else per_minute,
            requests_burst=defaults.requests_burst if burst is None else burst,
            concurrency_max=defaults.concurrency_max if concurrency is None else concurrency,
        )


@dataclass(frozen=True, slots=True)
class Agreement:
    """All that is agreed with one tenant."""

    limits: LimitOverrides = LimitOverrides()
    share: TenantShare = field(default_factory=TenantShare)
    terms: TenantTerms = field(default_factory=TenantTerms)

    def limits_over(self, defaults: TenantLimits) -> TenantLimits:
        """The limits that are in force, on requests and on tokens."""
        limits, terms = self.limits.over(defaults), self.terms
        per_minute, burst = terms.tokens_per_minute, terms.tokens_burst
        return msgspec.structs.replace(
            limits,
            tokens_per_minute=defaults.tokens_per_minute if per_minute is None else per_minute,
            tokens_burst=defaults.tokens_burst if burst is None else burst,
        )

    def terms_over(self, shadow: TenantLimits | None) -> TenantTerms:
        """The terms, with the service's limits on trial where the tenant has none of its own."""
        if self.terms.shadow is not None or shadow is None:
            return self.terms
        return msgspec.structs.replace(self.terms, shadow=shadow)

    def values(self) -> dict[str, Any]:
        """Every field under its public name, as JSON values; None for a limit that is the service's default."""
        return {
            **{name: getattr(self.limits, name) for name in LIMIT_FIELDS},
            "class": self.share.priority_max.word,
            **{name: getattr(self.share, name) for name in _SHARE_RANGES},
            **{name: msgspec.to_builtins(getattr(self.terms, name)) for name in TERM_FIELDS},
        }

    def changed(self, given: Mapping[str, object]) -> "Agreement":
        """This agreement with some fields changed, each by its public name; None gives a field back to its default.

        Raises ConfigError for a field that doesn't exist, naming the nearest, and for a value that it can't hold.
        """
        for name in given:
            if name not in FIELDS:
                raise ConfigError(f"no field `{name}`; {nearest(name, FIELDS)}")
        values = {**self.values(), **given}
        for name, (least, most) in {**_LIMIT_RANGES, **_SHARE_RANGES}.items():
            if values[name] is not None:
                check_range(name, values[name], least, most)
        word = TenantShare().priority_max.word if values["class"] is None else values["class"]
        if not isinstance(word, str) or word not in PRIORITIES:
            raise ConfigError(f"`class` must be one of {', '.join(PRIORITIES)}, got {word!r}")
        return Agreement(
            LimitOverrides(**{name: values[name] for name in LIMIT_FIELDS}),
            TenantShare(
                PRIORITIES[word],
                **{name: values[name] for name in _SHARE_RANGES if values[name] is not None},
            ),
            read_strictly(
                {name: values[name] for name in TERM_FIELDS if values[name] is not None}, TenantTerms
            ),
        )


_LIMIT_RANGES: Final = {
    "requests_per_minute": (0, _LIMIT_MAX),
    "requests_burst": (1, _LIMIT_MAX),
    "concurrency_max": (0, _LIMIT_MAX),
}
_SHARE_RANGES: Final = {"weight": (1, WEIGHT_MAX), "reserved_slots": (0, RESERVED_SLOTS_MAX)}
LIMIT_FIELDS: Final = tuple(_LIMIT_RANGES)
TOKEN_FIELDS: Final = ("tokens_per_minute", "tokens_burst")
TERM_FIELDS: Final = tuple(each.name for each in msgspec.structs.fields(TenantTerms))
FIELDS: Final = (*LIMIT_FIELDS, "class", *_SHARE_RANGES, *TERM_FIELDS)
assert len(set(FIELDS)) == len(FIELDS), "a field's public name says which of the three it belongs to"
assert set(_LIMIT_RANGES) == {each.name for each in fields(LimitOverrides)}


def check_range(name: str, value: object, least: int, most: int) -> None:
    """Raises ConfigError unless it is a whole number within both bounds."""
    if type(value) is not int:
        raise ConfigError(f"`{name}` must be a whole number from {least} to {most}, got {value!r}")
    if not least <= value <= most:
        raise ConfigError(f"`{name}` must be from {least} to {most}, got {value}")


def read_strictly(given: Mapping[str, object], kind: type[Kind]) -> Kind:
    """The struct of that kind, each field checked by its type. Raises ConfigError, which names the field."""
    try:
        return msgspec.convert(msgspec.to_builtins(dict(given)), kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        raise ConfigError(
            f"{where.replace('$.', '')}: {what[:1].lower()}{what[1:]}".removeprefix(": ")
        ) from None


def nearest(name: str, known: Sequence[str], *, see: str = "") -> str:
    """Which known name was probably meant, or where they are listed: by the command `see`, else right here."""
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean `{near[0]}`?"
    return f"see `{see}`" if see else f"there are: {', '.join(known)}"


def terms_text(terms: TenantTerms) -> str:
    """The terms as the database holds them."""
    return msgspec.json.encode(terms).decode()


def terms_of(text: str, *, tenant: str) -> TenantTerms:
    """Terms from the database. Raises ConfigError where this version doesn't know one of them."""
    try:
        return msgspec.json.decode(text, type=TenantTerms)
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"tenant `{tenant}` has terms that this version can't read ({error});"
            " upgrade headrace, or correct column `terms` of table `tenant`"
        ) from None

"""What can one API key be narrowed to? Models, endpoints, networks and limits of its own, read strictly.

A command and the admin API name the same fields; here is the one place where their values are checked.
"""

import ipaddress
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from headrace.core.errors import ConfigError
from headrace.core.quotas import Quota, read_quotas
from headrace.core.request import Endpoint
from headrace.core.tenant import Scope, TenantLimits
from headrace.stores import agreements

_LIMIT_MAX = 1_000_000_000
_Word = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_Words = Annotated[tuple[_Word, ...], msgspec.Meta(min_length=1, max_length=100)]
_Limit = Annotated[int, msgspec.Meta(ge=0, le=_LIMIT_MAX)]
_Burst = Annotated[int, msgspec.Meta(ge=1, le=_LIMIT_MAX)]


class KeyTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What was decided about a key when it was made. None doesn't narrow anything.

    Kept as one JSON object, so that a new field is a field with a default here, and a row in the table of cli/keys.py. A
    version that doesn't know a field refuses the key; it never takes a narrow key for a wide one.

    Attributes:
        models: Names of models; they need not exist yet.
        endpoints: Paths of the public port.
        networks: Where calls may come from, as `10.1.2.0/24`.
        user: Which person or program of the tenant's the key is for.
        requests_per_minute, requests_burst, tokens_per_minute, tokens_burst, concurrency_max: Limits of the key alone, beside
            its tenant's; see core.tenant.TenantLimits. 0 and None are no limit, or for a burst its default.
        quotas, budgets: Of the key alone, beside its tenant's; see core.tenant.TenantTerms.
    """

    models: _Words | None = None
    endpoints: _Words | None = None
    networks: _Words | None = None
    user: Annotated[str, msgspec.Meta(max_length=200)] = ""
    requests_per_minute: _Limit | None = None
    requests_burst: _Burst | None = None
    tokens_per_minute: _Limit | None = None
    tokens_burst: _Limit | None = None
    concurrency_max: _Limit | None = None
    quotas: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.all_quotas()

    def all_quotas(self) -> tuple[Quota, ...]:
        """Those of requests, tokens and money."""
        return read_quotas(self.quotas, self.budgets)

    def scope(self) -> Scope:
        networks = None if self.networks is None else tuple(map(ipaddress.ip_network, self.networks))
        return Scope(
            models=None if self.models is None else frozenset(self.models),
            endpoints=None if self.endpoints is None else frozenset(self.endpoints),
            networks=networks,
        )

    def limits(self, defaults: TenantLimits) -> TenantLimits | None:
        """The key's own limits; None where it has none. `defaults` has the burst for a rate that names none."""
        if not (self.requests_per_minute or self.tokens_per_minute or self.concurrency_max):
            return None
        return TenantLimits(
            requests_per_minute=self.requests_per_minute or 0,
            requests_burst=self.requests_burst or defaults.requests_burst,
            concurrency_max=self.concurrency_max or 0,
            tokens_per_minute=self.tokens_per_minute or 0,
            tokens_burst=self.tokens_burst or 0,
        )

    def values(self) -> dict[str, object]:
        """Every field as JSON holds it."""
        return {name: msgspec.to_builtins(getattr(self, name)) for name in FIELDS}


FIELDS: Final = tuple(field.name for field in msgspec.structs.fields(KeyTerms))


def read(given: Mapping[str, object]) -> KeyTerms:
    """Terms out of values by name; None is the default.

    Raises ConfigError for a field that doesn't exist, naming the nearest, and for a value that it can't hold.
    """
    for name in given:
        if name not in FIELDS:
            raise ConfigError(f"no field `{name}`; {agreements.nearest(name, FIELDS)}")
    terms = agreements.read_strictly(
        {name: value for name, value in given.items() if value is not None}, KeyTerms
    )
    for word in (*(terms.models or ()), terms.user):
        if not word.isprintable():
            raise ConfigError(f"names of models and users are printable, got {word!a}")
    paths = [endpoint.value for endpoint in Endpoint]
    for path in terms.endpoints or ():
        if path not in paths:
            raise ConfigError(f"`endpoints`: no endpoint `{path}`; {agreements.nearest(path, paths)}")
    for network in terms.networks or ():
        _check_network(network)
    return terms


def _check_network(text: str) -> None:
    try:
        network = ipaddress.ip_network(text)
    except ValueError as error:
        raise ConfigError(
            f"`networks`: {error}; a network is written as 10.1.2.0/24 or 2001:db8::/32"
        ) from None
    if isinstance(network, ipaddress.IPv6Network) and network.network_address.ipv4_mapped is not None:
        raise ConfigError(f"`networks`: {text!r} is IPv4 inside IPv6; write it as IPv4")


def terms_of(text: str, *, key_id: str) -> KeyTerms:
    """Terms from the database. Raises ConfigError where this version can't read them."""
    try:
        return msgspec.json.decode(text, type=KeyTerms)
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"key `{key_id}` has terms that this version can't read ({error}); upgrade headrace, or revoke the key"
        ) from None

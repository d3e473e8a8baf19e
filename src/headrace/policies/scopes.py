"""What may a key be used for, and from where? Answered from its scope, the path, and the addresses that are known."""

import ipaddress
from collections.abc import Sequence

from headrace.core.errors import Forbidden
from headrace.core.outcome import Reason
from headrace.core.tenant import Principal, Scope
from headrace.policies.addresses import Address, Network

FORWARDED_MAX = 32  # hops that are looked at; more are no chain of proxies


def check_network(caller: Principal, origin: Address | None) -> None:
    """Raises Forbidden where the key is for some networks and the caller's address is in none of them, or isn't known."""
    networks = caller.scope.networks
    if networks is None or (origin is not None and any(origin in network for network in networks)):
        return
    raise Forbidden(
        "this key may not be used from where this call comes from", reason=Reason.NETWORK, caller=caller
    )


def check_endpoint(caller: Principal, path: str) -> None:
    """Raises Forbidden where the key is for some endpoints and this is none of them."""
    endpoints = caller.scope.endpoints
    if endpoints is not None and path not in endpoints:
        raise Forbidden(f"this key may not be used for `{path}`", reason=Reason.SCOPE, caller=caller)


def allows_model(scope: Scope, model: str) -> bool:
    """Whether a model exists as far as this key is concerned."""
    return scope.models is None or model in scope.models


def origin(peer: str, forwarded: bytes, trusted: Sequence[Network]) -> Address | None:
    """Where a call comes from: who opened the connection, or where that is a trusted proxy, whom it speaks for.

    Every proxy adds at the right whom it heard the request from. So the list is read from there, and the first address
    that isn't a trusted proxy's is the last one that somebody we trust has seen; what stands left of it may be made up.

    Args:
        peer: The address at the other end of the connection.
        forwarded: All lines of X-Forwarded-For, joined by commas.
        trusted: Networks of proxies whose word counts.
    Returns: None where a trusted proxy says something that is no address.
    """
    address = _address(peer)
    if not trusted:
        return address
    heard = forwarded.decode("latin-1").rsplit(",", FORWARDED_MAX) if forwarded else []
    while address is not None and heard and any(address in network for network in trusted):
        address = _address(heard.pop().strip())
    return address


def _address(text: str) -> Address | None:
    """An address as proxies write it, perhaps with a port; IPv4 inside IPv6 is IPv4."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address

"""May we open a connection there because a caller said so? Only to the public internet, and to networks named for it.

A URL in a request makes us a client inside the operator's network. So what counts is the address that a name resolved to,
never the name; and of addresses only those count as public that can't lead anywhere else.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

URL_LENGTH_MAX = 4096

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Not private in the register, and yet no place to fetch from: IPv6 that carries IPv4 inside (6to4 and its relays, Teredo,
# NAT64, addresses compatible with IPv4), and the site-local addresses of old.
_TUNNELS = tuple(
    ipaddress.ip_network(network)
    for network in (
        "192.88.99.0/24", "2002::/16", "2001::/32", "64:ff9b::/96", "64:ff9b:1::/48", "::/96", "::ffff:0:0:0/96", "fec0::/10"
    )
)  # fmt: skip

_URL = re.compile(
    r"""
    (?P<scheme>https?)://
    (?:\[(?P<v6>[0-9a-f:.]{2,45})\]|(?P<host>[a-z0-9_](?:[a-z0-9_.-]{0,251}[a-z0-9_])?\.?))
    (?::(?P<port>[0-9]{1,5}))?
    (?P<path>(?:[/?][!-"$-\[\]-~]*)?)
    (?:\#[!-~]*)?
    """,
    re.VERBOSE | re.IGNORECASE,
)
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*", re.IGNORECASE)


class NotFetchable(Exception):
    """No connection is opened for it; the text says why, without what a name resolved to."""


@dataclass(frozen=True, slots=True)
class Target:
    """A URL taken apart; `path` has the query, and `host` is a name in lower case or an address without brackets."""

    scheme: Literal["http", "https"]
    host: str
    port: int
    path: str


def read_url(url: str) -> Target:
    """Reads an absolute URL strictly: what could be read in two ways is refused. Raises NotFetchable."""
    if len(url) > URL_LENGTH_MAX:
        raise NotFetchable(f"the URL has more than {URL_LENGTH_MAX} characters")
    match = _URL.fullmatch(url)
    if match is None:
        raise NotFetchable("only plain http and https URLs are fetched, without credentials")
    scheme = cast(Literal["http", "https"], match["scheme"].lower())
    host = (match["v6"] or match["host"]).lower()
    if match["v6"] is None and _is_odd_number(host):
        raise NotFetchable("an address is written as four decimal numbers")
    port = int(match["port"]) if match["port"] else 443 if scheme == "https" else 80
    if not 0 < port < 65536:
        raise NotFetchable("there is no such port")
    path = match["path"] or "/"
    return Target(scheme, host, port, path if path.startswith("/") else "/" + path)


def joined(base: Target, location: str) -> Target:
    """Where a redirect leads. Raises NotFetchable."""
    if location.startswith("//"):
        return read_url(f"{base.scheme}:{location}")
    if location.startswith("/"):
        host = f"[{base.host}]" if ":" in base.host else base.host
        return read_url(f"{base.scheme}://{host}:{base.port}{location}")
    return read_url(location)


def pin(addresses: Sequence[str], *, networks: Iterable[Network]) -> str:
    """The address to connect to, of all that a name resolved to. Raises NotFetchable if any of them isn't allowed: a name
    that leads to both worlds is a trick."""
    allowed = tuple(networks)
    if not addresses or not all(_is_allowed(address, allowed) for address in addresses):
        raise NotFetchable("nothing can be fetched from there")
    return addresses[0]


def is_public(address: str) -> bool:
    """Whether that is the public internet, and nothing that could lead back inside."""
    try:
        parsed: Address = ipaddress.ip_address(address)
    except ValueError:
        return False  # with a scope, for one: link-local
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return (
        parsed.is_global
        and not parsed.is_multicast
        and not parsed.is_reserved
        and not any(parsed in network for network in _TUNNELS)
    )


def _is_allowed(address: str, networks: tuple[Network, ...]) -> bool:
    if is_public(address):
        return True
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in networks)


def _is_odd_number(host: str) -> bool:
    """Whether resolvers would take the host for an address in decimal, octal or hexadecimal, and filters for a name."""
    labels = host.rstrip(".").split(".")
    if not _NUMERIC_LABEL.fullmatch(labels[-1]):
        return False
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return True
    return False

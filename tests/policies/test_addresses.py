"""T44: which addresses are the public internet, and which URLs are one thing only?"""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.policies import addresses
from headrace.policies.addresses import NotFetchable, Target

INSIDE = [
    "127.0.0.1", "127.1.2.3", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "192.88.99.1",
    "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "::8.8.8.8", "::ffff:0:127.0.0.1", "64:ff9b::7f00:1",
    "64:ff9b::808:808", "64:ff9b:1::7f00:1", "2002:7f00:1::", "2002:808:808::", "2001::1", "2001:0:7f00:1::", "fe80::1", "fe80::1%eth0", "fc00::1",
    "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1", "100::1", "localhost", "", "1.2.3",
]  # fmt: skip
OUTSIDE = [
    "8.8.8.8",
    "1.1.1.1",
    "93.184.216.34",
    "2606:4700:4700::1111",
    "2a00:1450:4001:81b::200e",
    "::ffff:8.8.8.8",
]


@pytest.mark.parametrize("address", INSIDE)
def test_what_leads_inside_is_not_public(address: str) -> None:
    assert not addresses.is_public(address)
    with pytest.raises(NotFetchable):
        addresses.pin([address], networks=())
    with pytest.raises(NotFetchable):
        addresses.pin(["8.8.8.8", address], networks=())


@pytest.mark.parametrize("address", OUTSIDE)
def test_the_public_internet_is(address: str) -> None:
    assert addresses.is_public(address)
    assert addresses.pin([address, "8.8.8.8"], networks=()) == address


@given(address=st.ip_addresses(v=4))
def test_no_private_address_is_public_in_any_of_its_clothes(address: ipaddress.IPv4Address) -> None:
    plain = addresses.is_public(str(address))
    assert not (
        plain and (address.is_private or address.is_multicast or address.is_loopback or address.is_link_local)
    )
    assert addresses.is_public(f"::ffff:{address}") == plain
    assert not addresses.is_public(str(ipaddress.IPv6Address((0x2002 << 112) | (int(address) << 80))))
    assert not addresses.is_public(str(ipaddress.IPv6Address((0x64FF9B << 96) | int(address))))


def test_networks_can_be_named() -> None:
    networks = [ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("::1/128")]
    assert addresses.pin(["10.1.2.3", "::1"], networks=networks) == "10.1.2.3"
    for address in ("10.2.0.1", "127.0.0.1", "nonsense"):
        with pytest.raises(NotFetchable):
            addresses.pin([address], networks=networks)
    with pytest.raises(NotFetchable):
        addresses.pin([], networks=networks)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://a.example/x.png", Target("http", "a.example", 80, "/x.png")),
        ("HTTPS://A.Example:8443/x?y=1#z", Target("https", "a.example", 8443, "/x?y=1")),
        ("https://a.example", Target("https", "a.example", 443, "/")),
        ("https://a.example?x", Target("https", "a.example", 443, "/?x")),
        ("http://93.184.216.34/", Target("http", "93.184.216.34", 80, "/")),
        ("http://[2606:4700::1111]:81/", Target("http", "2606:4700::1111", 81, "/")),
        ("http://xn--bcher-kva.example/%20", Target("http", "xn--bcher-kva.example", 80, "/%20")),
    ],
)
def test_a_plain_url_is_taken_apart(url: str, target: Target) -> None:
    assert addresses.read_url(url) == target


@pytest.mark.parametrize(
    "url",
    [
        "", "a.example", "//a.example/", "file:///etc/passwd", "ftp://a.example/", "gopher://a.example/", "javascript:1", "http:/a.example", "http://",
        "http://user:pass@a.example/", "http://a.example@127.0.0.1/", "http://127.0.0.1\\@a.example/", "http://a.example\\x", "http://a example/",
        "http://a.example/ x", "http://a.example/\r\nx: y", "http://a.example/\x00", " http://a.example/", "http://b\u00fccher.example/", "http://a.example/\u00fc",
        "http://2130706433/", "http://0177.0.0.1/", "http://0x7f.0.0.1/", "http://0x7f000001/", "http://127.1/", "http://0/", "http://1.2.3.4.5/", "http://127.0.0.1./",
        "http://a.0x7f/", "http://[::1%25eth0]/", "http://[::1/", "http://a.example:0/", "http://a.example:65536/", "http://a.example:x/", "http://-a.example/",
        "http://a.example/" + "x" * 4096,
    ],
)  # fmt: skip
def test_what_can_be_read_in_two_ways_is_refused(url: str) -> None:
    """Decimal, octal and hexadecimal hosts, credentials, backslashes, and every scheme but two."""
    with pytest.raises(NotFetchable):
        addresses.read_url(url)


@given(
    url=st.text(st.characters(codec="utf-8"), max_size=60)
    | st.from_regex(r"https?://[a-z0-9.:@\[\]/\\#?%-]{0,40}", fullmatch=True)
)
def test_no_text_raises_anything_else(url: str) -> None:
    try:
        target = addresses.read_url(url)
    except NotFetchable:
        return
    assert target.path.startswith("/")
    assert "@" not in target.host


def test_redirects_lead_where_they_say() -> None:
    base = addresses.read_url("https://a.example:8443/x")
    assert addresses.joined(base, "/y?z") == Target("https", "a.example", 8443, "/y?z")
    assert addresses.joined(base, "//b.example/y") == Target("https", "b.example", 443, "/y")
    assert addresses.joined(base, "http://127.0.0.1/") == Target("http", "127.0.0.1", 80, "/")
    assert addresses.joined(addresses.read_url("http://[2606::1]/x"), "/y") == Target(
        "http", "2606::1", 80, "/y"
    )
    for location in ("", "y", "file:///etc/passwd", "http://0x7f.1/"):
        with pytest.raises(NotFetchable):
            addresses.joined(base, location)

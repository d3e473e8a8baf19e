"""What a key is narrowed to is read strictly, kept as it was given, and never lost on the way."""

import ipaddress
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headrace.core import keys
from headrace.core.clock import ManualClock
from headrace.core.errors import ConfigError
from headrace.core.ids import KeyId
from headrace.core.tenant import Scope, TenantLimits
from headrace.stores import key_terms, sqlite
from headrace.stores.key_terms import KeyTerms
from headrace.stores.tenants import TenantStore

PEPPER = bytes(range(32))
DEFAULTS = TenantLimits(requests_per_minute=60, requests_burst=6, concurrency_max=4)
NARROW = {
    "models": ["small"],
    "endpoints": ["/v1/embeddings", "/v1/completions"],
    "networks": ["10.1.2.0/24", "2001:db8::/32"],
    "user": "ci of search",
    "requests_per_minute": 30,
    "tokens_per_minute": 1000,
    "tokens_burst": 300,
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TenantStore]:
    made = TenantStore(sqlite.open_file(tmp_path / sqlite.DATABASE_NAME), PEPPER, clock=ManualClock())
    made.create_tenant("acme")
    yield made
    made.close()


def test_a_narrow_key_rings_with_its_scope_its_user_and_its_limits(store: TenantStore) -> None:
    record, secret = store.create_key("acme", NARROW)
    caller = store.key_ring(DEFAULTS)[keys.digest(PEPPER, secret.encode())].principal
    assert caller.scope == Scope(
        models=frozenset({"small"}),
        endpoints=frozenset({"/v1/embeddings", "/v1/completions"}),
        networks=(ipaddress.ip_network("10.1.2.0/24"), ipaddress.ip_network("2001:db8::/32")),
    )
    assert caller.user == "ci of search"
    assert caller.key_limits == TenantLimits(
        requests_per_minute=30, requests_burst=6, concurrency_max=0, tokens_per_minute=1000, tokens_burst=300
    )
    assert store.keys("acme") == [record]


def test_a_key_that_is_not_narrowed_is_as_wide_as_its_tenant(store: TenantStore) -> None:
    store.create_key("acme")
    (entry,) = store.key_ring(DEFAULTS).values()
    assert (entry.principal.scope, entry.principal.user, entry.principal.key_limits) == (Scope(), "", None)


def test_a_rotated_key_is_as_narrow_as_the_old_one(store: TenantStore) -> None:
    old, _ = store.create_key("acme", NARROW)
    new, _ = store.rotate(old.id, overlap_s=60)
    assert new.terms == old.terms
    first, second = store.key_ring(DEFAULTS).values()
    assert first.principal.scope == second.principal.scope != Scope()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": ["x"]}, "no field `model`; did you mean `models`"),
        ({"models": "x"}, "`models`: expected `array"),
        ({"models": []}, "`models`: expected `array` of length >= 1"),
        ({"models": [""]}, r"`models\[0\]`: expected `str` of length >= 1"),
        ({"models": ["x"] * 101}, "`models`: expected `array` of length <= 100"),
        ({"models": ["a\nb"]}, "printable"),
        ({"user": "\x1b[2J"}, "printable"),
        ({"endpoints": ["/v1/embedings"]}, "no endpoint `/v1/embedings`; did you mean `/v1/embeddings`"),
        ({"networks": ["10.1.2.3/24"]}, "has host bits set; a network is written as"),
        ({"networks": ["somewhere"]}, "'somewhere' does not appear to be"),
        ({"networks": ["::ffff:10.0.0.0/104"]}, "write it as IPv4"),
        ({"requests_per_minute": -1}, "`requests_per_minute`: expected `int` >= 0"),
        ({"requests_burst": 0}, "`requests_burst`: expected `int` >= 1"),
        ({"concurrency_max": True}, "`concurrency_max`: expected `int"),
        ({"concurrency_max": 1.5}, "`concurrency_max`: expected `int"),
    ],
)
def test_what_a_key_can_not_be_narrowed_to_is_named(
    store: TenantStore, given: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        store.create_key("acme", given)
    assert store.keys() == []


def test_terms_come_back_by_the_names_that_they_were_given_by() -> None:
    terms = key_terms.read(NARROW)
    assert key_terms.read(terms.values()) == terms
    assert key_terms.read(dict.fromkeys(key_terms.FIELDS)) == KeyTerms()


@pytest.mark.parametrize("none", [{}, {"requests_per_minute": 0}, {"requests_burst": 5}])
def test_a_key_without_limits_of_its_own_has_none(none: dict[str, int]) -> None:
    assert key_terms.read(none).limits(DEFAULTS) is None


def test_a_narrow_key_that_this_version_can_not_read_is_never_taken_for_a_wide_one(
    store: TenantStore, tmp_path: Path
) -> None:
    record, _ = store.create_key("acme")
    with closing(sqlite3.connect(tmp_path / sqlite.DATABASE_NAME)) as by_hand, by_hand:
        by_hand.execute("""UPDATE api_key SET terms = '{"moons": ["full"]}'""")
    assert store.key_ring(DEFAULTS) == {}
    (problem,) = store.unreadable
    assert problem.startswith(f"key `{record.id}` has terms that this version can't read")
    with pytest.raises(ConfigError, match="upgrade headrace, or revoke the key"):
        store.keys()


def test_the_last_use_of_a_key_is_the_latest_that_anybody_knows_of(store: TenantStore) -> None:
    """And to write it down is neither a change that gateways must read nor an administrative act."""
    used, _ = store.create_key("acme")
    unused, _ = store.create_key("acme")
    store.key_ring(DEFAULTS)
    acts = len(store.audit_entries())
    store.note_uses({used.id: 20.0, KeyId("nobody's"): 30.0})
    store.note_uses({used.id: 10.0})
    store.note_uses({})
    assert {record.id: record.used_s for record in store.keys("acme")} == {used.id: 20.0, unused.id: None}
    assert not store.changed()
    assert len(store.audit_entries()) == acts

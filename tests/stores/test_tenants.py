"""Keys work until they end and no longer, and nothing at rest gives one away."""

import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headrace.core import keys
from headrace.core.clock import ManualClock
from headrace.core.errors import ConfigError
from headrace.core.tenant import Priority, TenantLimits, TenantShare, TenantTerms
from headrace.stores import agreements, pepper, sqlite
from headrace.stores.agreements import Agreement
from headrace.stores.database import Database
from headrace.stores.tenants import TenantStore

PEPPER = bytes(range(32))
DEFAULTS = TenantLimits(requests_per_minute=60, requests_burst=6, concurrency_max=4)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(database: Database, clock: ManualClock) -> TenantStore:
    return TenantStore(database, PEPPER, clock=clock)


@pytest.fixture
def sqlite_store(tmp_path: Path, clock: ManualClock) -> Iterator[TenantStore]:
    """For what is said of the file."""
    made = TenantStore(sqlite.open_file(tmp_path / sqlite.DATABASE_NAME), PEPPER, clock=clock)
    yield made
    made.close()


def rings(store: TenantStore, secret: str) -> bool:
    return keys.digest(PEPPER, secret.encode()) in store.key_ring(DEFAULTS)


def make_key(seed: int, environment: str = "live") -> bytes:
    chance = random.Random(seed)
    return keys.make(environment, id_random=chance.randbytes(16), secret_random=chance.randbytes(32)).encode()


def test_a_key_has_the_documented_shape() -> None:
    for seed in range(300):
        key = make_key(seed, "test" if seed % 2 else "live").decode()
        assert re.fullmatch(r"hr_(live|test)_[a-z0-9]{8}_[A-Za-z0-9_-]{43}_[0-9a-f]{8}", key)
        assert keys.is_well_formed(key.encode())
        assert keys.key_id(key.encode()) == key[8:16]


def test_any_single_typo_is_found_without_the_store() -> None:
    """T40: a changed, lost, doubled or swapped character fails by the checksum."""
    key = make_key(1)
    for at in range(len(key)):
        assert not keys.is_well_formed(key[:at] + bytes([key[at] ^ 1]) + key[at + 1 :])
        assert not keys.is_well_formed(key[:at] + key[at + 1 :])
        assert not keys.is_well_formed(key[:at] + key[at : at + 1] + key[at:])
        swapped = key[:at] + key[at : at + 2][::-1] + key[at + 2 :]
        assert swapped == key or not keys.is_well_formed(swapped)
    for hostile in (b"", b"hr_live_", b"' OR 1=1 --", b"\xff" * 69, key.upper(), key + b" "):
        assert not keys.is_well_formed(hostile)
        assert keys.key_id(hostile) is None


def test_a_key_rings_with_its_tenants_limits_over_the_defaults(store: TenantStore) -> None:
    store.create_tenant("acme", {"requests_per_minute": 1200})
    record, secret = store.create_key("acme", name="ci")
    entry = store.key_ring(DEFAULTS)[keys.digest(PEPPER, secret.encode())]
    assert (entry.principal.tenant, entry.principal.key_id, entry.expires_s) == ("acme", record.id, None)
    assert entry.principal.limits == TenantLimits(
        requests_per_minute=1200, requests_burst=6, concurrency_max=4
    )
    assert entry.principal.share == TenantShare()
    store.change_tenant("acme", {"concurrency_max": 0, "class": "high", "weight": 3, "reserved_slots": 2})
    (entry,) = store.key_ring(DEFAULTS).values()
    assert entry.principal.limits == TenantLimits(
        requests_per_minute=1200, requests_burst=6, concurrency_max=0
    )
    assert entry.principal.share == TenantShare(Priority.HIGH, 3, 2)
    assert store.tenant("acme").agreement.share == TenantShare(Priority.HIGH, 3, 2)
    for workers, reserved in ((2, 1), (3, 1)):
        (entry,) = store.key_ring(DEFAULTS, workers=workers).values()
        assert entry.principal.share == TenantShare(Priority.HIGH, 3, reserved), (
            "each worker sees to its part"
        )


@pytest.mark.parametrize(
    "given",
    [{"weight": 0}, {"weight": 1001}, {"reserved_slots": -1}, {"weight": True}, {"weight": 1.5}],
)
def test_a_share_out_of_its_range_is_refused_and_changes_nothing(
    store: TenantStore, given: dict[str, object]
) -> None:
    store.create_tenant("acme", {"weight": 2})
    with pytest.raises(ConfigError, match="must be"):
        store.change_tenant("acme", given)
    with pytest.raises(ConfigError, match="must be"):
        store.create_tenant("other", given)
    assert [(tenant.name, tenant.agreement.share.weight) for tenant in store.tenants()] == [("acme", 2)]


def test_a_revoked_key_rings_no_more(store: TenantStore, clock: ManualClock) -> None:
    """T39."""
    store.create_tenant("acme")
    record, secret = store.create_key("acme")
    assert rings(store, secret)
    first = store.revoke(record.id)
    clock.advance(10)
    assert not rings(store, secret)
    assert store.revoke(record.id).revoked_s == first.revoked_s
    assert store.keys("acme")[0].state(clock.wall_s()) == "revoked"


def test_an_expired_key_rings_no_more(store: TenantStore, clock: ManualClock) -> None:
    """T39: before its end the ring says when it ends, so that the gateway needs no reload to notice."""
    store.create_tenant("acme")
    record, secret = store.create_key("acme", lifetime_s=60)
    (entry,) = store.key_ring(DEFAULTS).values()
    assert entry.expires_s == record.expires_s == clock.wall_s() + 60
    clock.advance(60)
    assert not rings(store, secret)
    assert store.keys()[0].state(clock.wall_s()) == "expired"


def test_both_keys_work_during_a_rotation_and_one_after_it(store: TenantStore, clock: ManualClock) -> None:
    """T39."""
    store.create_tenant("acme")
    old, old_secret = store.create_key("acme", name="ci", environment="test", lifetime_s=1000)
    clock.advance(100)
    new, new_secret = store.rotate(old.id, overlap_s=50)
    assert rings(store, old_secret)
    assert rings(store, new_secret)
    assert (new.tenant, new.name, new.environment, new.replaces) == ("acme", "ci", "test", old.id)
    assert new.expires_s == clock.wall_s() + 1000
    clock.advance(50)
    assert not rings(store, old_secret)
    assert rings(store, new_secret)
    with pytest.raises(ConfigError, match="expired"):
        store.rotate(old.id, overlap_s=50)


def test_an_overlap_never_lengthens_a_keys_life(store: TenantStore, clock: ManualClock) -> None:
    store.create_tenant("acme")
    old, _ = store.create_key("acme", lifetime_s=10)
    store.rotate(old.id, overlap_s=86_400)
    assert store.keys()[0].expires_s == clock.wall_s() + 10


def test_changes_of_another_process_are_seen_and_ledger_commits_are_not(
    sqlite_store: TenantStore, tmp_path: Path, clock: ManualClock
) -> None:
    """T39: what the gateway's watcher asks each second."""
    assert sqlite_store.changed()
    sqlite_store.key_ring(DEFAULTS)
    assert not sqlite_store.changed()
    sqlite_store.create_tenant("acme")
    assert sqlite_store.changed()
    sqlite_store.key_ring(DEFAULTS)
    other = TenantStore(sqlite.open_file(tmp_path / sqlite.DATABASE_NAME), PEPPER, clock=clock)
    assert not sqlite_store.changed()
    record, _ = other.create_key("acme")
    assert sqlite_store.changed()
    assert sqlite_store.changed()
    sqlite_store.key_ring(DEFAULTS)
    other.close()
    by_hand = sqlite3.connect(tmp_path / sqlite.DATABASE_NAME)
    by_hand.execute("INSERT INTO usage_rejected VALUES ('req_1', '', '')")
    by_hand.commit()
    assert not sqlite_store.changed()
    by_hand.execute("UPDATE api_key SET revoked_s = 1 WHERE id = ?", (record.id,))
    by_hand.commit()
    by_hand.close()
    assert sqlite_store.changed()
    assert sqlite_store.key_ring(DEFAULTS) == {}


@pytest.mark.parametrize("name", ["", "-a", "Acme", "a" * 64, "a b", "a\n", "ä", "a_b", "a/../b"])
def test_a_bad_tenant_name_is_refused(store: TenantStore, name: str) -> None:
    with pytest.raises(ConfigError, match="tenant name"):
        store.create_tenant(name)


def test_a_tenant_exists_once(store: TenantStore) -> None:
    store.create_tenant("a" * 63)
    with pytest.raises(ConfigError, match="exists already"):
        store.create_tenant("a" * 63)


def test_an_unknown_name_gets_the_nearest_known(store: TenantStore) -> None:
    store.create_tenant("acme")
    with pytest.raises(ConfigError, match="did you mean `acme`"):
        store.create_key("acmee")
    record, _ = store.create_key("acme")
    with pytest.raises(ConfigError, match=f"did you mean `{record.id}`"):
        store.revoke(record.id[:-1])


@pytest.mark.parametrize("bad", [{"requests_per_minute": -1}, {"requests_burst": 0}, {"concurrency_max": -1}])
def test_a_limit_below_its_range_is_refused(store: TenantStore, bad: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        store.create_tenant("acme", bad)
    assert not store.has_tenant("acme")


def test_no_key_is_found_in_anything_that_lasts_or_is_printed(
    sqlite_store: TenantStore, tmp_path: Path
) -> None:
    """T47: the key's random part as a canary in the database files, in every repr and in the error texts."""
    sqlite_store.create_tenant("acme")
    record, secret = sqlite_store.create_key("acme", name="ci")
    canary = secret[17:60]
    ring = sqlite_store.key_ring(DEFAULTS)
    with pytest.raises(ConfigError) as pasted:
        sqlite_store.revoke(secret)
    shown = [
        repr(record),
        repr(sqlite_store.keys()),
        repr(ring),
        repr(vars(sqlite_store).keys()),
        repr(sqlite_store),
    ]
    shown += [str(pasted.value), repr(pasted.value), repr(pasted.value.__cause__)]
    assert not [text for text in shown if canary in text]
    for file in tmp_path.iterdir():
        assert canary.encode() not in file.read_bytes()


def test_the_pepper_is_made_once_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "data" / "pepper"
    program = (
        "import sys; from pathlib import Path; from headrace.stores import pepper;"
        " sys.stdin.read(1); print(pepper.load(Path(sys.argv[1])).hex())"
    )
    command = [sys.executable, "-c", program, str(path)]
    running = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)]
    for process in running:
        assert process.stdin is not None
        process.stdin.write(b"x")
        process.stdin.flush()
    seen = {process.communicate(timeout=60)[0] for process in running}
    assert len(seen) == 1
    assert pepper.load(path).hex().encode() == seen.pop().strip()
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["pepper"]


def test_a_pepper_that_others_can_read_or_that_is_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pepper"
    pepper.load(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        pepper.load(path)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(ConfigError, match="32 bytes"):
        pepper.load(path)


def test_another_pepper_is_refused_as_soon_as_there_are_keys(
    sqlite_store: TenantStore, tmp_path: Path
) -> None:
    """A lost pepper must be an error at start, not a service in which every key has stopped working."""
    path, other, clock = tmp_path / sqlite.DATABASE_NAME, b"x" * 32, ManualClock()
    TenantStore(sqlite.open_file(path), other, clock=clock).close()
    TenantStore(sqlite.open_file(path), PEPPER, clock=clock).close()
    sqlite_store.create_tenant("acme")
    sqlite_store.create_key("acme")
    with pytest.raises(ConfigError, match="pepper"):
        TenantStore(sqlite.open_file(path), other, clock=clock)


def test_terms_ring_with_the_keys_and_a_change_of_one_leaves_the_others(store: TenantStore) -> None:
    store.create_tenant("acme", {"organization": "acme-group", "weight": 2})
    store.create_key("acme")
    (entry,) = store.key_ring(DEFAULTS).values()
    assert entry.principal.terms == TenantTerms(organization="acme-group")
    store.change_tenant("acme", {"weight": 3})
    assert store.tenant("acme").agreement.terms.organization == "acme-group"
    store.change_tenant("acme", {"organization": None})
    (entry,) = store.key_ring(DEFAULTS).values()
    assert entry.principal.terms == TenantTerms()
    assert store.tenant("acme").agreement.share.weight == 3


def test_every_field_of_an_agreement_has_one_public_name_and_comes_back_as_it_was_given(
    store: TenantStore,
) -> None:
    values = store.create_tenant("acme").agreement.values()
    assert tuple(values) == agreements.FIELDS
    assert Agreement().changed(values) == Agreement()
    assert Agreement().changed(dict.fromkeys(agreements.FIELDS)) == Agreement()


def test_an_unknown_field_of_an_agreement_gets_the_nearest_known(store: TenantStore) -> None:
    with pytest.raises(ConfigError, match=r"no field `wieght`; did you mean `weight`\?"):
        store.create_tenant("acme", {"wieght": 2})
    with pytest.raises(ConfigError, match=r"there are: requests_per_minute, .*organization"):
        store.create_tenant("acme", {"": 2})


@pytest.mark.parametrize("value", ["A", "a b", "-a", "a" * 64, 7, ["a"], "a\n"])
def test_a_term_that_its_type_refuses_is_named_and_changes_nothing(store: TenantStore, value: object) -> None:
    with pytest.raises(ConfigError, match="`organization`: expected"):
        store.create_tenant("acme", {"organization": value})
    assert not store.has_tenant("acme")


def test_a_term_that_this_version_does_not_know_is_never_passed_over(
    sqlite_store: TenantStore, tmp_path: Path
) -> None:
    """A newer version may have promised something: what can't be read can't be kept, so nothing of that tenant's works. But
    it doesn't keep a gateway from hearing what becomes of other keys."""
    for name in ("acme", "other"):
        sqlite_store.create_tenant(name)
    _, promised = sqlite_store.create_key("acme")
    revoked, gone = sqlite_store.create_key("other")
    _, kept = sqlite_store.create_key("other")
    with closing(sqlite3.connect(tmp_path / sqlite.DATABASE_NAME)) as by_hand, by_hand:
        by_hand.execute("""UPDATE tenant SET terms = '{"promised": 1}' WHERE name = 'acme'""")
    sqlite_store.revoke(revoked.id)
    assert [rings(sqlite_store, secret) for secret in (promised, gone, kept)] == [False, False, True]
    (problem,) = sqlite_store.unreadable
    assert re.match(r"tenant `acme` has terms .*promised.*upgrade headrace", problem)
    assert list(sqlite_store.keyless(DEFAULTS)) == ["other"]
    with pytest.raises(ConfigError, match="tenant `acme` has terms"):
        sqlite_store.tenants()
    with pytest.raises(ConfigError, match="did you mean `acme`"):
        sqlite_store.tenant("acmee")


def test_two_who_change_one_tenant_at_once_lose_nothing_of_each_other(tmp_path: Path) -> None:
    """Each process changes a field of its own twenty times: both last values stand, and every change is in the log."""
    pepper.load(tmp_path / pepper.NAME)
    program = (
        "import sys; from pathlib import Path; from headrace.core.clock import SystemClock;"
        " from headrace.stores import tenants;"
        " store = tenants.open_tenants(Path(sys.argv[1]), clock=SystemClock());"
        " sys.stdin.read(1);"
        " [store.change_tenant('acme', {sys.argv[2]: n}) for n in range(2, 22)]"
    )
    database = sqlite.open_file(tmp_path / sqlite.DATABASE_NAME)
    with closing(TenantStore(database, pepper.load(tmp_path / pepper.NAME), clock=ManualClock())) as store:
        store.create_tenant("acme")
        running = [
            subprocess.Popen([sys.executable, "-c", program, str(tmp_path), field], stdin=subprocess.PIPE)
            for field in ("weight", "concurrency_max")
        ]
        for process in running:
            assert process.stdin is not None
            process.stdin.write(b"x")
            process.stdin.close()
        assert [process.wait(timeout=100) for process in running] == [0, 0]
        agreed = store.tenant("acme").agreement
        assert (agreed.share.weight, agreed.limits.concurrency_max) == (21, 21)
        assert len(store.audit_entries()) == 41
        assert store.verify_audit().problem == ""

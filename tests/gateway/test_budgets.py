"""Claims about quotas and budgets of one process: reserved from before any work, settled by the record, never overspent."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.policies import spending
from tests.gateway.rig import Rig, error_of, header, read_answer, read_events, rig
from tests.support.provider import Provider, wait_until

TOKENS = 20
PROMPT_TOKENS = 2
CONFIG = "[budgets]\ntemplate_tokens_max_assumed = 0\n"


@pytest.fixture(scope="module")
def one() -> Iterator[Rig]:
    """One engine without pauses, and room for everything."""
    with rig({"slots": 256, "tokens": TOKENS}, config=CONFIG, upstream_slots=256) as made:
        yield made


def tenant(running: Provider, name: str, *quotas: str) -> str:
    """A new tenant's key; `quotas` as the command line takes them."""
    running.cli("tenants", "create", name, *quotas)
    return running.key(name)


def budgets_of(running: Provider, name: str) -> dict[str, dict[str, Any]]:
    rows = [row for row in running.status()["budgets"] if row["tenant"] == name]
    return {row["quota"]: row for row in rows}


def spent(running: Provider, name: str, quota: str) -> tuple[int, int]:
    row = budgets_of(running, name)[quota]
    return row["spent"], row["reserved"]


def most(**fields: Any) -> int:
    """Prompt tokens that a request with these fields is taken to have at most: it is sent on without `model` and `stream`."""
    question = {"messages": [{"role": "user", "content": "hello"}], **fields}
    return len(json.dumps(question, separators=(",", ":"))) - 1


def test_200_at_once_against_a_quota_for_10(one: Rig) -> None:
    """T52: exactly 10 are admitted and nothing is overspent, although no record is written before all have been decided on."""
    running = one.provider
    key = tenant(running, "ten", "--quota", "requests/day=10")
    before = one.engine.stats()["requests"]
    one.set_faults("ttft:300")
    with ThreadPoolExecutor(200) as pool:
        answers = Counter(pool.map(lambda _: one.ask(key=key).status, range(200)))
    one.set_faults("")
    assert answers == {200: 10, 429: 190}
    assert one.engine.stats()["requests"] - before == 10
    wait_until(lambda: spent(running, "ten", "requests/day") == (10, 0), what="all to be settled")
    one.wait_until_idle()


def test_a_budget_for_one_and_50_at_once(one: Rig) -> None:
    """REPORTS 37: one is admitted, and 49 are told so in the words of OpenAI's clients."""
    fields = {"max_tokens": TOKENS}
    key = tenant(one.provider, "single", "--quota", f"tokens/month={most(**fields) + TOKENS}")
    one.set_faults("ttft:300")
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: one.ask(key=key, **fields), range(50)))
    one.set_faults("")
    assert Counter(answer.status for answer in answers) == {200: 1, 429: 49}
    for answer in answers:
        if answer.status == 429:
            error = error_of(answer)
            assert (error["type"], error["code"]) == ("insufficient_quota", "quota_exhausted")
            assert header(answer, "x-headrace-reason") == "quota_exhausted"
            assert header(answer, "x-should-retry") == "false"
            assert header(answer, "retry-after") == "1", "what is missing is only reserved"
            assert "tokens/month" in error["message"]
    wait_until(
        lambda: spent(one.provider, "single", "tokens/month") == (PROMPT_TOKENS + TOKENS, 0),
        what="the one to be settled",
    )


def test_what_is_spent_comes_back_with_the_period(one: Rig) -> None:
    """A refusal says when: at the end of the month, when nobody else's reservation can help."""
    key = tenant(one.provider, "spent", "--quota", "requests/month=1")
    assert one.ask(key=key).status == 200
    wait_until(lambda: spent(one.provider, "spent", "requests/month") == (1, 0), what="the settlement")
    refused = one.ask(key=key)
    assert refused.status == 429
    wait_s = int(header(refused, "retry-after") or 0)
    assert 0 < wait_s <= 31 * 86400
    assert abs(wait_s - budgets_of(one.provider, "spent")["requests/month"]["resets_s"] + time.time()) < 60
    assert header(refused, "x-headrace-quota") is not None
    assert "remaining=0" in str(header(refused, "x-headrace-quota"))
    metric = one.provider.metric("headrace_quota_refusals_total", unit="requests", period="month")
    assert metric >= 1


def test_a_request_that_never_fits_is_told_what_to_change(one: Rig) -> None:
    key = tenant(one.provider, "small", "--quota", "tokens/day=50")
    error = error_of(one.ask(key=key, max_tokens=1000))
    assert "more than all of it: 50 tokens" in error["message"]
    assert one.ask(key=key, max_tokens=1000).status == 429
    assert one.provider.metric("headrace_budget_reserved", unit="tokens") == 0


@pytest.mark.slow
def test_without_any_bound_the_engine_is_told_one() -> None:
    """Else nobody could say what a request may use: it is taken to use so much, and stopped there."""
    config = "[budgets]\ntemplate_tokens_max_assumed = 0\noutput_tokens_max_assumed = 7\n"
    with rig({"tokens": TOKENS}, config=config) as made:
        key = tenant(made.provider, "unbound", "--quota", "tokens/day=1000")
        for fields in ({}, {"max_tokens": None}):
            bound = made.ask(key=key, **fields)
            assert bound.text == "000 001 002 003 004 005 006 "
        assert made.ask(key=made.key).text.count(" ") == TOKENS, "who has no quota is bound by nobody"
        assert made.ask(key=key, max_tokens=9).text.count(" ") == 9, "and whoever says more may have more"
        row = budgets_of(made.provider, "unbound")["tokens/day"]
        assert (row["spent"], row["reserved"]) == (2 * (2 + 7) + 2 + 9, 0)


def test_who_leaves_pays_for_what_came_and_no_more(one: Rig) -> None:
    """REPORTS 32: 4,000 reserved, some streamed, no final usage: what came is settled and the rest is free at once."""
    key = tenant(one.provider, "leaver", "--quota", "tokens/day=10000")
    one.set_faults("slow:10, usage:none")
    try:
        with one.open(key=key, max_tokens=4000) as connection:
            read_events(connection, 10)
            reserved = spent(one.provider, "leaver", "tokens/day")[1]
            assert reserved == most(max_tokens=4000) + 4000
        wait_until(lambda: spent(one.provider, "leaver", "tokens/day")[1] == 0, what="the rest to be free")
    finally:
        one.set_faults("")
    (record,) = wait_for_records(one, "leaver", 1)
    assert record["completion_tokens"] >= 9
    used = record["prompt_tokens"] + record["completion_tokens"]
    assert spent(one.provider, "leaver", "tokens/day") == (used, 0)


def test_our_failure_costs_nothing(one: Rig) -> None:
    """REPORTS 34: the replica never sends and the deadline passes: 0 charged, and a record with its reason."""
    key = tenant(
        one.provider,
        "failed",
        "--quota",
        "tokens/day=10000",
        "--quota",
        "requests/day=5",
        "--budget",
        "1/day",
    )
    one.set_faults("stall:0")
    answer = one.ask(key=key, max_tokens=10, headers="x-headrace-deadline-ms: 200\r\n")
    one.set_faults("")
    assert answer.status == 504
    (record,) = wait_for_records(one, "failed", 1)
    assert record["reason"] == "deadline_exceeded"
    wait_until(
        lambda: (
            [(row["spent"], row["reserved"]) for row in budgets_of(one.provider, "failed").values()]
            == [(0, 0), (0, 0), ("0.00", "0.00")]
        ),
        what="all of it to be free",
    )


def test_more_than_was_asked_for_is_counted_and_flagged(one: Rig) -> None:
    """An engine that keeps to no bound: all of it is spent, and an operator hears of it."""
    key = tenant(one.provider, "over", "--quota", "tokens/day=10000")
    one.set_faults("usage:cached=4096")
    before = one.provider.metric("headrace_budget_overshoots_total", unit="tokens")
    answer = one.ask(key=key, max_tokens=1, messages=[{"role": "user", "content": ""}])
    one.set_faults("")
    assert answer.status == 200
    (record,) = wait_for_records(one, "over", 1)
    used = record["prompt_tokens"] + record["completion_tokens"]
    bound = most(messages=[{"role": "user", "content": ""}], max_tokens=1) + 1
    assert used > bound, "this engine keeps to no bound"
    assert spent(one.provider, "over", "tokens/day") == (used, 0)
    assert one.provider.metric("headrace_budget_overshoots_total", unit="tokens") == before + 1


def test_a_restart_forgets_nothing_and_a_new_quota_begins_with_what_was_spent(one: Rig) -> None:
    """What was spent stands in the ledger, also of a quota that is agreed while requests come."""
    key = tenant(one.provider, "later")
    assert [one.ask(key=key).status for _ in range(3)] == [200] * 3
    one.provider.cli("tenants", "set", "later", "--quota", "requests/day=5", "--quota", "tokens/total=100000")
    wait_until(
        lambda: (budgets_of(one.provider, "later").get("requests/day") or {}).get("spent") == 3,
        what="the quota to be in force, with what was spent before",
    )
    answers = Counter(one.ask(key=key, max_tokens=5).status for _ in range(4))
    assert answers == {200: 2, 429: 2}
    one.provider.cli("tenants", "set", "later", "--quota", "default")
    wait_until(lambda: not budgets_of(one.provider, "later"), what="the quota to be given up")
    assert one.ask(key=key).status == 200
    one.provider.cli("tenants", "set", "later", "--quota", "requests/day=7")
    wait_until(lambda: spent_or_none(one, "later") == 6, what="the quota to be back")
    assert Counter(one.ask(key=key).status for _ in range(3)) == {200: 1, 429: 2}


def test_a_tenants_budgets_are_shown(one: Rig) -> None:
    """`headrace tenants show`: what is agreed, spent and reserved, and when it begins anew."""
    key = tenant(one.provider, "shown", "--quota", "requests/day=10", "--budget", "2.50/total")
    assert one.ask(key=key).status == 200
    shown = one.provider.cli("tenants", "show", "shown").stdout
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if "/" in line.split(" ")[0]}
    assert rows["requests/day"][:5] == ["requests/day", "-", "10", "1", "0"]
    assert rows["requests/day"][5].endswith("T00:00:00.000Z")
    assert rows["money/total"] == ["money/total", "-", "2.50", "0.00", "0.00", "never"]


def test_a_key_may_have_a_quota_of_its_own_beside_its_tenants(one: Rig) -> None:
    """A request needs room in both; another key of the tenant has its own."""
    wide = tenant(one.provider, "family", "--quota", "requests/day=5")
    narrow = one.provider.cli(
        "keys", "create", "--tenant", "family", "--quota", "requests/day=2"
    ).stdout.strip()
    wait_until(lambda: one.provider.get("/v1/models", key=narrow)[0] == 200, what="the key to be in force")
    assert Counter(one.ask(key=narrow).status for _ in range(4)) == {200: 2, 429: 2}
    assert "of this key" in error_of(one.ask(key=narrow))["message"]
    assert Counter(one.ask(key=wide).status for _ in range(5)) == {200: 3, 429: 2}
    assert "of this tenant" in error_of(one.ask(key=wide))["message"]


@pytest.mark.slow
def test_500_requests_each_broken_in_another_way_leave_nothing_reserved() -> None:
    """REPORTS 39: however a request ends, what it had reserved is free again, and spent is what its record says."""
    faults = (
        "error:500@1/11, cut:0@1/7, cut:3@1/5, close:2@1/13, stall:1@1/17, error_event:1@1/19, garbage@1/23, empty@1/29,"
        " usage:none@1/3, head_only@1/31, bad_event:1@1/37"
    )
    config = (
        CONFIG
        + "[request]\nstall_limit_s = 0.3\nfirst_event_limit_s = 0.3\n[health]\nfailures_to_eject = 1000\n"
    )
    with rig({"slots": 64, "tokens": TOKENS}, config=config, upstream_slots=64) as made:
        key = tenant(
            made.provider, "unlucky", "--quota", "requests/day=1000", "--quota", "tokens/day=10000000"
        )
        made.set_faults(faults)

        def ask_or_leave(number: int) -> int:
            hasty = "x-headrace-deadline-ms: 20\r\n" if number % 41 == 0 else ""
            with made.open(key=key, headers=hasty, max_tokens=100, stream=number % 4 != 0) as connection:
                if number % 6 == 0:
                    return 0  # gone
                return read_answer(connection).status

        with ThreadPoolExecutor(32) as pool:
            ends = Counter(pool.map(ask_or_leave, range(500)))
        made.set_faults("")
        assert min(ends[200], ends[502]) > 20, ends
        made.wait_until_idle()
        wait_until(
            lambda: spent(made.provider, "unlucky", "tokens/day")[1] == 0, what="nothing to be reserved"
        )
        billed = [record for record in made.records() if record.tenant == "unlucky"]
        used = [spending.used(record) for record in billed]
        assert spent(made.provider, "unlucky", "tokens/day") == (sum(each.tokens for each in used), 0)
        assert spent(made.provider, "unlucky", "requests/day") == (sum(each.requests for each in used), 0)
        assert 0 < sum(each.requests for each in used) < len(billed)


def test_low_budgets_are_told_once(one: Rig) -> None:
    key = tenant(one.provider, "low", "--quota", "requests/day=10")
    for _ in range(10):
        assert one.ask(key=key).status == 200

    def told() -> list[int]:
        lines = one.provider.log_lines()
        return [
            line["percent"] for line in lines if line["event"] == "budget.low" and line["tenant"] == "low"
        ]

    wait_until(lambda: told() == [80, 95], what="both thresholds to be told, once each")
    assert one.provider.metric("headrace_budgets_low", percent="95") >= 1


def spent_or_none(made: Rig, name: str) -> int | None:
    row = budgets_of(made.provider, name).get("requests/day")
    return None if row is None else row["spent"]


def wait_for_records(made: Rig, name: str, count: int) -> list[dict[str, Any]]:
    def found() -> list[dict[str, Any]]:
        rows = made.provider.usage("--tenant", name)
        return rows if len(rows) >= count else []

    rows: list[dict[str, Any]] = wait_until(found, what=f"{count} records of {name}")
    return rows

"""What each request costs is in its record: by how it ended, by what was counted, and by the price of its moment, exactly."""

import json
from datetime import UTC, datetime

import msgspec
import pytest

from headrace.core.endings import Charge
from headrace.core.fleet import Deployment, Task
from headrace.core.money import parse_amount
from headrace.core.outcome import AttemptOutcome
from headrace.core.request import Endpoint
from headrace.core.usage import TokenUsage, UsageRecord, UsageSource
from headrace.gateway.loads import Loads
from headrace.gateway.usage import Account, AttemptEnd
from tests.gateway.rig import (
    RATES,
    Rig,
    assert_broken,
    check_charge,
    read_events,
    rig,
    words,
)
from tests.stores.test_journal import REPLICA, request
from tests.support.provider import Provider, provider, wait_until
from tests.support.scripted import scripted_engine

TOKENS = 20
PROMPT_TOKENS = 2  # "hello"
WHOLE = RATES.request + PROMPT_TOKENS * RATES.input + TOKENS * RATES.output


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("faults", "source"),
    [
        ("", "final"),
        ("usage:cumulative", "final"),
        ("usage:after_finish", "final"),
        ("usage:with_choices", "final"),
        ("usage:none", "estimated"),
        ("usage:zero", "estimated"),
        ("usage:negative", "estimated"),
        ("usage:none, delta:1", "estimated"),
        ("usage:none, delta:7", "estimated"),
    ],
)
def test_the_same_answer_costs_the_same_however_its_usage_was_told(
    pair: Rig, faults: str, source: str, stream: bool
) -> None:
    """T31 with money, REPORTS 28, 29, 36: missing, zero, negative, in every chunk, after the finish; a wrong number is never
    billed, and a missing one is never free."""
    pair.set_faults(faults)
    record = pair.record(pair.ask(stream=stream))
    assert (record.usage_source, record.charge_pico) == (source, WHOLE)
    assert record.price_version == "p1"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("faults", ["usage:cached=15872", "usage:with_choices+cached=15872"])
def test_cached_input_has_its_own_price(pair: Rig, faults: str, stream: bool) -> None:
    """REPORTS 28: wherever the count stands."""
    pair.set_faults(faults)
    record = pair.record(pair.ask(stream=stream))
    assert record.charge_pico == RATES.request + 15872 * RATES.cached_input + TOKENS * RATES.output


@pytest.mark.parametrize("stream", [True, False])
def test_reasoning_is_recorded_apart_and_has_its_own_price(pair: Rig, stream: bool) -> None:
    pair.set_faults("reasoning:reasoning_content")
    record = pair.record(pair.ask(stream=stream))
    assert (record.completion_tokens, record.reasoning_tokens) == (TOKENS, TOKENS // 2)
    assert WHOLE - record.charge_pico == TOKENS // 2 * (RATES.output - RATES.reasoning_output)


@pytest.mark.parametrize("path", [Endpoint.CHAT_COMPLETIONS, Endpoint.EMBEDDINGS])
def test_what_is_not_told_of_the_cache_takes_nothing_else_with_it(path: Endpoint) -> None:
    """REPORTS 28: reasoning has its own price whether or not the caller may know what was cached, and vectors too."""
    asked = msgspec.structs.replace(request("req_1"), endpoint=path)
    account = Account(asked, Deployment("m", "m", frozenset({Task.CHAT}), "unpinned", (REPLICA,)), Loads())
    told = TokenUsage(100, 20, 64, UsageSource.FINAL, 15, 3)
    account.attempts.append(AttemptEnd(AttemptOutcome.COMPLETED, REPLICA, 0.0, 1.0, None, 200, told))
    assert account.usage() == TokenUsage(100, 20, 0, UsageSource.FINAL, 15, 3)


def test_vectors_are_counted_and_charged(pair: Rig) -> None:
    record = pair.record(pair.ask(path="/v1/embeddings", stream=False, input=["a", "b", "c"]))
    assert record.units == 3
    assert record.charge_pico == RATES.request + record.prompt_tokens * RATES.input + 3 * RATES.vector


def test_every_choice_of_an_answer_is_charged(pair: Rig) -> None:
    record = pair.record(pair.ask(n=3))
    assert record.charge_pico == RATES.request + PROMPT_TOKENS * RATES.input + 3 * TOKENS * RATES.output


def test_who_leaves_pays_for_what_was_generated_by_then() -> None:
    """REPORTS 26 and 32: gone at token 20 of 100, from an engine that tells nothing before the end."""
    with rig({"slots": 4, "tokens": 100, "owned_by": "vllm"}) as running:
        running.set_prices()
        running.set_faults("stall:20")
        known = running.records()
        with running.open() as connection:
            read_events(connection, 20)
        (record,) = running.new_records(known, 1)
        assert (record.outcome, record.usage_source, record.completion_tokens) == (
            "cancelled",
            "estimated",
            20,
        )
        assert record.charge_rule is Charge.GENERATED
        assert record.charge_pico == RATES.request + PROMPT_TOKENS * RATES.input + 20 * RATES.output


def test_a_broken_answer_costs_what_came_of_it(pair: Rig) -> None:
    pair.set_faults("cut:7")
    answer = pair.ask()
    assert_broken(answer, text=words(7))
    record = pair.record(answer)
    assert record.charge_rule is Charge.DELIVERED
    assert record.charge_pico == RATES.request + PROMPT_TOKENS * RATES.input + 7 * RATES.output


@pytest.mark.parametrize(
    "fault", ["error:500", "error_first:500", "html", "cut:0", "refuse", "error:400", "error:429"]
)
def test_what_failed_before_the_first_byte_costs_nothing(pair: Rig, fault: str) -> None:
    """REPORTS 34: there is a record with its reason, and no charge."""
    pair.set_faults(fault)
    record = pair.record(pair.ask())
    assert (record.outcome, record.charge_pico, record.price_version) == ("failed", 0, "p1")


def test_what_nobody_knows_costs_nothing(pair: Rig) -> None:
    """The caller left before the first token and the engine told nothing: unknown is not zero, and is not billed."""
    pair.set_faults("stall:0")
    known = pair.records()
    with pair.open():
        wait_until(lambda: not pair.is_idle(), what="the request to be in progress")
        wait_until(
            lambda: sum(engine.stats()["running"] for engine in pair.engines) == 1,
            what="an engine to have it",
        )
    (record,) = pair.new_records(known, 1)
    assert (record.outcome, record.usage_source, record.charge_pico) == ("cancelled", "unknown", 0)


def test_a_retried_request_costs_what_its_answer_does(pair: Rig) -> None:
    """Attempts that failed are never billed."""
    pair.engines[0].set_faults("cut:0")
    records = [pair.record(pair.ask()) for _ in range(12)]
    assert {record.attempts for record in records} == {1, 2}
    assert {record.charge_pico for record in records} == {WHOLE}


def test_the_invoice_of_what_a_service_did_agrees_with_its_records(pair: Rig) -> None:
    """Whatever went wrong on the way: the sum of the lines is the sum of the charges, and every request is accounted for."""
    for faults in (
        "",
        "usage:none",
        "cut:7",
        "cut:0",
        "usage:cached=64",
        "reasoning:reasoning",
        "error:400",
        "tools:parallel",
    ):
        pair.set_faults(faults)
        pair.record(pair.ask())
        pair.record(pair.ask(stream=False))
    pair.wait_until_idle()
    records = [record for record in pair.records() if record.tenant == "demo"]
    for month in {datetime.fromtimestamp(record.started_s, tz=UTC).strftime("%Y-%m") for record in records}:
        told = pair.provider.cli("invoice", "--tenant", "demo", "--period", month, "--json")
        assert "can't be issued" not in told.stderr
        invoice = json.loads(told.stdout)
        own = [
            record
            for record in records
            if datetime.fromtimestamp(record.started_s, tz=UTC).strftime("%Y-%m") == month
        ]
        assert invoice["requests"] == len(own)
        amounts = [parse_amount(line["amount"]) for line in invoice["lines"]]
        assert sum(amounts) == sum(record.charge_pico for record in own)
        assert [parse_amount(total["amount"]) for total in invoice["totals"]] == [sum(amounts)]


def test_a_record_says_for_whom_its_key_was_made(pair: Rig) -> None:
    key = pair.provider.cli("keys", "create", "--tenant", "demo", "--user", "ada").stdout.strip()
    wait_until(lambda: pair.provider.get("/v1/models", key=key)[0] == 200, what="the key to be in force")
    assert pair.record(pair.ask(key=key)).user == "ada"
    sums = json.loads(pair.provider.cli("usage", "--by", "user", "--json").stdout)
    assert [row["requests"] for row in sums if row["user"] == "ada"] == [1]


def record_of(running: Provider, answer: tuple[int, dict[str, str], bytes]) -> dict[str, object]:
    wanted = answer[1]["x-request-id"]
    found: list[dict[str, object]] = wait_until(
        lambda: [row for row in running.usage("--limit", "20") if row["request_id"] == wanted],
        what="the record",
    )
    return found[0]


@pytest.mark.slow
def test_a_price_is_in_force_on_every_worker_when_the_command_returns() -> None:
    """And holds for requests that arrive from its moment on: none before costs more, none after costs less."""
    with (
        scripted_engine(slots=8, tokens=10) as engine,
        provider(upstreams=[engine.url], arguments=["--workers", "2"]) as running,
    ):
        key = running.key()
        assert record_of(running, running.chat(key))["price_version"] == ""
        running.cli("prices", "set", "--currency", "EUR", "--per-request", "0.01")
        [book] = json.loads(running.cli("prices", "list", "--json").stdout or "[]") or [None]
        assert book is None or book["version"] == "p1"
        wait_until(
            lambda: record_of(running, running.chat(key))["price_version"] == "p1", what="the price's moment"
        )
        after = [record_of(running, running.chat(key)) for _ in range(20)]
        assert {(row["price_version"], row["charge"]) for row in after} == {("p1", "0.01")}
        complaint = running.cli(
            "prices", "set", "--currency", "EUR", "--per-request", "1", "--valid-from", "1h", check=False
        )
        assert complaint.returncode == 2
        assert "can't hold from the past on" in complaint.stderr


def test_the_law_of_charges_is_a_law() -> None:
    """What every test with a record goes by fails for a charge that is off by one."""
    fields = dict.fromkeys(UsageRecord.__struct_fields__, 0) | {
        "endpoint": "/v1/chat/completions",
        "reason": "ok",
        "usage_source": "final",
        "ttft_s": 0.1,
        "attempts": 1,
        "price_version": "p1",
        "charge_pico": parse_amount("0.0000013"),
    }
    check_charge(UsageRecord(**fields))  # type: ignore[arg-type]
    for wrong in ({"charge_pico": fields["charge_pico"] + 1}, {"price_version": ""}):  # type: ignore[operator]
        with pytest.raises(AssertionError):
            check_charge(UsageRecord(**fields | wrong))  # type: ignore[arg-type]

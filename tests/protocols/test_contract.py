"""Does a contract say all that there is to say, and only what holds?"""

import json
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from headrace.core import errors
from headrace.core.endings import ENDINGS, Charge, Stage
from headrace.core.fleet import EngineTraits, Replica, Task
from headrace.core.ids import KeyId, ReplicaId, TenantId
from headrace.core.isolation import CacheIsolation
from headrace.core.outcome import Reason
from headrace.core.prices import Item, Price, rates_of
from headrace.core.tenant import Principal, TenantLimits, TenantTerms
from headrace.core.usage import UsageRecord
from headrace.protocols import contract, openai
from headrace.protocols.contract import Contract, ServiceTerms
from tests.support import measured

ERRORS_PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
# Each its own number, so that none can stand in another's place unnoticed.
TERMS = ServiceTerms(
    **{field.name: 1001 + index for index, field in enumerate(msgspec.structs.fields(ServiceTerms))}
)
PLAIN = contract.contract(measured.PLAIN, TERMS)
# What a head alone decides, before there is a request that could end.
BEFORE_REQUESTS = {"forbidden"}


def test_every_code_is_in_the_contract_the_catalogue_the_page_and_the_table_of_endings() -> None:
    told = {error.code for error in PLAIN.errors}
    only_recorded = {errors.ClientGone.code}
    catalogue = {kind.code for kind in errors.catalogue()}
    page = set(re.findall(r"^\| `([a-z_]+)` \| \d+ \|", ERRORS_PAGE, re.MULTILINE))
    table = {row.error.code for row in ENDINGS.values() if row.error is not None}
    assert told | only_recorded == catalogue == page == table | BEFORE_REQUESTS


def test_every_ending_is_in_the_contract_with_what_is_charged() -> None:
    charged = {
        Charge.NOTHING: "nothing",
        Charge.DELIVERED: "the prompt, and what had reached the caller",
        Charge.GENERATED: "the prompt, and what was generated, taken or not",
    }
    told = [each for error in PLAIN.errors for each in error.reasons] + PLAIN.cancellation.endings
    rows = {
        (row.reason.value, row.stage.value, row.meaning, charged[row.charge])
        for row in ENDINGS.values()
        if row.reason is not Reason.OK
    }
    assert {(each.reason, each.stage, each.meaning, each.charged) for each in told} == rows
    assert len(told) == len(rows)


def test_an_error_says_when_to_come_back() -> None:
    kinds = {kind.code: kind for kind in errors.catalogue()}
    for told in PLAIN.errors:
        kind = kinds[told.code]
        assert (told.status, told.type, told.should_retry) == (kind.status, kind.type, kind.should_retry)
        assert told.has_retry_after == (kind.status in (429, 503))
        assert told.in_streams == any(
            row.error is kind and row.stage is Stage.ANSWERING for row in ENDINGS.values()
        )
        assert told.remedy


def test_an_outcome_has_one_rule() -> None:
    assert {each.outcome: each.charged.split(",")[0] for each in PLAIN.billing.rules} == {
        "delivered": "the prompt",
        "cancelled in the queue": "nothing",
        "cancelled at work": "the prompt",
        "refused": "nothing",
        "failed": "nothing",
        "broken": "the prompt",
    }


def test_every_value_of_the_configuration_is_told() -> None:
    text = json.dumps(msgspec.to_builtins(PLAIN))
    missing = [name for name, value in msgspec.structs.asdict(TERMS).items() if f"{value}" not in text]
    assert missing == []


def test_what_becomes_of_fields_is_told() -> None:
    assert PLAIN.fields.never_passed == list(openai.OPERATOR_FIELDS)
    assert set(PLAIN.fields.set_by_us) == {"model", *openai.WIRE_FIELDS}
    assert "passed to the engine" in PLAIN.fields.unknown


def test_records_are_told_field_by_field() -> None:
    assert PLAIN.data.records == list(UsageRecord.__struct_fields__)


def test_only_the_endpoints_of_the_models_tasks_are_in_its_contract() -> None:
    def paths(task: Task) -> dict[str, bool]:
        deployment = replace(measured.PLAIN, tasks=frozenset({task}))
        return {each.path: each.streams for each in contract.contract(deployment, TERMS).endpoints}

    assert paths(Task.EMBEDDINGS) == {"/v1/embeddings": False}
    assert paths(Task.CHAT) == {"/v1/chat/completions": True, "/v1/completions": True}


def test_the_fields_that_are_checked_are_the_fields_in_the_schemas() -> None:
    for endpoint, terms in zip(openai.REQUEST_FIELDS, PLAIN.endpoints, strict=True):
        assert terms.path == endpoint.value
        assert set(terms.request["properties"]) == set(openai.REQUEST_FIELDS[endpoint].__struct_fields__)
        assert "#/components" not in json.dumps([terms.request, terms.answer, terms.event])


@pytest.mark.parametrize("isolation", [*CacheIsolation, None])
def test_what_keeps_prompts_apart_is_told(isolation: CacheIsolation | None) -> None:
    replicas = () if isolation is None else (
        Replica(ReplicaId("a"), "127.0.0.1", 1, 1, EngineTraits(isolation=isolation)),
    )  # fmt: skip
    data = contract.contract(replace(measured.PLAIN, replicas=replicas), TERMS).data
    assert data.cache_isolation == (None if isolation is None else isolation.value)
    assert data.cache_isolation_means == contract.ISOLATION_MEANS[isolation]


def test_media_is_fetched_where_the_model_takes_it_and_the_operator_lets_us() -> None:
    def media(takes: bool, bytes_max: int) -> str:
        terms = msgspec.structs.replace(TERMS, media_bytes_max=bytes_max)
        return contract.contract(replace(measured.PLAIN, takes_media=takes), terms).data.media

    assert "fetched by us, at most 7 bytes" in media(True, 7)
    assert media(False, 7) == media(True, 0) == "URLs are refused"


def test_a_caller_reads_its_own_limits_quotas_and_price() -> None:
    terms = TenantTerms(
        model_limits={"scripted": TenantLimits(requests_per_minute=5), "other": TenantLimits()},
        quotas=("tokens/day=100",),
        budgets=("50.00/month",),
        is_durable=True,
    )
    limits = TenantLimits(requests_per_minute=0, tokens_per_minute=900, concurrency_max=4)
    caller = Principal(TenantId("acme"), KeyId("k"), limits, terms=terms)
    stated = {Item.INPUT: "0.15", Item.OUTPUT: "0.60"}
    price = Price("p7", "acme", "scripted", "EUR", 0.0, stated, rates_of(stated))
    told: Contract = contract.contract(measured.PLAIN, TERMS, caller=caller, price=price)
    assert [msgspec.structs.astuple(each) for each in told.limits] == [
        ("tenant", 0, 0, 900, 900, 4),
        ("model", 5, 60, 0, 0, 0),
    ]
    assert told.quotas == ["tokens/day=100", "50.00/month"]
    assert told.data.is_durable
    assert (told.billing.version, told.billing.currency) == ("p7", "EUR")
    assert [(each.item, each.price) for each in told.billing.prices] == [
        ("input", "0.15"),
        ("output", "0.60"),
    ]


def test_nothing_is_said_of_a_caller_where_none_asks() -> None:
    assert (PLAIN.limits, PLAIN.quotas, PLAIN.billing.prices, PLAIN.billing.version) == ([], [], [], "")


def test_where_requests_run_and_how_long_answers_are_kept_is_what_the_tenant_agreed() -> None:
    running = replace(measured.PLAIN, locations=("eu", "us"))
    anywhere = contract.contract(running, TERMS)
    assert anywhere.data.locations == ["eu", "us"]
    assert "not restricted" in anywhere.data.location_rule
    assert anywhere.data.kept_answers_s == anywhere.idempotency.keep_s == TERMS.keep_s
    terms = TenantTerms(locations=("eu", "ch"), retention_s=7)
    bound = contract.contract(
        running, TERMS, caller=Principal(TenantId("acme"), KeyId("k"), TenantLimits(), terms=terms)
    )
    assert bound.data.locations == ["eu"]
    assert "alone" in bound.data.location_rule
    assert bound.data.kept_answers_s == bound.idempotency.keep_s == 7

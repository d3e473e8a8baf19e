"""Claims about what a request may use and what it has used: the first is never less than the second, for whoever keeps to bounds."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.endings import ENDINGS, Stage
from headrace.core.ids import KeyId, RequestId, TenantId
from headrace.core.prices import Item, Price, rates_of
from headrace.core.quotas import Amounts
from headrace.core.request import Endpoint, InferenceRequest
from headrace.core.tenant import Principal, TenantLimits
from headrace.core.usage import UsageRecord
from headrace.policies import charging, spending
from headrace.policies.prices import PriceBook
from headrace.policies.spending import INPUTS_MAX, Assumptions
from headrace.protocols import openai

ASSUMED = Assumptions(output_tokens_max_assumed=50, template_tokens_max_assumed=10)
BOOK = PriceBook(
    [
        Price(
            "p1", "", "*", "EUR", 0.0, {}, rates_of({Item.INPUT: "3", Item.OUTPUT: "9", Item.REQUEST: "0.01"})
        ),
        Price("p2", "free", "*", "EUR", 0.0, None, None),
    ]
)
REQUEST = InferenceRequest(
    RequestId("r"), Principal(TenantId("t"), KeyId("k"), TenantLimits()), Endpoint.CHAT_COMPLETIONS, "m",
    b"x" * 100, {}, False, False, 80, None, 1, 0.0, 1.0, 60.0,
)  # fmt: skip
RECORD = UsageRecord(
    RequestId("r"), TenantId("t"), KeyId("k"), "m", "unpinned", "/v1/chat/completions", True, 1.0, "delivered", "ok",
    200, 7, 5, 0, "final", 0.0, 0.1, 1.0, 1, "p1", 99,
)  # fmt: skip


def most(request: InferenceRequest, *, context_tokens: int = 0) -> Amounts:
    return spending.most(
        request,
        context_tokens=context_tokens,
        assumed=ASSUMED,
        price_most=lambda asked, prompt, output: spending.price_most(BOOK, asked, prompt, output),
    )


def changed(**fields: object) -> InferenceRequest:
    return msgspec.structs.replace(REQUEST, **fields)


def test_a_token_is_at_least_a_byte_and_the_template_has_its_own() -> None:
    assert most(changed(output_tokens_max=20)).tokens == 100 + 10 + 20
    assert most(changed(output_tokens_max=20, choices=3)).tokens == 110 + 60


def test_nothing_is_more_than_the_context() -> None:
    assert most(REQUEST, context_tokens=64).tokens == 64
    assert most(changed(choices=2), context_tokens=64).tokens == 128
    assert most(changed(output_tokens_max=20), context_tokens=1000).tokens == 130
    assert most(REQUEST, context_tokens=1000).tokens == 1000


def test_where_nothing_bounds_the_output_a_bound_is_assumed() -> None:
    assert most(REQUEST).tokens == 110 + 50


def test_embeddings_have_no_output() -> None:
    amounts = most(changed(endpoint=Endpoint.EMBEDDINGS), context_tokens=64)
    assert amounts.tokens == 110, "there may be many inputs, each with its context"
    assert INPUTS_MAX == openai.INPUTS_MAX


def test_money_is_the_price_of_the_most() -> None:
    price = BOOK.find("t", "m", wall_s=1.0)
    assert price is not None
    assert price.rates is not None
    assert most(REQUEST).money == charging.most(price.rates, prompt_tokens_max=110, completion_tokens_max=50)
    nobody = changed(arrived_wall_s=-1.0)
    assert most(nobody).money == 0, "no price had begun"


@given(
    prompt=st.integers(0, 110),
    completion=st.integers(0, 40),
    cached=st.integers(0, 110),
    context=st.sampled_from([0, 1000]),
)
def test_who_keeps_to_the_bounds_is_never_charged_more_than_was_reserved(
    prompt: int, completion: int, cached: int, context: int
) -> None:
    request = changed(output_tokens_max=40)
    record = msgspec.structs.replace(
        RECORD, prompt_tokens=prompt, completion_tokens=completion, cached_tokens=min(cached, prompt)
    )
    price = BOOK.find("t", "m", wall_s=1.0)
    assert price is not None
    assert price.rates is not None
    charge = charging.charge(record.charge_rule, record.usage, price.rates, unit=None)
    used = spending.used(msgspec.structs.replace(record, charge_pico=charge))
    bound = most(request, context_tokens=context)
    assert all(each <= at_most for each, at_most in zip(used, bound, strict=True))


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=lambda ending: f"{ending.reason}-{ending.stage}")
def test_what_is_billed_is_what_counts(ending: object) -> None:
    assert isinstance(ending, type(next(iter(ENDINGS.values()))))
    record = msgspec.structs.replace(
        RECORD,
        reason=ending.reason.value,
        attempts=int(ending.stage is not Stage.UNSTARTED),
        ttft_s=0.1 if ending.stage is Stage.ANSWERING else None,
    )
    is_billed = charging.is_billed(ending.charge, "final")
    assert spending.used(record) == (Amounts(1, 12, 99) if is_billed else Amounts())
    assert spending.used(msgspec.structs.replace(record, usage_source="unknown")) == Amounts()

"""How much may this request use at most, and what has it used? The two amounts that budgets are kept with."""

from collections.abc import Callable

import msgspec

from headrace.core.quotas import Amounts
from headrace.core.request import Endpoint, InferenceRequest
from headrace.core.usage import UsageRecord
from headrace.policies import charging
from headrace.policies.prices import PriceBook

# Texts in one embeddings request: protocols.openai.INPUTS_MAX.
INPUTS_MAX = 256

PriceMost = Callable[[InferenceRequest, int, int], int]
"""What a request costs at most, in pico-units, with so many prompt tokens and so many output tokens."""


class Assumptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a request of a tenant with quotas is taken to use at most, where nothing else says so: `[budgets]` in headrace.toml.

    Attributes:
        output_tokens_max_assumed: Output tokens of an answer where neither the request nor the model's context bounds them;
            the engine is told to stop there.
        template_tokens_max_assumed: Tokens that a model's template adds to what the caller wrote.
    """

    output_tokens_max_assumed: int = 4096
    template_tokens_max_assumed: int = 256


def most(
    request: InferenceRequest, *, context_tokens: int, assumed: Assumptions, price_most: PriceMost
) -> Amounts:
    """An upper bound of what the request can be charged.

    A token is at least one byte, so a prompt has no more of them than what the caller wrote has bytes, names of roles and
    tools included, and what the model's template adds. A picture may be more tokens than bytes; with what else the request
    says it is never more than the context.

    Args:
        context_tokens: Prompt plus output that one answer may use; 0 where that isn't known.
    """
    prompt = len(request.canonical) + assumed.template_tokens_max_assumed
    if request.endpoint is Endpoint.EMBEDDINGS:
        return Amounts(1, prompt, price_most(request, prompt, 0))
    output = output_bound(request, context_tokens=context_tokens, assumed=assumed) * request.choices
    tokens = prompt + output
    if context_tokens:
        # Each answer has its context; prompts may be as many as answers.
        prompt = min(prompt, context_tokens * request.choices)
        tokens = min(prompt + output, context_tokens * request.choices)
    return Amounts(1, tokens, price_most(request, prompt, output))


def output_bound(request: InferenceRequest, *, context_tokens: int, assumed: Assumptions) -> int:
    """Tokens of one answer, at most."""
    return request.output_tokens_max or context_tokens or assumed.output_tokens_max_assumed


def used(record: UsageRecord) -> Amounts:
    """What a request has used of its tenant's budgets: what it is billed for, whatever the price."""
    if not charging.is_billed(record.charge_rule, record.usage_source):
        return Amounts()
    return Amounts(1, record.prompt_tokens + record.completion_tokens, record.charge_pico)


def price_most(prices: PriceBook, request: InferenceRequest, prompt_tokens: int, output_tokens: int) -> int:
    """What the request costs at most with so many tokens, in pico-units, by the prices of its arrival."""
    price = prices.find(request.principal.tenant, request.model, wall_s=request.arrived_wall_s)
    if price is None or price.rates is None:
        return 0
    return charging.most(
        price.rates,
        prompt_tokens_max=prompt_tokens,
        completion_tokens_max=output_tokens,
        units_max=min(INPUTS_MAX, request.prompt_bytes),
        unit=request.endpoint.unit,
    )

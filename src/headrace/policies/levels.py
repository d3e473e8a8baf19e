"""Which limits apply to a request, what does it take of them, and with which words is it refused?"""

from enum import StrEnum
from typing import NamedTuple

import msgspec

from headrace.core.errors import ConcurrencyLimited, InvalidRequest, RateLimited
from headrace.core.fleet import Task
from headrace.core.outcome import Reason
from headrace.core.request import InferenceRequest
from headrace.core.tenant import Principal, RateUnit, TenantLimits
from headrace.core.usage import estimate_tokens

# A caller at its concurrency limit can't know when one of its own requests ends; a second is a polite guess.
CONCURRENCY_RETRY_AFTER_S = 1.0


class LevelKind(StrEnum):
    """Whom a limit was agreed for."""

    TENANT = "tenant"
    KEY = "key"
    MODEL = "model"  # one tenant's requests for it


class Level(NamedTuple):
    """One agreement that a request falls under.

    Attributes:
        subject: A name of its own among all levels: the tenant's, or one with a colon, which no tenant's has.
        name: The key's id or the model's name, for people; the tenant's own at its level.
    """

    kind: LevelKind
    subject: str
    name: str
    limits: TenantLimits


class Demand(NamedTuple):
    """What a request asks for, as far as limits are concerned.

    Attributes:
        prompt_tokens: An estimate.
        output_tokens_max: The caller's bound for each of its `choices`; None where there is none.
    """

    model: str
    prompt_tokens: int
    output_tokens_max: int | None
    choices: int


class Receipt(msgspec.Struct, gc=False):
    """What one request was counted in: `tokens` of each of its levels that limits them, the tenant's first, one request, and
    one in progress. `shadow` is its number with the judge of shadow limits, 0 where it has none."""

    levels: list[Level]
    demand: Demand
    tokens: int
    shadow: int = 0


class _Words(NamedTuple):
    """How a level's refusals are recorded, and what their messages call it."""

    requests: Reason
    tokens: Reason
    concurrency: Reason
    of: str


_WORDS = {
    LevelKind.TENANT: _Words(Reason.RATE_LIMITED, Reason.TOKENS_LIMITED, Reason.CONCURRENCY_LIMITED, ""),
    LevelKind.KEY: _Words(
        Reason.KEY_RATE_LIMITED, Reason.KEY_TOKENS_LIMITED, Reason.KEY_CONCURRENCY_LIMITED, " of this API key"
    ),
    LevelKind.MODEL: _Words(
        Reason.MODEL_RATE_LIMITED,
        Reason.MODEL_TOKENS_LIMITED,
        Reason.MODEL_CONCURRENCY_LIMITED,
        " for this model",
    ),
}


def tenant_level(principal: Principal) -> Level:
    return Level(LevelKind.TENANT, principal.tenant, principal.tenant, principal.limits)


def levels_of(principal: Principal, model: str) -> list[Level]:
    """All that apply to a request for that model, the tenant's first."""
    levels = [tenant_level(principal)]
    if principal.key_limits is not None:
        levels.append(Level(LevelKind.KEY, f"key:{principal.key_id}", principal.key_id, principal.key_limits))
    limits = principal.terms.model_limits.get(model)
    if limits is not None:
        levels.append(Level(LevelKind.MODEL, f"model:{principal.tenant}/{model}", model, limits))
    return levels


def price(demand: Demand, levels: list[Level], *, output_tokens: float) -> int:
    """The tokens that a request takes before anybody knows how many it will use: its prompt, and the longest answer that it
    allows, or, where it sets no bound, the usual one.

    Raises InvalidRequest where that is more than a bucket holds, so that it could never be admitted.

    Args:
        output_tokens: How long answers without a bound usually are.
    """
    prompt, bound = demand.prompt_tokens, demand.output_tokens_max
    limited = [level for level in levels if level.limits.tokens_per_minute]
    if not limited:
        return 0
    least = min(limited, key=lambda level: level.limits.tokens_at_once)
    room = least.limits.tokens_at_once
    if bound is not None:
        tokens = prompt + bound * demand.choices
    else:  # a guess of ours is no reason to refuse what may be shorter
        tokens = max(prompt, min(prompt + int(output_tokens * demand.choices), room))
    if tokens > room:
        answer = "" if bound is None else f" and up to {bound * demand.choices} of answer"
        raise InvalidRequest(
            f"about {prompt} tokens of prompt{answer} are asked for, and the limit on tokens{_WORDS[least.kind].of}"
            f" lets at most {room} come at once",
            param=None if prompt > room else "max_tokens",
            reason=Reason.TOKENS_OVER_LIMIT,
        )
    return tokens


def demand_of(request: InferenceRequest) -> Demand:
    return Demand(
        request.model,
        estimate_tokens(request.prompt_bytes),
        0 if request.endpoint.task is Task.EMBEDDINGS else request.output_tokens_max,
        request.choices,
    )


def rate_limited(level: Level, unit: RateUnit, *, wait_s: float, amount: int = 1) -> RateLimited:
    """The refusal of a request for which a bucket holds too little."""
    words = _WORDS[level.kind]
    per_minute, _ = level.limits.rate(unit)
    if unit is RateUnit.REQUESTS:
        return RateLimited(
            f"the limit of {per_minute} requests a minute{words.of} is spent",
            retry_after_s=wait_s,
            reason=words.requests,
        )
    return RateLimited(
        f"of the limit of {per_minute} tokens a minute{words.of} too few are left for the {amount} that this request may need",
        retry_after_s=wait_s,
        reason=words.tokens,
    )


def concurrency_limited(level: Level) -> ConcurrencyLimited:
    """The refusal of a request beyond those that may be in progress."""
    words = _WORDS[level.kind]
    of = words.of or " of this tenant"
    return ConcurrencyLimited(
        f"{level.limits.concurrency_max} requests{of} are in progress, which is its limit",
        retry_after_s=CONCURRENCY_RETRY_AFTER_S,
        reason=words.concurrency,
    )

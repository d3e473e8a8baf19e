"""Laws of limits on tokens, and of limits at several levels: nothing passes any of them, and a request takes of all or of none."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConcurrencyLimited, HeadraceError, InvalidRequest, RateLimited
from headrace.core.ids import KeyId, RequestId, TenantId
from headrace.core.outcome import Reason
from headrace.core.request import Endpoint, InferenceRequest
from headrace.core.tenant import Principal, TenantLimits, TenantTerms
from headrace.core.usage import TokenUsage, UsageSource
from headrace.policies.levels import Demand, Receipt, demand_of, levels_of
from headrace.policies.limits import LevelUse, LimitView, TenantLimiter

ACME = TenantId("acme")
NO_LIMITS = TenantLimits()
MODEL = "small"

Limited = TenantLimits


def caller(
    limits: TenantLimits = NO_LIMITS,
    *,
    key: TenantLimits | None = None,
    model: TenantLimits | None = None,
    key_id: str = "k3x9q2ab",
) -> Principal:
    terms = TenantTerms(model_limits={} if model is None else {MODEL: model})
    return Principal(ACME, KeyId(key_id), limits, terms=terms, key_limits=key)


def ask(prompt: int = 0, output: int | None = 0, *, choices: int = 1, model: str = MODEL) -> Demand:
    return Demand(model, prompt, output, choices)


def used(prompt: int, completion: int = 0) -> TokenUsage:
    return TokenUsage(prompt, completion, source=UsageSource.FINAL)


def refused(limiter: TenantLimiter, who: Principal, demand: Demand, now_s: float = 0.0) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        limiter.take_levels(who, demand, now_s=now_s)
    return caught.value


def left(limiter: TenantLimiter, who: Principal, now_s: float = 0.0) -> int:
    _, tokens = limiter.view_levels(who, MODEL, now_s=now_s)
    assert tokens is not None
    return tokens.remaining


# What a request takes


def test_the_prompt_and_the_longest_answer_are_taken_and_what_was_not_used_comes_back() -> None:
    limiter, who = TenantLimiter(), caller(TenantLimits(tokens_per_minute=1000))
    receipt = limiter.take_levels(who, ask(100, 50, choices=2), now_s=0.0)
    assert (receipt.tokens, left(limiter, who)) == (200, 800)
    limiter.release_levels(receipt)
    limiter.settle(receipt, used(90, 10), now_s=0.0)
    assert left(limiter, who) == 900
    assert limiter.in_progress(ACME) == 0


def test_what_nobody_worked_on_costs_nothing_and_what_nobody_counted_stays_taken() -> None:
    limiter, who = TenantLimiter(), caller(TenantLimits(tokens_per_minute=1000))
    for source, after in ((UsageSource.NONE, 1000), (UsageSource.UNKNOWN, 700)):
        receipt = limiter.take_levels(who, ask(100, 200), now_s=0.0)
        limiter.release_levels(receipt)
        limiter.settle(receipt, TokenUsage(source=source), now_s=0.0)
        assert left(limiter, who) == after


def test_an_answer_longer_than_was_taken_for_it_is_paid_later_and_never_more_than_a_bucket() -> None:
    limits = TenantLimits(tokens_per_minute=600, tokens_burst=1000)
    limiter, who = TenantLimiter(), caller(limits)
    for completion, wait_s in ((1500, 60.0), (9_999_999, 110.0)):
        receipt = limiter.take_levels(who, ask(0, 100), now_s=0.0)
        limiter.release_levels(receipt)
        limiter.settle(receipt, used(0, completion), now_s=0.0)
        error = refused(limiter, who, ask(0, 100))
        assert error.retry_after_s == pytest.approx(wait_s, abs=0.01)
        limiter = TenantLimiter()


def test_without_a_bound_the_usual_length_is_taken_and_learned() -> None:
    """The first are taken to have 256 tokens; then the mean of this tenant's answers counts, for each choice."""
    limiter, who = TenantLimiter(), caller(TenantLimits(tokens_per_minute=10**6))
    assert limiter.take_levels(who, ask(10, None), now_s=0.0).tokens == 266
    for _ in range(200):
        receipt = limiter.take_levels(who, ask(10, None, choices=2), now_s=0.0)
        limiter.release_levels(receipt)
        limiter.settle(receipt, used(10, 40), now_s=0.0)
    assert 50 <= limiter.take_levels(who, ask(10, None, choices=2), now_s=0.0).tokens <= 51


def test_a_request_that_could_never_be_admitted_is_told_so_and_a_guess_of_ours_is_no_reason() -> None:
    who = caller(
        TenantLimits(tokens_per_minute=6000, tokens_burst=100), key=TenantLimits(tokens_per_minute=200)
    )
    error = refused(TenantLimiter(), who, ask(60, 41))
    assert isinstance(error, InvalidRequest)
    assert (error.reason, error.param) == (Reason.TOKENS_OVER_LIMIT, "max_tokens")
    assert "100" in error.message
    assert refused(TenantLimiter(), who, ask(101, None)).param is None
    assert TenantLimiter().take_levels(who, ask(60, 40), now_s=0.0).tokens == 100
    assert TenantLimiter().take_levels(who, ask(60, None), now_s=0.0).tokens == 100


def test_a_limit_that_begins_later_begins_with_a_full_bucket() -> None:
    limiter, burst = TenantLimiter(), 500
    limiter.take(caller(), now_s=0.0)
    later = caller(TenantLimits(tokens_per_minute=1, tokens_burst=burst))
    assert limiter.take_levels(later, ask(burst), now_s=1.0).tokens == burst


# All or nothing


KEY_LIMITED, MODEL_LIMITED = TenantLimits(60, 2), TenantLimits(60, 1)


@pytest.mark.parametrize(
    ("who", "demand", "reason", "words"),
    [
        (caller(TenantLimits(60, 1, 0, 1)), ask(), Reason.RATE_LIMITED, "60 requests a minute is spent"),
        (caller(TenantLimits(tokens_per_minute=9)), ask(5), Reason.TOKENS_LIMITED, "9 tokens a minute too"),
        (caller(TenantLimits(0, 1, 1, 1)), ask(), Reason.CONCURRENCY_LIMITED, "1 requests of this tenant"),
        (caller(key=TenantLimits(60, 1)), ask(), Reason.KEY_RATE_LIMITED, "a minute of this API key is"),
        (caller(key=TenantLimits(tokens_per_minute=9)), ask(5), Reason.KEY_TOKENS_LIMITED, "this API key"),
        (caller(key=TenantLimits(concurrency_max=1)), ask(), Reason.KEY_CONCURRENCY_LIMITED, "this API key"),
        (caller(model=TenantLimits(60, 1)), ask(), Reason.MODEL_RATE_LIMITED, "for this model is spent"),
        (caller(model=TenantLimits(tokens_per_minute=9)), ask(5), Reason.MODEL_TOKENS_LIMITED, "this model"),
        (caller(model=TenantLimits(concurrency_max=1)), ask(), Reason.MODEL_CONCURRENCY_LIMITED, "this model"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_limit(who: Principal, demand: Demand, reason: Reason, words: str) -> None:
    limiter = TenantLimiter()
    limiter.take_levels(who, demand, now_s=0.0)
    error = refused(limiter, who, demand)
    assert isinstance(error, RateLimited | ConcurrencyLimited)
    assert error.reason == reason
    assert words in error.message
    assert limiter.in_progress(ACME) == 1


def test_a_limit_of_a_model_is_no_limit_of_another_and_a_key_s_none_of_another_key() -> None:
    limiter = TenantLimiter()
    who = caller(model=TenantLimits(60, 1))
    limiter.take_levels(who, ask(), now_s=0.0)
    assert refused(limiter, who, ask()).reason == Reason.MODEL_RATE_LIMITED
    limiter.take_levels(who, ask(model="large"), now_s=0.0)
    one, other = (caller(key=TenantLimits(60, 1), key_id=key_id) for key_id in ("one", "other"))
    for each in (one, other):
        limiter.take_levels(each, ask(), now_s=0.0)
        assert refused(limiter, each, ask()).reason == Reason.KEY_RATE_LIMITED


def test_who_waits_as_told_is_admitted_by_every_level() -> None:
    """The wait is that of the slowest."""
    who = caller(TenantLimits(60, 1, 0, 600, 600), key=TenantLimits(6, 1), model=TenantLimits(30, 1))
    limiter = TenantLimiter()
    limiter.take_levels(who, ask(600), now_s=0.0)
    error = refused(limiter, who, ask(600))
    assert error.retry_after_s == pytest.approx(60.0, abs=0.01)
    assert error.reason == Reason.TOKENS_LIMITED
    limiter.take_levels(who, ask(600), now_s=error.retry_after_s or 0.0)


def test_headers_tell_of_the_tightest_level() -> None:
    who = caller(
        TenantLimits(60, 9, 0, 100), key=TenantLimits(60, 3), model=TenantLimits(tokens_per_minute=80)
    )
    limiter = TenantLimiter()
    limiter.take_levels(who, ask(10), now_s=0.0)
    assert limiter.view_levels(who, MODEL, now_s=0.0) == (
        LimitView(3, 2, 1.0),
        LimitView(80, 70, 7.5),
    )
    assert limiter.view_levels(who, "large", now_s=0.0)[1] == LimitView(100, 90, 6.0)
    assert limiter.view_levels(caller(key=TenantLimits()), MODEL, now_s=0.0) == (None, None)


# Laws over any interleaving


@dataclass
class Step:
    pause_s: float
    begins: bool
    who: int
    prompt: int
    output: int | None
    used: int | None


LIMITS = st.builds(
    TenantLimits,
    requests_per_minute=st.sampled_from([0, 60, 600]),
    requests_burst=st.integers(1, 5),
    concurrency_max=st.sampled_from([0, 3]),
    tokens_per_minute=st.sampled_from([0, 100, 6000]),
    tokens_burst=st.sampled_from([0, 150]),
)
STEPS = st.lists(
    st.builds(
        Step,
        st.floats(0.0, 3.0),
        st.booleans(),
        st.integers(0, 1),
        st.integers(0, 120),
        st.none() | st.integers(0, 60),
        st.none() | st.integers(0, 150),
    ),
    max_size=60,
)


@given(LIMITS, LIMITS, LIMITS, STEPS)
def test_no_level_is_passed_and_nothing_leaks_whatever_begins_and_ends_when(
    tenant: TenantLimits, key: TenantLimits, model: TenantLimits, steps: list[Step]
) -> None:
    """From any moment to any later one each bucket gave at most what it held and what has come in, where what was used is
    what counts (unknown: what was taken); and a refusal leaves no trace."""
    limiter, now_s = TenantLimiter(), 100.0
    callers = [caller(tenant, key=key, model=model, key_id=name) for name in ("one", "two")]
    running: list[tuple[int, Receipt, Step]] = []
    taken: list[
        tuple[float, int, float]
    ] = []  # when, for which caller, how many tokens: negative where they came back
    admitted: list[tuple[float, int]] = []
    for step in steps:
        now_s += step.pause_s
        if step.begins:
            before = [limiter.in_progress(subject) for subject in ("acme", "key:one", "key:two")]
            try:
                receipt = limiter.take_levels(callers[step.who], ask(step.prompt, step.output), now_s=now_s)
            except HeadraceError:
                after = [limiter.in_progress(subject) for subject in ("acme", "key:one", "key:two")]
                assert before == after
                continue
            running.append((step.who, receipt, step))
            admitted.append((now_s, step.who))
            taken.append((now_s, step.who, receipt.tokens))
        elif running:
            number, receipt, began = running.pop(0)
            limiter.release_levels(receipt)
            known = UsageSource.UNKNOWN if began.used is None else UsageSource.FINAL
            # No more than was taken: debts have a test of their own.
            tokens = min(began.used or 0, receipt.tokens)
            limiter.settle(receipt, TokenUsage(0, tokens, source=known), now_s=now_s)
            if began.used is not None:
                taken.append((now_s, number, tokens - receipt.tokens))
        for limits, mine in ((tenant, (0, 1)), (key, (0,)), (key, (1,)), (model, (0, 1))):
            if limits.concurrency_max:
                assert sum(who in mine for who, _, _ in running) <= limits.concurrency_max
            if limits.tokens_per_minute:
                spent = sum(tokens for _, who, tokens in taken if who in mine)
                came = (now_s - 100.0) * limits.tokens_per_minute / 60
                assert spent <= limits.tokens_at_once + came + 1e-3
            if limits.requests_per_minute:
                for start_s, _ in admitted:
                    count = sum(start_s <= at_s for at_s, who in admitted if who in mine)
                    assert (
                        count
                        <= limits.requests_burst + (now_s - start_s) * limits.requests_per_minute / 60 + 1e-3
                    )
    for _, receipt, _ in running:
        limiter.release_levels(receipt)
        limiter.settle(receipt, TokenUsage(), now_s=now_s)
    for subject in ("acme", "key:one", "key:two", f"model:acme/{MODEL}"):
        assert limiter.in_progress(subject) == 0
    now_s += 1000.0  # all that was taken has come again: every bucket is full
    for who in callers:
        for view in limiter.view_levels(who, MODEL, now_s=now_s):
            assert view is None or (view.remaining, view.reset_s) == (view.limit, 0.0)


@given(st.lists(st.tuples(st.floats(-7200.0, 7200.0), st.integers(1, 50)), max_size=40))
def test_a_clock_that_steps_by_an_hour_gives_no_tokens(steps: list[tuple[float, int]]) -> None:
    """T32, REPORTS 34733: there is no window whose end could be met twice, and time that was seen isn't seen again."""
    limiter, who = TenantLimiter(), caller(TenantLimits(tokens_per_minute=60, tokens_burst=100))
    now_s = latest_s = first_s = 10_000.0
    spent = 0
    limiter.view_levels(who, MODEL, now_s=first_s)
    for step_s, tokens in steps:
        now_s = max(0.0, now_s + step_s)
        latest_s = max(latest_s, now_s)
        try:
            spent += limiter.take_levels(who, ask(tokens), now_s=now_s).tokens
        except RateLimited:
            pass
    assert spent <= 100 + (latest_s - first_s) + 1e-3


def test_the_use_of_a_level_is_what_is_in_progress_and_what_is_left() -> None:
    limiter, who = (
        TenantLimiter(),
        caller(TenantLimits(60, 5, 4, 600, 100), key=TenantLimits(concurrency_max=3)),
    )
    tenant, key = levels_of(who, MODEL)
    assert limiter.use(tenant, now_s=0.0) == LevelUse(0, LimitView(5, 5, 0.0), LimitView(100, 100, 0.0))
    receipt = limiter.take_levels(who, ask(40), now_s=0.0)
    assert limiter.use(tenant, now_s=0.0) == LevelUse(1, LimitView(5, 4, 1.0), LimitView(100, 60, 4.0))
    assert limiter.use(key, now_s=0.0) == LevelUse(1, None, None)
    limiter.release_levels(receipt)
    limiter.settle(receipt, used(10), now_s=1.0)
    assert limiter.use(tenant, now_s=1.0) == LevelUse(0, LimitView(5, 5, 0.0), LimitView(100, 100, 0.0))


@pytest.mark.parametrize(
    ("endpoint", "bound", "output"),
    [(Endpoint.CHAT_COMPLETIONS, 7, 7), (Endpoint.COMPLETIONS, None, None), (Endpoint.EMBEDDINGS, None, 0)],
)
def test_embeddings_have_no_answer_to_take_tokens_for(
    endpoint: Endpoint, bound: int | None, output: int | None
) -> None:
    request = InferenceRequest(
        id=RequestId("req"),
        principal=caller(),
        endpoint=endpoint,
        model=MODEL,
        canonical=b"",
        wire_fields={},
        is_streaming=False,
        wants_usage=False,
        prompt_bytes=41,
        output_tokens_max=bound,
        choices=2,
        arrived_s=0.0,
        arrived_wall_s=0.0,
        deadline_s=1.0,
    )
    assert demand_of(request) == Demand(MODEL, 11, output, 2)

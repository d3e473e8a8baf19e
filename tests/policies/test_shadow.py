"""Claims about shadow limits: they judge as the real ones would, refuse nothing, and say what they would have refused."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import HeadraceError
from headrace.core.ids import KeyId, TenantId
from headrace.core.tenant import Principal, TenantLimits, TenantTerms
from headrace.core.usage import TokenUsage, UsageSource
from headrace.policies.levels import Demand, Receipt
from headrace.policies.limits import TenantLimiter
from headrace.policies.shadow import ShadowLimiter, ShadowView

ACME = TenantId("acme")
MODEL = "small"
NOTHING = TokenUsage()


def caller(shadow: TenantLimits | None = None, **terms: object) -> Principal:
    return Principal(
        ACME,
        KeyId("k"),
        TenantLimits(),
        terms=TenantTerms(shadow=shadow, **terms),  # type: ignore[arg-type]
    )


def judge() -> tuple[ShadowLimiter, Counter[str]]:
    told: Counter[str] = Counter()
    return ShadowLimiter(lambda who, model, reason: told.update([reason])), told


def test_a_caller_without_shadow_limits_has_none_and_one_with_them_is_looked_at() -> None:
    assert (
        caller().shadow is caller(TenantLimits()).shadow is caller(shadow_key=TenantLimits()).shadow is None
    )
    assert not caller(TenantLimits()).has_levels
    who = caller(
        TenantLimits(60, 9), shadow_key=TenantLimits(60, 8), shadow_models={MODEL: TenantLimits(60, 7)}
    )
    assert who.has_levels
    assert who.shadow is not None
    assert who.limits == TenantLimits()
    assert (who.shadow.limits, who.shadow.key_limits) == (TenantLimits(60, 9), TenantLimits(60, 8))
    assert who.shadow.terms.model_limits == {MODEL: TenantLimits(60, 7)}


@given(
    st.lists(
        st.tuples(st.floats(0.0, 5.0), st.booleans(), st.integers(0, 60), st.integers(0, 60)), max_size=60
    )
)
def test_it_judges_as_a_limiter_would_whose_refusals_hold(
    steps: list[tuple[float, bool, int, int]],
) -> None:
    """What it would refuse takes nothing there either, although the request goes on."""
    limits, models = TenantLimits(30, 3, 2, 600, 100), {MODEL: TenantLimits(tokens_per_minute=300)}
    who = caller(limits, shadow_models=models)
    assert who.shadow is not None
    shadow, told = judge()
    real, expected = TenantLimiter(), Counter[str]()
    running: list[tuple[int, Receipt | None]] = []
    now_s = 50.0
    for number, (pause_s, begins, prompt, used) in enumerate(steps):
        now_s += pause_s
        if begins:
            demand, receipt = Demand(MODEL, prompt, 20, 1), None
            shadow.begin((1, number), who.shadow, demand, now_s=now_s)
            try:
                receipt = real.take_levels(who.shadow, demand, now_s=now_s)
                expected[""] += 1
            except HeadraceError as refusal:
                expected[refusal.reason] += 1
            running.append((number, receipt))
        elif running:
            ended, receipt = running.pop(0)
            usage = TokenUsage(0, used, source=UsageSource.FINAL)
            shadow.end((1, ended), usage, now_s=now_s)
            if receipt is not None:
                real.release_levels(receipt)
                real.settle(receipt, usage, now_s=now_s)
        assert told == expected
    view = shadow.view(ACME, now_s=now_s)
    assert view.requests == told.total()
    assert view.refused == {reason: count for reason, count in told.items() if reason}


def test_what_a_lost_worker_had_in_progress_is_over_and_another_worker_s_is_not() -> None:
    shadow, told = judge()
    who = caller(TenantLimits(concurrency_max=2)).shadow
    assert who is not None
    for worker in (1, 2):
        shadow.begin((worker, 7), who, Demand(MODEL, 1, 1, 1), now_s=0.0)
    shadow.begin((2, 8), who, Demand(MODEL, 1, 1, 1), now_s=0.0)
    shadow.lost(1, now_s=1.0)
    shadow.lost(3, now_s=1.0)
    shadow.begin((2, 9), who, Demand(MODEL, 1, 1, 1), now_s=1.0)
    shadow.begin((2, 10), who, Demand(MODEL, 1, 1, 1), now_s=1.0)
    assert told == {"": 3, "concurrency_limited": 2}
    for number in (7, 8, 9, 10):
        shadow.end((2, number), NOTHING, now_s=2.0)
    shadow.begin((2, 11), who, Demand(MODEL, 1, 1, 1), now_s=2.0)
    assert told[""] == 4


def test_the_view_is_of_the_last_hour() -> None:
    shadow, _ = judge()
    who = caller(TenantLimits(1, 1)).shadow
    assert who is not None
    assert shadow.view(ACME, now_s=0.0) == ShadowView(0, {})
    for minute in range(100):
        for number in range(2):
            shadow.begin((1, 2 * minute + number), who, Demand(MODEL, 0, 0, 1), now_s=minute * 60.0)
    assert shadow.view(ACME, now_s=99 * 60.0) == ShadowView(120, {"rate_limited": 60})
    assert shadow.view(ACME, now_s=129 * 60.0) == ShadowView(60, {"rate_limited": 30})
    assert shadow.view(ACME, now_s=10_000 * 60.0) == ShadowView(0, {})

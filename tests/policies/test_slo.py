"""Promises: what is counted, what is proven, and what may still go wrong."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.deployment_terms import SloTerms
from headrace.core.slo import LoadLimits, Metric, Objective, Slo
from headrace.core.verdicts import Verdict
from headrace.policies import distributions, slo
from headrace.policies.slo import Fate, Promise, Seen, Tally

TTFT = Objective(Metric.TTFT, 1000, 0.95)
ITL = Objective(Metric.ITL, 300, 0.9)
TPOT = Objective(Metric.TPOT, 100, 0.95)
TOTAL = Objective(Metric.TOTAL, 5000, 0.98)
ALL = Slo(
    "chat",
    failure_share_max=0.01,
    objectives=(TTFT, ITL, TPOT, TOTAL),
    load=LoadLimits(input_tokens_max=1000, output_tokens_max=100),
)
FINE = Seen(Fate.WHOLE, 2.0, 0.5, 0.1, 0.02, 500, 50)


def tallies(seen: Seen | Sequence[Seen], asked: Slo = ALL) -> dict[str, Tally]:
    """By promise, and `all` for every bound at once."""
    found = slo.attainment(asked, [seen] if isinstance(seen, Seen) else seen)
    return {each.promise.name: each.tally for each in found.kept} | {"all": found.qualified}


def marks(seen: Seen, asked: Slo = ALL) -> dict[str, str]:
    """What one request is: `good`, `bad: CAUSE`, or `excused: REASON`."""
    return {name: _mark(tally) for name, tally in tallies(seen, asked).items()}


def _mark(tally: Tally) -> str:
    found = [
        *(["good"] if tally.good else []),
        *(f"bad: {cause}" for cause in tally.bad),
        *(f"excused: {reason}" for reason in tally.excused),
    ]
    (only,) = found
    return only


NAMES = ("failures", "ttft 1000 ms", "itl 300 ms", "tpot 100 ms", "total 5000 ms", "all")


# What is counted


def test_a_whole_answer_within_every_bound_is_good() -> None:
    assert marks(FINE) == dict.fromkeys(NAMES, "good")


def test_a_bound_itself_is_within() -> None:
    assert set(marks(Seen(Fate.WHOLE, 5.0, 1.0, 0.3, 0.1)).values()) == {"good"}


@pytest.mark.parametrize("fate", [Fate.LATE, Fate.REFUSED, Fate.FAILED, Fate.BROKEN, Fate.UNSENT])
def test_who_got_no_whole_answer_counts_against_every_promise(fate: Fate) -> None:
    """However fast the refusal was."""
    assert marks(Seen(fate, 0.001, 0.001)) == dict.fromkeys(NAMES, f"bad: {fate}")


def test_who_got_no_whole_answer_is_not_qualified_where_nothing_is_promised_of_failures() -> None:
    only = Slo("chat", objectives=(TTFT,))
    assert marks(Seen(Fate.FAILED), only)["all"] == "bad: failed"


@pytest.mark.parametrize(
    ("seen", "slow"),
    [
        (Seen(Fate.WHOLE, 2.0, 1.001, 0.1, 0.02), "ttft 1000 ms"),
        (Seen(Fate.WHOLE, 2.0, 0.5, 0.4, 0.02), "itl 300 ms"),
        (Seen(Fate.WHOLE, 2.0, 0.5, 0.1, 0.2), "tpot 100 ms"),
        (Seen(Fate.WHOLE, 6.0, 0.5, 0.1, 0.02), "total 5000 ms"),
    ],
)
def test_a_slow_answer_counts_against_the_bound_that_it_passed(seen: Seen, slow: str) -> None:
    expected = dict.fromkeys(NAMES, "good") | {slow: "bad: slow", "all": "bad: slow"}
    assert marks(seen) == expected


def test_an_answer_without_a_measure_is_excused_from_its_bound_alone() -> None:
    """One token has no pace, and what doesn't stream has no pauses."""
    found = marks(Seen(Fate.WHOLE, 2.0, 0.5))
    assert found["itl 300 ms"] == found["tpot 100 ms"] == "excused: no_measure"
    assert found["all"] == found["failures"] == "good"


@pytest.mark.parametrize("lengths", [(1001, 10), (10, 101)])
def test_what_is_larger_than_the_promise_covers_is_excused(lengths: tuple[int, int]) -> None:
    for fate in (Fate.WHOLE, Fate.FAILED):
        assert set(marks(Seen(fate, 60.0, 20.0, None, None, *lengths)).values()) == {"excused: too_long"}


def test_a_callers_own_mistake_is_excused() -> None:
    assert set(marks(Seen(Fate.CALLERS, 0.001)).values()) == {"excused: callers"}


def test_who_leaves_after_the_first_token_has_seen_it_in_time_and_nothing_else_is_known() -> None:
    assert marks(Seen(Fate.LEFT, 2.0, 0.5, 0.1, 0.02)) == {
        "failures": "excused: left",
        "ttft 1000 ms": "good",
        "itl 300 ms": "excused: left",
        "tpot 100 ms": "excused: left",
        "total 5000 ms": "excused: left",
        "all": "excused: left",
    }


@pytest.mark.parametrize(
    ("seen", "slow"),
    [
        (Seen(Fate.LEFT, 1.5), "ttft 1000 ms"),
        (Seen(Fate.LEFT, 1.5, 1.2), "ttft 1000 ms"),
        (Seen(Fate.LEFT, 1.5, 0.5, 0.6), "itl 300 ms"),
        (Seen(Fate.LEFT, 1.5, 0.5, 0.1, 0.3), "tpot 100 ms"),
        (Seen(Fate.LEFT, 5.5, 0.5), "total 5000 ms"),
    ],
)
def test_who_leaves_because_it_takes_too_long_was_let_down(seen: Seen, slow: str) -> None:
    """Else the slowest service would have the best figures: nobody stays for its slow answers."""
    found = marks(seen)
    assert found[slow] == "bad: slow"
    assert found["all"] == "bad: slow"


def test_who_leaves_soon_and_has_seen_nothing_is_excused() -> None:
    assert set(marks(Seen(Fate.LEFT, 0.5)).values()) == {"excused: left"}


seen_requests = st.builds(
    Seen,
    fate=st.sampled_from(Fate),
    total_s=st.none() | st.floats(0, 10),
    ttft_s=st.none() | st.floats(0, 3),
    pause_s=st.none() | st.floats(0, 1),
    tpot_s=st.none() | st.floats(0, 0.3),
    input_tokens=st.none() | st.integers(0, 2000),
    output_tokens=st.none() | st.integers(0, 200),
)


@given(st.lists(seen_requests, max_size=12))
def test_every_intended_request_is_counted_exactly_once_by_every_promise(requests: list[Seen]) -> None:
    found = slo.attainment(ALL, requests)
    assert found.intended == sum(found.fates.values()) == len(requests)
    for tally in (*(each.tally for each in found.kept), found.qualified):
        assert tally.intended == len(requests)
        assert tally.good + tally.misses + sum(tally.excused.values()) == len(requests)
    assert found.qualified.good <= sum(seen.fate is Fate.WHOLE for seen in requests)


@given(st.lists(seen_requests, max_size=12))
def test_what_is_qualified_misses_no_promise(requests: list[Seen]) -> None:
    found = slo.attainment(ALL, requests)
    for each in found.kept:
        assert each.tally.misses <= found.qualified.misses


@given(st.lists(seen_requests, min_size=1, max_size=12), st.data())
def test_a_tighter_bound_is_never_kept_better(requests: list[Seen], data: st.DataObject) -> None:
    tight = data.draw(st.floats(1, 3000))
    wide = data.draw(st.floats(tight, 6000))
    goods = [
        tallies(requests, Slo("a", objectives=(Objective(Metric.TTFT, bound, 0.9),)))["all"].misses
        for bound in (tight, wide)
    ]
    assert goods[0] >= goods[1]


# What it says


@pytest.mark.parametrize(
    ("good", "misses", "verdict"),
    [
        (298, 0, Verdict.INCONCLUSIVE),
        (299, 0, Verdict.PASS),
        (0, 0, Verdict.INCONCLUSIVE),
        (97, 3, Verdict.INCONCLUSIVE),
        (96, 4, Verdict.FAIL),
    ],
)
def test_a_promise_is_proven_or_refuted_only_by_enough_requests(
    good: int, misses: int, verdict: Verdict
) -> None:
    """For 99 of 100 with 95 % confidence it takes 299 requests without a miss, as ln 0.05 / ln 0.99 says."""
    kept = slo.judge(Promise("p", 0.01), Tally(good, {"slow": misses} if misses else {}))
    assert kept.verdict is verdict
    assert (kept.requests_needed > kept.tally.counted) == (verdict is Verdict.INCONCLUSIVE)


@pytest.mark.parametrize(("misses", "needed"), [(0, 459), (1, 662), (10, 2010)])
def test_the_requests_needed_are_those_of_mlperfs_early_stopping(misses: int, needed: int) -> None:
    """Its published table, for the 99th percentile at 99 % confidence without a tolerance."""
    assert slo.requests_needed(misses, limit=0.01, alpha=0.01) == needed


@given(st.integers(0, 50), st.floats(0.001, 0.5), st.floats(0.001, 0.3))
def test_the_requests_needed_prove_it_and_one_less_does_not(misses: int, limit: float, alpha: float) -> None:
    needed = slo.requests_needed(misses, limit=limit, alpha=alpha)
    assert distributions.binomial_at_most(misses, needed, limit) <= alpha
    assert distributions.binomial_at_most(misses, needed - 1, limit) > alpha


def test_one_refuted_promise_is_enough_and_all_must_be_proven() -> None:
    two = Slo("a", failure_share_max=0.2, objectives=(Objective(Metric.TTFT, 1000, 0.5),))
    fine, slow, failed = Seen(Fate.WHOLE, 1, 0.1), Seen(Fate.WHOLE, 3, 2.0), Seen(Fate.FAILED)
    assert slo.attainment(two, [fine] * 100).verdict is Verdict.PASS
    assert slo.attainment(two, [fine] * 10 + [slow] * 90).verdict is Verdict.FAIL
    assert slo.attainment(two, [fine] * 52 + [slow] * 48).verdict is Verdict.INCONCLUSIVE
    assert slo.attainment(two, [fine] * 60 + [failed] * 40).verdict is Verdict.FAIL
    assert slo.attainment(two, []).verdict is Verdict.INCONCLUSIVE


def test_a_budget_says_how_much_of_it_is_left_and_how_fast_it_goes() -> None:
    half = slo.budget(Tally(995, {"slow": 5}), 0.01)
    assert (half.allowed, half.spent) == (10.0, 5)
    assert half.left_share == half.burn_rate == 0.5
    over = slo.budget(Tally(980, {"slow": 20}, {"left": 500}), 0.01)
    assert over.left_share == -1.0
    assert over.burn_rate == 2.0
    nothing = slo.budget(Tally(), 0.01)
    assert nothing.left_share is nothing.burn_rate is None


# Beside the deployment file


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        (SloTerms(), []),
        (SloTerms(ttft_p95_ms=1000, tpot_p95_ms=100, error_rate=0.01), []),
        (SloTerms(ttft_p95_ms=1500), ["which is later; lower that to 1000"]),
        (SloTerms(ttft_p95_ms=900), ["to more of them; lower the one or raise the other"]),
        (SloTerms(tpot_p95_ms=150), ["`slo.tpot_p95_ms` = 150"]),
        (SloTerms(error_rate=0.02), ["make them equal"]),
    ],
)
def test_what_the_deployment_file_promises_otherwise_is_told(terms: SloTerms, said: list[str]) -> None:
    found = list(slo.contradictions(ALL, terms))
    assert len(found) == len(said)
    for message, part in zip(found, said, strict=True):
        assert part in message


def test_a_bound_for_another_share_contradicts_only_what_it_rules_out() -> None:
    """All but one of a hundred within 1 s, and 95 of them within 0.5 s, go together."""
    strict = Slo("a", objectives=(Objective(Metric.TTFT, 1000, 0.99),))
    assert not list(slo.contradictions(strict, SloTerms(ttft_p95_ms=500)))
    assert list(slo.contradictions(strict, SloTerms(ttft_p95_ms=1200)))
    loose = Slo("a", objectives=(Objective(Metric.TTFT, 1000, 0.9),))
    assert not list(slo.contradictions(loose, SloTerms(ttft_p95_ms=2000)))
    assert list(slo.contradictions(loose, SloTerms(ttft_p95_ms=900)))
    assert not list(slo.contradictions(loose, SloTerms(error_rate=0.1)))

"""A workload that is fitted to a trace makes requests like the trace's: what a workload made has that workload as its fit."""

import math
from itertools import islice
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.workload import (
    BLOCK_TOKENS,
    ArrivalKind,
    Arrivals,
    Arrived,
    Cancel,
    LengthKind,
    Lengths,
    Prefixes,
    Turns,
    Workload,
    constant,
)
from headrace.policies import arrival_fit, arrival_times, length_fit, lengths, workload_fit, workload_plan
from headrace.policies.workload_fit import WorkloadFit
from headrace.policies.workload_plan import Planned

INPUT = Lengths(LengthKind.LOGNORMAL, median=1000.0, sigma=0.7, minimum=10, maximum=20_000)
OUTPUT = Lengths(LengthKind.LOGNORMAL, median=120.0, sigma=0.5, minimum=10, maximum=2000)


def drawn(of: Lengths, count: int, seed: int = 1) -> list[int]:
    chance, draw = Random(seed), lengths.sampler(of)
    return [draw(chance.random()) for _ in range(count)]


def traced(planned: Planned) -> Arrived:
    """What a trace would say of it."""
    assert planned.due_s is not None
    return Arrived(
        planned.due_s,
        planned.input_tokens,
        planned.output_tokens,
        conversation=f"c{planned.conversation}",
        is_streamed=planned.is_streamed,
        cancel_after_s=planned.cancel_after_s,
    )


def with_blocks(planned: Planned, system: int) -> Arrived:
    """As a trace would have it that names what prompts consist of, in whole blocks."""
    shared = planned.prefix_tokens // BLOCK_TOKENS
    of_group = (
        []
        if planned.prefix_group is None
        else [1000 * (2 + planned.prefix_group) + n for n in range(shared - system)]
    )
    own = [
        1_000_000 + 1000 * planned.number + n
        for n in range(math.ceil(planned.input_tokens / BLOCK_TOKENS) - shared)
    ]
    return traced(planned)._replace(conversation="", blocks=(*range(system), *of_group, *own))


def fitted(of: Workload, count: int = 3000) -> WorkloadFit:
    return workload_fit.fit(
        map(traced, islice(workload_plan.plan(of, chance=Random(3)), count)), name="again"
    )


def workload(**said: Any) -> Workload:
    arrivals = said.pop("arrivals", Arrivals(ArrivalKind.POISSON, rate_per_s=5.0))
    return Workload("w", arrivals, **{"input_tokens": INPUT, "output_tokens": OUTPUT, **said})


# Lengths


@settings(max_examples=15)
@given(
    median=st.floats(30.0, 5000.0),
    sigma=st.floats(0.2, 1.2),
    seed=st.integers(0, 1000),
)
def test_lognormal_lengths_are_found_again(median: float, sigma: float, seed: int) -> None:
    of = Lengths(LengthKind.LOGNORMAL, median=median, sigma=sigma)
    found = length_fit.fit(drawn(of, 2000, seed))
    assert found.chosen.kind is LengthKind.LOGNORMAL
    assert math.log(found.chosen.median or 0.0) == pytest.approx(math.log(median), abs=0.02 + 0.1 * sigma)
    assert found.chosen.sigma == pytest.approx(sigma, rel=0.1)
    assert found.ks < 0.04


def test_lengths_of_two_kinds_keep_their_own_quantiles() -> None:
    """Short answers and long ones are no lognormal distribution, and a fit that pretends so has lengths that nobody asked for."""
    two = drawn(Lengths(LengthKind.UNIFORM, minimum=10, maximum=20), 500)
    two += drawn(Lengths(LengthKind.UNIFORM, minimum=900, maximum=1000), 500)
    found = length_fit.fit(two)
    assert found.ks > 0.2
    assert found.chosen.kind is LengthKind.EMPIRICAL
    again = drawn(found.chosen, 1000, seed=2)
    assert sum(20 < length < 900 for length in again) < 25
    assert sum(length >= 900 for length in again) == pytest.approx(500, abs=60)
    assert max(again) <= max(two)


def test_one_length_is_constant_and_nothing_is_one_token() -> None:
    assert length_fit.fit([7, 7, 7]).chosen == constant(7)
    assert length_fit.fit([0, 0]).chosen == constant(1)


# Arrivals


@pytest.mark.parametrize("burstiness", [0.4, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("modulation", [0.0, 0.5])
def test_burstiness_and_slow_changes_of_the_rate_are_told_apart(burstiness: float, modulation: float) -> None:
    """Both make gaps irregular; only the second makes one minute busier than another."""
    arrivals = Arrivals(ArrivalKind.GAMMA, rate_per_s=8.0, burstiness=burstiness, modulation=modulation)
    times = list(islice(arrival_times.times(arrivals, chance=Random(5)), 40_000))
    found = arrival_fit.fit(times)
    assert found.chosen.rate_per_s == pytest.approx(8.0, rel=0.25 if modulation else 0.05 * (1 + burstiness))
    assert found.chosen.burstiness == pytest.approx(burstiness, rel=0.15)
    assert found.chosen.modulation == pytest.approx(modulation, abs=0.15)
    assert found.chosen.kind is (ArrivalKind.POISSON if burstiness == 1.0 else ArrivalKind.GAMMA)


def test_arrivals_at_equal_distances_are_constant() -> None:
    found = arrival_fit.fit([0.5 * number for number in range(400)])
    assert (found.chosen.kind, found.chosen.rate_per_s) == (ArrivalKind.CONSTANT, 2.0)
    assert (found.gap_cv, found.together) == (pytest.approx(0.0, abs=1e-9), 0.0)


def test_dispersion_grows_with_its_window_where_the_rate_changes() -> None:
    arrivals = Arrivals(ArrivalKind.POISSON, rate_per_s=10.0, modulation=0.5)
    found = arrival_fit.fit(list(islice(arrival_times.times(arrivals, chance=Random(1)), 20_000)))
    assert found.dispersion["1"] < found.dispersion["10"] < found.dispersion["60"]
    assert found.peak["1"] > 1.0
    short = arrival_fit.fit([0.1 * number for number in range(60)])
    assert set(short.dispersion) == set()  # six seconds don't have windows enough to say anything


@pytest.mark.parametrize("times", [[], [0.0, 1.0], [2.0, 2.0, 2.0]])
def test_too_few_arrivals_have_no_rate(times: list[float]) -> None:
    with pytest.raises(ValueError, match="at least three requests"):
        arrival_fit.fit(times)


# Whole workloads


def test_what_a_workload_made_has_that_workload_as_its_fit() -> None:
    of = workload(stream_share=0.7, cancel=Cancel(0.1, after_s=2.0))
    found = fitted(of)
    again = found.workload
    assert again.arrivals.kind is ArrivalKind.POISSON
    assert again.arrivals.rate_per_s == pytest.approx(5.0, rel=0.05)
    for name, wanted in (("input_tokens", INPUT), ("output_tokens", OUTPUT)):
        assert getattr(again, name).median == pytest.approx(wanted.median, rel=0.06)
        assert getattr(again, name).sigma == pytest.approx(wanted.sigma, rel=0.06)
    assert again.stream_share == pytest.approx(0.7, abs=0.03)
    assert again.cancel.share == pytest.approx(0.1, abs=0.02)
    assert again.cancel.after_s == pytest.approx(2.0, rel=0.2)
    assert again.turns == Turns()
    assert found.correlation == pytest.approx(0.0, abs=0.06)
    assert (found.reuse, found.notes) == (None, ())


def test_conversations_are_found_again() -> None:
    turns = Turns(Lengths(LengthKind.UNIFORM, minimum=1, maximum=4), gap_s=6.0, tokens=constant(33))
    again = fitted(workload(turns=turns, input_tokens=INPUT)).workload
    assert lengths.mean(again.turns.count) == pytest.approx(2.5, rel=0.1)
    assert again.turns.gap_s == pytest.approx(6.0, rel=0.1)
    assert again.turns.tokens == constant(33)
    assert again.arrivals.rate_per_s == pytest.approx(5.0, rel=0.15)  # all turns count
    assert again.input_tokens is not None
    assert again.input_tokens.median == pytest.approx(1000.0, rel=0.1)  # and those of the first turn alone


def test_shared_beginnings_are_found_in_a_trace_that_names_blocks() -> None:
    prefixes = Prefixes(
        2 * BLOCK_TOKENS, 12, 0.6, Lengths(LengthKind.CONSTANT, value=3 * BLOCK_TOKENS), skew=0.8
    )
    of = workload(prefixes=prefixes, input_tokens=constant(8 * BLOCK_TOKENS))
    rows = [with_blocks(each, 2) for each in islice(workload_plan.plan(of, chance=Random(3)), 2000)]
    found = workload_fit.fit(rows, name="again")
    again = found.workload.prefixes
    assert (again.system_tokens, again.groups) == (2 * BLOCK_TOKENS, 12)
    assert again.share == pytest.approx(0.6, abs=0.03)
    assert again.tokens == constant(3 * BLOCK_TOKENS)
    assert again.skew == pytest.approx(0.8, abs=0.15)
    # Of 8 blocks, 2 are everybody's and, of six in ten, 3 the group's; the first of each had to be computed.
    assert found.reuse == pytest.approx((2 + 0.6 * 3) / 8, abs=0.02)


def test_prompts_that_share_nothing_but_their_beginning_have_no_groups() -> None:
    rows = [Arrived(float(n), 1024, 5, (7, 100 + n)) for n in range(10)]
    found = workload_fit.fit(rows, name="again")
    assert found.workload.prefixes == Prefixes(BLOCK_TOKENS)
    assert found.reuse == pytest.approx(9 / 20)
    alike = [Arrived(float(n), 512, 5, (7,)) for n in range(10)]
    assert workload_fit.fit(alike, name="again").workload.prefixes == Prefixes(BLOCK_TOKENS)


def test_groups_of_equal_size_have_no_skew_and_a_single_one_neither() -> None:
    rows = [Arrived(float(n), 1024, 5, (n % 3, 100 + n)) for n in range(9)]
    assert workload_fit.fit(rows, name="again").workload.prefixes.skew == 0.0
    single = [Arrived(float(n), 1024, 5, (0 if n < 4 else 50 + n, 100 + n)) for n in range(9)]
    assert workload_fit.fit(single, name="again").workload.prefixes == Prefixes(
        0, 1, 0.4444, constant(BLOCK_TOKENS), 0.0
    )


def test_what_a_cache_had_stands_for_what_is_shared() -> None:
    rows = [Arrived(float(n), 500, 5, cached_tokens=200 if n % 2 else 0) for n in range(10)]
    again = workload_fit.fit(rows, name="again").workload.prefixes
    assert again == Prefixes(groups=1, share=0.5, tokens=constant(200))


def test_its_reader_is_told_what_a_workload_cannot_say() -> None:
    rows = [Arrived(float(n // 4), 10 + n**2, 20 + n**2 if n % 2 else 5 + n**2) for n in range(400)]
    notes = " ".join(workload_fit.fit(rows, name="again").notes)
    assert "input lengths are not lognormal" in notes
    assert "output lengths are not lognormal" in notes
    assert "go together (+1.00), which a workload can't say: replay the trace" in notes
    assert "75% of the requests came in the same moment" in notes


def test_a_trace_without_lengths_or_with_too_few_is_refused() -> None:
    with pytest.raises(ValueError, match="no request says its input_tokens"):
        workload_fit.fit([Arrived(0.0), Arrived(1.0), Arrived(2.0)], name="w")
    rows = [Arrived(0.0, 5, 5), Arrived(1.0), Arrived(2.0, None, 4), Arrived(2.5, 5, None)]
    assert workload_fit.fit(rows, name="w").correlation is None
    alike = [Arrived(float(n), 5, 5) for n in range(4)]
    assert workload_fit.fit(alike, name="w").correlation is None


def test_turns_that_say_nothing_of_their_lengths_have_gaps_all_the_same() -> None:
    rows = [Arrived(0.0, 50, 5, conversation="a"), Arrived(3.0, None, 5, conversation="a")]
    rows += [Arrived(4.0, 20, 5, conversation="b"), Arrived(6.0, 20, 5, conversation="b")]
    found = workload_fit.fit(rows, name="w").workload.turns
    assert (found.count, found.gap_s, found.tokens) == (constant(2), 2.5, Turns().tokens)

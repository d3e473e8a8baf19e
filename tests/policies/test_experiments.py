"""An experiment finds what is better by enough to matter, says where it can't tell, and is fooled neither by chance nor by lost answers."""

import math
import random
from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.chance import Seeded
from headrace.core.experiments import BASELINE, Arm, Experiment, Load, Measured, Primary, Quality, Repetition
from headrace.core.load_records import Outcome
from headrace.core.verdicts import Verdict
from headrace.policies import distributions, experiments
from headrace.policies.experiments import Finding
from tests.policies.load_rig import record, run_of, unsuccessful

VARIABLES: dict[str, dict[str, dict[str, Any]]] = {
    "a": {"x": {"k": 1}, "y": {"k": 2}},
    "b": {"z": {"m": {"n": 3}}},
}


def experiment(**fields: Any) -> Experiment:
    known: dict[str, Any] = {
        "name": "e",
        "load": Load(),
        "primary": Primary(Measured.TOTAL_P50, margin=0.05),
        "variables": VARIABLES,
        "deployment": "d.toml",
    }
    return Experiment(**(known | fields))


def repetitions(
    arm: str, values: Sequence[float | None], *, outcomes: dict[str, int] | None = None, **fields: Any
) -> list[Repetition]:
    return [
        Repetition(
            arm=arm,
            block=block + 1,
            figures={str(Measured.TOTAL_P50): value},
            outcomes=outcomes or {"ok": 100},
            **fields,
        )
        for block, value in enumerate(values)
    ]


def noisy(chance: random.Random, value: float, blocks: int = 6, spread: float = 0.02) -> list[float]:
    return [value * math.exp(chance.gauss(0, spread)) for _ in range(blocks)]


@pytest.mark.parametrize(
    ("probability", "degrees", "value"),
    [(0.95, 1, 6.314), (0.95, 4, 2.132), (0.975, 10, 2.228), (0.995, 30, 2.750), (0.5, 3, 0.0)],
)
def test_students_quantiles_are_those_of_the_tables(probability: float, degrees: int, value: float) -> None:
    assert distributions.student_quantile(probability, degrees) == pytest.approx(value, abs=6e-4)


@given(st.integers(1, 9), st.integers(0, 2**40))
def test_an_order_has_every_arm_once_and_is_the_same_again_from_its_seed(count: int, seed: int) -> None:
    arms = [Arm(str(index)) for index in range(count)]
    drawn = experiments.order(arms, Seeded(seed))
    assert sorted(each.name for each in drawn) == [arm.name for arm in arms]
    assert drawn == experiments.order(arms, Seeded(seed))


def test_every_order_is_as_probable_as_any_other() -> None:
    arms = [Arm(name) for name in "abc"]
    drawn = ["".join(arm.name for arm in experiments.order(arms, Seeded(seed))) for seed in range(1200)]
    assert len(set(drawn)) == 6
    assert all(130 < drawn.count(each) < 280 for each in set(drawn))


def test_a_level_that_is_faster_by_more_than_the_margin_is_found() -> None:
    chance = random.Random(1)
    done = [*repetitions("baseline", noisy(chance, 1.0)), *repetitions("a=x", noisy(chance, 0.7))]
    found = experiments.judge(experiment(), Arm("a=x"), done)
    assert found.finding is Finding.BETTER
    assert found.wins
    ratio = found.primary.ratio
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low < 0.7 < ratio.high
    slower = experiments.judge(
        experiment(),
        Arm("a=x"),
        [*repetitions("baseline", [0.7] * 5), *repetitions("a=x", noisy(chance, 1.0, 5))],
    )
    assert slower.finding is Finding.WORSE


def test_a_rate_is_better_where_it_is_higher() -> None:
    pairs = [
        (
            Repetition(arm="x", block=n, figures={"requests_per_s": 12.0 + n / 100}, outcomes={"ok": 1}),
            Repetition(arm="baseline", block=n, figures={"requests_per_s": 10.0}, outcomes={"ok": 1}),
        )
        for n in range(4)
    ]
    found = experiments.contrast(Measured.REQUESTS_PER_S, pairs, margin=0.05, alpha=0.05)
    assert found.finding is Finding.BETTER
    swapped = [(its, mine) for mine, its in pairs]
    assert (
        experiments.contrast(Measured.REQUESTS_PER_S, swapped, margin=0.05, alpha=0.05).finding
        is Finding.WORSE
    )


def test_no_difference_is_shown_only_by_blocks_that_are_much_alike() -> None:
    chance = random.Random(2)
    base = repetitions("baseline", [1.0] * 6)
    alike = experiments.judge(
        experiment(), Arm("a=x"), [*base, *repetitions("a=x", noisy(chance, 1.0, spread=0.01))]
    )
    assert alike.finding is Finding.SAME
    assert "which is shown" in alike.why
    rough = experiments.judge(
        experiment(), Arm("a=x"), [*base, *repetitions("a=x", [1.0, 1.5, 0.5, 1.0, 1.9, 0.4])]
    )
    assert rough.finding is Finding.OPEN
    assert rough.primary.blocks_needed > 6
    assert "not enough evidence" in rough.why


def test_one_block_or_none_shows_nothing() -> None:
    base = repetitions("baseline", [1.0, None, 1.0])
    one = experiments.judge(experiment(), Arm("a=x"), [*base, *repetitions("a=x", [0.5, 0.5])])
    assert (one.finding, one.primary.blocks, one.primary.ratio.estimate) == (Finding.OPEN, 1, 0.5)
    none = experiments.judge(experiment(), Arm("a=x"), base)
    assert (none.primary.blocks, none.primary.ratio.estimate) == (0, None)


def test_chance_finds_a_difference_where_there_is_none_no_more_often_than_stated() -> None:
    """Three comparisons share 5 %, on both sides: of 150 experiments some 15 are wrong about a true ratio of one."""
    chance = random.Random(3)
    wrong = 0
    for _ in range(150):
        base = repetitions("baseline", noisy(chance, 1.0, spread=0.2))
        arms = [repetitions(name, noisy(chance, 1.0, spread=0.2)) for name in ("a=x", "a=y", "b=z")]
        found = experiments.report(
            experiment(primary=Primary(Measured.TOTAL_P50, margin=1e-6)),
            [*base, *chain.from_iterable(arms)],
            digest="",
        )
        wrong += any(each.finding in (Finding.BETTER, Finding.WORSE) for each in found.arms)
    assert wrong <= 30


def test_what_is_faster_and_loses_answers_is_worse() -> None:
    done = [
        *repetitions("baseline", [1.0] * 5),
        *repetitions(
            "a=x", [0.5, 0.51, 0.5, 0.5, 0.5], outcomes={"ok": 80, "failed": 15, "refused": 5, "cancelled": 7}
        ),
    ]
    found = experiments.judge(experiment(), Arm("a=x"), done)
    assert found.primary.finding is Finding.BETTER
    assert (found.finding, found.why) == (Finding.WORSE, "more of its requests get no whole answer")


@pytest.mark.parametrize(
    ("right", "finding"), [(200, Finding.BETTER), (100, Finding.WORSE), (190, Finding.OPEN)]
)
def test_what_is_faster_must_answer_the_cases_as_well(right: int, finding: Finding) -> None:
    def marks(count: int) -> dict[str, str]:
        return {f"{n:03}": "right" if n < count else "wrong" for n in range(220)}

    base = repetitions("baseline", [1.0] * 5)
    base[0] = repetitions("baseline", [1.0], marks=marks(200))[0]
    own = repetitions("a=x", [0.5, 0.51, 0.5, 0.5, 0.5])
    own[1] = repetitions("a=x", [0.5, 0.51], marks=marks(right))[1]
    tried = experiment(quality=Quality("set", margin=0.05))
    found = experiments.judge(tried, Arm("a=x"), [*base, *own])
    assert found.finding is finding
    assert found.quality is not None
    slow = [*base, *repetitions("a=x", [1.5, 1.51, 1.5, 1.5, 1.5], marks=marks(200))]
    assert experiments.judge(tried, Arm("a=x"), slow).finding is Finding.WORSE


def test_a_void_repetition_takes_its_block_out_of_the_comparison() -> None:
    done = [*repetitions("baseline", [1.0] * 5), *repetitions("a=x", [0.7, 0.71, 0.7, 0.7])]
    done.append(Repetition(arm="a=x", block=5, figures={"total_p50": 99.0}, outcomes={}, void=("late",)))
    found = experiments.report(experiment(), done, digest="d")
    assert found.arms[0].primary.blocks == 4
    assert found.void == ("a=x, block 5: late",)


def test_the_best_levels_of_several_variables_are_tried_together() -> None:
    done = [
        *repetitions("baseline", [1.0] * 6),
        *repetitions("a=x", [0.8, 0.81, 0.8, 0.8, 0.8, 0.8]),
        *repetitions("a=y", [0.6, 0.61, 0.6, 0.6, 0.6, 0.6]),
    ]
    tried = experiment()
    before = experiments.report(tried, done, digest="")
    assert (before.winners, before.chosen, before.verdict) == (("a=y",), "a=y", Verdict.INCONCLUSIVE)
    assert "not enough evidence of b=z" in before.says
    done += repetitions("b=z", [0.9, 0.91, 0.9, 0.9, 0.9, 0.9])
    found = experiments.report(tried, done, digest="")
    together = experiments.combination(tried, found.arms)
    assert together is not None
    assert (together.name, together.changes) == ("a=y + b=z", ({"k": 2}, {"m": {"n": 3}}))
    assert [each.arm for each in found.arms] == ["a=x", "a=y", "b=z", "a=y + b=z"]
    assert found.chosen == "a=y"
    base = [
        Repetition(arm="baseline", block=each.block + 6, figures=each.figures, outcomes=each.outcomes)
        for each in done[:6]
    ]
    both = [
        Repetition(arm="a=y + b=z", block=7 + n, figures={"total_p50": 0.5 + n / 1000}, outcomes={"ok": 100})
        for n in range(6)
    ]
    ended = experiments.report(tried, [*done, *base, *both], digest="", environment={"machine": "m"})
    assert (ended.chosen, ended.verdict) == ("a=y + b=z", Verdict.PASS)
    assert ended.says == "a=y + b=z is better than the baseline"


@pytest.mark.parametrize(
    ("values", "verdict", "says"),
    [
        ([1.0, 1.01, 1.0, 1.0, 1.0, 1.0], Verdict.PASS, "no level is better than the baseline"),
        (
            [1.0, 1.5, 0.5, 1.0, 1.9, 0.4],
            Verdict.INCONCLUSIVE,
            "no difference is shown; not enough evidence of a=x",
        ),
        ([], Verdict.ERROR, "no block in which a level and the baseline can be compared"),
    ],
)
def test_without_a_winner_the_baseline_stays(values: list[float], verdict: Verdict, says: str) -> None:
    tried = experiment(variables={"a": {"x": {"k": 1}}})
    assert experiments.comparisons(tried) == 1
    found = experiments.report(
        tried, [*repetitions("baseline", [1.0] * 6), *repetitions("a=x", values)], digest=""
    )
    assert (found.verdict, found.says, found.chosen) == (verdict, says, BASELINE.name)


def test_before_anything_was_done_that_is_what_is_said() -> None:
    found = experiments.report(experiment(variables={"a": {"x": {"k": 1}}}), [], digest="")
    assert (found.verdict, found.says) == (Verdict.ERROR, "no repetition has been made yet")
    assert found.arms[0].why == "no block in which it and the baseline can be compared"


def test_a_run_is_summed_up_by_its_whole_answers_in_the_window() -> None:
    run = run_of([record(0, took_s=1.0), record(1, took_s=3.0), unsuccessful(2, Outcome.REFUSED)])
    found = experiments.figures(run)
    assert found[Measured.TOTAL_P50] == 1.0
    assert found[Measured.TOTAL_P95] == 3.0
    assert found[Measured.REQUESTS_PER_S] == 0.002
    assert found[Measured.OUTPUT_TOKENS_PER_S] == 0.022
    assert experiments.figures(run_of([]))[Measured.TTFT_P50] is None

"""Claims about gates: what they call worse, by which figures, and how seldom they are wrong about it."""

import random

import pytest

from headrace.core.deployment_terms import Gate
from headrace.core.load import EDGES_S, Histogram, TargetLoad
from headrace.core.verdicts import Judgement, Reason, Verdict
from headrace.policies import rollout_gates as gates
from headrace.policies.rollout_gates import Material
from headrace.policies.rollout_samples import EMPTY, Pairs, Sample, pairs_of, sample_of
from headrace.policies.rollout_state import Acceptance


def sample(
    delivered: int = 200, failed: int = 0, *, ttft_s: float = 0.1, held_s: float = 1.0, seed: int = 1
) -> Sample:
    """So many requests whose latencies are spread around these."""
    chance = random.Random(seed)
    ttft, total = Histogram(), Histogram()
    for _ in range(delivered):
        ttft.observe(ttft_s * (0.5 + chance.random()))
        total.observe(held_s * (0.5 + chance.random()))
    return sample_of(
        TargetLoad(
            target="chat@v2", name="chat", revision="r", delivered=delivered, broken=failed, ttft=ttft, itl=ttft, total=total
        )
    )  # fmt: skip


def judged(gate: Gate, candidate: Sample, control: Sample, **more: object) -> Judgement:
    material = Material(candidate, control, samples_min=100, **more)  # type: ignore[arg-type]
    return gates.judge(gate, material)


FAILURES = Gate("failure_rate", max_delta=0.01)
TTFT = Gate("ttft_p95", max_ratio=1.5)


@pytest.mark.parametrize(
    ("gate", "candidate", "verdict"),
    [
        (FAILURES, sample(200), Verdict.PASS),
        (FAILURES, sample(160, 40), Verdict.FAIL),
        (FAILURES, sample(50), Verdict.INCONCLUSIVE),
        (Gate("failure_rate", max_ratio=2.0), sample(160, 40), Verdict.FAIL),
        (Gate("failure_rate", compare="absolute", max=0.05), sample(160, 40), Verdict.FAIL),
        (Gate("failure_rate", compare="absolute", max=0.5), sample(160, 40), Verdict.PASS),
        (Gate("failure_rate", compare="absolute"), sample(160, 40), Verdict.FAIL),
        (TTFT, sample(200, seed=2), Verdict.PASS),
        (TTFT, sample(200, ttft_s=0.3), Verdict.FAIL),
        (TTFT, sample(30), Verdict.INCONCLUSIVE),
        (Gate("ttft_p95", max_delta=1.0), sample(200, ttft_s=0.3), Verdict.PASS),
        (Gate("ttft_p95", max_delta=0.01), sample(200, ttft_s=0.3), Verdict.FAIL),
        (Gate("itl_p50", max_ratio=1.5), sample(200, ttft_s=0.3), Verdict.FAIL),
        (Gate("total_p95", compare="absolute", max=1.0), sample(200, held_s=2.0), Verdict.FAIL),
        (Gate("total_p95", compare="absolute", max=4.0), sample(200, held_s=2.0), Verdict.PASS),
        (Gate("cost_per_request", max_ratio=1.1), sample(200, seed=2), Verdict.PASS),
        (Gate("cost_per_request", max_ratio=1.1), sample(200, held_s=2.0), Verdict.FAIL),
        (Gate("cost_per_request", max_ratio=1.1), sample(50), Verdict.INCONCLUSIVE),
        (Gate("cost_per_request", max_ratio=1.1), EMPTY, Verdict.INCONCLUSIVE),
        (Gate("cost_per_request", max_ratio=1.1), Sample(delivered=200), Verdict.INCONCLUSIVE),
        (Gate("nobody_knows", max=1.0), sample(200), Verdict.ERROR),
    ],
)  # fmt: skip
def test_a_gate_passes_fails_or_says_that_it_cannot_tell(
    gate: Gate, candidate: Sample, verdict: Verdict
) -> None:
    assert judged(gate, candidate, sample(400, seed=3)).verdict is verdict


def test_a_tail_that_nobody_measured_is_no_pass() -> None:
    control = sample(400)
    for gate in (FAILURES, TTFT, Gate("ttft_p95", max_delta=1.0)):
        assert judged(gate, EMPTY, control).verdict is Verdict.INCONCLUSIVE
        assert judged(gate, sample(200), EMPTY).verdict is Verdict.INCONCLUSIVE


def test_who_sees_nothing_makes_no_check() -> None:
    found = judged(FAILURES, sample(100, 100), sample(400), blind="no report for 10 s")
    assert (found.verdict, found.reason) == (Verdict.ERROR, Reason.NOT_MADE)


def test_answers_may_differ_as_often_as_was_agreed() -> None:
    gate = Gate("agreement", min=0.9)
    assert judged(gate, EMPTY, EMPTY, pairs=Pairs(200, 10)).verdict is Verdict.PASS
    assert judged(gate, EMPTY, EMPTY, pairs=Pairs(200, 60)).verdict is Verdict.FAIL
    assert judged(gate, EMPTY, EMPTY, pairs=Pairs(20, 1)).verdict is Verdict.INCONCLUSIVE
    assert judged(Gate("agreement"), EMPTY, EMPTY, pairs=Pairs(200, 10)).verdict is Verdict.FAIL


def test_the_price_of_a_slot_and_wrong_answers_make_a_result_dearer() -> None:
    gate = Gate("cost_per_qualified_result", max_ratio=1.2)
    control = sample(400, seed=3)
    candidate = sample(400, seed=2)
    assert judged(gate, candidate, control).verdict is Verdict.PASS
    assert judged(gate, candidate, control, slot_cost=2.0).verdict is Verdict.FAIL
    half = Acceptance(
        "rollout-1", "quality:acceptance", 0, Verdict.PASS, candidate_share=0.5, accepted_share=0.9
    )
    assert judged(gate, candidate, control, acceptance=(half,)).verdict is Verdict.FAIL
    untold = Acceptance("rollout-1", "quality:acceptance", 0, Verdict.PASS)
    assert judged(gate, candidate, control, acceptance=(untold,)).verdict is Verdict.PASS


def test_durations_beyond_all_edges_still_count() -> None:
    ends = Sample(delivered=200, total=(100, *(0,) * (len(EDGES_S) - 1), 100), busy_s=1e5)
    found = judged(Gate("cost_per_request", max_ratio=1.1), ends, sample(400))
    assert found.verdict is Verdict.FAIL


def test_equal_versions_are_seldom_called_different_however_often_one_looks() -> None:
    """The chance of a false failure is shared by all looks: 20 of them don't make it twenty times as large."""
    false = 0
    for run in range(60):
        candidate, control = EMPTY, EMPTY
        for look in range(1, 21):
            candidate = candidate.plus(sample(10, seed=run * 1000 + look))
            control = control.plus(sample(30, seed=-run * 1000 - look))
            material = Material(candidate, control, samples_min=50, look=look, gates=2)
            verdicts = {
                gates.judge(gate, material).verdict for gate in (FAILURES, Gate("ttft_p95", max_ratio=1.0))
            }
            if Verdict.FAIL in verdicts:
                false += 1
                break
    assert false <= 9, "5 % of 60 runs are 3; 9 would be a chance of one in a thousand"


def test_two_bounds_of_one_metric_are_told_apart() -> None:
    assert gates.name_of(TTFT) == "ttft_p95"
    assert gates.name_of(Gate("ttft_p95", compare="absolute", max=1.0)) == "ttft_p95 (absolute)"


def test_mirrored_answers_agree_where_they_say_the_same_and_none_has_a_fault() -> None:
    load = TargetLoad(
        target="chat@v2", name="chat", revision="r", verdicts={"same": 5, "worse": 2, "different": 1}
    )
    assert pairs_of(load) == Pairs(8, 3)

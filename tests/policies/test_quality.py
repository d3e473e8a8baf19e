"""Marks of cases to a verdict: errors are neither right nor wrong, and decide only where they could."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.verdicts import Interval, Reason, Verdict
from headrace.policies import quality, quality_gate, quality_report
from headrace.policies.quality import Mark, SetKind, Tally
from headrace.policies.quality_gate import GateRun
from headrace.policies.quality_report import ModelFound, QualityReport, SetUsed

R, W, E = Mark.RIGHT, Mark.WRONG, Mark.ERROR
MARKS = st.sampled_from(Mark)


def test_marks_are_counted_and_the_share_is_of_the_answered() -> None:
    assert quality.tally([R, R, W, E]) == Tally(2, 1, 1)
    assert quality.tally([R, R, W, E]).share == pytest.approx(2 / 3)
    assert quality.tally([E]).share is None


@given(st.lists(st.tuples(MARKS, MARKS), min_size=1, max_size=60), st.sampled_from([0.0, 0.1, 0.3]))
def test_a_verdict_about_pairs_holds_however_the_missing_answers_would_have_been(
    marks: list[tuple[Mark, Mark]], margin: float
) -> None:
    """Missing answers are filled in, all ways at the ends; the verdict must be what each of them gives, or an error."""
    candidate, accepted = zip(*marks, strict=True)
    found = quality.judge_pairs(candidate, accepted, margin=margin, alpha=0.05)
    for mine, its in ((W, R), (R, W)):
        filled = [(mine if c is E else c, its if a is E else a) for c, a in marks]
        whole = quality.judge_pairs(*zip(*filled, strict=True), margin=margin, alpha=0.05)
        assert whole.verdict is not Verdict.ERROR
        assert found.verdict in (whole.verdict, Verdict.ERROR)


@given(st.lists(MARKS, min_size=1, max_size=60), st.sampled_from([0.2, 0.5, 0.9]))
def test_a_verdict_about_a_floor_holds_however_the_missing_answers_would_have_been(
    marks: list[Mark], floor: float
) -> None:
    found = quality.judge_floor(marks, floor=floor, alpha=0.05)
    for instead in (W, R):
        whole = quality.judge_floor([instead if m is E else m for m in marks], floor=floor, alpha=0.05)
        assert found.verdict in (whole.verdict, Verdict.ERROR)


def test_an_error_that_could_turn_the_verdict_makes_it_one() -> None:
    pairs = quality.judge_pairs([R] * 19 + [E] * 6, [R] * 25, margin=0.15, alpha=0.05)
    assert (pairs.verdict, pairs.reason) == (Verdict.ERROR, Reason.NOT_MADE)
    assert pairs.candidate_samples == 19
    floor = quality.judge_floor([R] * 19 + [E] * 19, floor=0.8, alpha=0.05)
    assert (floor.verdict, floor.reason) == (Verdict.ERROR, Reason.NOT_MADE)


def test_an_error_that_could_not_leaves_it() -> None:
    assert quality.judge_pairs([R] * 79 + [E], [R] * 80, margin=0.1, alpha=0.05).verdict is Verdict.PASS
    assert quality.judge_pairs([W] * 20 + [E], [R] * 21, margin=0.1, alpha=0.05).verdict is Verdict.FAIL
    assert quality.judge_floor([R] * 79 + [E], floor=0.8, alpha=0.05).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("right", "wrong", "wanted"),
    [(40, 0, Verdict.PASS), (18, 2, Verdict.INCONCLUSIVE), (5, 15, Verdict.FAIL)],
)
def test_a_floor_is_held_as_far_as_so_many_cases_can_show_it(right: int, wrong: int, wanted: Verdict) -> None:
    found = quality.judge_floor([R] * right + [W] * wrong, floor=0.9, alpha=0.05)
    assert found.verdict is wanted
    assert found.limit == 0.9
    assert found.measure.estimate == pytest.approx(right / (right + wrong))


def test_nothing_answered_has_no_estimate() -> None:
    assert quality.judge_floor([E], floor=0.5, alpha=0.05).measure.estimate is None


def test_of_several_conditions_the_worst_result_counts_and_a_refuted_one_is_worst() -> None:
    assert quality.together([]) is Verdict.PASS
    assert quality.together([Verdict.PASS, Verdict.INCONCLUSIVE]) is Verdict.INCONCLUSIVE
    assert quality.together([Verdict.ERROR, Verdict.INCONCLUSIVE]) is Verdict.ERROR
    assert quality.together([Verdict.ERROR, Verdict.FAIL, Verdict.PASS]) is Verdict.FAIL


# The gate's command and what comes back.

RUN = GateRun(
    cases="mine", candidate="chat@v4", url="http://h:1", key="file:/k", data="/d", purpose="rollout 3"
)


def report(verdict: Verdict | None) -> bytes:
    share = Interval(0.9, 0.8, 0.95)
    candidate, accepted = (
        ModelFound(model, ("sha256:1",), Tally(9, 1), share) for model in ("chat@v4", "chat@v3")
    )
    used = SetUsed("mine", SetKind.ACCEPTANCE, 1, "sha256:2", 10)
    return msgspec.json.encode(QualityReport(verdict, "nine of ten", used, candidate, accepted))


def test_the_command_asks_for_what_is_wanted_and_for_nothing_else() -> None:
    bare = quality_gate.command(RUN)
    assert bare[:5] == ("eval", "--set", "acceptance", "--cases", "mine")
    assert not {"--compare", "--floor", "--margin", "--certificate"} & set(bare)
    assert bare[-3:] == ("--for", "rollout 3", "--json")
    full = msgspec.structs.replace(
        RUN, accepted="chat@v3", margin=0.05, floor=0.8, key="", certificate="/c.pem"
    )
    command = " ".join(quality_gate.command(full))
    assert "--compare chat@v3 --margin 0.05 --floor 0.8" in command
    assert "--certificate /c.pem" in command
    assert "--key" not in command
    assert quality_gate.child_limit_s(RUN) > RUN.limit_s


@pytest.mark.parametrize("verdict", list(Verdict))
def test_each_verdict_comes_back_with_its_status(verdict: Verdict) -> None:
    found = quality_gate.result(quality_report.STATUS[verdict], report(verdict))
    assert found.verdict is verdict
    assert (found.candidate_share, found.accepted_share, found.detail) == (0.9, 0.9, "nine of ten")
    alone = msgspec.structs.replace(msgspec.json.decode(report(verdict), type=QualityReport), accepted=None)
    found = quality_gate.result(quality_report.STATUS[verdict], msgspec.json.encode(alone))
    assert found.accepted_share is None


@pytest.mark.parametrize(
    ("status", "output", "complaint", "words"),
    [
        (None, b"", b"", "ran over its time"),
        (2, b"", b"1 of 20 answers\nheadrace: no such set\n", "no such set"),
        (2, b"", b"", "as it is configured"),
        (-9, b"", b"", "status -9"),
        (0, b"{}", b"warned", "status 0: warned"),
        (0, b"\xff", b"", "status 0"),
        (0, report(None), b"", "status 0"),
        (0, report(Verdict.FAIL), b"", "status 0"),
        (1, report(Verdict.PASS)[:-9], b"", "status 1"),
    ],
)
def test_whatever_else_comes_back_is_an_error(
    status: int | None, output: bytes, complaint: bytes, words: str
) -> None:
    found = quality_gate.result(status, output, complaint)
    assert found.verdict is Verdict.ERROR
    assert words in found.detail
    assert found.report is None


def test_what_so_many_cases_can_show_is_known_beforehand() -> None:
    assert quality_gate.is_provable(268, margin=0.01, alpha=0.05)
    assert not quality_gate.is_provable(267, margin=0.01, alpha=0.05)
    assert not quality_gate.is_provable(1000, margin=0.0, alpha=0.05)
    assert quality_gate.margin_provable(268, alpha=0.05) == pytest.approx(0.01, abs=1e-4)

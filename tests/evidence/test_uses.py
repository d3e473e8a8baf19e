"""Looks at an acceptance set are counted, for one decision and for one family, and each has less of the chance of error to spend."""

from pathlib import Path

import pytest

from headrace.core.clock import ManualClock
from headrace.core.verdicts import Interval, Verdict
from headrace.evidence.uses import UseLog
from headrace.policies.quality import SetKind, Tally
from headrace.policies.quality_report import Look, ModelFound, QualityReport, SetUsed
from tests.evidence.rig import evaluate, own_set, report, revision

CASES = own_set(SetKind.ACCEPTANCE)


def begin(log: UseLog, *models: str) -> Look:
    return log.begin(CASES, models=models, purpose="a test", is_unsealed=False)


def ended(log: UseLog, verdict: Verdict, *models: str) -> None:
    found = [ModelFound(model, (), Tally(), Interval(None, None, None)) for model in models]
    used = SetUsed("", SetKind.ACCEPTANCE, 1, "", 1)
    log.end(CASES, QualityReport(verdict, "", used, found[0], found[1] if found[1:] else None))


def test_a_look_is_one_for_the_same_decision_and_uses_are_those_of_a_family(tmp_path: Path) -> None:
    """Two candidates for the place of one accepted model are two looks; the next accepted model is another decision."""
    log = UseLog(tmp_path, actor="cli:me", clock=ManualClock())
    assert begin(log, "chat@v2", "chat@v1") == Look(number=1, earlier=0)
    assert begin(log, "chat@v3", "chat@v1") == Look(number=2, earlier=1)
    assert begin(log, "other", "chat@v1") == Look(number=3, earlier=0)
    assert begin(log, "chat@v4", "chat@v3") == Look(number=1, earlier=2)
    assert begin(log, "chat@v4") == Look(number=1, earlier=3)
    assert begin(log, "chat@v5") == Look(number=2, earlier=4)
    assert begin(log, "else") == Look(number=1, earlier=0)


def test_a_run_that_ended_in_an_error_has_shown_nothing(tmp_path: Path) -> None:
    log = UseLog(tmp_path, actor="cli:me", clock=ManualClock())
    for verdict, number in ((Verdict.ERROR, 1), (Verdict.INCONCLUSIVE, 1), (Verdict.PASS, 2)):
        assert begin(log, "chat@v2", "chat@v1").number == number
        ended(log, verdict, "chat@v2", "chat@v1")
    assert begin(log, "chat@v2", "chat@v1") == Look(number=3, earlier=3)


@pytest.mark.slow
def test_a_later_look_needs_more_evidence_and_the_report_says_which_it_is(tmp_path: Path) -> None:
    with revision() as engine:
        asked = (
            "--cases", "document-assistant", "--set", "acceptance", "--model", "chat@v4", "--compare", "chat@v3",
            "--margin", "0.06", "--url", engine.url,
        )  # fmt: skip
        first, second = (report(evaluate(tmp_path, *asked, "--json")) for _ in range(2))
        third = evaluate(tmp_path, *asked)
    assert first["look"] == {"number": 1, "earlier": 0}
    assert first["comparison"]["alpha"] == 0.025
    assert first["verdict"] == "pass"
    assert second["comparison"]["alpha"] == pytest.approx(0.05 / 6)
    assert second["verdict"] == "inconclusive"
    assert "look 3 at this set for this decision; 2 earlier uses" in third.stdout

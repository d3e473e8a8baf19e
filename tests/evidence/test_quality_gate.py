"""The quality gate of a rollout, end to end: the command as a child process, its end as one of four results."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.core.verdicts import Reason, Verdict
from headrace.policies import quality_gate
from headrace.policies.quality import SetKind
from headrace.policies.quality_gate import GateResult, GateRun
from tests.evidence.rig import ids, revision
from tests.support.scripted import ScriptedEngine

pytestmark = pytest.mark.slow
EVAL_LIMIT_S = 200.0


def judged(data: Path, candidate: ScriptedEngine, *, margin: float = 0.15, **terms: float) -> GateResult:
    """Runs the gate as a controller would; both versions are asked at the same server unless the test says otherwise."""
    run = GateRun(
        cases="document-assistant",
        candidate="chat@v4",
        accepted="chat@v3",
        url=candidate.url,
        key="",
        data=str(data),
        margin=margin,
        floor=terms.get("floor"),
        limit_s=terms.get("limit_s", 60.0),
        purpose="rollout 1 of chat",
    )
    return ended(run)


def ended(run: GateRun, *more: str) -> GateResult:
    command = [sys.executable, "-m", "headrace", *quality_gate.command(run), *more]
    done = subprocess.run(command, capture_output=True, timeout=EVAL_LIMIT_S, check=False)
    return quality_gate.result(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def accepted() -> Iterator[ScriptedEngine]:
    """A server of versions that get everything right."""
    with revision() as engine:
        yield engine


def compared(
    data: Path, accepted: ScriptedEngine, *, bad: list[str], margin: float, faults: str = ""
) -> GateResult:
    """A candidate that gets `bad` wrong beside the accepted version, on a server of its own."""
    with revision(bad=bad, faults=faults) as candidate:
        run = GateRun(
            cases="document-assistant", candidate="chat@v4", accepted="chat@v3", url=candidate.url, key="",
            data=str(data), margin=margin, limit_s=60.0,
        )  # fmt: skip
        return ended(run, "--compare-url", accepted.url)


def test_a_candidate_that_is_as_good_passes(tmp_path: Path, accepted: ScriptedEngine) -> None:
    found = judged(tmp_path, accepted)
    assert found.verdict is Verdict.PASS
    assert (found.candidate_share, found.accepted_share) == (1.0, 1.0)
    assert found.report is not None
    assert found.report.comparison is not None
    assert found.report.comparison.reason is Reason.SHOWN_NOT_WORSE
    assert "70 of 70 right" in found.detail


def test_a_candidate_with_wrong_answers_and_a_status_of_200_fails(
    tmp_path: Path, accepted: ScriptedEngine
) -> None:
    found = compared(tmp_path, accepted, bad=ids(SetKind.ACCEPTANCE)[::2], margin=0.1)
    assert found.verdict is Verdict.FAIL
    assert (found.candidate_share, found.accepted_share) == (0.5, 1.0)
    assert found.report is not None
    assert found.report.p is not None
    assert found.report.p < 0.01


def test_too_few_cases_for_the_margin_are_not_enough_evidence_and_how_many_are_is_said(
    tmp_path: Path, accepted: ScriptedEngine
) -> None:
    found = judged(tmp_path, accepted, margin=0.01)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "it takes about 381 cases" in found.detail
    assert not quality_gate.is_provable(20, margin=0.01, alpha=0.05)
    assert quality_gate.is_provable(20, margin=0.15, alpha=0.05)
    assert quality_gate.margin_provable(20, alpha=0.05) == pytest.approx(0.119, abs=0.001)
    assert quality_gate.margin_provable(0, alpha=0.05) == 1.0


def test_a_candidate_that_errs_is_neither_passed_nor_failed(tmp_path: Path, accepted: ScriptedEngine) -> None:
    found = compared(tmp_path, accepted, bad=[], margin=0.15, faults="error:500@1/2")
    assert found.verdict is Verdict.ERROR
    assert found.report is not None
    assert found.report.candidate.errors == {"500": 35}
    assert "35 not answered" in found.detail


def test_errors_that_cannot_change_the_verdict_do_not_hide_it(
    tmp_path: Path, accepted: ScriptedEngine
) -> None:
    """Half of the answers are wrong and one is missing: whatever that one would have been, it fails."""
    found = compared(tmp_path, accepted, bad=ids(SetKind.ACCEPTANCE)[::2], margin=0.1, faults="error:500@20")
    assert found.verdict is Verdict.FAIL


def test_a_floor_holds_beside_the_comparison(tmp_path: Path) -> None:
    with revision(bad=ids(SetKind.ACCEPTANCE)[:42]) as engine:
        found = judged(tmp_path, engine, floor=0.9)
    assert found.verdict is Verdict.FAIL  # as good as the accepted one, which is not good enough
    assert found.candidate_share == found.accepted_share == 0.4


def test_a_set_that_nobody_gets_right_tells_nothing(tmp_path: Path) -> None:
    with revision(bad=ids(SetKind.ACCEPTANCE)) as engine:
        found = judged(tmp_path, engine)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "a model that gets nothing right would pass too" in found.detail


def test_what_goes_wrong_with_the_child_is_an_error_with_its_last_words(
    tmp_path: Path, accepted: ScriptedEngine
) -> None:
    unknown = ended(
        GateRun(cases="nothing", candidate="chat@v4", url=accepted.url, key="", data=str(tmp_path))
    )
    unmeasured = ended(
        GateRun(cases="document-assistant", candidate="chat@v4", url=accepted.url, key="", data=str(tmp_path))
    )
    assert unknown.verdict is Verdict.ERROR
    assert "no set of cases 'nothing'" in unknown.detail
    assert unmeasured.verdict is Verdict.ERROR  # neither margin nor floor: nothing was decided

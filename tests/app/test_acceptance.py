"""An acceptance set is put to a version by a child of the controller: its result, its time, and its end when unwished."""

import asyncio
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from headrace.app.acceptance import AcceptanceChild, evaluate
from headrace.core.deployment_terms import Gate
from headrace.core.verdicts import Verdict
from headrace.policies import quality_gate
from headrace.policies.quality import SetKind
from headrace.policies.quality_gate import GateRun
from headrace.policies.rollout_state import Acceptance, AcceptanceRun
from tests.evidence.rig import ids, revision, table
from tests.support.certificates import Authority, self_signed
from tests.support.scripted import scripted_engine
from tests.support.tls_front import tls_front

pytestmark = pytest.mark.slow


def gate_run(data: Path, url: str, *, limit_s: float = 100.0, deadline_s: float = 60.0) -> GateRun:
    return GateRun(
        cases="document-assistant", candidate="chat@v4", accepted="chat@v3", url=url, key="", data=str(data),
        margin=0.15, limit_s=limit_s, deadline_s=deadline_s,
    )  # fmt: skip


def test_a_wish_of_a_rollout_becomes_a_result_with_both_shares(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("hr_system")
    with revision(bad=ids(SetKind.ACCEPTANCE)[:7]) as engine:
        child = AcceptanceChild(url=lambda: engine.url, key=f"file:{tmp_path / 'key'}", data=tmp_path)
        wish = AcceptanceRun("rollout 1", "quality:document-assistant", 0, candidate=4, accepted=3)
        terms = Gate("quality:document-assistant", min_delta=-0.15, min=0.6)
        found = asyncio.run(child("chat", wish, terms))
        alone = AcceptanceRun("rollout 1", "quality:document-assistant", 1, candidate=4, accepted=None)
        unknown = asyncio.run(child("chat", alone, Gate("quality:nothing", compare="absolute", min=0.6)))
    assert (found.verdict, found.gate, found.attempt) == (Verdict.PASS, wish.gate, 0)
    assert (found.candidate_share, found.accepted_share) == (0.9, 0.9)
    assert "chat@v4 63 of 70 right; chat@v3 63 of 70 right" in found.detail
    assert (unknown.verdict, unknown.attempt) == (Verdict.ERROR, 1)
    assert "no set of cases 'nothing'" in unknown.detail


def test_a_first_version_whose_gate_only_compares_passes_once_it_has_answered(tmp_path: Path) -> None:
    """Else no deployment with such a gate could ever begin to serve."""
    (tmp_path / "key").write_text("hr_system")
    first = AcceptanceRun("rollout-1", "quality:document-assistant", 0, candidate=3, accepted=None)
    terms = Gate("quality:document-assistant", min_delta=-0.15)

    def found(faults: str) -> Acceptance:
        with revision(bad=ids(SetKind.ACCEPTANCE)[:7], faults=faults) as engine:
            child = AcceptanceChild(url=lambda: engine.url, key=f"file:{tmp_path / 'key'}", data=tmp_path)
            return asyncio.run(child("chat", first, terms))

    once = found("")
    assert (once.verdict, once.candidate_share) == (Verdict.PASS, 0.9)
    assert found("error:500").verdict is Verdict.ERROR


@pytest.mark.parametrize("signed_by", ["itself", "an authority that nobody here trusts"])
def test_a_service_with_tls_is_known_by_its_certificate_whatever_name_that_is_for(
    tmp_path: Path, signed_by: str
) -> None:
    """Callers know it as models.example; the gate asks it at 127.0.0.1. Another certificate for that name is not believed."""
    issue = partial(self_signed, tmp_path) if signed_by == "itself" else Authority(tmp_path).issue
    own, other = issue("own", hosts=["models.example"]), issue("other", hosts=["models.example"])
    wish = AcceptanceRun("rollout 1", "quality:document-assistant", 0, candidate=4, accepted=None)
    gate = Gate("quality:document-assistant", compare="absolute", min=0.6)
    (tmp_path / "key").write_text("hr_system")
    with revision() as engine, tls_front(engine.port, own) as front:
        found = [
            asyncio.run(
                AcceptanceChild(
                    url=lambda: f"https://127.0.0.1:{front.port}/v1",
                    key=f"file:{tmp_path / 'key'}",
                    data=tmp_path,
                    certificate=str(each.certificate),
                )("chat", wish, gate)
            )
            for each in (own, other)
        ]
        requests = engine.stats()["requests"]
    assert [each.verdict for each in found] == [Verdict.PASS, Verdict.ERROR]
    assert found[0].candidate_share == 1.0
    assert requests == 70  # neither question nor key went to whoever showed another one


def test_a_version_that_never_answers_is_an_error_within_the_time(tmp_path: Path) -> None:
    with scripted_engine(models=("chat@v3", "chat@v4"), faults="stall:0", slots=64) as engine:
        found = asyncio.run(evaluate(gate_run(tmp_path, engine.url, limit_s=1.0)))
    assert found.verdict is Verdict.ERROR
    assert "not answered" in found.detail


def test_a_run_that_is_no_longer_wished_for_ends_and_asks_nothing_more(tmp_path: Path) -> None:
    with scripted_engine(models=("chat@v3", "chat@v4"), faults="stall:0") as engine:

        async def give_up() -> None:
            task = asyncio.create_task(evaluate(gate_run(tmp_path, engine.url)))
            await asyncio.to_thread(engine.wait_for_stats, lambda stats: stats["running"] > 0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(give_up())
        stats = engine.wait_for_stats(lambda stats: stats["running"] == 0)
    assert stats["requests"] <= 4  # as many as it asks at once


def test_a_run_whose_parent_has_died_ends_by_itself(tmp_path: Path) -> None:
    """Its progress goes nowhere any more: at the next line of it the child ends, long before the set does."""
    answers = table(SetKind.ACCEPTANCE)
    with scripted_engine(answers=answers, models=("chat@v3", "chat@v4"), ttft_ms=60) as engine:
        command = [sys.executable, "-m", "headrace", *quality_gate.command(gate_run(tmp_path, engine.url))]
        command += ["--concurrency", "1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            assert child.stderr is not None
            assert child.stdout is not None
            assert child.stderr.readline() == b"14 of 140 answers\n"
            child.stderr.close()
            child.stdout.close()
            child.wait(60)
        assert engine.stats()["requests"] < 140

"""E8: each failure that can be rehearsed is recovered from within its bounds, and a service that doesn't recover fails its drill."""

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from headrace.cli.main import main
from headrace.core.clock import SystemClock
from headrace.evidence import drill_report, drill_run
from headrace.evidence.drill import Drill, Sign, Stage, same_place
from headrace.evidence.drill_load import Answer, Fate, Heard, judge
from headrace.evidence.drill_report import Check, DrillReport
from headrace.evidence.drill_run import Terms
from headrace.evidence.drills import DRILLS
from headrace.evidence.drills_engines import HANG, REPLICA_LOSS
from tests.support.provider import wait_until

SHORT = Terms(settle_s=1.0, hold_s=1.5, rate_per_s=12.0)
LONG = [HANG.name]  # an engine is believed to be busy for a minute

JSON = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s"
STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def rehearse(*drills: Drill, terms: Terms = SHORT) -> dict[str, DrillReport]:
    """All of them side by side: most of a drill is waiting."""

    async def all_of_them() -> list[DrillReport]:
        clock = SystemClock()
        return await asyncio.gather(
            *(drill_run.rehearse(drill, terms, clock=clock, command="a test") for drill in drills)
        )

    return {report.drill: report for report in asyncio.run(all_of_them())}


def value(report: DrillReport, what: str) -> float | None:
    (found,) = [check.value for check in report.checks if what in check.what]
    return found


# What a service does


@pytest.fixture(scope="module")
def reports() -> dict[str, DrillReport]:
    return rehearse(*(drill for drill in DRILLS.values() if drill.name not in LONG))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name in DRILLS if name not in LONG])
def test_a_service_recovers_from_each_failure_within_the_bounds(
    reports: dict[str, DrillReport], name: str
) -> None:
    report = reports[name]
    assert report.verdict == "pass", f"{report.detail}: {msgspec.json.encode(report).decode()}"
    assert report.requests is not None
    assert report.requests.fates["ok"] > 10
    assert value(report, "processes left over") == 0
    assert report.machine


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_drill_really_hits_the_service_that_it_is_about(reports: dict[str, DrillReport]) -> None:
    """Refused work, another engine, a file that was put aside: what wouldn't be there without the fault."""
    told = {name: {line.event for line in report.told} for name, report in reports.items()}
    refused = reports["full-disk"].requests
    assert refused is not None
    assert refused.reasons.keys() == {"refused saturated"}
    assert "replica.lost" in told["out-of-memory"]
    assert reports["out-of-memory"].codes.keys() == {"out_of_memory"}
    assert "artifact.damaged" in told["corrupt-model"]
    assert "rollout.rolled_back" in told["bad-release"]
    assert "controller.lost" in told["controller-loss"]
    assert "replica.lost" not in told["controller-loss"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_an_engine_that_hangs_is_left_alone_and_ended() -> None:
    report = rehearse(HANG)[HANG.name]
    assert report.verdict == "pass", report.detail


# What isn't well is told


async def _kill_again(stage: Stage) -> None:
    """What dies twice is started again only after a pause, which is longer than this drill waits."""
    await REPLICA_LOSS.act(stage)
    await stage.until(lambda: same_place(stage), limit_s=60.0, what="another engine")
    stage.before = stage.watch.look
    (again,) = [each for each in stage.before.ready() if each.id in _ids_of_victims(stage)]
    assert again.pid is not None
    stage.victims.append(again.pid)
    stage.signal(again.pid, signal.SIGKILL)


def _ids_of_victims(stage: Stage) -> set[str]:
    """Replicas that were lost."""
    return {str(told.line["replica"]) for told in stage.watch.told if told.event == "replica.lost"}


async def _nothing(stage: Stage) -> None:
    stage.mark()


@pytest.mark.slow
def test_a_service_that_does_not_recover_or_tell_fails_its_drill() -> None:
    """And one that doesn't even start is an error, which proves nothing."""
    broken = dataclasses.replace(REPLICA_LOSS, name="broken", act=_kill_again, recovery_limit_s=3.0)
    silent = dataclasses.replace(REPLICA_LOSS, name="silent", act=_nothing, signs=(Sign("replica.lost"),))
    unstarted = dataclasses.replace(REPLICA_LOSS, name="unstarted", config="\nnonsense = 1\n")
    found = rehearse(broken, silent, unstarted)
    assert found["broken"].verdict == "fail"
    assert value(found["broken"], "as before") is None
    assert "as before, s: never" in found["broken"].detail
    assert value(found["broken"], "processes left over") == 0
    assert (found["silent"].verdict, found["silent"].detail) == ("fail", "replica.lost, s: never, at most 10")
    assert found["unstarted"].verdict == "error"
    assert "nonsense" in found["unstarted"].detail


@pytest.mark.parametrize(
    ("raw", "is_streamed", "fate", "reason"),
    [
        (b"", False, Fate.LOST, "closed"),
        (b"nonsense", False, Fate.LOST, "not_http"),
        (JSON % (14, b'{"choices":[]}'), False, Fate.OK, ""),
        (JSON % (99, b'{"choices":[]}'), False, Fate.LOST, "cut"),
        (b"HTTP/1.1 503 no\r\nx-headrace-reason: queue_full\r\ncontent-length: 0\r\n\r\n", True, Fate.REFUSED, "queue_full"),
        (b"HTTP/1.1 504 no\r\ncontent-length: 0\r\n\r\n", True, Fate.FAILED, "status_504"),
        (STREAM + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n", True, Fate.OK, ""),
        (STREAM + b"a\r\ndata: {}\n\n\r\n", True, Fate.LOST, "cut"),
        (STREAM + b"a\r\ndata: {}\n\n\r\n0\r\n\r\n", True, Fate.LOST, "cut"),
        (
            STREAM + b'2b\r\ndata: {"error":{"code":"replica_failed"}}\n\n\r\n',
            True,
            Fate.BROKEN,
            "replica_failed",
        ),
    ],
)  # fmt: skip
def test_only_a_whole_answer_counts_as_one(raw: bytes, is_streamed: bool, fate: Fate, reason: str) -> None:
    """An end that says why is another thing than one that doesn't, and no status makes half an answer a whole one."""
    heard = Heard()
    if raw:
        heard.feed(raw)
    assert judge(heard, is_streamed=is_streamed) == (fate, reason)


def test_the_report_counts_from_the_fault_and_from_when_requests_were_due() -> None:
    answers = [
        Answer(1.0, 0.1, Fate.OK),
        Answer(9.9, 0.3, Fate.BROKEN, "replica_failed"),
        Answer(12.0, 0.3, Fate.REFUSED, "saturated"),
        Answer(13.0, 2.0, Fate.OK),
    ]
    counted = drill_report.requests(answers, fault_s=10.0)
    assert (counted.sent, counted.fates["ok"], counted.fates["lost"]) == (4, 2, 0)
    assert counted.reasons == {"broken replica_failed": 1, "refused saturated": 1}
    assert counted.after is not None
    assert counted.after.max_s == 2.0
    assert drill_report.last_spoilt_s(answers, fault_s=10.0) == 2.0
    assert drill_report.verdict([Check("a", 1.0, 1.0)]) == ("pass", "")
    assert drill_report.verdict([Check("a", None, 1.0), Check("b", 3.0, 1.0)]) == (
        "fail",
        "a: never, at most 1; b: 3, at most 1",
    )


# The command


def test_the_command_lists_what_can_be_rehearsed_and_refuses_the_rest(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["drill", "list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in DRILLS)
    assert main(["drill", "list", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == list(DRILLS)
    assert main(["drill", "replica-los"]) == 2
    assert "did you mean `replica-loss`" in capsys.readouterr().err
    assert main(["drill", "replica-loss", "--engine", "embedded", "--data", str(tmp_path)]) == 2
    assert "no model store" in capsys.readouterr().err
    (tmp_path / "models").mkdir()
    assert main(["drill", "bad-release", "--engine", "embedded", "--data", str(tmp_path)]) == 2
    assert "can't play it" in capsys.readouterr().err


@contextmanager
def under_way(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """`headrace drill`, its service running below that folder."""
    folder.mkdir()
    # Whoever runs the tests in the background may have them ignore Ctrl-C, and what they start.
    command = [
        "env",
        "--default-signal=INT",
        sys.executable,
        "-P",
        "-m",
        "headrace",
        "drill",
        "controller-loss",
        "--json",
    ]
    process = subprocess.Popen(
        command,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    with process:
        try:
            wait_until(lambda: len(marked(folder)) > 3, what="its service")
            yield process
        finally:
            process.kill()


def marked(folder: Path) -> list[str]:
    """Processes of services of drills in that folder."""
    mark = f"HEADRACE_DRILL={folder}/".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_nothing_is_left_of_a_drill_that_is_ended(tmp_path: Path) -> None:
    """T61: neither after Ctrl-C, nor after a death in which nobody can clear up."""
    asked, killed = tmp_path / "asked", tmp_path / "killed"
    with under_way(asked) as one, under_way(killed) as other:
        one.send_signal(signal.SIGINT)
        other.send_signal(signal.SIGKILL)
        assert (one.wait(60), other.wait(60)) == (130, -signal.SIGKILL)
        wait_until(lambda: not marked(tmp_path), what="the end of every process")
        assert list(asked.iterdir()) == []

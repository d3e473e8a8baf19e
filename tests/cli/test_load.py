"""`headrace load`: one command from a workload to a report, in a terminal, as JSON, rows and a page, and its exit status."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.cli import load_progress
from headrace.cli.load_progress import LoadProgress
from headrace.cli.main import main
from headrace.core.load_records import Outcome
from headrace.evidence import load_file
from headrace.evidence.load_terms import Progress
from tests.support.crooked_server import crooked_server, whole
from tests.support.scripted import ScriptedEngine, scripted_engine

QUICK = ("--workload", "small", "--rate", "20", "--duration", "1s")


def asked(engine: ScriptedEngine, *more: str) -> list[str]:
    return ["load", "--url", engine.url, "--model", "scripted", *more]


@pytest.mark.slow
def test_a_run_is_reported_in_the_terminal_as_rows_as_a_page_and_as_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {kind: tmp_path / f"run.{kind}" for kind in ("html", "csv", "json")}
    with scripted_engine(slots=32) as engine:
        status = main(
            asked(
                engine,
                *QUICK,
                "--html",
                str(files["html"]),
                "--csv",
                str(files["csv"]),
                "--records",
                str(files["json"]),
            )
        )
    shown = capsys.readouterr().out
    run = load_file.read(files["json"])
    assert status in (0, 4)  # a machine that is too busy makes it void, and that is said
    assert "What became of the requests?" in shown
    assert run.workload == "small"
    assert {record.outcome for record in run.records} <= {Outcome.OK, Outcome.CANCELLED}
    assert len(files["csv"].read_text().splitlines()) == len(run.records) + 1
    assert files["html"].read_text().startswith("<!doctype html>")


@pytest.mark.slow
def test_json_has_the_report_and_every_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{n / 10},50,4\n" for n in range(5)))
    with scripted_engine(slots=8) as engine:
        main(asked(engine, "--workload", str(trace), "--duration", "2s", "--warmup", "0s", "--json"))
    said = json.loads(capsys.readouterr().out)
    assert said["report"]["intended"] == len(said["run"]["records"]) == 5


SLO = """
api = "v1"
deployment = "scripted"
failure_share_max = 0.5

[[objectives]]
metric = "ttft"
within_ms = 30000
share = 0.5
"""


@pytest.mark.slow
def test_one_file_of_a_run_is_judged_repeated_and_described(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """load -> slo check -> replay -> workload fit, and what load prints as JSON is that file."""
    first, again, slo = (tmp_path / name for name in ("first.json", "again.json", "slo.toml"))
    slo.write_text(SLO)
    with scripted_engine(slots=32) as engine:
        status = main(
            asked(
                engine,
                "--workload",
                "small",
                "--rate",
                "60",
                "--duration",
                "2s",
                "--warmup",
                "0s",
                "--records",
                str(first),
                "--json",
            )
        )
        assert status in (0, 4)
        assert capsys.readouterr().out.encode() == first.read_bytes()
        assert main(["slo", "check", str(slo), "--load", str(first), "--data", str(tmp_path)]) == 0
        status = main(
            ["replay", str(first), "--url", engine.url, "--model", "scripted", "--records", str(again)]
        )
        assert status in (0, 4)
    asked_first, asked_again = (load_file.read(path) for path in (first, again))
    assert [record.planned_output_tokens for record in asked_again.records] == [
        record.planned_output_tokens for record in asked_first.records
    ]
    start_s = asked_first.records[0].due_s
    assert [record.due_s for record in asked_again.records] == pytest.approx(
        [record.due_s - start_s for record in asked_first.records], abs=0.001
    )
    assert main(["workload", "fit", str(again), "--out", str(tmp_path / "fitted.toml")]) == 0
    assert "[arrivals]" in (tmp_path / "fitted.toml").read_text()


@pytest.mark.slow
def test_a_ramp_ends_where_the_service_does(capsys: pytest.CaptureFixture[str]) -> None:
    """Two slots of 100 ms each: 20 requests a second and no more."""
    with scripted_engine(slots=2, ttft_ms=100, tokens=1) as engine:
        main(asked(engine, "--workload", "small", "--rate", "8", "--duration", "2s", "--ramp", "--json"))
    said = json.loads(capsys.readouterr().out)
    rates = [step["rate_per_s"] for step in said["steps"]]
    assert rates[:3] == [8.0, 12.0, 18.0][: len(rates[:3])]
    assert said["followed_per_s"] is None or said["followed_per_s"] < 27.0
    assert not said["steps"][-1]["is_followed"] or max(rates) < 41.0


def test_a_run_that_did_not_send_what_was_due_is_void(capsys: pytest.CaptureFixture[str]) -> None:
    answer = whole(b'{"choices":[{"message":{"content":"yes"}}]}')
    with crooked_server(lambda number, request: [0.4, answer]) as server:
        status = main(
            ["load", "--url", server.url, "--model", "m", "--workload", "small", "--rate", "50", "--duration", "0.5s",
             "--open-max", "1"]
        )  # fmt: skip
    assert status == 4
    assert "void" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "2"])
def test_ctrl_c_ends_a_run_with_a_report_of_what_there_was(processes: str) -> None:
    with scripted_engine(slots=32) as engine:
        command = [
            sys.executable,
            "-m",
            "headrace",
            *asked(engine, *QUICK, "--duration", "1h", "--processes", processes),
        ]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            engine.wait_for_stats(lambda stats: stats["done"] > 25)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to all processes
            shown, complaints = process.communicate(timeout=120)
        assert process.returncode == 130, complaints
        assert "It was stopped before its end." in shown
        assert "Traceback" not in complaints
        engine.wait_for_stats(lambda stats: stats["running"] == 0)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--url", "http://127.0.0.1:1"], "--model"),
        (["--url", "ftp://x", "--model", "m"], "must be http"),
        (["--url", "http://127.0.0.1:1", "--model", "m", "--processes", "65"], "--processes"),
        (["--url", "http://127.0.0.1:1", "--model", "m", "--ramp", "--concurrency", "2"], "--ramp"),
        (["--url", "http://127.0.0.1:1", "--model", "m", "--duration", "5s", "--warmup", "5s"], "--warmup"),
        (["--url", "http://127.0.0.1:1", "--model", "m", "--ramp", "--html", "x.html"], "--ramp"),
        (["--url", "http://127.0.0.1:1", "--model", "m", "--html", "/nowhere/x.html"], "folder that exists"),
        (["--url", "http://127.0.0.1:1", "--model", "m", "--workload", "nothing"], "nothing"),
        (["--url", "http://127.0.0.1:1", "--model", "m", "--key", "secret"], "by reference"),
    ],
)
def test_what_the_operator_must_change_is_said_before_anything_is_sent(
    arguments: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["load", *arguments, "--data", str(tmp_path)]) == 2
    assert complaint in capsys.readouterr().err


def test_without_a_url_a_service_must_run_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "--data", str(tmp_path)]) == 2
    assert "no service is running" in capsys.readouterr().err


def test_a_run_without_any_answer_has_failed_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and never listens
        port = nobody.getsockname()[1]
        words = f"--url http://127.0.0.1:{port} --model m --workload small --rate 50 --duration 0.5s"
        assert main(["load", *words.split()]) in (1, 4)  # 4: a machine that is too busy
    said = capsys.readouterr()
    assert (
        f"m at http://127.0.0.1:{port} was asked as the workload small says, 50 requests a second, for 500 ms."
        in said.out
    )
    assert "void" in said.out or "failed (unreachable); " in said.err


def test_when_all_is_sent_progress_says_what_is_still_open() -> None:
    sent = Progress(62.4, 60.0, 120, 3, {Outcome.OK: 117}, 0.0)
    assert load_progress.line(sent) == "62 s: all 120 sent, 3 still open, 117 ok"


def test_progress_is_a_line_now_and_then_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    progress = LoadProgress()
    for elapsed in range(250):
        progress.tell(Progress(elapsed / 10, 60.0, elapsed, 2, {Outcome.OK: elapsed}, 0.0))
    progress.end()
    assert capsys.readouterr().err.splitlines() == [
        "10 of 60 s: 100 sent, 2 open, 100 ok",
        "20 of 60 s: 200 sent, 2 open, 200 ok",
    ]


def test_progress_is_one_line_that_is_redrawn_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_progress.common, "progress_is_live", lambda: True)
    progress = LoadProgress()
    progress.tell(Progress(1.0, 60.0, 7, 3, {Outcome.OK: 3, Outcome.REFUSED: 1}, 0.02))
    progress.end()
    assert (
        capsys.readouterr().err
        == "\r\x1b[K1 of 60 s: 7 sent, 3 open, 3 ok, 1 refused, sent up to 20.0 ms late\n"
    )


@pytest.mark.slow
def test_the_running_service_is_asked_with_its_own_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    with scripted_engine(slots=16) as engine:
        command = [
            sys.executable,
            "-m",
            "headrace",
            "up",
            "--data",
            str(data),
            "--port",
            "0",
            "--admin-port",
            "0",
        ]
        with subprocess.Popen(
            [*command, "--upstream", engine.url], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                _wait_until_ready(data)
                status = main(["load", "--data", str(data), *QUICK, "--json"])
            finally:
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=60)
    said = json.loads(capsys.readouterr().out)
    assert status in (0, 4)
    assert said["report"]["model"] == "scripted"
    assert said["report"]["outcomes"]["ok"] > 0
    joined = said["joined"]
    assert joined["whole"] + joined["misfits"] == said["report"]["outcomes"]["ok"], (
        "the service's own records explain the callers' time"
    )


def _wait_until_ready(data: Path) -> None:
    end_s = time.monotonic() + 60.0
    while subprocess.run(
        [sys.executable, "-m", "headrace", "load", "--data", str(data), "--duration", "0.1s", "--warmup", "0s", "--workload", "small"],
        capture_output=True, check=False, timeout=60,
    ).returncode not in (0, 4):  # fmt: skip
        assert time.monotonic() < end_s
        time.sleep(0.2)

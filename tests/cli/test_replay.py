"""`headrace replay` asks a server what a trace says, when it says."""

import json
from pathlib import Path

import msgspec
import pytest

from headrace.cli.main import main
from headrace.core.load_records import Outcome
from headrace.core.workload import ArrivalKind, Arrivals, Workload, constant
from headrace.evidence import load_file, requests
from tests.support.scripted import scripted_engine

TRACE = """arrival_ms,input_tokens,output_tokens,conversation,is_streamed,cached_tokens,cancel_after_ms
0,60,4,,true,,
200,60,4,a,false,,
600,90,4,,true,,100
800,130,4,a,true,,
9000,50,4,,true,,
"""
# A machine that is busy with other things may not keep up, which the command then says.
DONE_OR_VOID = (0, 4)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "day.csv"
    path.write_text(TRACE)
    return path


@pytest.mark.slow
def test_a_trace_is_asked_again_at_its_moments_and_reported(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also twice as fast; whoever left does so again, and after the same time."""
    records, page = tmp_path / "run.json", tmp_path / "page.html"
    with scripted_engine(slots=8, ttft_ms=200, itl_ms=1) as engine:
        line = f"replay {trace} --data {tmp_path} --url {engine.url} --model scripted --speed 5"
        status = main([*line.split(), "--records", str(records), "--html", str(page)])
    assert status in DONE_OR_VOID
    run = load_file.read(records)
    by_number = {record.number: record for record in run.records}
    due_s = [by_number[number].due_s for number in range(5)]
    assert [due_s[number] for number in (0, 1, 2, 4)] == pytest.approx([0.0, 0.04, 0.12, 1.8], abs=0.001)
    assert due_s[3] >= 0.24, (
        "a second turn waits for the answer to the first, which takes longer than the 0.12 s between them"
    )
    assert [by_number[number].outcome for number in range(5)] == [
        Outcome.OK,
        Outcome.OK,
        Outcome.CANCELLED,
        Outcome.OK,
        Outcome.OK,
    ]
    assert [by_number[number].is_streamed for number in range(5)] == [True, False, True, True, True]
    assert [by_number[number].turn for number in range(5)] == [1, 1, 1, 2, 1]
    assert run.workload == "day"
    assert run.window.holds(by_number[4])
    assert "<svg" in page.read_text()
    assert "cancelled" in capsys.readouterr().out


@pytest.mark.slow
def test_a_replay_is_cut_where_that_is_asked_for_and_its_report_is_json(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted_engine(slots=8) as engine:
        line = f"replay {trace} --data {tmp_path} --url {engine.url} --model scripted --duration 0.7s --json"
        assert main(line.split()) in DONE_OR_VOID
    assert json.loads(capsys.readouterr().out)["report"]["intended"] == 3


def test_a_closed_loop_has_no_speed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "w.toml"
    path.write_text(
        'name = "w"\n[arrivals]\nkind = "closed"\nconcurrency = 2\n'
        '[input_tokens]\nkind = "constant"\nvalue = 9\n[output_tokens]\nkind = "constant"\nvalue = 9\n'
    )
    line = f"replay {path} --data {tmp_path} --url http://127.0.0.1:1 --model m --speed 2"
    assert main(line.split()) == 2
    assert "is a closed loop" in capsys.readouterr().err


def test_all_of_a_trace_is_replayed_however_fast(trace: Path) -> None:
    whole = requests.load(str(trace))
    assert requests.lasts_s(whole) == pytest.approx(9.1)
    assert requests.lasts_s(requests.at_speed(whole, 4.0)) == pytest.approx(2.35)
    endless = Workload("w", Arrivals(ArrivalKind.POISSON, rate_per_s=1.0), constant(1), constant(1))
    assert requests.lasts_s(endless) is None
    assert requests.lasts_s(msgspec.structs.replace(endless, duration_s=5.0)) == 5.0

"""`headrace workload` as a person and a script meet it."""

import json
import re
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.config import workloads
from headrace.core.clock import SystemClock
from headrace.core.workload import ArrivalKind, LengthKind
from headrace.stores import sqlite
from headrace.stores.ledger import Ledger
from tests.evidence.test_capture import record

Captured = pytest.CaptureFixture[str]


def run(line: str, capsys: Captured) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(line.split())
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def a_trace(path: Path) -> Path:
    rows = "".join(f"{250 * n},{100 + 7 * (n % 40)},{20 + n % 9},\n" for n in range(400))
    path.write_text(f"arrival_ms,input_tokens,output_tokens,conversation\n{rows}")
    return path


def test_show_says_what_a_workload_means_and_comes_to(tmp_path: Path, capsys: Captured) -> None:
    page = tmp_path / "page.html"
    status, out, _ = run(f"workload show document-assistant --data {tmp_path} --html {page}", capsys)
    assert status == 0
    for said in (
        "2 per second in bursts",
        "All prompts begin with the same 160 tokens.",
        "one of 40 shared texts",
        "2 % of the callers leave",
        "prompt tokens per second",
    ):
        assert said in out
    assert page.read_text().count("<svg") >= 2
    status, out, _ = run(f"workload show small --data {tmp_path} --rate 4 --duration 50s --json", capsys)
    facts = json.loads(out)
    assert facts["planned"]["rate_per_s"] == pytest.approx(4.0, rel=0.3)
    assert facts["workload"]["name"] == "small"
    assert re.fullmatch("sha256:[0-9a-f]{64}", facts["digest"])


@pytest.mark.parametrize(
    ("arrivals", "said"),
    [
        ('kind = "constant"\nrate_per_s = 3', "3 per second, at equal distances."),
        ('kind = "diurnal"\nrate_per_s = 3\nswing = 0.4', "40 % fewer at the start and more in the middle"),
        ('kind = "ramp"\nrate_per_s = 1\nrate_end_per_s = 9\nramp_s = 60', "rising to 9 within 60 s"),
        ('kind = "closed"\nconcurrency = 4\nthink_s = 2', "4 callers, each of whom asks again 2 s after"),
        ('kind = "poisson"\nrate_per_s = 3\nbusy_s = 5\nidle_s = 20', "5 s busy, then 20 s at 0 % of that"),
        ('kind = "poisson"\nrate_per_s = 3\nmodulation = 0.5', "the rate itself varies by 50 %"),
    ],
)
def test_show_says_every_kind_of_arrivals_in_words(
    arrivals: str, said: str, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "w.toml"
    path.write_text(
        f'name = "w"\ndeadline_s = 9\nduration_s = 30\nrequests_max = 40\n[arrivals]\n{arrivals}\n'
        '[input_tokens]\nkind = "constant"\nvalue = 60\n[output_tokens]\nkind = "uniform"\nmaximum = 9\n'
        '[cancel]\nshare = 0.5\nafter_tokens = 3\n[turns]\ncount = { kind = "constant", value = 2 }\n'
    )
    status, out, _ = run(f"workload show {path} --data {tmp_path}", capsys)
    assert status == 0
    for each in (
        said,
        "ends after 30 s or 40 requests",
        "of no use after 9 s",
        "after 3 tokens on average",
        "2 turns",
    ):
        assert each in out


def test_show_reads_a_trace_as_it_is_and_at_another_rate(tmp_path: Path, capsys: Captured) -> None:
    trace = a_trace(tmp_path / "t.csv")
    _, out, _ = run(f"workload show {trace} --data {tmp_path}", capsys)
    assert f"As {trace} says" in out
    _, out, _ = run(f"workload show {trace} --data {tmp_path} --rate 8 --json", capsys)
    assert json.loads(out)["planned"]["rate_per_s"] == pytest.approx(8.0, rel=0.01)


def test_show_of_a_trace_without_lengths_says_what_to_do(tmp_path: Path, capsys: Captured) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,output_tokens\n0,1\n1,1\n")
    status, _, err = run(f"workload show {trace} --data {tmp_path}", capsys)
    assert status == 2
    assert "request 1 says no input_tokens; say `input_tokens` in a workload file" in err


def test_fit_writes_a_workload_that_can_be_shown(tmp_path: Path, capsys: Captured) -> None:
    trace, out_file, page = a_trace(tmp_path / "t.csv"), tmp_path / "mine.toml", tmp_path / "fit.html"
    status, out, _ = run(f"workload fit {trace} --name mine --out {out_file} --html {page}", capsys)
    assert status == 0
    assert "400 requests, 4 per second" in out
    assert "fitted to t.csv" in page.read_text()
    fitted = workloads.load(out_file)
    assert (fitted.name, fitted.arrivals.kind, fitted.arrivals.rate_per_s) == (
        "mine",
        ArrivalKind.CONSTANT,
        4.0,
    )
    assert fitted.input_tokens is not None
    assert fitted.input_tokens.kind is LengthKind.LOGNORMAL
    assert run(f"workload show {out_file} --data {tmp_path}", capsys)[0] == 0
    status, _, err = run(f"workload fit {trace} --out {out_file}", capsys)
    assert status == 2
    assert "is there already; name another file" in err
    status, out, _ = run(f"workload fit {trace} --json", capsys)
    assert json.loads(out)["arrivals"]["requests"] == 400


def test_fit_tells_what_is_missing(tmp_path: Path, capsys: Captured) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,5,5\n")
    status, _, err = run(f"workload fit {trace}", capsys)
    assert status == 2
    assert f"{trace}: arrivals need at least three requests" in err


def with_ledger(data: Path) -> Path:
    ledger = Ledger(data / sqlite.DATABASE_NAME, clock=SystemClock(), on_failure=lambda told: None)
    ledger.start()
    for number in range(6):
        ledger.append(record(10.0 * number, model="chat" if number < 5 else "other"), ())
    ledger.append(record(70.0, endpoint="/v1/embeddings"), ())
    ledger.stop()
    return data


def test_capture_writes_what_the_ledger_has_and_says_what_it_cannot_know(
    tmp_path: Path, capsys: Captured
) -> None:
    data, out_file = with_ledger(tmp_path / "data"), tmp_path / "day.csv"
    status, out, _ = run(f"workload capture --data {data} --out {out_file}", capsys)
    assert status == 0
    assert "6 requests in 50 s" in out
    assert "1 requests of other endpoints are left out" in out
    assert "Who was refused" in out
    assert out_file.read_text().count("\n") == 7
    assert run(f"workload fit {out_file}", capsys)[0] == 0
    status, _, err = run(f"workload capture --data {data} --out {out_file}", capsys)
    assert (status, "is there already" in err) == (2, True)


def test_capture_takes_only_what_is_asked_for(tmp_path: Path, capsys: Captured) -> None:
    data = with_ledger(tmp_path / "data")
    until = "2023-11-14T22:13:55Z"  # 35 s after the first
    line = f"workload capture --data {data} --out {tmp_path / 'a.csv'} --model chat --until {until} --json"
    status, out, _ = run(line, capsys)
    assert status == 0
    assert (json.loads(out)["requests"], json.loads(out)["others"]) == (4, 0)
    line = f"workload capture --data {data} --out {tmp_path / 'b.csv'}"
    for asked, told in (
        ("--tenant nobody", "no tenant `nobody`"),
        ("--since 1h", "the ledger has no requests"),
    ):
        status, _, err = run(f"{line} {asked}", capsys)
        assert status == 2
        assert told in err
    status, _, err = run(f"workload capture --data {data} --out {tmp_path / 'b.txt'}", capsys)
    assert (status, "name it .csv" in err) == (2, True)
    assert not (tmp_path / "b.csv").exists()

"""`headrace capacity` and `headrace simulate`: the textbook's numbers, what is marked as not measured, and a true capacity found."""

import json
from pathlib import Path

import msgspec
import pytest

from headrace.cli.main import main
from headrace.core.capacity import Bound, CapacityRecord, Hardware, Pace, Saturation
from headrace.core.verdicts import Interval
from headrace.stores.capacity import CapacityStore
from headrace.stores.opening import open_local, prepare

PLANS = Path(__file__).parents[2] / "capacity"
QUICK = ("--runs", "2", "--requests", "400")


@pytest.mark.slow
def test_the_textbook_case_is_shown_by_the_tail_and_by_the_mean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capacity", str(PLANS / "founding-example.toml"), *QUICK]) in (0, 3)
    shown = capsys.readouterr().out
    tail = next(line for line in shown.splitlines() if line.startswith("bound by the tail"))
    mean = next(line for line in shown.splitlines() if line.startswith("by the mean"))
    assert "2,000" in tail
    assert " 10 " in tail
    assert tail.endswith("13 (+30 %)")
    assert "745 ms" in mean
    assert " 4 " in mean
    assert mean.endswith("5 (+30 %)")
    assert "not measured" in shown
    assert "lognormal" in shown
    thirteen = next(line for line in shown.splitlines() if line.strip().startswith("13 "))
    assert thirteen.split()[1:6] == ["76.9", "%", "0.0207", "%", "<"]
    assert "100 %: unstable" in shown


@pytest.mark.slow
def test_every_heading_of_a_plan_from_published_figures_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "plan.html"
    assert main(["capacity", str(PLANS / "published-8b.toml"), *QUICK, "--html", str(page)]) in (0, 3)
    text = page.read_text()
    assert text.count("<h2>") == text.count("(published figures)</h2>") == 7
    assert "right to 30 %" in text
    shown = capsys.readouterr().out
    assert "fp8 weights and cache" in shown
    assert "PAYS FROM" in shown


def record(at_once: int, *, service_s: float, pace: Pace | None) -> CapacityRecord:
    per_s = Interval(at_once / service_s, None, None)
    return CapacityRecord(
        model="demo", digest="", runtime="scripted", hardware=Hardware(cpu="test", cores=2, memory_bytes=1),
        slots=at_once, levels=(), measured_s=0.0, took_s=1.0, pace=pace,
        saturation=(
            Saturation(
                shape="only", bound=Bound.THROUGHPUT, concurrency=at_once, requests_per_s=per_s,
                output_tokens_per_s=per_s, service_s=service_s,
            ),
        ),
    )  # fmt: skip


def measured(tmp_path: Path, *records: CapacityRecord) -> Path:
    data = tmp_path / "data"
    data.mkdir()
    prepare(data, "")
    store = CapacityStore(open_local(data))
    for each in records:
        store.add(each)
    store.close()
    return data


@pytest.mark.slow
def test_from_a_record_the_true_capacity_follows_within_five_percent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A replica of 8 slots, 10 ms a step and 101 tokens does 7.92 requests a second; 38 a second need 5, and have none to spare."""
    pace = Pace(overhead_s=0.01, prefill_tokens_per_s=1e6, step_s=0.01, step_per_active_s=0.0)
    data = measured(tmp_path, record(8, service_s=1.01, pace=pace))
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'name = "demo"\n[load]\nrate_per_s = 38\npeak = 1\ninput_tokens = 10\noutput_tokens = 101\nspread = 0.1\n'
        "[promise]\nttft_s = 2\nshare = 0.9\n[spare]\nshare = 0\nlosses = 0\n[replica]\nat_once = 1\ntime_s = 1\n"
    )
    command = [
        "capacity",
        str(plan),
        "--record",
        "demo",
        "--data",
        str(data),
        "--json",
        "--requests",
        "3000",
        "--runs",
        "2",
    ]
    main(command)
    found = json.loads(capsys.readouterr().out)
    assert found["is_measured"] is True
    assert found["basis"] == "measured"
    assert found["time_s"] == pytest.approx(1.01, rel=0.05)
    assert 8 / found["time_s"] == pytest.approx(7.92, rel=0.05)
    assert found["replicas"] == 5


def test_a_record_without_a_pace_is_what_its_requests_took(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = measured(
        tmp_path, record(8, service_s=0.5, pace=None), msgspec.structs.replace(record(8, service_s=1, pace=None), saturation=())
    )  # fmt: skip
    plan = tmp_path / "plan.toml"
    plan.write_text('name = "demo"\n[load]\nrate_per_s = 10\n[replica]\nat_once = 1\ntime_s = 1\n')
    assert main(["capacity", str(plan), "--record", "1", "--data", str(data), "--json", *QUICK]) in (0, 3)
    assert json.loads(capsys.readouterr().out)["time_s"] == 0.5
    assert main(["capacity", str(plan), "--record", "2", "--data", str(data)]) == 2
    assert "measure a replica again" in capsys.readouterr().err


def test_a_workload_is_played_to_a_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    pace = ("--prefill", "8000", "--step", "20", "--ttft", "2", "--duration", "60", "--runs", "5")
    assert main(["simulate", "--replicas", "8", "--rate", "2", *pace, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["replicas"], found["is_measured"]) == ("pass", 8, False)
    assert main(["simulate", "--replicas", "1", "--slots", "1", "--rate", "2", *pace]) == 1
    shown = capsys.readouterr().out
    assert "given figures, not measured" in shown
    assert "\nfail\n" in shown
    assert "kept              99 %" in shown


PACED = (
    "--prefill",
    "8000",
    "--step",
    "20",
    "--duration",
    "60",
    "--runs",
    "2",
    "--replicas",
    "8",
    "--rate",
    "2",
)
SLO = """deployment = "demo"
failure_share_max = 0.05
[[objectives]]
metric = "ttft"
within_ms = 2000
share = 0.9
[load]
requests_per_s_max = 1.2
[cost]
per_qualified_result_max = 0.001
"""


@pytest.fixture
def promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with an SLO by the name of `demo`."""
    (tmp_path / "slos").mkdir()
    (tmp_path / "slos" / "demo.toml").write_text(SLO)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_workload_is_judged_by_an_slo_and_written_in_every_form(
    promised: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *PACED, "--slo", "demo", "--csv", "s.csv", "--html", "s.html"]) == 0
    shown = capsys.readouterr().out
    assert "- ttft 2000 ms" in shown
    assert "slos/demo.toml" in shown
    rows = (promised / "s.csv").read_text().splitlines()
    assert rows[0] == "figure,mean,from,to,basis"
    assert any(row.startswith("ttft_p99_s,0.") for row in rows)
    assert all(row.endswith('not measured"') for row in rows[1:])
    assert "given figures, not measured" in (promised / "s.html").read_text()
    assert main(["simulate", *PACED, "--slo", "demo", "--ttft", "1"]) == 2
    assert "leave out --ttft" in capsys.readouterr().err
    assert main(["simulate", *PACED, "--slo", "dem"]) == 2
    assert "one of those there: demo" in capsys.readouterr().err


PLAN = """name = "demo"
[load]
rate_per_s = 1
peak = 1.5
input_tokens = 100
output_tokens = 50
[spare]
losses = 0
[replica]
prefill_tokens_per_s = 8000
step_s = 0.01
[replica.memory]
device_mib = 24000
parameters = 8e9
weights_bits = 16
[replica.memory.architecture]
layers = 32
kv_heads = 8
head_size = 128
embedding = 4096
feed_forward = 14336
vocabulary = 128256
[[choices]]
name = "small"
[choices.replica]
prefill_tokens_per_s = 8000
step_s = 0.01
[choices.replica.memory]
device_mib = 12000
[costs]
date = "2026-11-30"
replica_hour = "1"
"""


def test_a_plan_takes_its_target_from_an_slo_and_its_slots_from_memory(
    promised: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (promised / "plan.toml").write_text(PLAN + '[promise]\nslo = "demo"\n')
    command = ["capacity", "plan.toml", "--data", "data", *QUICK]
    assert main([*command, "--json", "--csv", "p.csv", "--html", "p.html"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["basis"].startswith("published figures, not measured")
    planned, small = found["memory"]
    assert planned["bound"] == "memory"
    assert planned["at_once"] == found["plan"]["replica"]["at_once"] == planned["room"]["requests"] > 10
    assert small["at_once"] == 0
    assert [each["replicas"] for each in found["options"]] == [1, None]
    assert [kept["name"] for kept in found["situations"][0]["figures"]["kept"]] == [
        "answered whole",
        "ttft 2000 ms",
    ]
    rows = (promised / "p.csv").read_text().splitlines()
    assert 'options[0].replicas,1,"published figures, not measured, +-30 %"' in rows
    text = (promised / "p.html").read_text()
    assert "The SLO holds up to 1.2 requests/s, and the peak is 1.5." in text
    assert "does not fit" in text
    assert "0.001 USD at most, at the normal load" in text
    assert "headrace capacity plan.toml --runs 2 --requests 400" in text


@pytest.mark.parametrize(
    ("replaced", "by", "says"),
    [
        ("[load]\nrequests", "[load]\ninput_tokens_max = 99\nrequests", "covers requests of at most 99"),
        ("[cost]\n", '[cost]\ncurrency = "EUR"\n', "nothing converts them"),
    ],
)
def test_an_slo_that_a_plan_cannot_be_held_to_is_refused(
    replaced: str, by: str, says: str, promised: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (promised / "slos" / "demo.toml").write_text(SLO.replace(replaced, by))
    (promised / "plan.toml").write_text(PLAN)
    assert main(["capacity", "plan.toml", "--data", "data", "--slo", "demo", *QUICK]) == 2
    assert says in capsys.readouterr().err


def test_a_load_too_large_to_simulate_is_refused_with_what_to_do(
    promised: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (promised / "plan.toml").write_text(PLAN)
    assert main(["capacity", "plan.toml", "--data", "data", "--rate", "1000000"]) == 2
    assert "plan for a part of the load (`--rate`)" in capsys.readouterr().err


def test_a_result_that_costs_more_than_the_slo_says_fails_the_plan(
    promised: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (promised / "plan.toml").write_text(PLAN.replace('"1"', '"100"'))
    assert main(["capacity", "plan.toml", "--data", "data", "--slo", "demo", *QUICK]) == 1
    assert "fail: 0.001 USD at most" in capsys.readouterr().out


def test_without_a_pace_nothing_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--replicas", "1"]) == 2
    assert "--prefill and --step" in capsys.readouterr().err

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


@pytest.mark.slow
def test_every_heading_of_a_plan_from_published_figures_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "plan.html"
    assert main(["capacity", str(PLANS / "published-8b.toml"), *QUICK, "--html", str(page)]) in (0, 3)
    text = page.read_text()
    assert text.count("<h2>") == text.count("(published figures)</h2>") == 6
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
    pace = ("--prefill", "8000", "--step", "20", "--ttft", "2", "--duration", "60", "--runs", "3")
    assert main(["simulate", "--replicas", "8", "--rate", "2", *pace, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["replicas"], found["is_measured"]) == ("pass", 8, False)
    assert main(["simulate", "--replicas", "1", "--slots", "1", "--rate", "2", *pace]) == 1
    shown = capsys.readouterr().out
    assert "given figures, not measured" in shown
    assert shown.endswith("fail: 99 % are promised\n")


def test_without_a_pace_nothing_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--replicas", "1"]) == 2
    assert "--prefill and --step" in capsys.readouterr().err

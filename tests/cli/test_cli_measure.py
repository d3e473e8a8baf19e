"""`headrace measure` on a real engine whose capacity is known, from its first question to the record that is kept."""

import json
from pathlib import Path

import pytest

from headrace.cli.main import main
from tests.support.fleet import fleet
from tests.support.scripted import scripted_engine

PLAN = """
api = "v1"
name = "measured"
[load]
rate_per_s = 50
input_tokens = 32
output_tokens = 9
[promise]
total_s = 60.0
share = 0.9
[replica]
source = "the record takes its place"
at_once = 1
time_s = 1.0
"""
QUICK = ("--lengths", "32/9", "--level", "0.6s", "--hold", "0s", "--callers-max", "8", "--time-limit", "60s")


@pytest.mark.slow
def test_the_capacity_of_a_real_engine_is_found_kept_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two slots of 20 + 8 x 5 ms each: 33 requests per second, if nothing else had the machine. A noisy one has less."""
    data, record = str(tmp_path / "data"), tmp_path / "record.json"
    (tmp_path / "data").mkdir()
    with scripted_engine(slots=2, ttft_ms=20, itl_ms=5, tokens=9) as engine:
        status = main(
            [
                "measure",
                "--url",
                engine.url,
                "--model",
                "scripted",
                "--data",
                data,
                "--out",
                str(record),
                *QUICK,
            ]
        )
    assert status in (0, 3), "3 where the machine was too busy to show an end"
    found = json.loads(record.read_text())
    capacity = found["saturation"][0]
    assert capacity["requests_per_s"]["estimate"] < 1.1 * 2 / 0.06, "nothing does more than it can"
    assert capacity["requests_per_s"]["estimate"] > 0.2 * 2 / 0.06
    assert found["levels"][0]["concurrency"] == 1
    pace = found["pace"]
    assert pace["step_s"] + 2 * pace["step_per_active_s"] >= 0.8 * 0.005, "noise may put it down to either"
    capsys.readouterr()
    assert main(["measure", "list", "--data", data, "--json"]) == 0
    assert [kept["number"] for kept in json.loads(capsys.readouterr().out)] == [1]
    page = tmp_path / "page.html"
    assert main(["measure", "show", "scripted", "--data", data, "--html", str(page)]) == 0
    assert "Level by level: 32/9" in capsys.readouterr().out
    assert "Results per second" in page.read_text()
    assert main(["measure", "show", "other", "--data", data]) == 2
    assert "there are records of scripted" in capsys.readouterr().err
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    capacity_of = (
        "capacity",
        str(plan),
        "--record",
        "scripted",
        "--runs",
        "2",
        "--requests",
        "300",
        "--json",
    )
    assert main([*capacity_of, "--data", data]) in (0, 1, 3)
    planned = json.loads(capsys.readouterr().out)
    per_s = planned["sizing"]["per_replica"] / planned["time_s"]
    assert 0.2 * 2 / 0.06 < per_s < 1.1 * 2 / 0.06, "a plan takes it to do no more than it can, either"


@pytest.mark.slow
def test_a_deployment_is_measured_with_its_memory_beside_the_plan_and_plans_state_it(tmp_path: Path) -> None:
    """One that may grow is refused: what would be measured is not one replica."""
    with fleet() as running:
        running.apply("chat", sections={"scale": {"min": 1, "max": 2}}, slots=2, ttft_ms=20, tokens=1)
        running.until_ready("chat@v1", name="chat")
        asked = ("measure", "--deployment", "chat", *QUICK, "--callers-max", "2")
        refused = running.service.cli(*asked, check=False)
        assert refused.returncode == 2
        assert "may grow from 1 to 2 replicas" in refused.stderr
        running.apply("chat", slots=2, ttft_ms=20, tokens=1)
        running.until_ready("chat@v2", name="chat")
        record = tmp_path / "record.json"
        cases = ("--quality", "document-assistant", "--cases", "4")
        done = running.service.cli(*asked, *cases, "--out", str(record), check=False)
        assert done.returncode == 3, f"four cases show nothing: {done.stderr}"
        assert "at rest and beside the load" in done.stdout
        found = json.loads(record.read_text())
        assert found["slots"] == 2
        assert found["quality"]["cases"] == 4
        assert found["quality"]["judgement"]["verdict"] == "inconclusive"
        assert found["digest"].startswith("sha256:")
        assert found["memory"]["peak_bytes"] > 1_000_000
        assert found["memory"]["planned"]["process"] > 1_000_000
        (tmp_path / "wrong").write_text("hr_live_wrong")
        deaf = running.service.cli(
            "measure", "--deployment", "chat", "--key", f"file:{tmp_path / 'wrong'}", check=False
        )
        assert deaf.returncode == 2
        assert "doesn't take this key" in deaf.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--url", "http://127.0.0.1:9"), "--url goes with --model"),
        (("--lengths", "12"), "tokens of prompt and answer such as 512/128"),
        (("show",), "say which: a number or a model"),
    ],
)
def test_a_mistake_is_told_before_anything_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    try:
        status = main(["measure", *arguments, "--data", str(tmp_path)])
    except SystemExit as ended:
        status = int(str(ended.code))
    assert status == 2
    assert said in capsys.readouterr().err


def test_a_server_that_does_not_answer_is_not_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["measure", "--url", "http://127.0.0.1:9", "--model", "m", "--data", str(tmp_path)]) == 1
    assert "m at http://127.0.0.1:9 doesn't answer" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize(
    ("slots", "ttft_ms", "itl_ms", "tokens"), [(1, 50, 5, 20), (3, 60, 4, 32), (8, 40, 5, 32)]
)
def test_the_true_capacity_is_found_within_five_percent(
    tmp_path: Path, slots: int, ttft_ms: float, itl_ms: float, tokens: int
) -> None:
    """On a machine that has little else to do."""
    record = tmp_path / "record.json"
    with scripted_engine(slots=slots, ttft_ms=ttft_ms, itl_ms=itl_ms, tokens=tokens) as engine:
        main([
            "measure", "--url", engine.url, "--model", "scripted", "--no-keep", "--out", str(record),
            "--lengths", f"64/{tokens},256/{tokens}", "--level", "5s", "--hold", "0s", "--data", str(tmp_path),
        ])  # fmt: skip
    true_per_s = slots / ((ttft_ms + (tokens - 1) * itl_ms) / 1000)
    for found in json.loads(record.read_text())["saturation"]:
        assert found["bound"] == "throughput"
        assert found["requests_per_s"]["estimate"] == pytest.approx(true_per_s, rel=0.05)
        assert found["concurrency"] == slots

"""The benchmarks still run: each with the smallest counts, for its shape and not for its figures."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gateway, gateway_report, machine
from benchmarks import load as load_benchmark
from benchmarks.peers import PEERS, install
from benchmarks.rig import BenchmarkFailed
from tests.support.models import shared_root, shared_store

ROOT = Path(__file__).parent.parent
LIMIT_S = 230
# Two cores: one for the proxy, one for servers and load.
needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


def run(benchmark, *arguments, path):
    """Runs one benchmark as the README says; what it printed and the JSON that it wrote."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{benchmark}", *arguments, "--json", str(path)],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(path.read_text())


@needs_two_cores
@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 10)
def test_the_gateway_benchmark_measures_each_load_against_direct(tmp_path):
    flags = ("--quick", "--rounds", "1", "--seconds", "0.3", "--streams", "4")
    printed, found = run("gateway", *flags, path=tmp_path / "gateway.json")
    assert "whole answers: requests/s" in printed
    assert set(found["samples"]) == set(gateway.LOADS)
    for load, by_name in found["samples"].items():
        assert {"direct", "headrace"} <= set(by_name), load
        for sample in by_name["headrace"]:
            assert sample["failures"] == 0, load
            assert sample["per_s"] > 0, load
            assert not math.isnan(sample["cpu_us"]), load
    assert found["versions"]["headrace"]
    assert found["resident_bytes"]["headrace"] > 0


@needs_two_cores
@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 10)
def test_the_load_benchmark_holds_the_generator_against_the_truth(tmp_path):
    printed, found = run("load", "--rounds", "1", "--seconds", "0.5", path=tmp_path / "load.json")
    assert "requests/s from one core" in printed
    own = found["samples"]["headrace"]
    assert set(own) == {load.name for load in load_benchmark.LOADS}
    for (sample,) in own.values():
        assert sample["requests_per_s"] > 0
        assert sample["cpu_us_per_request"] > 0
    (truth,) = own[load_benchmark.TRUTH.name]
    assert truth["ttft_error_p50_s"] > 0.0, "nobody hears a token before it was sent"


def test_a_peer_that_can_not_be_had_is_named_with_what_to_do(monkeypatch):
    monkeypatch.setattr(machine, "program", lambda name: None)
    with pytest.raises(BenchmarkFailed, match="apt-get install haproxy"):
        install(PEERS["haproxy"], print)


def test_aims_are_held_against_the_rival_of_their_row():
    rows = {"whole answers: requests/s": {"headrace": 30.0, "nginx": 40.0, "vllm-router": 20.0}}
    found = {
        aim["aim"].rpartition(" ")[2]: (aim["measured"], aim["is_met"]) for aim in gateway_report.aims(rows)
    }
    assert found == {"nginx": (0.75, True), "vllm-router": (1.5, False)}


@needs_two_cores
@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 10)
def test_the_gateway_benchmark_does_without_nginx_and_wrk(tmp_path, monkeypatch):
    """Where neither is installed it says so, says how to install them, and measures the rest."""
    monkeypatch.setattr(machine, "program", lambda name: None)
    arguments = ["--only", "whole", "--rounds", "1", "--seconds", "0.3", "--json", str(tmp_path / "g.json")]
    assert gateway.main(["--quick", *arguments]) == 0
    found = json.loads((tmp_path / "g.json").read_text())
    assert set(found["samples"]["whole"]) == {"direct", "headrace"}
    assert sum("apt-get install" in remark for remark in found["remarks"]) == 2


@needs_two_cores
@pytest.mark.skipif(not (machine.program("nginx") and machine.program("wrk")), reason="needs nginx and wrk")
@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 10)
def test_the_workers_benchmark_measures_each_number_of_them(tmp_path):
    flags = ("--workers", "1", "2", "--rounds", "1", "--seconds", "0.5")
    _, found = run("workers", *flags, path=tmp_path / "workers.json")
    assert {workers: each["cpu_us"] > 0 for workers, each in found["summary"].items()} == {
        "1": True,
        "2": True,
    }
    assert all(sample["failures"] == 0 for taken in found["samples"].values() for sample in taken)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 10)
def test_the_walk_benchmark_walks_whole_answers_and_streams(tmp_path):
    _, found = run("walk", "--rounds", "1", path=tmp_path / "walk.json")
    assert found["whole"]["best_us"] > 0
    assert found["stream"]["best_us"] > found["whole"]["best_us"]


@needs_two_cores
@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 10)
def test_the_overload_benchmark_counts_answers_and_refusals(tmp_path):
    printed, found = run("overload", "--rounds", "1", "--seconds", "0.5", path=tmp_path / "overload.json")
    assert "goodput" in printed
    (sample,) = found["samples"]
    assert sample["other_failures"] == 0
    assert sample["refused"] > 0
    assert 0 < sample["goodput_per_s"] < sample["offered_per_s"]
    assert found["memory"]["stream_bytes"] > 0


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 10)
def test_the_embedded_benchmark_measures_both_ways_and_the_cold_start(tmp_path):
    shared_store()
    data = tmp_path / "data"
    data.mkdir()
    (data / "models").symlink_to(shared_root())
    flags = ("--data", str(data), "--rounds", "1", "--tokens", "4", "--streams", "2", "--starts", "1")
    printed, found = run("embedded", *flags, path=tmp_path / "embedded.json")
    assert "cold start" in printed
    assert found["summary"]["ratio"] > 0
    for sample in (*found["samples"]["direct"], *found["samples"]["headrace"]):
        assert 2 <= sample["tokens"] <= 8
    for stages in found["summary"]["cold_start_s"].values():
        assert set(stages) == {"capacity", "fetch", "launch", "load", "warm"}


@pytest.mark.alone
def test_load_of_strangers_is_seen_and_our_own_is_not():
    """The gate that keeps contended samples out counts the CPU of other processes, core by core."""
    core = min(os.sched_getaffinity(0))
    burn = f"import os; os.sched_setaffinity(0, {{{core}}}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE) as stranger:
        try:
            assert stranger.stdout is not None
            stranger.stdout.readline()
            as_stranger = machine.Window((stranger.pid,), {core: ()})
            as_ours = machine.Window((stranger.pid,), {core: (stranger.pid,)})
            with as_stranger, as_ours:
                while machine.cpu_s((stranger.pid,)) < 0.5:
                    os.sched_yield()
        finally:
            stranger.kill()
    assert as_stranger.is_contended
    assert as_stranger.cpu_s > 0.1
    assert as_ours.foreign_share[core] < as_stranger.foreign_share[core]


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 10)
def test_the_autoscaling_benchmark_compares_with_a_fixed_fleet_over_patterns_and_over_a_trace(tmp_path):
    printed, found = run("autoscale", "--day", "600", "--cold-start", "5", path=tmp_path / "made.json")
    assert "replica-hours" in printed
    assert {row["arrivals"] for row in found["rows"]} == {"constant", "day", "bursts", "ramp", "step"}
    assert all(row["cut"] == 0 for row in found["rows"])
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"arrival_ms": 400 * n, "input_tokens": 1000, "output_tokens": 20, "hash_ids": [0, n]}
        for n in range(900)
    ]
    trace.write_text("\n".join(map(json.dumps, lines)))
    _, found = run(
        "autoscale",
        "--trace",
        str(trace),
        "--half",
        "second",
        "--day",
        "600",
        "--cold-start",
        "5",
        path=tmp_path / "t.json",
    )
    assert [row["arrivals"] for row in found["rows"]] == ["trace", "day of trace"]
    _, found = run(
        "autoscale",
        "--trace",
        str(trace),
        "--day",
        "300",
        "--cold-start",
        "5",
        "--tune",
        path=tmp_path / "tune.json",
    )
    assert found["rows"][0]["loss"] <= found["rows"][-1]["loss"]


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 10)
def test_the_rollout_benchmark_measures_what_callers_notice(tmp_path):
    flags = ("--only", "failing", "--requests", "30", "--interval", "0.5")
    printed, found = run("rollout", *flags, path=tmp_path / "rollout.json")
    assert "after the minimum" in printed
    (row,) = found["rollouts"]
    assert (row["version"], row["result"], row["failed"]) == ("failing", "rolled_back", 0)


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S + 10)
def test_the_simulation_benchmark_compares_each_metric_with_its_sign(tmp_path):
    printed, found = run("simulation", "--seconds", "4", path=tmp_path / "simulation.json")
    assert "error" in printed
    assert {row["metric"] for row in found["rows"]} >= {"ttft p99", "total mean", "not served"}
    assert all(row["real"] > 0 and row["model"] > 0 for row in found["rows"] if row["metric"] != "not served")

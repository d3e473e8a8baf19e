"""How much load comes from one core, how punctually, and how near are its figures to the truth? Next to GuideLLM and wrk.

All of them ask one server with answers made beforehand, in turns, in one run: generators on one core, the server on another. wrk knows
no schedule, no streams and no times of tokens; it says what a generator costs that does nothing else.
"""

import argparse
import http.client
import json
import os
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import load_clients, machine, rig, table
from benchmarks.load_clients import Load, Seen
from benchmarks.loadgen import percentile

REQUESTS_PER_S, CHUNKS_PER_S = 5000, 50_000
LATE_P99_MAX_S = 0.005
TTFT_ERROR_MAX_S = 0.001
WHOLE = Load("whole answers", rate_per_s=5500.0)
STREAMS = Load("streams", rate_per_s=1100.0, is_streamed=True, tokens=50, itl_ms=5.0)
TRUTH = Load("truth", rate_per_s=50.0, is_streamed=True, tokens=20, ttft_ms=50.0, itl_ms=5.0)
FULL_WHOLE = Load("whole answers, 64 callers", rate_per_s=None)
FULL_STREAMS = Load("streams, 64 callers", rate_per_s=None, is_streamed=True, tokens=50)
LOADS = (WHOLE, STREAMS, TRUTH, FULL_WHOLE, FULL_STREAMS)
FOREIGN_SHARE_MAX = 2 * machine.FOREIGN_SHARE_MAX  # of two cores

Sample = dict[str, float]


def _measure(client: str, load: Load, arguments: argparse.Namespace, cores: tuple[int, int]) -> Sample:
    """One generator and one load, with a server of their own."""
    port, (core, engine_core) = rig.free_port(), cores
    command = [
        sys.executable,
        "-m",
        "benchmarks.made_answers",
        "--port",
        str(port),
        "--tokens",
        str(load.tokens),
    ]
    command += ["--ttft-ms", f"{load.ttft_ms:g}", "--itl-ms", f"{load.itl_ms:g}"]
    with rig.Rig() as started:
        engine = started.start("made", command, port=port, core=engine_core)
        given: dict[str, Any] = {"port": port, "seconds": arguments.seconds, "folder": started.folder}
        if client == "headrace":
            words, read = load_clients.headrace(load, **given)
        elif client == "wrk":
            words, read = load_clients.wrk(**given)
        else:
            words, read = load_clients.guidellm(arguments.guidellm, load, **given)
        seen = load_clients.run(words, read, core=core, engine=engine.pids, engine_core=engine_core)
        return _sample(seen, _truth(port))


def _truth(port: int) -> dict[str, float]:
    """By request id, how long the server took to the first token."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/truth")
        return {
            str(number): (first - read) / 1e6
            for number, read, first in json.loads(connection.getresponse().read())
        }
    finally:
        connection.close()


def _sample(seen: Seen, truth: dict[str, float]) -> Sample:
    found = {
        "requests_per_s": seen.whole / seen.seconds,
        "chunks_per_s": seen.events / seen.seconds,
        "others": float(seen.other),
        "cpu_share": seen.cpu_s / seen.seconds,
        "cpu_us_per_request": seen.cpu_s / max(1, seen.whole) * 1e6,
        "cpu_us_per_chunk": seen.cpu_s / max(1, seen.events) * 1e6,
        "engine_cpu_share": seen.engine_cpu_s / seen.seconds,
        "is_contended": float(seen.foreign_share > FOREIGN_SHARE_MAX),
    }
    if seen.late_s is not None:
        found["late_p50_s"], found["late_p99_s"] = seen.late_s
    if seen.ttft_s:
        known = [(ttft_s - truth[name]) for name, ttft_s in seen.ttft_s.items() if name in truth]
        found["ttft_error_p50_s"], found["ttft_error_p99_s"] = percentile(known, 0.5), percentile(known, 0.99)
    return found


# load, fact, heading, digits, factor
ROWS = (
    (WHOLE, "requests_per_s", "open loop, 5,500 requests/s: requests/s", 0, 1.0),
    (WHOLE, "cpu_us_per_request", "  CPU us per request", 1, 1.0),
    (WHOLE, "late_p50_s", "  sent late, p50, ms", 3, 1e3),
    (WHOLE, "late_p99_s", "  sent late, p99, ms", 3, 1e3),
    (STREAMS, "chunks_per_s", "open loop, 1,100 streams/s of 50 chunks: chunks/s", 0, 1.0),
    (STREAMS, "cpu_us_per_chunk", "  CPU us per chunk", 2, 1.0),
    (STREAMS, "late_p50_s", "  sent late, p50, ms", 3, 1e3),
    (STREAMS, "late_p99_s", "  sent late, p99, ms", 3, 1e3),
    (TRUTH, "requests_per_s", "open loop, 50 streams/s of 20 chunks: streams/s", 0, 1.0),
    (TRUTH, "late_p99_s", "  sent late, p99, ms", 3, 1e3),
    (TRUTH, "ttft_error_p50_s", "  TTFT over the truth, p50, ms", 3, 1e3),
    (TRUTH, "ttft_error_p99_s", "  TTFT over the truth, p99, ms", 3, 1e3),
    (FULL_WHOLE, "requests_per_s", "64 callers, whole answers: requests/s", 0, 1.0),
    (FULL_WHOLE, "cpu_us_per_request", "  CPU us per request", 1, 1.0),
    (FULL_WHOLE, "cpu_share", "  share of its core", 2, 1.0),
    (FULL_STREAMS, "chunks_per_s", "64 callers, streams of 50 chunks: chunks/s", 0, 1.0),
    (FULL_STREAMS, "cpu_us_per_chunk", "  CPU us per chunk", 2, 1.0),
    (FULL_STREAMS, "cpu_share", "  share of its core", 2, 1.0),
)
# What others can't do: GuideLLM gets nowhere near the rates of the open loops, and wrk has neither schedule nor streams.
ASKED = {
    "headrace": LOADS,
    "guidellm": (TRUTH, FULL_WHOLE, FULL_STREAMS),
    "wrk": (FULL_WHOLE,),
}


def _median(samples: Sequence[Sample], fact: str) -> float:
    """Over the samples without foreign load, or over all where there is none."""
    chosen = [sample for sample in samples if not sample["is_contended"]] or samples
    values = [sample[fact] for sample in chosen if fact in sample]
    return statistics.median(values) if values else float("nan")


def _report(samples: dict[str, dict[str, list[Sample]]]) -> str:
    clients = list(samples)
    rows = []
    for load, fact, heading, digits, factor in ROWS:
        cells = []
        for client in clients:
            taken = samples[client].get(load.name, [])
            is_uncertain = bool(taken) and all(sample["is_contended"] for sample in taken)
            cells.append(table.number(_median(taken, fact) * factor, digits) + ("*" if is_uncertain else ""))
        rows.append([heading, *cells])
    lines = [table.rows(["", *clients], rows), ""]
    own = samples["headrace"]
    for what, is_met in (
        (
            f">= {REQUESTS_PER_S:,} requests/s from one core",
            _median(own[WHOLE.name], "requests_per_s") >= REQUESTS_PER_S,
        ),
        (
            f">= {CHUNKS_PER_S:,} chunks/s from one core",
            _median(own[STREAMS.name], "chunks_per_s") >= CHUNKS_PER_S,
        ),
        (
            "sends p99 < 5 ms late, at 5,500 requests/s",
            _median(own[WHOLE.name], "late_p99_s") < LATE_P99_MAX_S,
        ),
        (
            "sends p99 < 5 ms late, at 55,000 chunks/s",
            _median(own[STREAMS.name], "late_p99_s") < LATE_P99_MAX_S,
        ),
        (
            "TTFT p99 within 1 ms of the truth",
            abs(_median(own[TRUTH.name], "ttft_error_p99_s")) < TTFT_ERROR_MAX_S,
        ),
    ):
        lines.append(f"{'ok  ' if is_met else 'MISS'}  {what}")
    if any(
        all(sample["is_contended"] for sample in taken) for of in samples.values() for taken in of.values()
    ):
        lines.append("* every sample is contended by other work on the two cores: don't quote")
    return "\n".join(lines)


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="samples of each (default: 3)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each (default: 5)")
    parser.add_argument(
        "--guidellm", metavar="FILE", default="", help="the guidellm program, in an environment of its own"
    )
    table.add_json_argument(parser, "load")
    return parser.parse_args(argv)


def _clients(arguments: argparse.Namespace) -> list[str]:
    """Those that are there; what is missing is said."""
    found = ["headrace"]
    if arguments.guidellm:
        found.append("guidellm")
    else:
        print(
            "without GuideLLM: python -m venv DIR && DIR/bin/pip install guidellm, then --guidellm DIR/bin/guidellm",
            file=sys.stderr,
        )
    if machine.program("wrk") is not None:
        found.append("wrk")
    else:
        print("without wrk; on Debian or Ubuntu: apt-get install wrk", file=sys.stderr)
    return found


def main(argv: Sequence[str]) -> int:
    arguments = _arguments(argv)
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        print("two cores are needed: one for generators, one for the server", file=sys.stderr)
        return 1
    clients = _clients(arguments)
    facts = machine.facts()
    samples: dict[str, dict[str, list[Sample]]] = {client: {} for client in clients}
    for _ in range(arguments.rounds):
        for load in LOADS:
            for client in clients:
                if load in ASKED[client]:
                    sample = _measure(client, load, arguments, (cores[0], cores[1]))
                    samples[client].setdefault(load.name, []).append(sample)
    text = _report(samples)
    print(text)
    print(f"\n{table.write_json(arguments.json, 'load', facts, {'samples': samples})}")
    own = [sample for taken in samples["headrace"].values() for sample in taken]
    return 1 if any(sample["others"] for sample in own) else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except rig.BenchmarkFailed as failure:
        sys.exit(str(failure))

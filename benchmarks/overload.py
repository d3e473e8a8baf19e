"""What happens beyond capacity, and what does an open stream take?

Scripted engines with few slots, so that capacity is known; first asked by just as many callers, then by an open loop of ten
times as many requests: how much of the capacity is still answered (goodput), and how fast is the rest refused? Then memory: the
gateway's resident set with many open streams, and with idle kept-alive connections, over that with none.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import uvloop

from benchmarks import loadgen, machine, rig, table
from benchmarks.loadgen import Target, percentile

ENGINES = 2
SLOTS = 8
SERVICE_MS = 50.0
CALLERS = 1024
OVERLOAD = 10
STREAMS = 500
IDLE = 1000
STREAM_GAP_MS = 1000.0
GOODPUT_MIN = 0.9
REFUSAL_P99_MAX_MS = 50.0
STREAM_BYTES_MAX = 60_000


def _overload(target: Target, ours: dict[int, list[int]], seconds: float) -> dict[str, Any]:
    """One pair of samples: capacity by a closed loop with a caller for each slot, then the overload."""
    capacity_window = machine.Window((), ours)
    at_capacity = uvloop.run(
        loadgen.closed_loop(
            target, connections=ENGINES * SLOTS, seconds=seconds, warm_s=0.5, window=capacity_window
        )
    )
    capacity_per_s = len(at_capacity.latencies_s) / capacity_window.seconds
    window = machine.Window((), ours)
    rate_per_s = OVERLOAD * ENGINES * SLOTS * 1000 / SERVICE_MS
    seen = uvloop.run(
        loadgen.open_loop(
            target, rate_per_s=rate_per_s, connections=CALLERS, seconds=seconds, warm_s=1.0, window=window
        )
    )
    refused = len(seen.refused_s)
    good = len(seen.latencies_s) - seen.failures
    return {
        "capacity_per_s": capacity_per_s,
        "offered_per_s": rate_per_s,
        "goodput_per_s": good / window.seconds,
        "goodput_of_capacity": good / window.seconds / capacity_per_s,
        "refused": refused,
        "refusal_p50_ms": percentile(seen.refused_s, 0.5) * 1000,
        "refusal_p99_ms": percentile(seen.refused_s, 0.99) * 1000,
        "other_failures": seen.failures - refused + at_capacity.failures,
        "is_contended": capacity_window.is_contended or window.is_contended,
    }


async def _stream_bytes(target: Target, pids: Sequence[int]) -> float:
    """Resident memory for each of STREAMS open streams, in a process that has never had more than a few."""
    seen = loadgen.Streamed(is_open=True)
    request = target.request(target.body(stream=True))
    await _open_streams(target, request, seen, 5)
    before = machine.resident_bytes(pids)
    opened = await _open_streams(target, request, seen, STREAMS)
    bytes_each = (machine.resident_bytes(pids) - before) / STREAMS
    for stream in opened:
        stream.stop()
    if seen.failures:
        raise rig.BenchmarkFailed(f"{seen.failures} of {STREAMS} streams were refused")
    return bytes_each


async def _open_streams(
    target: Target, request: bytes, seen: loadgen.Streamed, count: int
) -> list[loadgen.Stream]:
    """Returns once each of them has had its first event."""
    loop = asyncio.get_running_loop()
    wanted = len(seen.first_event_s) + count
    opened = []
    for _ in range(count):
        _, stream = await loop.create_connection(
            lambda: loadgen.Stream(request, seen), target.host, target.port
        )
        stream.begin()
        opened.append(stream)
    while len(seen.first_event_s) < wanted and not seen.failures:  # noqa: ASYNC110 -- the client has no event for it
        await asyncio.sleep(0.05)
    return opened


async def _idle_bytes(target: Target, pids: Sequence[int]) -> float:
    """Resident memory for each of IDLE connections that say nothing, in a process that has had few."""
    loop = asyncio.get_running_loop()
    before = machine.resident_bytes(pids)
    opened = [
        (await loop.create_connection(asyncio.Protocol, target.host, target.port))[0] for _ in range(IDLE)
    ]
    await asyncio.sleep(0.5)
    bytes_each = (machine.resident_bytes(pids) - before) / IDLE
    for transport in opened:
        transport.abort()
    return bytes_each


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overload", description=__doc__,
        epilog="example: python -m benchmarks.overload --rounds 3 --seconds 5",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=3, help="pairs of samples (default: 3)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each (default: 5)")
    table.add_json_argument(parser, "overload")
    return parser.parse_args(argv)


def _engines(started: rig.Rig, model: str, *, core: int, **flags: float) -> tuple[list[int], list[int]]:
    """Ports and pids of ENGINES scripted engines."""
    ports, pids = [], []
    for number in range(ENGINES):
        port, running = started.scripted(f"{model}-{number}", model=model, core=core, **flags)
        ports.append(port)
        pids += running.pids
    return ports, pids


def _run(started: rig.Rig, arguments: argparse.Namespace, cores: tuple[int, int]) -> dict[str, Any]:
    proxy_core, load_core = cores
    busy, busy_pids = _engines(
        started, "busy", core=load_core, slots=SLOTS, ttft_ms=SERVICE_MS, itl_ms=0, tokens=1
    )
    slow, slow_pids = _engines(started, "slow", core=load_core, itl_ms=STREAM_GAP_MS, tokens=100)
    provider, headrace = started.headrace(upstreams=busy, core=proxy_core, upstream_slots=SLOTS)
    target = Target(provider.port, "busy", provider.key())
    rig.wait_for_answer(target, stream=False)
    ours = {proxy_core: [*headrace.pids], load_core: [os.getpid(), *busy_pids, *slow_pids]}
    samples = [_overload(target, ours, arguments.seconds) for _ in range(arguments.rounds)]
    memory = {}
    for name, measure in (("stream_bytes", _stream_bytes), ("idle_connection_bytes", _idle_bytes)):
        fresh, process = started.headrace(
            upstreams=slow, core=proxy_core, data=started.folder / name, name=name
        )
        target = Target(fresh.port, "slow", fresh.key())
        rig.wait_for_answer(target, stream=True)
        memory[name] = uvloop.run(measure(target, process.pids))
    return {"samples": samples, "memory": memory}


def _report(found: dict[str, Any]) -> tuple[str, dict[str, float]]:
    clean = [sample for sample in found["samples"] if not sample["is_contended"]]
    chosen = clean or found["samples"]
    mark = "" if clean else "*"
    facts = [name for name in chosen[0] if name != "is_contended"]
    summary = {name: statistics.median(sample[name] for sample in chosen) for name in facts} | found["memory"]
    rows = [
        [name.replace("_", " "), table.number(value, 3 if value < 10 else 0) + mark]
        for name, value in summary.items()
    ]
    lines = [table.rows(["", "headrace"], rows), ""]
    for what, is_met in (
        (f"goodput of capacity >= {GOODPUT_MIN}", summary["goodput_of_capacity"] >= GOODPUT_MIN),
        (f"refusals p99 < {REFUSAL_P99_MAX_MS:g} ms", summary["refusal_p99_ms"] < REFUSAL_P99_MAX_MS),
        (
            f"memory of an open stream <= {STREAM_BYTES_MAX:,} bytes",
            summary["stream_bytes"] <= STREAM_BYTES_MAX,
        ),
    ):
        lines.append(f"{'ok  ' if is_met else 'MISS'}  {what}")
    if not clean:
        lines.append("* every sample is contended: don't quote")
    return "\n".join(lines), summary


def main(argv: Sequence[str]) -> int:
    arguments = _arguments(argv)
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        print("two cores are needed: one for the gateway, one for engines and load", file=sys.stderr)
        return 1
    facts = machine.facts()
    with contextlib.ExitStack() as stack:
        stack.enter_context(rig.pinned(cores[1]))
        found = _run(stack.enter_context(rig.Rig()), arguments, (cores[0], cores[1]))
    text, summary = _report(found)
    print(text)
    path = table.write_json(arguments.json, "overload", facts, found | {"summary": summary})
    print(f"\n{path}")
    return 1 if summary["other_failures"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except rig.BenchmarkFailed as failure:
        sys.exit(str(failure))

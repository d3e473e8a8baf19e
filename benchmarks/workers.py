"""What do several workers cost for each request, next to one?

The same whole answers through `headrace up --workers N` for each N, all of its processes on one core, servers and load client on
the other. On two cores the load client eats the second, so that throughput proves nothing; CPU time for each request does:
what leases, several pools of connections and several ledgers take shows in it.
"""

import argparse
import contextlib
import os
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import machine, rig, table
from benchmarks.gateway import wrk_answers
from benchmarks.loadgen import Target

MODEL = "whole"
RATIO_MAX = 1.15
WORKERS = (1, 2, 4)


def _measure(
    started: rig.Rig, wrk: str, arguments: argparse.Namespace, cores: tuple[int, int]
) -> dict[int, list[dict[str, Any]]]:
    proxy_core, load_core = cores
    ports = [rig.free_port(), rig.free_port()]
    servers = started.fixed_answers(model=MODEL, ports=ports, core=load_core)
    providers = {}
    for workers in arguments.workers:
        provider, running = started.headrace(
            upstreams=ports, core=proxy_core, data=started.folder / f"workers-{workers}", name=f"workers-{workers}",
            arguments=("--workers", str(workers)),
        )  # fmt: skip
        target = Target(provider.port, MODEL, provider.key())
        rig.wait_for_answer(target, stream=False)
        providers[workers] = target, machine.family(running.pid)
    everyone = [pid for _, pids in providers.values() for pid in pids]
    samples: dict[int, list[dict[str, Any]]] = {workers: [] for workers in providers}
    for _ in range(arguments.rounds):
        for workers, (target, pids) in providers.items():
            wrk_answers(wrk, target, started.folder, 0.5)
            window = machine.Window(pids, {proxy_core: everyone, load_core: [os.getpid(), *servers.pids]})
            with window:
                found = wrk_answers(wrk, target, started.folder, arguments.seconds)
            samples[workers].append(
                found
                | {
                    "per_s": found["answers"] / window.seconds,
                    "cpu_us": window.cpu_s / found["answers"] * 1e6,
                    "is_contended": window.is_contended,
                }
            )
    return samples


def _summary(samples: dict[int, list[dict[str, Any]]]) -> dict[int, dict[str, float]]:
    found = {}
    for workers, taken in samples.items():
        clean = [sample for sample in taken if not sample["is_contended"]] or taken
        found[workers] = {
            fact: statistics.median(sample[fact] for sample in clean) for fact in ("per_s", "cpu_us")
        }
    return found


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.workers", description=__doc__,
        epilog="example: python -m benchmarks.workers --workers 1 2 4 --rounds 5",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--workers", type=int, nargs="+", default=list(WORKERS), help="how many (default: 1 2 4)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="samples of each (default: 5)")
    parser.add_argument("--seconds", type=float, default=2.5, help="length of each (default: 2.5)")
    table.add_json_argument(parser, "workers")
    arguments = parser.parse_args(argv)
    cores = sorted(os.sched_getaffinity(0))[:2]
    wrk = machine.program("wrk")
    if len(cores) < 2 or wrk is None or machine.program("nginx") is None:
        print(
            "two cores, nginx and wrk are needed (Debian, Ubuntu: apt-get install nginx-light wrk)",
            file=sys.stderr,
        )
        return 1
    facts = machine.facts()
    with contextlib.ExitStack() as stack:
        stack.enter_context(rig.pinned(cores[1]))
        samples = _measure(stack.enter_context(rig.Rig()), wrk, arguments, (cores[0], cores[1]))
    summary = _summary(samples)
    first = summary[min(summary)]["cpu_us"]
    rows = [
        [
            str(workers), table.number(each["per_s"], 0), table.number(each["cpu_us"], 1), f"{each['cpu_us'] / first:.2f}",
            f"{sum(sample['is_contended'] for sample in samples[workers])} of {len(samples[workers])}",
        ]
        for workers, each in summary.items()
    ]  # fmt: skip
    print(
        table.rows(["workers", "requests/s", "CPU us per request", f"over {min(summary)}", "contended"], rows)
    )
    worst = max(each["cpu_us"] / first for each in summary.values())
    print(
        f"\n{'ok  ' if worst <= RATIO_MAX else 'MISS'}  CPU per request at most {RATIO_MAX} times that of one: {worst:.2f}"
    )
    print(f"\n{table.write_json(arguments.json, 'workers', facts, {'summary': summary, 'samples': samples})}")
    return 1 if any(sample["failures"] for taken in samples.values() for sample in taken) else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except rig.BenchmarkFailed as failure:
        sys.exit(str(failure))

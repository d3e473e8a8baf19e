"""How much of the gateway's throughput do the ledger and its journal take?

The same whole answers through two services, one of which forgets its records, in turns. The gateway's process may use both
cores, and so its ledger's thread has one that isn't busy with requests; servers and load client are on the second. With
`--one-core` all of the gateway is on the first: then what the ledger's thread takes is missing from the gateway to the last
microsecond.
"""

import argparse
import contextlib
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, rig, table
from benchmarks.gateway import wrk_answers
from benchmarks.loadgen import Target

MODEL = "whole"
LOSS_MAX = 0.03
WITHOUT = (sys.executable, "-P", str(Path(__file__).with_name("without_ledger.py")))


def _measure(
    started: rig.Rig, wrk: str, arguments: argparse.Namespace, cores: tuple[int, int]
) -> dict[str, list[dict[str, Any]]]:
    gateway_cores = str(cores[0]) if arguments.one_core else f"{cores[0]},{cores[1]}"
    ports = [rig.free_port(), rig.free_port()]
    started.fixed_answers(model=MODEL, ports=ports, core=cores[1])
    targets = {}
    for name, program in (("with", rig.HEADRACE), ("without", WITHOUT)):
        provider, running = started.headrace(
            upstreams=ports, core=gateway_cores, data=started.folder / name, name=name, program=program
        )
        target = Target(provider.port, MODEL, provider.key())
        rig.wait_for_answer(target, stream=False)
        targets[name] = target, machine.family(running.pid)
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in targets}
    for number in range(arguments.rounds):
        # In turns, and each goes first as often as the other.
        for name in sorted(targets, reverse=bool(number % 2)):
            target, pids = targets[name]
            wrk_answers(wrk, target, started.folder, 0.5)
            with machine.Window(pids, {}) as window:
                found = wrk_answers(wrk, target, started.folder, arguments.seconds)
            per_s = found["answers"] / window.seconds
            samples[name].append(found | {"per_s": per_s, "cpu_us": window.cpu_s / found["answers"] * 1e6})
    return samples


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ledger_price", description=__doc__,
        epilog="example: python -m benchmarks.ledger_price --rounds 8",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=8, help="samples of each (default: 8)")
    parser.add_argument("--seconds", type=float, default=2.5, help="length of each (default: 2.5)")
    parser.add_argument("--one-core", action="store_true", help="all of the gateway on one core")
    table.add_json_argument(parser, "ledger_price")
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
    # Each round's pair was measured within seconds, so a machine that gets slower doesn't count for one side.
    ratios = [
        ours["per_s"] / bare["per_s"] for ours, bare in zip(samples["with"], samples["without"], strict=True)
    ]
    rows = [
        [
            name,
            table.number(statistics.median(each["per_s"] for each in taken), 0),
            table.number(statistics.median(each["cpu_us"] for each in taken), 1),
        ]
        for name, taken in samples.items()
    ]
    print(table.rows(["ledger", "requests/s", "CPU us per request"], rows))
    lost = 1 - statistics.median(ratios)
    print(
        f"\n{'ok  ' if lost <= LOSS_MAX else 'MISS'}  throughput lost to the ledger, median of {len(ratios)} pairs:"
        f" {lost:.1%} (from {1 - max(ratios):.1%} to {1 - min(ratios):.1%}; at most {LOSS_MAX:.0%})"
    )
    print(f"\n{table.write_json(arguments.json, 'ledger_price', facts, {'lost': lost, 'samples': samples})}")
    return 1 if any(sample["failures"] for taken in samples.values() for sample in taken) else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except rig.BenchmarkFailed as failure:
        sys.exit(str(failure))

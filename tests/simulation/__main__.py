"""`python -m tests.simulation`: seeds for a time, or one seed again."""

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

from tests.simulation import world

KNOWN_SEEDS = Path(__file__).with_name("seeds.txt")


def known_seeds() -> list[str]:
    """Seeds that once broke a law."""
    lines = (line.partition("#")[0].strip() for line in KNOWN_SEEDS.read_text().splitlines())
    return [line for line in lines if line]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="of this machine's time; new random seeds for so long"
    )
    parser.add_argument(
        "--first", type=int, help="the first of those seeds, from which they count up (default: by chance)"
    )
    parser.add_argument("--seed", help="run this one alone")
    parser.add_argument("--trace", action="store_true", help="print every event")
    options = parser.parse_args()
    if options.seed is not None:
        return _one(options.seed, is_traced=options.trace)
    first = int.from_bytes(os.urandom(4)) if options.first is None else options.first
    return _many(options.seconds, first)


def _one(seed: str, *, is_traced: bool) -> int:
    try:
        print(world.run(seed, tell=print if is_traced else None))
    except world.Failure as failure:
        _tell(failure)
        return 1
    return 0


def _many(seconds: float, first: int) -> int:
    started_s = time.monotonic()
    runs, requests, virtual_s, outcomes = 0, 0, 0.0, Counter[str]()
    while time.monotonic() - started_s < seconds:
        try:
            report = world.run(str(first + runs))
        except world.Failure as failure:
            _tell(failure)
            return 1
        runs += 1
        requests += report.requests
        virtual_s += report.virtual_s
        outcomes.update(report.outcomes)
    print(
        f"{runs} seeds from {first}, {requests} requests, {virtual_s:.0f} simulated seconds: no law was broken"
    )
    print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()))
    return 0


def _tell(failure: world.Failure) -> None:
    print("\n".join(failure.last), file=sys.stderr)
    print(failure.trace, file=sys.stderr)
    print(failure, file=sys.stderr)
    print(f"it runs with every test once its seed is in {KNOWN_SEEDS.name}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

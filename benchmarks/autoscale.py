"""How much of a fixed fleet does an autoscaled one need, and does it keep the same promise?

The policy that the controller goes by (src/headrace/policies/autoscale.py) decides over a fleet on a virtual clock
(src/headrace/evidence/simulate_fleet.py), whose requests go through the gateway's own policies: slots, prompts one after
another, answers beside each other, a queue, cold starts by stage.
It is compared with the fleet that has the size of the peak all the time: the smallest in which even the busiest minute keeps
the promise for 99 of 100 requests. A trace is played as it is, and as the requests of a day: its sizes, arriving at a rate
that goes from a tenth of the peak at midnight to the peak at noon.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from benchmarks import machine, table
from headrace.core.deployment_terms import DownTerms, ScaleTerms, SloTerms
from headrace.evidence.simulate_fleet import Autoscaler, Fixed, FleetModel
from headrace.evidence.simulate_replica import Pace
from headrace.evidence.simulate_run import Run
from headrace.evidence.simulate_work import Promise, Work
from tests.support import arrivals

LOSS_MAX = 0.01
HOURS_MAX = 0.65
CHANGES_MAX = 2
MINUTE_MIN = 0.99
REPLICAS_MAX = 200
LEGEND = """
kept: share of requests served as promised. replica-hours: of the fixed fleet's. least: slots that were really busy in the
fixed fleet, which no fleet can go below. holds: loses at most 1 % of the promise, at no more than 65 % of the
replica-hours; under constant load, in at most 2 changes."""
# Tried by `--tune`: delay, step and margin on the way down, and whether to predict.
GRID: tuple[tuple[float, int, float, Literal["off", "auto"]], ...] = (
    (120.0, 1, 0.9, "off"), (300.0, 1, 0.8, "off"), (300.0, 1, 0.9, "off"), (300.0, 2, 0.9, "off"), (300.0, 2, 0.9, "auto"),
    (300.0, 4, 0.9, "off"), (300.0, 2, 1.0, "off"), (600.0, 1, 0.8, "off"), (600.0, 2, 0.9, "off"),
)  # fmt: skip
HEADINGS = (
    "arrivals", "cold start", "requests", "fixed", "kept", "autoscaled kept", "replica-hours", "least", "changes", "holds",
)  # fmt: skip


class Case(NamedTuple):
    """Arrivals with a name. `is_constant`: what counts is how seldom the number changes."""

    name: str
    works: list[Work]
    is_constant: bool = False


def _peak_size(works: Sequence[Work], pace: Pace, promise: Promise) -> tuple[int, Run]:
    """The smallest fleet whose busiest minutes keep the promise, and how it did; by bisection, as more is never worse."""

    def run(replicas: int) -> Run:
        return FleetModel(works, Fixed(replicas), pace=pace, promise=promise, replicas=replicas).run()

    too_few, enough = 0, 1
    found = run(enough)
    while found.worst_minute() < MINUTE_MIN and enough < REPLICAS_MAX:
        too_few, enough = enough, 2 * enough
        found = run(enough)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        tried = run(middle)
        if tried.worst_minute() < MINUTE_MIN:
            too_few = middle
        else:
            enough, found = middle, tried
    return enough, found


def _compare(case: Case, scale: Callable[[int], ScaleTerms], pace: Pace, promise: Promise) -> dict[str, Any]:
    size, peak = _peak_size(case.works, pace, promise)
    return _against(case, size, peak, scale(size), pace, promise)


def _against(
    case: Case, size: int, peak: Run, scale: ScaleTerms, pace: Pace, promise: Promise
) -> dict[str, Any]:
    """The autoscaled fleet begins at the size of the fixed one: how it gets there is no part of the comparison."""
    scaler = Autoscaler(scale, SloTerms(ttft_p95_ms=1000 * promise.ttft_s))
    run = FleetModel(case.works, scaler, pace=pace, promise=promise, replicas=size).run()
    seconds = case.works[-1].arrival_s
    share = run.replica_hours / peak.replica_hours
    holds = run.attainment >= peak.attainment - LOSS_MAX and (
        run.changes <= CHANGES_MAX if case.is_constant else share <= HOURS_MAX
    )
    return {
        "arrivals": case.name,
        "cold_start_s": sum(pace.stages_s.values()),
        "requests": len(case.works),
        "seconds": seconds,
        "fixed_replicas": size,
        "fixed_attainment": peak.attainment,
        "attainment": run.attainment,
        "replica_hours_share": share,
        "busy_share_of_fixed": peak.busy_s / (seconds * size * pace.slots),
        "changes": run.changes,
        "cut": run.cut,
        "holds": holds,
        "sizes": run.sizes,
    }


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["arrivals"], f"{row['cold_start_s']:.0f} s", f"{row['requests']:,}", str(row["fixed_replicas"]),
        f"{100 * row['fixed_attainment']:.2f} %", f"{100 * row['attainment']:.2f} %",
        f"{100 * row['replica_hours_share']:.0f} %", f"{100 * row['busy_share_of_fixed']:.0f} %",
        str(row["changes"]), "yes" if row["holds"] else "no",
    ]  # fmt: skip


def _made(seconds: float) -> list[Case]:
    """Patterns without a trace, of requests of 800 and 100 tokens in the mean."""

    def case(name: str, rate: Callable[[float], float], *, is_constant: bool = False) -> Case:
        return Case(name, arrivals.arrivals(rate, rate_max=20.0, seconds=seconds), is_constant)

    return [
        case("constant", arrivals.constant(10.0), is_constant=True),
        case("day", arrivals.diurnal(2.0, 20.0, day_s=seconds)),
        case("bursts", arrivals.bursts(3.0, 18.0, every_s=seconds / 4, for_s=seconds / 16)),
        case("ramp", arrivals.ramp(2.0, 20.0, from_s=0.2 * seconds, to_s=0.8 * seconds)),
        case("step", arrivals.step(3.0, 18.0, at_s=0.3 * seconds, until_s=0.7 * seconds)),
    ]


def _of_trace(path: Path, seconds: float, *, half: str) -> list[Case]:
    """The trace itself, and a day of its requests; of each the half that was asked for."""
    works = arrivals.read(path)
    middle_s = works[-1].arrival_s / 2
    is_first = half == "first"
    if half != "both":
        works = [work for work in works if (work.arrival_s < middle_s) is is_first]
        works = [work._replace(arrival_s=work.arrival_s - works[0].arrival_s) for work in works]
    rate_max = 2 * len(works) / works[-1].arrival_s
    rate = arrivals.diurnal(0.1 * rate_max, rate_max, day_s=seconds)
    day = arrivals.like(works, rate, rate_max=rate_max, seconds=seconds, seed=1 + is_first)
    return [Case(path.stem, works), Case(f"day of {path.stem}", day)]


def _tuned(cases: Sequence[Case], pace: Pace, promise: Promise) -> list[dict[str, Any]]:
    """Every combination of the grid over all cases, the best first: the fewest replica-hours of those that lose no more of
    the promise than may be lost; where none does, the one that loses least."""
    peaks = [_peak_size(case.works, pace, promise) for case in cases]
    found = []
    for delay_s, max_step, margin, predict in GRID:
        rows = []
        for case, (size, peak) in zip(cases, peaks, strict=True):
            scale = ScaleTerms(max=2 * size, down=DownTerms(delay_s, max_step, margin), predict=predict)
            rows.append(_against(case, size, peak, scale, pace, promise))
        found.append(
            {
                "delay_s": delay_s, "max_step": max_step, "margin": margin, "predict": predict,
                "loss": max(row["fixed_attainment"] - row["attainment"] for row in rows),
                "replica_hours_share": sum(row["replica_hours_share"] for row in rows) / len(rows),
            }
        )  # fmt: skip
    return sorted(found, key=lambda each: (max(LOSS_MAX, each["loss"]), each["replica_hours_share"]))


def _print_tuned(rows: Sequence[dict[str, Any]]) -> None:
    headings = ("delay", "step", "margin", "predict", "largest loss", "replica-hours")
    cells = [
        [
            f"{row['delay_s']:.0f} s", str(row["max_step"]), f"{row['margin']:.1f}", row["predict"],
            f"{100 * row['loss']:.2f} %", f"{100 * row['replica_hours_share']:.0f} %",
        ]
        for row in rows
    ]  # fmt: skip
    print(table.rows(headings, cells))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.autoscale", description=__doc__,
        epilog="example: python -m benchmarks.autoscale --trace AzureLLMInferenceTrace_conv.csv --half second",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--trace", type=Path, action="append", default=[], metavar="FILE",
        help="arrivals, in any format that `headrace workload` reads (default: made patterns)")  # fmt: skip
    add("--half", choices=("first", "second", "both"), default="both", help="which half of each trace")
    add(
        "--cold-start",
        type=float,
        action="append",
        metavar="S",
        help="mean of all stages (default: 5 and 30)",
    )
    add("--day", type=float, default=21600.0, metavar="S", help="length of a made day (default: six hours)")
    add("--slots", type=int, default=8, help="of one replica (default: 8)")
    add(
        "--prefill",
        type=float,
        default=8000.0,
        metavar="N",
        help="tokens of a prompt a second (default: 8000)",
    )
    add("--ttft", type=float, default=2.0, metavar="S", help="promised time to the first token (default: 2)")
    add("--predict", choices=("off", "auto"), default="off", help="default: off, as in a deployment's file")
    add("--tune", action="store_true", help="try a grid of settings instead, and print all of it")
    table.add_json_argument(parser, "autoscale")
    return parser


def main(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    promise = Promise(ttft_s=arguments.ttft)
    cases = [case for path in arguments.trace for case in _of_trace(path, arguments.day, half=arguments.half)]
    cases = cases or _made(arguments.day)

    def scale(size: int) -> ScaleTerms:
        """The defaults of a deployment's file."""
        return ScaleTerms(max=2 * size, predict=arguments.predict)

    rows: list[dict[str, Any]] = []
    for cold_start_s in arguments.cold_start or (5.0, 30.0):
        pace = Pace(
            slots=arguments.slots, prefill_tokens_per_s=arguments.prefill,
            stages_s={"launch": 0.3 * cold_start_s, "load": 0.6 * cold_start_s, "warm": 0.1 * cold_start_s},
        )  # fmt: skip
        if arguments.tune:
            tuned = _tuned(cases, pace, promise)
            print(f"cold start {cold_start_s:.0f} s")
            _print_tuned(tuned)
            rows += [row | {"cold_start_s": cold_start_s} for row in tuned]
        else:
            rows += [_compare(case, scale, pace, promise) for case in cases]
    if not arguments.tune:
        print(table.rows(HEADINGS, [_cells(row) for row in rows]))
        print(LEGEND)
    written = table.write_json(arguments.json, "autoscale", machine.facts(), {"rows": rows})
    print(f"\nsamples and versions: {written}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

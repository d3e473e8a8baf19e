"""What do the samples of the gateway benchmark say? Medians, the aims they are held against, and what a reader must know."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import machine, table

HOW_TO_INSTALL = "on Debian or Ubuntu: apt-get install nginx-light wrk"

Sample = dict[str, float]


@dataclass(frozen=True, slots=True)
class Run:
    """What was run.

    Attributes:
        contenders: Names, in the order of the columns.
        samples: By load and contender.
    """

    contenders: tuple[str, ...]
    samples: dict[str, dict[str, list[Sample]]]
    has_nginx: bool
    has_wrk: bool


def clean(samples: Sequence[Sample]) -> list[Sample]:
    return [sample for sample in samples if not sample["is_contended"]]


def uncertain(by_name: dict[str, list[Sample]]) -> list[str]:
    """Contenders of which every sample of a load is contended."""
    return [name for name, taken in by_name.items() if not clean(taken)]


def median(samples: Sequence[Sample], fact: str) -> float:
    """Over the samples without foreign load, or over all where there is none; chosen by that load, never by result."""
    return statistics.median(sample[fact] for sample in clean(samples) or samples) if samples else math.nan


# (row, load, fact, digits, whether it is shown as what it adds to `direct`)
ROWS = (
    ("whole answers: requests/s", "whole", "per_s", 0, False),
    ("whole answers: CPU us per request", "whole", "cpu_us", 1, False),
    ("whole answers: share of its core", "whole", "cpu_share", 2, False),
    ("500 requests/s: latency p50, ms", "latency", "p50_ms", 2, False),
    ("500 requests/s: latency p99, ms", "latency", "p99_ms", 2, False),
    ("500 requests/s: added p50, ms", "latency", "p50_ms", 2, True),
    ("500 requests/s: added p99, ms", "latency", "p99_ms", 2, True),
    ("500 streams/s: added TTFT p50, ms", "first", "p50_ms", 2, True),
    ("500 streams/s: added TTFT p99, ms", "first", "p99_ms", 2, True),
    ("hot streams: events/s", "hot", "per_s", 0, False),
    ("hot streams: CPU us per event", "hot", "cpu_us", 2, False),
    ("hot streams: share of its core", "hot", "cpu_share", 2, False),
    ("hot streams: events per read", "hot", "events_per_read", 2, False),
    ("paced streams: CPU us per event", "paced", "cpu_us", 2, False),
    ("paced streams: TTFT p50, ms", "paced", "ttft_p50_ms", 2, False),
    ("paced streams: TTFT p99, ms", "paced", "ttft_p99_ms", 2, False),
    ("paced streams: added TTFT p50, ms", "paced", "ttft_p50_ms", 2, True),
    ("paced streams: added TTFT p99, ms", "paced", "ttft_p99_ms", 2, True),
    ("1,000 streams: events/s", "many", "per_s", 0, False),
    ("1,000 streams: CPU us per event", "many", "cpu_us", 2, False),
    ("1,000 streams: share of its core", "many", "cpu_share", 2, False),
    ("1,000 streams: gap p99, ms", "many", "gap_p99_ms", 2, False),
    ("1,000 streams: added gap p99, ms", "many", "gap_p99_ms", 2, True),
)
NO_COST = {"cpu_us", "cpu_share"}


def summary(samples: dict[str, dict[str, list[Sample]]]) -> dict[str, dict[str, float]]:
    """Each row of the table that was measured, by contender."""
    rows: dict[str, dict[str, float]] = {}
    for row, load, fact, _, is_added in ROWS:
        if load not in samples:
            continue
        figures = {name: median(taken, fact) for name, taken in samples[load].items()}
        direct = figures["direct"]
        if is_added:
            figures = {name: figure - direct for name, figure in figures.items()}
        if is_added or fact in NO_COST:
            del figures["direct"]
        rows[row] = figures
    return rows


@dataclass(frozen=True, slots=True)
class Aim:
    """A figure of headrace, held against a bound or against the same figure of another.

    Attributes:
        rival: Whose figure it is divided by (or that is divided by it, where less is better); "" for a plain bound.
        least, most: The bound; one of them.
    """

    row: str
    rival: str = ""
    least: float = 0.0
    most: float = math.inf

    def measure(self, figures: dict[str, float]) -> float | None:
        if "headrace" not in figures or (self.rival and self.rival not in figures):
            return None
        return figures["headrace"] / figures[self.rival] if self.rival else figures["headrace"]

    @property
    def wanted(self) -> str:
        return f">= {self.least:g}" if self.least else f"<= {self.most:g}"

    @property
    def what(self) -> str:
        return f"{self.row}, over that of {self.rival}" if self.rival else self.row


AIMS = (
    Aim("whole answers: requests/s", "nginx", least=0.5),
    Aim("whole answers: requests/s", "vllm-router", least=2),
    Aim("whole answers: requests/s", "sglang-router", least=2),
    Aim("whole answers: requests/s", "litellm", least=100),
    Aim("hot streams: CPU us per event", "nginx", most=1.4),
    Aim("500 streams/s: added TTFT p50, ms", most=0.5),
    Aim("500 streams/s: added TTFT p99, ms", most=2),
    Aim("1,000 streams: added gap p99, ms", most=10),
)


def aims(rows: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """What was aimed at and what was measured, for each aim whose figures are there."""
    found = []
    loads = {row: load for row, load, *_ in ROWS}
    for aim in AIMS:
        measured = aim.measure(rows.get(aim.row, {}))
        if measured is not None:
            found.append(
                {
                    "aim": aim.what, "load": loads[aim.row], "wanted": aim.wanted, "measured": measured,
                    "is_met": aim.least <= measured <= aim.most,
                }
            )  # fmt: skip
    return found


def report(run: Run, rows: dict[str, dict[str, float]], resident: dict[str, int]) -> str:
    names = run.contenders
    doubts = {load: uncertain(by_name) for load, by_name in run.samples.items()}
    cells = []
    for row, load, fact, digits, _ in ROWS:
        if (figures := rows.get(row)) is None:
            continue
        marks = {name: "*" if name in figures and name in doubts[load] else "" for name in names}
        shown = [table.number(figures.get(name), digits) + marks[name] for name in names]
        cells.append([row, *shown, _ratio(figures) if fact in ("per_s", "cpu_us") else ""])
    cells.append(
        [
            "RSS after it, MB",
            *(table.number(v / 1e6 if (v := resident.get(n)) else None, 0) for n in names),
            "",
        ]
    )
    lines = [table.rows(["", *names, "headrace/nginx"], cells), ""]
    lines += [
        f"{'ok  ' if each['is_met'] else 'MISS'}  {each['aim']}: {each['measured']:.2f}, aim {each['wanted']}"
        + (" (contended, don't quote)" if doubts[each["load"]] else "")
        for each in aims(rows)
    ]
    lines += ["", *remarks(run)]
    return "\n".join(lines)


def _ratio(figures: dict[str, float]) -> str:
    ours, theirs = figures.get("headrace"), figures.get("nginx")
    return f"{ours / theirs:.2f}" if ours is not None and theirs and theirs > 0 else ""


def remarks(run: Run) -> list[str]:
    """What a reader must know before quoting a figure of this run."""
    lines = []
    for load, by_name in run.samples.items():
        taken = [sample for samples in by_name.values() for sample in samples]
        contended = sum(bool(sample["is_contended"]) for sample in taken)
        failures = {name: sum(sample["failures"] for sample in samples) for name, samples in by_name.items()}
        if contended:
            worst = uncertain(by_name)
            lines.append(
                f"{load}: {contended} of {len(taken)} samples are contended (others took more than "
                f"{machine.FOREIGN_SHARE_MAX:.0%} of a core) and left out"
                + (f"; * {', '.join(worst)}: no other, don't quote" if worst else "")
            )
        for name, count in failures.items():
            if count:
                lines.append(f"{load}: {count:.0f} requests FAILED with {name}; its figures mean nothing")
    if not run.has_nginx:
        lines.append(
            f"nginx isn't installed: no comparison, and scripted engines give the whole answers ({HOW_TO_INSTALL})"
        )
    if not run.has_wrk:
        lines.append(
            f"wrk isn't installed: the own client asks for whole answers, and may be the limit ({HOW_TO_INSTALL})"
        )
    if "whole" in run.samples:
        slack = [
            name for name in run.samples["whole"]
            if name != "direct" and median(run.samples["whole"][name], "cpu_share") < 0.9
        ]  # fmt: skip
        if slack:
            lines.append(
                f"whole answers: {', '.join(slack)} did not use its core up, so the load core was the limit; "
                "compare CPU per request"
            )
    return lines

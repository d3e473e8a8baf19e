"""What does headrace cost between a caller and a server, next to nginx and to no proxy at all?

One gateway process with everything on that is on by default (keys, limits, admission, metrics, ledger) against nginx as
a plain reverse proxy, which does none of that, and against the servers asked directly; on one machine, in one run, in
turns. Proxies have one core to themselves; servers and load client share another.
"""

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import loadgen, machine, rig, table
from benchmarks.loadgen import Target, percentile

CONNECTIONS = 64
RATE_PER_S = 500.0
TOKENS = 100
HOT_GAP_MS = 2.0
PACED_GAP_MS = 20.0
HOW_TO_INSTALL = "on Debian or Ubuntu: apt-get install nginx-light wrk"

Sample = dict[str, float]
Measure = Callable[[Target, machine.Window], Sample]


@dataclass(frozen=True, slots=True)
class Profile:
    """How long the benchmark may take, and how it uses that time.

    Attributes:
        rounds, stream_rounds: Wanted samples of each target that are free of foreign load.
        extra_s: Time for further rounds, of all loads together, where too many samples are contended.
    """

    rounds: int = 5
    stream_rounds: int = 3
    whole_s: float = 2.5
    stream_s: float = 3.0
    warm_s: float = 0.5
    streams: int = 100
    extra_s: float = 40.0


QUICK = Profile(rounds=2, stream_rounds=1, whole_s=1.0, stream_s=1.5, warm_s=0.2, extra_s=0.0)


@dataclass(frozen=True, slots=True)
class Contender:
    """Something that answers: a port for each kind of load, and the processes whose CPU time is its cost."""

    name: str
    targets: dict[str, Target]
    pids: tuple[int, ...] = ()


class Gateway:
    """The benchmark: contenders, and the loads that each of them gets in turns."""

    def __init__(self, profile: Profile, cores: tuple[int, int], started: rig.Rig) -> None:
        self.profile = profile
        self.proxy_core, self.load_core = cores
        self.has_nginx = machine.program("nginx") is not None
        self.wrk = machine.program("wrk")
        self.samples: dict[str, dict[str, list[Sample]]] = {}
        self._extra_s = profile.extra_s
        self._rig = started
        self._load_pids = [os.getpid()]
        self.contenders = self._start()

    def _start(self) -> list[Contender]:
        groups = {
            "whole": self._whole_servers(),
            "hot": self._scripted("hot", HOT_GAP_MS),
            "paced": self._scripted("paced", PACED_GAP_MS),
        }
        everyone = [port for group in groups.values() for port in group]
        provider, headrace = self._rig.headrace(upstreams=everyone, core=self.proxy_core)
        key = provider.key()
        contenders = [
            Contender("direct", {model: Target(ports[0], model, key) for model, ports in groups.items()}),
            Contender(
                "headrace", {model: Target(provider.port, model, key) for model in groups}, headrace.pids
            ),
        ]
        if self.has_nginx:
            ports, nginx = self._rig.nginx_proxy(groups, core=self.proxy_core)
            contenders.append(
                Contender("nginx", {model: Target(ports[model], model, key) for model in groups}, nginx.pids)
            )
        for contender in contenders:
            for model, target in contender.targets.items():
                rig.wait_for_answer(target, stream=model != "whole")
        return contenders

    def _whole_servers(self) -> list[int]:
        if not self.has_nginx:
            return self._scripted("whole", 0)
        ports = [rig.free_port(), rig.free_port()]
        self._load_pids += self._rig.fixed_answers(model="whole", ports=ports, core=self.load_core).pids
        return ports

    def _scripted(self, model: str, itl_ms: float) -> list[int]:
        ports = []
        for number in (1, 2):
            port, running = self._rig.scripted(
                f"{model}-{number}", model=model, itl_ms=itl_ms, tokens=TOKENS, core=self.load_core
            )
            ports.append(port)
            self._load_pids += running.pids
        return ports

    def run(self, loads: Sequence[str]) -> None:
        """Takes the samples of each load; every target once in each round, so that slow drift hits all alike."""
        for load in loads:
            model, measure, rounds = {
                "whole": ("whole", self._whole, self.profile.rounds),
                "latency": ("whole", self._latency, self.profile.stream_rounds),
                "hot": ("hot", self._hot, self.profile.stream_rounds),
                "paced": ("paced", self._paced, self.profile.stream_rounds),
            }[load]
            self._interleave(load, model, measure, rounds)

    def resident_bytes(self) -> dict[str, int]:
        return {each.name: machine.resident_bytes(each.pids) for each in self.contenders if each.pids}

    def _interleave(self, load: str, model: str, measure: Measure, rounds: int) -> None:
        samples = self.samples[load] = {contender.name: [] for contender in self.contenders}
        proxy_pids = [pid for contender in self.contenders for pid in contender.pids]
        number = 0
        while number < rounds or (
            self._extra_s > 0 and any(len(clean(taken)) < rounds for taken in samples.values())
        ):
            started_s = time.monotonic()
            for contender in self.contenders:
                ours = {self.load_core: self._load_pids}
                if contender.pids:  # who asks directly doesn't mind what runs on the proxies' core
                    ours[self.proxy_core] = proxy_pids
                window = machine.Window(contender.pids, ours)
                sample = measure(contender.targets[model], window)
                samples[contender.name].append(sample | _costs(sample, window))
            number += 1
            if number > rounds:
                self._extra_s -= time.monotonic() - started_s

    # The loads.

    def _whole(self, target: Target, window: machine.Window) -> Sample:
        profile = self.profile
        if self.wrk is None:
            answers = uvloop.run(
                loadgen.closed_loop(
                    target,
                    connections=CONNECTIONS,
                    seconds=profile.whole_s,
                    warm_s=profile.warm_s,
                    window=window,
                )
            )
            return {"answers": len(answers.latencies_s), "failures": answers.failures}
        _wrk(self.wrk, target, self._rig.folder, profile.warm_s)
        with window:
            return _wrk(self.wrk, target, self._rig.folder, profile.whole_s)

    def _latency(self, target: Target, window: machine.Window) -> Sample:
        profile = self.profile
        answers = uvloop.run(
            loadgen.open_loop(
                target, rate_per_s=RATE_PER_S, connections=CONNECTIONS, seconds=profile.stream_s,
                warm_s=profile.warm_s, window=window,
            )
        )  # fmt: skip
        return {
            "answers": len(answers.latencies_s),
            "failures": answers.failures,
            "p50_ms": percentile(answers.latencies_s, 0.5) * 1000,
            "p99_ms": percentile(answers.latencies_s, 0.99) * 1000,
        }

    def _hot(self, target: Target, window: machine.Window) -> Sample:
        return self._streams(target, window, gap_ms=HOT_GAP_MS)

    def _paced(self, target: Target, window: machine.Window) -> Sample:
        return self._streams(target, window, gap_ms=PACED_GAP_MS)

    def _streams(self, target: Target, window: machine.Window, *, gap_ms: float) -> Sample:
        profile = self.profile
        seen = uvloop.run(
            loadgen.streams(
                target, count=profile.streams, spread_s=TOKENS * gap_ms / 1000, seconds=profile.stream_s,
                warm_s=profile.warm_s, window=window,
            )
        )  # fmt: skip
        return {
            "events": seen.events,
            "events_per_read": seen.events / max(1, seen.reads),
            "streams": seen.streams,
            "failures": seen.failures,
            "ttft_p50_ms": percentile(seen.first_event_s, 0.5) * 1000,
            "ttft_p99_ms": percentile(seen.first_event_s, 0.99) * 1000,
        }


def _costs(sample: Sample, window: machine.Window) -> Sample:
    """What the window adds to a sample: rates, CPU time of the contender for each answer or event, foreign load."""
    count = sample.get("answers") or sample.get("events") or math.nan
    return {
        "seconds": window.seconds,
        "per_s": count / window.seconds,
        "cpu_us": window.cpu_s / count * 1e6,
        "cpu_share": window.cpu_s / window.seconds,
        "foreign_share": max(window.foreign_share.values()),
        "is_contended": window.is_contended,
    }


def _wrk(wrk: str, target: Target, folder: Path, seconds: float) -> Sample:
    """One run of wrk, which is bounded in time by itself."""
    script = folder / f"wrk-{target.port}.lua"
    script.write_text(
        f"wrk.method = 'POST'\nwrk.body = [==[{target.body(stream=False).decode()}]==]\n"
        f"wrk.headers = {{['Content-Type'] = 'application/json', ['Authorization'] = 'Bearer {target.key}'}}\n"
        "function done(summary)\n  local errors = summary.errors\n"
        '  io.write(string.format(\'\\n{"answers": %d, "failures": %d}\\n\', summary.requests, errors.status + '
        "errors.connect + errors.read + errors.write + errors.timeout))\nend\n"
    )
    # wrk takes whole seconds only; SIGINT ends it early, and it still reports.
    command = [
        "timeout",
        "-s",
        "INT",
        f"{seconds:g}",
        wrk,
        "-t1",
        f"-c{CONNECTIONS}",
        f"-d{math.ceil(seconds) + 1}s",
    ]
    command += ["-s", str(script), f"http://{target.host}:{target.port}/v1/chat/completions"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 30, check=False)
    try:
        found: Sample = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise rig.BenchmarkFailed(f"wrk: {done.stdout[-500:]}{done.stderr[-500:]}") from None
    return found


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
    ("hot streams: events/s", "hot", "per_s", 0, False),
    ("hot streams: CPU us per event", "hot", "cpu_us", 2, False),
    ("hot streams: share of its core", "hot", "cpu_share", 2, False),
    ("hot streams: events per read", "hot", "events_per_read", 2, False),
    ("paced streams: CPU us per event", "paced", "cpu_us", 2, False),
    ("paced streams: TTFT p50, ms", "paced", "ttft_p50_ms", 2, False),
    ("paced streams: TTFT p99, ms", "paced", "ttft_p99_ms", 2, False),
    ("paced streams: added TTFT p50, ms", "paced", "ttft_p50_ms", 2, True),
    ("paced streams: added TTFT p99, ms", "paced", "ttft_p99_ms", 2, True),
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


def aims(rows: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """What was aimed at, what was measured, and by which load."""
    found = []

    def aim(load: str, what: str, figure: float, *, wanted: str, is_met: bool) -> None:
        found.append({"aim": what, "load": load, "wanted": wanted, "measured": figure, "is_met": is_met})

    rates = rows.get("whole answers: requests/s", {})
    if "nginx" in rates:
        ratio = rates["headrace"] / rates["nginx"]
        aim(
            "whole",
            "requests/s on one core, of nginx's",
            ratio,
            wanted=">= 0.3, stretch 0.6",
            is_met=ratio >= 0.3,
        )
    for load, row, what, least, wanted in (
        ("whole", "whole answers: CPU us per request", "requests per CPU second", 0.3, ">= 0.3, stretch 0.6"),
        ("hot", "hot streams: CPU us per event", "events per CPU second", 0.6, ">= 0.6, stretch 0.75"),
    ):
        costs = rows.get(row, {})
        if "nginx" in costs:
            ratio = costs["nginx"] / costs["headrace"]
            aim(load, f"{what}, of nginx's", ratio, wanted=wanted, is_met=ratio >= least)
    for load, row, what in (
        ("paced", "paced streams: added TTFT p50, ms", "added TTFT p50, ms"),
        ("latency", "500 requests/s: added p50, ms", "added latency p50, ms"),
    ):
        if added := rows.get(row):
            aim(load, what, added["headrace"], wanted="< 1", is_met=added["headrace"] < 1)
    return found


def report(gateway: Gateway, rows: dict[str, dict[str, float]], resident: dict[str, int]) -> str:
    names = [contender.name for contender in gateway.contenders]
    doubts = {load: uncertain(by_name) for load, by_name in gateway.samples.items()}
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
    lines += ["", *_remarks(gateway)]
    return "\n".join(lines)


def _ratio(figures: dict[str, float]) -> str:
    ours, theirs = figures.get("headrace"), figures.get("nginx")
    return f"{ours / theirs:.2f}" if ours is not None and theirs and theirs > 0 else ""


def _remarks(gateway: Gateway) -> list[str]:
    """What a reader must know before quoting a figure of this run."""
    lines = []
    for load, by_name in gateway.samples.items():
        taken = [sample for samples in by_name.values() for sample in samples]
        contended = sum(bool(sample["is_contended"]) for sample in taken)
        failures = sum(sample["failures"] for sample in taken)
        if contended:
            worst = uncertain(by_name)
            lines.append(
                f"{load}: {contended} of {len(taken)} samples are contended (others took more than "
                f"{machine.FOREIGN_SHARE_MAX:.0%} of a core) and left out"
                + (f"; * {', '.join(worst)}: no other, don't quote" if worst else "")
            )
        if failures:
            lines.append(f"{load}: {failures:.0f} FAILED requests; the figures mean nothing")
    if not gateway.has_nginx:
        lines.append(
            f"nginx isn't installed: no comparison, and scripted engines give the whole answers ({HOW_TO_INSTALL})"
        )
    if gateway.wrk is None:
        lines.append(
            f"wrk isn't installed: the own client asks for whole answers, and may be the limit ({HOW_TO_INSTALL})"
        )
    if "whole" in gateway.samples:
        slack = [
            each.name for each in gateway.contenders
            if each.pids and median(gateway.samples["whole"][each.name], "cpu_share") < 0.9
        ]  # fmt: skip
        if slack:
            lines.append(
                f"whole answers: {', '.join(slack)} did not use its core up, so the load core was the limit; "
                "compare CPU per request"
            )
    return lines


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gateway", description=__doc__,
        epilog="example: python -m benchmarks.gateway --quick --only whole",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="under 40 s: few samples, for a first look")
    parser.add_argument(
        "--only", nargs="+", choices=("whole", "latency", "hot", "paced"),
        default=["whole", "latency", "hot", "paced"], help="these loads (default: all)",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, help="samples of each target and load")
    parser.add_argument("--seconds", type=float, help="length of a sample")
    parser.add_argument("--streams", type=int, help="streams at once (default: 100)")
    table.add_json_argument(parser, "gateway")
    return parser.parse_args(argv)


def _profile(arguments: argparse.Namespace) -> Profile:
    chosen = asdict(QUICK if arguments.quick else Profile())
    if arguments.rounds:
        chosen |= {"rounds": arguments.rounds, "stream_rounds": arguments.rounds}
    if arguments.seconds:
        chosen |= {"whole_s": arguments.seconds, "stream_s": arguments.seconds}
        chosen["warm_s"] = min(chosen["warm_s"], arguments.seconds)
    if arguments.streams:
        chosen["streams"] = arguments.streams
    return Profile(**chosen)


def main(argv: Sequence[str]) -> int:
    arguments = _arguments(argv)
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        print("two cores are needed: one for the proxy, one for servers and load", file=sys.stderr)
        return 1
    profile, facts = _profile(arguments), machine.facts()
    with contextlib.ExitStack() as stack:
        stack.enter_context(rig.pinned(cores[1]))
        gateway = Gateway(profile, (cores[0], cores[1]), stack.enter_context(rig.Rig()))
        gateway.run(arguments.only)
        resident = gateway.resident_bytes()
    rows = summary(gateway.samples)
    print(report(gateway, rows, resident))
    path = table.write_json(
        arguments.json, "gateway", facts,
        {
            "profile": asdict(profile), "connections": CONNECTIONS, "summary": rows, "aims": aims(rows),
            "resident_bytes": resident, "remarks": _remarks(gateway), "samples": gateway.samples,
        },
    )  # fmt: skip
    print(f"\n{path}")
    failed = any(s["failures"] for load in gateway.samples.values() for taken in load.values() for s in taken)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except rig.BenchmarkFailed as failure:
        sys.exit(str(failure))

"""What does headrace cost between a caller and a server, next to other programs there and to none at all?

One gateway process with everything on that is on by default (keys, limits, admission, metrics, ledger) against nginx as
a plain reverse proxy, which does none of that, against other gateways where `--peers` asks for them, and against the
servers asked directly; on one machine, in one run, in turns. Proxies have one core to themselves; servers and load client
share another.
"""

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

from benchmarks import gateway_report, loadgen, machine, rig, table
from benchmarks.gateway_report import Run, Sample, clean
from benchmarks.loadgen import Target, percentile
from benchmarks.peers import PEERS, Peer, install

CONNECTIONS = 64
RATE_PER_S = 500.0
TOKENS = 100
SHORT_TOKENS = 3
MANY_STREAMS = 1000
GAPS_MS = {"hot": 2.0, "paced": 20.0, "many": 50.0}
LOADS = ("whole", "latency", "first", "hot", "paced", "many")
# Who serves a load: "latency" asks the servers of "whole".
MODELS = {
    "whole": "whole",
    "latency": "whole",
    "first": "first",
    "hot": "hot",
    "paced": "paced",
    "many": "many",
}
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
    many_streams: int = MANY_STREAMS
    extra_s: float = 40.0


QUICK = Profile(rounds=2, stream_rounds=1, whole_s=1.0, stream_s=1.5, warm_s=0.2, extra_s=0.0)


@dataclass(frozen=True, slots=True)
class Contender:
    """Something that answers.

    Attributes:
        targets: Whom to ask, by model.
        pids: The processes whose CPU time is its cost.
        loads: What it is asked to do.
    """

    name: str
    targets: dict[str, Target]
    pids: tuple[int, ...] = ()
    loads: frozenset[str] = frozenset(LOADS)


class Gateway:
    """The benchmark: contenders, and the loads that each of them gets in turns."""

    def __init__(
        self,
        profile: Profile,
        cores: tuple[int, int],
        started: rig.Rig,
        *,
        loads: Sequence[str],
        peers: Sequence[Peer],
    ) -> None:
        self.profile = profile
        self.proxy_core, self.load_core = cores
        self.has_nginx = machine.program("nginx") is not None
        self.wrk = machine.program("wrk")
        self.samples: dict[str, dict[str, list[Sample]]] = {}
        self._loads = loads
        self._extra_s = profile.extra_s
        self._rig = started
        self._load_pids = [os.getpid()]
        self.contenders = self._start(peers)

    def _start(self, peers: Sequence[Peer]) -> list[Contender]:
        groups = {
            model: self._servers(model) for model in dict.fromkeys(MODELS[load] for load in self._loads)
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
        contenders += [self._start_peer(peer, groups, key) for peer in peers]
        for contender in contenders:
            for model, target in contender.targets.items():
                rig.wait_for_answer(target, stream=model != "whole")
        return contenders

    def _start_peer(self, peer: Peer, groups: dict[str, list[int]], key: str) -> Contender:
        """A process of it for each group of servers, because most of them know one pool only."""
        targets: dict[str, Target] = {}
        pids: list[int] = []
        for model in dict.fromkeys(MODELS[load] for load in self._loads if load in peer.loads):
            port, running = peer.start(peer, self._rig, model, groups[model], self.proxy_core, key)
            targets[model] = Target(port, model, key)
            pids += running.pids
        return Contender(peer.name, targets, tuple(pids), peer.loads)

    def _servers(self, model: str) -> list[int]:
        match model:
            case "whole":
                return self._whole_servers()
            case "first":
                return self._scripted(model, 0, SHORT_TOKENS)
            case _:
                return self._scripted(model, GAPS_MS[model], TOKENS)

    def _whole_servers(self) -> list[int]:
        if not self.has_nginx:
            return self._scripted("whole", 0, TOKENS)
        ports = [rig.free_port(), rig.free_port()]
        self._load_pids += self._rig.fixed_answers(model="whole", ports=ports, core=self.load_core).pids
        return ports

    def _scripted(self, model: str, itl_ms: float, tokens: int) -> list[int]:
        ports = []
        for number in (1, 2):
            port, running = self._rig.scripted(
                f"{model}-{number}", model=model, itl_ms=itl_ms, tokens=tokens, core=self.load_core
            )
            ports.append(port)
            self._load_pids += running.pids
        return ports

    def run(self) -> Run:
        """Takes the samples of each load; every target once in each round, so that slow drift hits all alike."""
        measures: dict[str, Measure] = {
            "whole": self._whole,
            "latency": lambda target, window: self._open_loop(target, window, stream=False),
            "first": lambda target, window: self._open_loop(target, window, stream=True),
            "hot": lambda target, window: self._streams(target, window, "hot", self.profile.streams),
            "paced": lambda target, window: self._streams(target, window, "paced", self.profile.streams),
            "many": lambda target, window: self._streams(target, window, "many", self.profile.many_streams),
        }
        for load in self._loads:
            rounds = self.profile.rounds if load == "whole" else self.profile.stream_rounds
            self._interleave(load, MODELS[load], measures[load], rounds)
        return Run(
            tuple(each.name for each in self.contenders),
            self.samples,
            has_nginx=self.has_nginx,
            has_wrk=self.wrk is not None,
        )

    def resident_bytes(self) -> dict[str, int]:
        return {each.name: machine.resident_bytes(each.pids) for each in self.contenders if each.pids}

    def _interleave(self, load: str, model: str, measure: Measure, rounds: int) -> None:
        contenders = [contender for contender in self.contenders if load in contender.loads]
        samples = self.samples[load] = {contender.name: [] for contender in contenders}
        proxy_pids = [pid for contender in self.contenders for pid in contender.pids]
        number = 0
        while number < rounds or (
            self._extra_s > 0 and any(len(clean(taken)) < rounds for taken in samples.values())
        ):
            started_s = time.monotonic()
            for contender in contenders:
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
        wrk_answers(self.wrk, target, self._rig.folder, profile.warm_s)
        with window:
            return wrk_answers(self.wrk, target, self._rig.folder, profile.whole_s)

    def _open_loop(self, target: Target, window: machine.Window, *, stream: bool) -> Sample:
        profile = self.profile
        answers = uvloop.run(
            loadgen.open_loop(
                target, rate_per_s=RATE_PER_S, connections=CONNECTIONS, seconds=profile.stream_s,
                warm_s=profile.warm_s, window=window, stream=stream,
            )
        )  # fmt: skip
        return {
            "answers": len(answers.latencies_s),
            "failures": answers.failures,
            "p50_ms": percentile(answers.latencies_s, 0.5) * 1000,
            "p99_ms": percentile(answers.latencies_s, 0.99) * 1000,
        }

    def _streams(self, target: Target, window: machine.Window, load: str, count: int) -> Sample:
        profile = self.profile
        seen = uvloop.run(
            loadgen.streams(
                target, count=count, spread_s=TOKENS * GAPS_MS[load] / 1000, seconds=profile.stream_s,
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
            "gap_p99_ms": percentile(seen.gaps_s, 0.99) * 1000,
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


def wrk_answers(wrk: str, target: Target, folder: Path, seconds: float) -> Sample:
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


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gateway", description=__doc__,
        epilog="example: python -m benchmarks.gateway --only whole --peers haproxy vllm-router",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="under 40 s: few samples, for a first look")
    parser.add_argument(
        "--only", nargs="+", choices=LOADS, default=list(LOADS), help="these loads (default: all)"
    )
    parser.add_argument(
        "--peers", nargs="+", choices=PEERS, default=[], metavar="PEER",
        help=f"other gateways to measure too, each installed into its own environment: {', '.join(PEERS)}",
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
        chosen["many_streams"] = min(MANY_STREAMS, 10 * arguments.streams)
    return Profile(**chosen)


def main(argv: Sequence[str]) -> int:
    arguments = _arguments(argv)
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        print("two cores are needed: one for the proxy, one for servers and load", file=sys.stderr)
        return 1
    profile, facts = _profile(arguments), machine.facts()
    peers = [PEERS[name] for name in arguments.peers]
    for peer in peers:
        install(peer, lambda line: print(line, file=sys.stderr, flush=True))
    facts["versions"] |= {peer.name: peer.version() for peer in peers}
    with contextlib.ExitStack() as stack:
        stack.enter_context(rig.pinned(cores[1]))
        started = stack.enter_context(rig.Rig())
        gateway = Gateway(profile, (cores[0], cores[1]), started, loads=arguments.only, peers=peers)
        run = gateway.run()
        resident = gateway.resident_bytes()
    rows = gateway_report.summary(run.samples)
    print(gateway_report.report(run, rows, resident))
    path = table.write_json(
        arguments.json, "gateway", facts,
        {
            "profile": asdict(profile), "connections": CONNECTIONS, "summary": rows, "aims": gateway_report.aims(rows),
            "resident_bytes": resident, "remarks": gateway_report.remarks(run), "samples": run.samples,
        },
    )  # fmt: skip
    print(f"\n{path}")
    # Peers may fail under what they are asked; neither we nor what all are compared with may.
    failed = any(
        sample["failures"]
        for by_name in run.samples.values()
        for name in ("direct", "headrace", "nginx")
        for sample in by_name.get(name, ())
    )
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except rig.BenchmarkFailed as failure:
        sys.exit(str(failure))

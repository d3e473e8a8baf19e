"""The load generators that are compared: how each is told what to send, and what it says it saw.

Every one is a program of its own on one core. What it costs is read from outside, from the kernel's own books, in the time in which
it was sending: neither its start nor its report counts.
"""

import json
import os
import re
import subprocess
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.loadgen import percentile
from benchmarks.made_answers import MODEL
from benchmarks.rig import HEADRACE, BenchmarkFailed
from headrace.core.load_records import LoadRun, Outcome
from headrace.evidence import load_file

LOOK_EVERY_S = 0.1
END_LIMIT_S = 240.0
WARM_S = 1.0
CALLERS = 64
# GuideLLM with one worker, as it has one core, and without questions to the network.
_ENVIRONMENT = {"GUIDELLM__MAX_WORKER_PROCESSES": "1", "HF_HUB_OFFLINE": "1"}

_WORKLOAD = """
name = "bench"
stream_share = {stream_share}
[arrivals]
kind = "poisson"
rate_per_s = 1.0
[input_tokens]
kind = "constant"
value = 20
[output_tokens]
kind = "constant"
value = {tokens}
"""
_WRK = """
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.body = '{body}'
"""


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent.

    Attributes:
        rate_per_s: Of an open loop; None for a closed one of CALLERS callers.
        tokens: Of an answer; each is an event of a stream.
    """

    name: str
    rate_per_s: float | None
    is_streamed: bool = False
    tokens: int = 1
    ttft_ms: float = 0.0
    itl_ms: float = 0.0


@dataclass(slots=True)
class Seen:
    """What a generator saw of one load, in the time `from_s` to `to_s` by the wall clock.

    Attributes:
        late_s: How late its sends were, where it knows that: p50 and p99.
        ttft_s: By the number that the server gave to the request.
        cpu_s, engine_cpu_s: In that time.
    """

    from_s: float
    to_s: float
    whole: int
    other: int
    events: int = 0
    late_s: tuple[float, float] | None = None
    ttft_s: dict[str, float] = field(default_factory=dict)
    cpu_s: float = 0.0
    engine_cpu_s: float = 0.0
    foreign_share: float = 0.0

    @property
    def seconds(self) -> float:
        return self.to_s - self.from_s


class _Books:
    """What processes and cores have used, looked up several times a second in a thread of its own, for moments in between."""

    def __init__(self, client: int, engine: Sequence[int], cores: Sequence[int]) -> None:
        self._client, self._engine, self._cores = client, engine, cores
        self._rows: list[tuple[float, float, float, float]] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "_Books":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(LOOK_EVERY_S):
            busy = machine.cores_busy_s()
            client = machine.cpu_s(machine.family(self._client))
            engine = machine.cpu_s(self._engine)
            if self._rows and client < self._rows[-1][1]:
                return  # it has ended, and its books with it
            self._rows.append((time.time(), client, engine, sum(busy[core] for core in self._cores)))

    def into(self, seen: Seen) -> None:
        first, last = self._at(seen.from_s), self._at(seen.to_s)
        span_s = max(
            1e-9, last[0] - first[0]
        )  # without the last moment of a generator that ended with its load
        client, engine, busy = ((last[index] - first[index]) / span_s for index in (1, 2, 3))
        seen.cpu_s, seen.engine_cpu_s = client * seen.seconds, engine * seen.seconds
        seen.foreign_share = max(0.0, busy - client - engine)

    def _at(self, moment_s: float) -> tuple[float, ...]:
        """Between two looks, in proportion."""
        after = min(max(1, bisect_left(self._rows, (moment_s,))), len(self._rows) - 1)
        one, two = self._rows[after - 1], self._rows[after]
        share = min(1.0, max(0.0, (moment_s - one[0]) / (two[0] - one[0])))
        return tuple(a + (b - a) * share for a, b in zip(one, two, strict=True))


def run(
    command: Sequence[str],
    read: Callable[[str, float], Seen],
    *,
    core: int,
    engine: Sequence[int],
    engine_core: int,
) -> Seen:
    """Runs a generator on its core; `read` makes of its output, and of when it was started, what it saw. Raises BenchmarkFailed."""
    began_s = time.time()
    with subprocess.Popen(
        ["taskset", "-c", str(core), *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | _ENVIRONMENT
    ) as process, _Books(process.pid, engine, (core, engine_core)) as books:  # fmt: skip
        try:
            said, complaints = process.communicate(timeout=END_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise BenchmarkFailed(f"{command[0]} took more than {END_LIMIT_S:g} s") from None
    if process.returncode not in (0, 4):
        raise BenchmarkFailed(
            f"{' '.join(command[:3])}: status {process.returncode}\n{(said + complaints)[-2000:]}"
        )
    seen = read(said, began_s)
    books.into(seen)
    return seen


# headrace load


def headrace(
    load: Load, *, port: int, seconds: float, folder: Path
) -> tuple[list[str], Callable[[str, float], Seen]]:
    workload, records = folder / "workload.toml", folder / "records.json"
    workload.write_text(_WORKLOAD.format(stream_share=float(load.is_streamed), tokens=load.tokens))
    pace = ["--concurrency", str(CALLERS)] if load.rate_per_s is None else ["--rate", str(load.rate_per_s)]
    command = [
        *HEADRACE,
        "load",
        "--url",
        f"http://127.0.0.1:{port}",
        "--model",
        MODEL,
        "--workload",
        str(workload),
    ]
    command += [
        *pace,
        "--duration",
        f"{seconds + WARM_S:g}s",
        "--warmup",
        f"{WARM_S:g}s",
        "--records",
        str(records),
    ]
    return command, lambda said, began_s: _of_run(load_file.read(records))


def _of_run(run: LoadRun) -> Seen:
    """By when answers were whole: a generator that sends in time and reads late hasn't kept up."""
    window = run.window
    records = [record for record in run.records if window.from_s <= record.ended_s < window.to_s]
    whole = [record for record in records if record.outcome is Outcome.OK]
    return Seen(
        run.began_at_s + run.window.from_s,
        run.began_at_s + run.window.to_s,
        len(whole),
        len(records) - len(whole),
        sum(record.events for record in whole),
        (run.lateness.p50_s, run.lateness.p99_s),
        {
            record.request_id: record.first_s - record.sent_s
            for record in whole
            if record.first_s is not None and record.sent_s is not None
        },
    )


# wrk


def wrk(*, port: int, seconds: float, folder: Path) -> tuple[list[str], Callable[[str, float], Seen]]:
    """As fast as it can, which is all that it knows."""
    body = json.dumps(
        {"model": MODEL, "messages": [{"role": "user", "content": "word " * 16}], "max_tokens": 1}
    )
    script = folder / "wrk.lua"
    script.write_text(_WRK.format(body=body))
    command = ["wrk", "-t1", f"-c{CALLERS}", f"-d{max(1, round(seconds))}s", "-s", str(script)]
    return [*command, f"http://127.0.0.1:{port}/v1/chat/completions"], _of_wrk


def _of_wrk(said: str, began_s: float) -> Seen:
    found = re.search(r"(\d+) requests in ([\d.]+)s", said)
    if found is None:
        raise BenchmarkFailed(f"wrk said:\n{said[-1000:]}")
    others = re.search(r"Non-2xx or 3xx responses: (\d+)", said)
    failed = int(others[1]) if others else 0
    return Seen(began_s, began_s + float(found[2]), int(found[1]) - failed, failed)


# GuideLLM


def guidellm(
    program: str, load: Load, *, port: int, seconds: float, folder: Path
) -> tuple[list[str], Callable[[str, float], Seen]]:
    """Its own prompts would need a tokenizer from the network, so it sends texts from a file."""
    prompts, report = folder / "prompts.jsonl", folder / "guidellm.json"
    prompts.write_text(
        "".join(json.dumps({"prompt": f"{number} " + "word " * 16}) + "\n" for number in range(2000))
    )
    profile = (
        f"kind=concurrent,streams={CALLERS}"
        if load.rate_per_s is None
        else f"kind=poisson,rate={load.rate_per_s:g}"
    )
    command = [
        program,
        "run",
        "--disable-console",
        "--profile",
        profile,
        "--data",
        f"kind=json_file,path={prompts}",
    ]
    command += [
        "--backend",
        f"kind=openai_http,target=http://127.0.0.1:{port},model={MODEL},stream={str(load.is_streamed).lower()}",
    ]
    command += ["--constraint", f"kind=max_duration,seconds={seconds + WARM_S:g}"]
    command += ["--output", f"kind=json,path={report}"]
    return command, lambda said, began_s: _of_guidellm(json.loads(report.read_text()))


def _of_guidellm(report: dict[str, Any]) -> Seen:
    (found,) = report["benchmarks"]
    everything = found["requests"]
    times = [request["info"]["timings"] for request in everything["successful"]]
    from_s = min(each["request_start"] for each in times) + WARM_S
    to_s = max(each["request_start"] for each in times)
    kept = [request for request in everything["successful"] if from_s <= request["request_end_time"] < to_s]
    late_s = [
        each["request_start"] - each["targeted_start"] for each in times if each["request_start"] >= from_s
    ]
    return Seen(
        from_s,
        to_s,
        len(kept),
        len(everything["errored"]),
        sum(request["info"]["timings"]["token_iterations"] for request in kept),
        (percentile(late_s, 0.5), percentile(late_s, 0.99)),
        {
            request["response_id"].rpartition("-")[2].lstrip("0"): request["time_to_first_token_ms"] / 1000
            for request in kept
            if request["time_to_first_token_ms"] is not None
        },
    )

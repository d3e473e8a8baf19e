"""What the tests of control share: a reconciler at work, an engine that misbehaves on request, waiting with a bound."""

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from headrace.control.engine_spec import EngineSpec
from headrace.control.launchers import Launcher, Lifeline
from headrace.control.reconciler import Reconciler
from headrace.control.status import ReplicaStatus
from headrace.core.clock import SystemClock
from headrace.core.deployment_terms import LifecycleTerms
from headrace.core.fleet import FleetSnapshot, Replica, ReplicaState, Task
from headrace.engines.kinds import KINDS
from headrace.engines.starting import Asked, Command, Kind


def until(is_so: Callable[[], Any], *, within_s: float = 60.0) -> Any:
    """The first true value of `is_so`; fails after the bound."""
    end_s = time.monotonic() + within_s
    while not (value := is_so()):
        assert time.monotonic() < end_s, f"not so within {within_s} s"
        time.sleep(0.01)
    return value


async def eventually(is_so: Callable[[], Any], *, within_s: float = 60.0) -> Any:
    """The same inside an event loop."""
    end_s = time.monotonic() + within_s
    while not (value := is_so()):
        assert time.monotonic() < end_s, f"not so within {within_s} s"
        await asyncio.sleep(0.005)
    return value


def is_running(pid: int) -> bool:
    """Whether that process exists and is more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def visible_to_others(pid: int) -> bytes:
    """What other processes can see of it: arguments and environment."""
    return b"".join(Path(f"/proc/{pid}/{file}").read_bytes() for file in ("cmdline", "environ"))


@dataclass
class Record:
    """Everything that a reconciler published and observed, with the moment of each snapshot."""

    snapshots: list[FleetSnapshot] = field(default_factory=list)
    published_s: list[float] = field(default_factory=list)
    statuses: list[ReplicaStatus] = field(default_factory=list)

    def publish(self, snapshot: FleetSnapshot) -> None:
        self.snapshots.append(snapshot)
        self.published_s.append(time.monotonic())

    def replicas(self, deployment: str) -> tuple[Replica, ...]:
        """What the newest snapshot holds for it, if it is known at all."""
        known = self.snapshots[-1].deployments if self.snapshots else {}
        return known[deployment].replicas if deployment in known else ()

    def states(self) -> list[ReplicaState]:
        """The states passed through, repetitions left out."""
        passed: list[ReplicaState] = []
        for status in self.statuses:
            if passed[-1:] != [status.state]:
                passed.append(status.state)
        return passed


@contextlib.asynccontextmanager
async def reconciling(
    record: Record, *, engines: Any = (), upstreams: Any = (), launcher: Any = None, **limits: Any
) -> AsyncIterator[Reconciler]:
    """A reconciler at work, cancelled and waited for at the end; without `launcher` it has nothing to launch."""
    with launching(launcher or Engines(Path("/nowhere"))) as started:
        reconciler = Reconciler(
            engines,
            upstreams,
            launcher=started,
            clock=SystemClock(),
            chance=random.Random(1),
            publish=record.publish,
            observe=record.statuses.append,
            kinds=KINDS if launcher is None else launcher.kinds,
            **limits,
        )
        running = asyncio.create_task(reconciler.run())
        try:
            yield reconciler
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


@dataclass(frozen=True)
class Engines:
    """What can be launched, and where its files and logs go."""

    directory: Path
    kinds: Mapping[str, Kind] = field(default_factory=lambda: KINDS)


@contextlib.contextmanager
def launching(engines: Engines) -> Iterator[Launcher]:
    """A launcher under a lifeline of its own, which ends with the test."""
    lifeline = Lifeline()
    try:
        yield Launcher(
            run=engines.directory / "replicas",
            logs=engines.directory,
            lifeline_fd=lifeline.reading_fd,
            clock=SystemClock(),
        )
    finally:
        lifeline.close()


def spec(deployment: str = "model", *, path: Path | None = None, task: Task = Task.CHAT) -> EngineSpec:
    return EngineSpec(
        deployment=deployment,
        model_path=path,
        model_sha256="0" * 64,
        task=task,
        slots=2,
        context_tokens=1024,
        threads=1,
        terms=LifecycleTerms(stop_grace_s=0.3),
    )


def fake_engines(logs: Path, *behaviour: str) -> Engines:
    """The engine below in the place of the embedded one."""

    def command(asked: Asked, port: int, key: str) -> Command:
        return Command((sys.executable, __file__, *behaviour), settings=f'{{"api_key": "{key}"}}')

    kind = Kind("embedded", "embedded", command, speaks_reports=True)
    return Engines(logs, {"embedded": kind})


class FakeEngine(BaseHTTPRequestHandler):
    """Speaks the little that control asks of an engine; `behaviour` says what is wrong with it."""

    behaviour: frozenset[str] = frozenset()
    canaries = 0
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            return self._answer(b'{"data": [{"id": "model", "meta": {"n_ctx": 800}}]}')
        if "silent" in self.behaviour:
            time.sleep(60)
        stuck = "stuck" in self.behaviour
        self._answer(f"llamacpp:n_decode_total 7\nllamacpp:requests_processing {int(stuck)}\n".encode())

    def do_POST(self) -> None:
        FakeEngine.canaries += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        if FakeEngine.canaries > 1 and self.behaviour & {"silent", "stuck"}:
            time.sleep(60)
        if "mute" in self.behaviour:
            self._answer(b'{"choices": []}')
        else:
            self._answer(b'{"model": "model", "choices": [{"message": {"role": "assistant"}}]}')

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def run_fake_engine(behaviour: list[str]) -> None:
    json.loads(sys.stdin.readline())
    print(json.dumps({"state": "loading", "pid": os.getpid()}), flush=True)
    if "crash" in behaviour:
        sys.exit("it broke")
    FakeEngine.behaviour = frozenset(behaviour)
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeEngine)
    print(json.dumps({"state": "listening", "pid": os.getpid(), "port": server.server_port}), flush=True)
    server.serve_forever()


if __name__ == "__main__":
    run_fake_engine(sys.argv[1:])

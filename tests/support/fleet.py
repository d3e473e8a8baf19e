"""A service whose deployments a test applies: engines are scripted, and everything else is real.

with fleet() as running:
    running.apply(answer="one")
    with running.callers() as callers:
        running.apply(answer="two")
        running.until_answered("two")
    assert callers.statuses == {200}
"""

import json
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from tests.support.provider import Provider, provider, wait_until

NAME = "chat"
# What the service needs at least one of; nothing listens there.
NOBODY = "http://127.0.0.1:9"
# A version takes over as soon as it is ready; tests of rollouts say what they want instead.
AT_ONCE = {
    "strategy": "bluegreen",
    "steps": [{"weight": 100, "min_requests": 0}],
    "interval_s": 0.1,
    "error_limit": 1000,  # checks that can't be made while no controller is there, or it has heard nothing yet
    "keep_previous_s": 0,
    "gate": [{"metric": "failure_rate", "max": 1.0, "dry_run": True}],
}
NO_LIMITS: dict[str, int] = {"requests_per_minute": 10_000_000, "requests_burst": 1_000_000}


def deployment(name: str = NAME, **sections: dict[str, Any]) -> str:
    """The file of a deployment with engine "scripted": its `args`, and further sections by name.

    deployment(args={"answer": "one"}, scale={"min": 2, "max": 2}, rollout={"strategy": "recreate"})
    """
    args = {"slots": 4, **sections.pop("args", {})}
    sections.setdefault("rollout", AT_ONCE)
    lines = ['api = "v1"', "[deployment]", f'name = "{name}"', 'engine = "scripted"', "[revision.args]"]
    lines += [f"{key} = {_toml(value)}" for key, value in args.items()]
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


class Callers:
    """Threads that ask one after the other, as long as they are let. State: what they got, and `texts`, the answers."""

    def __init__(self, running: "Fleet", *, model: str, pause_s: float) -> None:
        self._running = running
        self._model = model
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.outcomes: Counter[str] = Counter()
        self.texts: Counter[str] = Counter()

    @property
    def statuses(self) -> set[str]:
        """Every outcome that was seen: a status, or what became of the connection."""
        return set(self.outcomes)

    @property
    def count(self) -> int:
        return sum(self.outcomes.values())

    def run(self) -> None:
        body = json.dumps({"model": self._model, "messages": [{"role": "user", "content": "hello"}]})
        headers = {"authorization": f"Bearer {self._running.key}", "content-type": "application/json"}
        connection = HTTPConnection("127.0.0.1", self._running.service.port, timeout=60)
        while not self._stop.wait(self._pause_s):
            text = ""
            try:
                connection.request("POST", "/v1/chat/completions", body, headers)
                answer = connection.getresponse()
                outcome, content = str(answer.status), answer.read()
                if answer.status == 200:
                    text = json.loads(content)["choices"][0]["message"]["content"]
            except (OSError, HTTPException, ValueError) as error:
                outcome = type(error).__name__
                connection.close()
            with self._lock:
                self.outcomes[outcome] += 1
                self.texts[text] += 1
        connection.close()

    def wait(self, seconds: float) -> None:
        """That long, while they ask."""
        self._stop.wait(seconds)

    def stop(self) -> None:
        self._stop.set()


class Fleet:
    """A running service and a key without limits. Use `fleet(...)` to make one."""

    def __init__(self, service: Provider, folder: Path) -> None:
        self.service = service
        self.key = service.key("demo", **NO_LIMITS)
        self._folder = folder
        self._killed: int | None = None

    # What is wanted.

    def apply(
        self, name: str = NAME, *, sections: dict[str, dict[str, Any]] | None = None, **args: Any
    ) -> None:
        """Another version of that deployment, with these `args` of the scripted engine; returns once it is wanted."""
        self.apply_file(deployment(name, args=args, **(sections or {})))

    def apply_file(self, text: str) -> None:
        file = self._folder / "deployment.toml"
        file.write_text(text)
        self.service.cli("apply", str(file))

    def remove(self, name: str = NAME) -> None:
        self.service.cli("deployments", "remove", name)

    # What is.

    def controller(self) -> dict[str, Any]:
        row: dict[str, Any] = self.service.status()["controller"]
        return row

    def rollout(self, name: str = NAME) -> dict[str, Any]:
        """That deployment's row of `rollouts` in the status; {} before there is one."""
        rows = self.service.status()["rollouts"]
        return next((row for row in rows if row["name"] == name), {})

    def replicas(self, name: str = NAME) -> list[dict[str, Any]]:
        """Every replica of every version, with the `target` that it belongs to."""
        return [
            {**replica, "target": row["target"]}
            for row in self.service.status()["deployments"]
            if row["model"] == name
            for replica in row["replicas"]
        ]

    def ready(self, name: str = NAME) -> list[str]:
        """The targets of the ready replicas, one for each."""
        return sorted(each["target"] for each in self.replicas(name) if each["state"] == "ready")

    def engines(self) -> list[int]:
        """Pids of all processes on this machine that belong to replicas of this service, lifelines not among them."""
        mark = f"HEADRACE_REPLICA={self.service.data / 'run' / 'replicas'}".encode()
        found = []
        for directory in Path("/proc").iterdir():
            with suppress(OSError):
                if directory.name.isdigit() and mark in (directory / "environ").read_bytes():
                    found.append(int(directory.name))
        return sorted(found)

    def ask(self, model: str = NAME, **fields: Any) -> tuple[int, str]:
        """Status and text of one answer."""
        status, _, body = self.service.chat(self.key, model=model, **fields)
        return status, json.loads(body)["choices"][0]["message"]["content"] if status == 200 else ""

    def until_answered(self, text: str, model: str = NAME, *, limit_s: float = 60.0) -> float:
        """Asks until that is the answer; returns how long it took."""
        begun_s = time.monotonic()
        wait_until(lambda: self.ask(model) == (200, text), limit_s=limit_s, what=f"the answer {text!r}")
        return time.monotonic() - begun_s

    def until_ready(self, *targets: str, name: str = NAME, limit_s: float = 60.0) -> None:
        """Until these are the ready replicas, and no other replica is left."""

        rows: list[dict[str, Any]] = []

        def is_so() -> bool:
            self.ask(name)  # a version is not judged before it has answered anything
            rows[:] = self.replicas(name)
            ready = sorted(row["target"] for row in rows if row["state"] == "ready")
            return sorted(targets) == sorted(row["target"] for row in rows) == ready

        wait_until(is_so, limit_s=limit_s, what=lambda: f"replicas of {targets}, from {rows},")

    def until_kept(self, *, not_by: int | None = None) -> dict[str, Any]:
        """The controller, once one works that isn't `not_by`."""

        def works() -> dict[str, Any] | None:
            row = self.controller()
            return row if row["pid"] not in (not_by, None) and not row["is_behind"] else None

        found: dict[str, Any] = wait_until(works, what="a controller that works")
        return found

    def kill_controller(self, number: int = 9) -> int:
        """As soon as there is one that wasn't killed yet; returns its pid."""

        def another() -> int | None:
            found: int | None = self.controller()["pid"]
            return found if found != self._killed else None

        pid: int = wait_until(another, what="a controller")
        os.kill(pid, number)
        self._killed = pid
        return pid

    @contextmanager
    def callers(self, count: int = 4, *, model: str = NAME, pause_s: float = 0.005) -> Iterator[Callers]:
        """So many that ask all the time, until the block ends."""
        callers = Callers(self, model=model, pause_s=pause_s)
        threads = [threading.Thread(target=callers.run) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield callers
        finally:
            callers.stop()
            for thread in threads:
                thread.join(90)


@contextmanager
def fleet(*, config: str = "", data: Path | None = None, workers: int = 1, **options: Any) -> Iterator[Fleet]:
    """A service without a deployment; see tests.support.provider.provider for the options."""
    with tempfile.TemporaryDirectory(prefix="headrace-fleet-") as folder:
        options.setdefault("upstreams", [NOBODY])
        arguments = ["--workers", str(workers), *options.pop("arguments", ())]
        with provider(config=config, data=data, ready=False, arguments=arguments, **options) as service:
            yield Fleet(service, Path(folder))
            service.stop()


def _toml(value: Any) -> str:
    match value:
        case dict():
            return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
        case list() | tuple():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case _:
            return json.dumps(value)

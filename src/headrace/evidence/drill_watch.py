"""What does an operator see while something is broken? Status and log of a service, looked at ten times a second."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.core.clock import Clock
from headrace.core.errors import UpstreamError
from headrace.evidence.drill_instance import DrillError, Instance

LOOK_EVERY_S = 0.1
# Of each request; they are counted by the load, and a hundred lines of them say no more than one.
_OF_REQUESTS = ("request.", "attempt.", "limit.")


@dataclass(frozen=True, slots=True)
class Look:
    """One look at `headrace status`.

    Attributes:
        replicas: Of the drilled deployment, by target and id.
    """

    at_s: float
    replicas: tuple["Seen", ...]
    controller: dict[str, Any]

    def ready(self, target: str = "") -> list["Seen"]:
        """The ready replicas, of one target or of all."""
        return [
            each
            for each in self.replicas
            if each.state == "ready" and each.circuit != "open" and target in ("", each.target)
        ]


@dataclass(frozen=True, slots=True)
class Seen:
    """One replica at that moment."""

    target: str
    id: str
    state: str
    circuit: str
    pid: int | None
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Told:
    """A line of the log, when it was read."""

    at_s: float
    line: dict[str, Any]

    @property
    def event(self) -> str:
        return str(self.line.get("event", ""))

    def says(self, event: str, wanted: dict[str, str]) -> bool:
        return self.event == event and all(self.line.get(name) == value for name, value in wanted.items())


class Watch:
    """Looks at a service again and again, and keeps what it saw.

    State: `look` and `metrics`, the newest; `told`, every line but those of single requests, and `counted`, how many of these
    there were; `codes`, reasons that status showed at replicas, by when they were first shown.

    Args:
        metrics: That are looked at too.
    """

    def __init__(self, running: Instance, model: str, clock: Clock, *, metrics: Iterable[str] = ()) -> None:
        self.look = Look(clock.now_s(), (), {})
        self.told: list[Told] = []
        self.counted: dict[str, int] = {}
        self.codes: dict[str, float] = {}
        self.metrics = dict.fromkeys(metrics, 0.0)
        self._raised: list[tuple[str, float]] = []
        self._running = running
        self._model = model
        self._clock = clock

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.once()
            await asyncio.sleep(LOOK_EVERY_S)

    async def once(self) -> None:
        self._listen()
        try:
            status = await self._running.status()
            for name in self.metrics:
                self.metrics[name] = await self._running.metric(name)
                if self.metrics[name]:
                    self._raised.append((name, self._clock.now_s()))
        except (UpstreamError, msgspec.DecodeError):
            return  # the next look tells more; a service that is gone fails every check
        replicas = tuple(
            Seen(
                row["target"] or "",
                *(each[name] for name in ("id", "state", "circuit", "pid", "code", "reason")),
            )
            for row in status["deployments"]
            if row["model"] == self._model
            for each in row["replicas"]
        )
        now_s = self._clock.now_s()
        for each in replicas:
            if each.code:
                self.codes.setdefault(each.code, now_s)
        self.look = Look(now_s, replicas, status["controller"] or {})

    def first(self, event: str, wanted: dict[str, str], *, since_s: float) -> Told | None:
        """The first line that says so."""
        return next((told for told in self.told if told.at_s >= since_s and told.says(event, wanted)), None)

    def metric_since(self, name: str, *, since_s: float) -> float | None:
        """When that metric was first seen above 0."""
        return next((at_s for raised, at_s in self._raised if raised == name and at_s >= since_s), None)

    def _listen(self) -> None:
        now_s = self._clock.now_s()
        for line in self._running.new_lines():
            event = str(line.get("event", ""))
            if event.startswith(_OF_REQUESTS):
                reason = f"{event} {line.get('reason', '')}".strip()
                self.counted[reason] = self.counted.get(reason, 0) + 1 + int(line.get("suppressed", 0) or 0)
            else:
                self.told.append(Told(now_s, line))


async def until_ready(
    watch: Watch, wanted: int, *, clock: Clock, limit_s: float, but: Sequence[int] = ()
) -> None:
    """So many replicas are ready, and none that is has a pid of `but`. Raises DrillError."""
    until_s = clock.now_s() + limit_s
    while True:
        await watch.once()
        ready = watch.look.ready()
        if len(ready) >= wanted and not any(each.pid in but for each in ready):
            return
        if clock.now_s() > until_s:
            reasons = {each.reason for each in watch.look.replicas if each.reason}
            told = "; ".join(sorted(reasons))
            raise DrillError(f"{len(ready)} of {wanted} replicas ready after {limit_s:g} s: {told}")
        await asyncio.sleep(LOOK_EVERY_S)

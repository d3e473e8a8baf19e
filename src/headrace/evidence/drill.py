"""What is a drill? A fault, what is done about it, and what may be seen of it at most; and what it is given to work with."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.core.clock import Clock
from headrace.evidence.drill_instance import DrillError, Instance
from headrace.evidence.drill_report import Bounds, Check
from headrace.evidence.drill_watch import Look, Watch

MODEL = "drill"
REPLICAS = 2
LOOK_EVERY_S = 0.05
SCRIPTED, EMBEDDED = "scripted", "embedded"
# Answers in an eighth of a second, so that some requests are always under way.
ARGS: Mapping[str, object] = {"slots": 8, "ttft_ms": 25, "itl_ms": 5, "tokens": 20}
EMBEDDED_ARGS: Mapping[str, object] = {"slots": 4, "context_tokens": 1024, "threads": 1}
_EMBEDDED_WEIGHTS = '[revision.weights]\nuri = "smollm2-135m-instruct"'


@dataclass
class Stage:
    """One drill under way.

    Attributes:
        before: What was there before the fault.
        fault_s: When it was; infinity before.
        notes: Checks of the drill's own.
        hold_s: How long a fault that doesn't end by itself is left in force.
    """

    running: Instance
    watch: Watch
    clock: Clock
    before: Look
    hold_s: float
    fault_s: float = float("inf")
    victims: list[int] = field(default_factory=list)
    notes: list[Check] = field(default_factory=list)

    def mark(self) -> None:
        """Now the fault is there."""
        self.fault_s = self.clock.now_s()

    def signal(self, pid: int, number: signal.Signals) -> None:
        """To a process of the instance, and to no other."""
        assert pid in self.running.processes(), f"{pid} is not of this drill"
        os.kill(pid, number)

    def engine(self, index: int = 0) -> int:
        """The pid of a ready engine."""
        pid = self.before.ready()[index].pid
        assert pid is not None
        return pid

    async def until(self, claim: Callable[[], bool], *, limit_s: float, what: str) -> None:
        """Waits until that is so. Raises DrillError."""
        until_s = self.clock.now_s() + limit_s
        while not claim():
            if self.clock.now_s() > until_s:
                raise DrillError(f"{what} did not come within {limit_s:g} s")
            await asyncio.sleep(LOOK_EVERY_S)


Act = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Sign:
    """By what an operator learns of it: a line of the log with these fields, or a metric that isn't 0.

    Attributes:
        within_s: From the fault, at most.
    """

    event: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    metric: str = ""
    within_s: float = 10.0

    def __str__(self) -> str:
        named = (f"{name}={value}" for name, value in self.fields.items())
        return " ".join([self.event or self.metric, *named])


def same_place(stage: Stage) -> bool:
    """As many ready replicas as before, and nobody among them whom the fault has hit."""
    ready = stage.watch.look.ready()
    return len(ready) == REPLICAS and not any(each.pid in stage.victims for each in ready)


def untouched(stage: Stage) -> bool:
    """The very same engines as before."""
    return {each.pid for each in stage.watch.look.ready()} == {each.pid for each in stage.before.ready()}


@dataclass(frozen=True)
class Drill:
    """One rehearsed failure.

    Attributes:
        question: In one line.
        simulated: What is really done, and what it stands for.
        act: Does it; returns when the fault has ended, or is left to the service.
        bounds: What may be seen of it.
        signs: By what an operator has to learn of it.
        is_whole: Whether everything is as before.
        recovery_limit_s: How long that is waited for.
        is_scripted_only: No other engine can play it.
        config: Further text of headrace.toml.
        environment: What its processes inherit, by the folder of the instance.
        prepare: Writes what else it needs into the instance's folder, and returns further lines of the deployment's file.
    """

    name: str
    question: str
    simulated: str
    act: Act
    bounds: Bounds
    signs: tuple[Sign, ...] = ()
    is_whole: Callable[[Stage], bool] = same_place
    recovery_limit_s: float = 60.0
    is_scripted_only: bool = False
    config: str = ""
    environment: Callable[[Path], dict[str, str]] = lambda _: {}
    prepare: Callable[[Path], str] = lambda _: ""


def deployment(
    drill: Drill,
    folder: Path,
    *,
    engine: str = SCRIPTED,
    args: Mapping[str, object] = ARGS,
    sections: str = "",
) -> str:
    """The file of the deployment that is drilled, with these sections more."""
    lines = ['api = "v1"', "[deployment]", f'name = "{MODEL}"', f'engine = "{engine}"', "[revision.args]"]
    lines += [f"{name} = {msgspec.json.encode(value).decode()}" for name, value in args.items()]
    lines += [_EMBEDDED_WEIGHTS] if engine == EMBEDDED else []
    lines += ["[scale]", f"min = {REPLICAS}", f"max = {REPLICAS}", drill.prepare(folder), sections]
    return "\n".join(lines) + "\n"

"""Does the service recover from this fault as it should? One drill from its instance to its report."""

import asyncio
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

import headrace
from headrace.core import moments
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, HeadraceError, leaves
from headrace.evidence import drill_report
from headrace.evidence.drill import EMBEDDED_ARGS, MODEL, REPLICAS, SCRIPTED, Drill, Stage, deployment
from headrace.evidence.drill_instance import CONFIG, DrillError, Instance, instance
from headrace.evidence.drill_load import Fate, SteadyLoad
from headrace.evidence.drill_report import Check, DrillReport, Line
from headrace.evidence.drill_watch import Watch
from headrace.telemetry import hardware

START_LIMIT_S = 120.0
RECORDS_LIMIT_S = 30.0
OUTPUT_TOKENS = 20


@dataclass(frozen=True, slots=True)
class Terms:
    """How a drill is run.

    Attributes:
        engine: "scripted", or "embedded" with a real model.
        models: Model store that an embedded engine is started from.
        rate_per_s: Requests, from before the fault until after the recovery.
        settle_s: Before the fault, and after the recovery.
        hold_s: How long a fault that doesn't end by itself is left in force.
        deadline_s: That each request has.
    """

    engine: str = SCRIPTED
    models: Path | None = None
    rate_per_s: float = 20.0
    settle_s: float = 3.0
    hold_s: float = 3.0
    deadline_s: float = 15.0

    @property
    def is_scripted(self) -> bool:
        return self.engine == SCRIPTED


async def rehearse(
    drill: Drill,
    terms: Terms,
    *,
    clock: Clock,
    command: str,
    progress: Callable[[str], None] = lambda _: None,
) -> DrillReport:
    """Runs it in an instance of its own and ends all of that, however it goes.

    Args:
        command: How it was asked for, for the report.
    Raises:
        ConfigError: That engine can't play it.
    """
    if drill.is_scripted_only and not terms.is_scripted:
        raise ConfigError(
            f"drill {drill.name}: the engine {terms.engine!r} can't play it; leave --engine out"
        )
    begun_s = clock.now_s()
    report = DrillReport(
        drill.name,
        drill.question,
        drill.simulated,
        "error",
        "",
        terms={
            "engine": terms.engine,
            "replicas": REPLICAS,
            "requests_per_s": terms.rate_per_s,
            "hold_s": terms.hold_s,
            "deadline_s": terms.deadline_s,
        },
        machine=hardware.in_words(),
        versions={"headrace": headrace.__version__, "python": platform.python_version()},
        command=command,
        began=moments.utc(clock.wall_s()),
    )
    try:
        report = await _Rehearsal(drill, terms, clock, progress).run(report)
    except (HeadraceError, OSError, BaseExceptionGroup) as error:
        first = leaves(error)[0]
        if not isinstance(first, HeadraceError | OSError):
            raise
        report = msgspec.structs.replace(report, detail=str(first))
    return msgspec.structs.replace(report, took_s=round(clock.now_s() - begun_s, 1))


@dataclass(frozen=True, slots=True)
class _Rehearsal:
    drill: Drill
    terms: Terms
    clock: Clock
    progress: Callable[[str], None]

    async def run(self, report: DrillReport) -> DrillReport:
        drill, terms = self.drill, self.terms
        async with instance(
            self.clock,
            config_text=CONFIG + drill.config,
            environment=drill.environment,
            models=None if terms.is_scripted else terms.models,
        ) as running:
            self._tell("a service of its own")
            key = await self._deployed(running)
            metrics = [sign.metric for sign in drill.signs if sign.metric]
            watch = Watch(running, MODEL, self.clock, metrics=metrics)
            load = SteadyLoad(
                running.port,
                model=MODEL,
                key=key,
                output_tokens_max=OUTPUT_TOKENS,
                rate_per_s=terms.rate_per_s,
                deadline_s=terms.deadline_s,
                clock=self.clock,
            )
            stage = Stage(running, watch, self.clock, watch.look, terms.hold_s)
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(watch.run())
                await self._await_replicas(stage)
                loading = tasks.create_task(load.run())
                recovered_s = await self._suffered(stage, load)
                load.stop()
                await loading
                watching.cancel()
            stage.notes.append(Check("answers without a record", await self._unrecorded(running, load), 0))
            self._tell("ends its service")
            stage.notes.append(Check("processes left over", len(await running.stop()), 0))
        return _report(report, stage, load, [*_measured(drill, stage, load, recovered_s), *stage.notes])

    def _tell(self, line: str) -> None:
        self.progress(f"{self.drill.name}: {line}")

    async def _deployed(self, running: Instance) -> str:
        """The deployment is applied; returns a key."""
        await running.command("tenants", "create", "drill")
        key = await running.command("keys", "create", "--tenant", "drill")
        if self.terms.is_scripted:
            text = deployment(self.drill, running.folder)
        else:
            text = deployment(self.drill, running.folder, engine=self.terms.engine, args=EMBEDDED_ARGS)
        await running.apply(text)
        return key.strip()

    async def _await_replicas(self, stage: Stage) -> None:
        def are_there() -> bool:
            return len(stage.watch.look.ready()) == REPLICAS

        await stage.until(are_there, limit_s=START_LIMIT_S, what=f"{REPLICAS} ready replicas")

    async def _suffered(self, stage: Stage, load: SteadyLoad) -> float | None:
        """The fault and what followed, under load; returns after how long all was as before, if it ever was."""
        drill = self.drill
        await asyncio.sleep(self.terms.settle_s)
        if spoilt := [answer for answer in load.answers if answer.fate is not Fate.OK]:
            raise DrillError(f"requests fail before there is a fault: {spoilt[0].fate} {spoilt[0].reason}")
        stage.before = stage.watch.look
        self._tell(f"the fault, under {self.terms.rate_per_s:g} requests/s")
        await drill.act(stage)
        acted_s = self.clock.now_s()

        def is_as_before() -> bool:
            return stage.watch.look.at_s > acted_s and drill.is_whole(stage)

        recovered_s = None
        try:
            await stage.until(is_as_before, limit_s=drill.recovery_limit_s, what="the recovery")
        except DrillError:
            self._tell(f"not as before within {drill.recovery_limit_s:g} s")
        else:
            recovered_s = self.clock.now_s() - stage.fault_s
            self._tell(f"as before after {recovered_s:.1f} s")
        await asyncio.sleep(self.terms.settle_s)
        return recovered_s

    async def _unrecorded(self, running: Instance, load: SteadyLoad) -> int:
        """Whole answers that the ledger doesn't know, also after it had time to write them."""
        answered = {answer.request_id for answer in load.answers if answer.fate is Fate.OK}
        until_s = self.clock.now_s() + RECORDS_LIMIT_S
        while True:
            missing = answered - {record["request_id"] for record in await running.records()}
            if not missing or self.clock.now_s() > until_s:
                return len(missing)
            await asyncio.sleep(0.5)


def _measured(drill: Drill, stage: Stage, load: SteadyLoad, recovered_s: float | None) -> list[Check]:
    fault_s, bounds = stage.fault_s, drill.bounds
    checks = []
    for sign in drill.signs:
        if sign.metric:
            seen_s = stage.watch.metric_since(sign.metric, since_s=fault_s)
        else:
            line = stage.watch.first(sign.event, sign.fields, since_s=fault_s)
            seen_s = None if line is None else line.at_s
        after_s = None if seen_s is None else round(seen_s - fault_s, 3)
        checks.append(Check(f"{sign}, s", after_s, sign.within_s))
    last_s = drill_report.last_spoilt_s(load.answers, fault_s=fault_s)
    return [
        *checks,
        Check("last request without an answer, s", round(last_s, 3), bounds.callers_s),
        Check("as before, s", None if recovered_s is None else round(recovered_s, 3), bounds.recovered_s),
        *drill_report.of_callers(drill_report.requests(load.answers, fault_s=fault_s), bounds),
    ]


def _report(report: DrillReport, stage: Stage, load: SteadyLoad, checks: list[Check]) -> DrillReport:
    verdict, detail = drill_report.verdict(checks)
    fault_s = stage.fault_s
    return msgspec.structs.replace(
        report,
        verdict=verdict,
        detail=detail,
        checks=tuple(checks),
        requests=drill_report.requests(load.answers, fault_s=fault_s),
        told=tuple(
            Line(round(told.at_s - fault_s, 2), told.event, drill_report.fields(told.line))
            for told in stage.watch.told
            if told.at_s >= fault_s
        ),
        codes={code: round(at_s - fault_s, 2) for code, at_s in stage.watch.codes.items() if at_s >= fault_s},
    )

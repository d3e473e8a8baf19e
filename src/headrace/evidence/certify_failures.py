"""Does the service survive what will happen: the loss of a replica, and a release that is bad?"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Mapping
from typing import Any

from headrace.core.deployments import EngineKind
from headrace.evidence import drill_report
from headrace.evidence.certify import Stage
from headrace.evidence.certify_subject import as_toml, read_toml
from headrace.evidence.drill_instance import DrillError
from headrace.evidence.drill_load import QUESTION, Fate, SteadyLoad
from headrace.evidence.drill_watch import Told
from headrace.policies.certification import Asked, Figure, at_most, told

OUTPUT_TOKENS = 8
_SETTLE_S = 2.0
_TOLD_S = 10.0
_LOOK_S = 0.1
# Of the replica that is lost: streams that have begun there can't go on elsewhere.
_OPEN_ON_ONE = 8
_RATE_MAX_PER_S, _LOAD_SHARE = 20.0, 0.6
_MEASURED = 4
# A rollout in seconds, by the deployment's own gates: what takes an hour in service is over while somebody watches.
_SHORT = {
    "strategy": "canary",
    "steps": [{"weight": 50, "min_requests": 20}],
    "sticky": "none",
    "interval_s": 1,
    "fail_limit": 1,
    "keep_previous_s": 60,
}
_FAULT = "error:500@1/2"
_END = ("rollout.rolled_back", "rollout.ended")


async def lose_replica(stage: Stage) -> None:
    """kill -9 of an engine under load, as the drill `replica-loss` does it, on the deployment's own spec."""
    here = stage.here
    await here.watch.once()
    before = here.watch.look.ready()
    victim = before[0].pid
    if victim is None or victim not in here.running.processes():
        raise DrillError("no replica is a process of this machine")
    async with _load(stage) as load:
        await asyncio.sleep(_SETTLE_S)
        _must_be_whole(load)
        fault_s = stage.clock.now_s()
        os.kill(victim, signal.SIGKILL)
        recovered_s = None
        with contextlib.suppress(DrillError):
            await here.until_ready(stage.clock, limit_s=stage.bounds.recovery_s, but=(victim,))
            recovered_s = stage.clock.now_s() - fault_s
        await asyncio.sleep(_SETTLE_S)
    line = here.watch.first("replica.lost", {}, since_s=fault_s)
    is_alone = len(before) == 1
    # Nobody else can answer where there is one replica: its callers are told so until it is back.
    unanswered_s = stage.bounds.recovery_s if is_alone else stage.bounds.unanswered_s
    stage.add(
        at_most("the operator is told after", None if line is None else line.at_s - fault_s, _TOLD_S, "s"),
        at_most("as many replicas as before after", recovered_s, stage.bounds.recovery_s, "s"),
        at_most(
            "last request due without a whole answer, after",
            drill_report.last_spoilt_s(load.answers, fault_s=fault_s), unanswered_s, "s",
        ),
        *_of_callers(load, fault_s=fault_s, is_alone=is_alone),
    )  # fmt: skip
    if is_alone:
        stage.notes.append("the deployment has one replica: while it is lost, requests are refused or wait")


def _of_callers(load: SteadyLoad, *, fault_s: float, is_alone: bool) -> list[Figure]:
    counted = drill_report.requests(load.answers, fault_s=fault_s)
    fates = counted.fates
    return [
        told("requests", counted.sent),
        told("of them answered whole", fates[Fate.OK]),
        told("of them refused", fates[Fate.REFUSED]),
        at_most(
            "of them broken off with an error, or failed",
            fates[Fate.BROKEN] + fates[Fate.FAILED],
            _OPEN_ON_ONE,
        ),
        at_most("of them lost without a word", fates[Fate.LOST], 0),
    ]


async def release_badly(stage: Stage) -> None:
    """A version that fails every other request, judged by the deployment's own gates with shorter steps."""
    here = stage.here
    accepted = {each.target for each in here.watch.look.ready()}
    async with _load(stage) as load:
        await asyncio.sleep(_SETTLE_S)
        _must_be_whole(load)
        began_s = stage.clock.now_s()
        await here.running.apply(_bad(here.file.text))
        ended = await _ended(stage, since_s=began_s)
        rolled_back = ended if ended is not None and ended.event == _END[0] else None
        restored_s = await _restored(stage, accepted, since_s=began_s) if rolled_back is not None else None
        await asyncio.sleep(_SETTLE_S)
    spoilt = [answer for answer in load.answers if answer.due_s >= began_s and answer.fate is not Fate.OK]
    sent = sum(answer.due_s >= began_s for answer in load.answers)
    stage.add(
        at_most(
            "rolled back after", None if rolled_back is None else rolled_back.at_s - began_s,
            stage.bounds.recovery_s, "s",
        ),
        at_most("the version before serves alone again after", restored_s, 2 * stage.bounds.recovery_s, "s"),
        told("requests meanwhile", sent),
        # What the candidate fails before the first byte is answered by the accepted version.
        at_most("of them without a whole answer", len(spoilt), max(1.0, 0.01 * sent)),
    )  # fmt: skip
    stage.notes.append(
        "the bad version is a scripted engine that fails every other request; steps and interval of the rollout were"
        " shortened, its gates are the deployment's own"
    )
    if restored_s is None:
        stage.subject.spoilt = "a bad version is still there"


def _bad(text: str) -> str:
    """The deployment's file with an engine that fails, and a rollout of seconds."""
    sections = read_toml(text)
    sections["deployment"] = {**sections["deployment"], "engine": EngineKind.SCRIPTED.value}
    sections["revision"] = {"args": {"slots": 64, "tokens": 20, "fault": _FAULT}}
    # What an operator decided about the judgement stays; what only takes time doesn't.
    decided: Mapping[str, Any] = sections.get("rollout", {})
    sections["rollout"] = {**decided, **_SHORT}
    return as_toml(sections)


async def _ended(stage: Stage, *, since_s: float) -> Told | None:
    """How the rollout ended; None where it didn't in time."""
    until_s = since_s + stage.bounds.recovery_s
    while stage.clock.now_s() < until_s:
        for event in _END:
            if (line := stage.here.watch.first(event, {}, since_s=since_s)) is not None:
                return line
        await asyncio.sleep(_LOOK_S)
    return None


async def _restored(stage: Stage, accepted: set[str], *, since_s: float) -> float | None:
    until_s = since_s + 2 * stage.bounds.recovery_s
    while stage.clock.now_s() < until_s:
        if {each.target for each in stage.here.watch.look.replicas} == accepted:
            return stage.clock.now_s() - since_s
        await asyncio.sleep(_LOOK_S)
    return None


@contextlib.asynccontextmanager
async def _load(stage: Stage) -> AsyncIterator[SteadyLoad]:
    """Steady requests and somebody who watches, until the block ends; then all requests have ended too."""
    here, owner = stage.here, stage.subject.owner
    load = SteadyLoad(
        here.running.port,
        model=owner.model,
        key=owner.key,
        output_tokens_max=OUTPUT_TOKENS,
        rate_per_s=await _rate_per_s(stage),
        deadline_s=30.0,
        clock=stage.clock,
    )
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(here.watch.run())
        loading = tasks.create_task(load.run())
        try:
            yield load
        finally:
            load.stop()
            await loading
            watching.cancel()
            stage.subject.history.extend(
                Asked(each.request_id, owner.tenant, each.fate is Fate.OK, 200 if each.fate is Fate.OK else 0)
                for each in load.answers
            )


async def _rate_per_s(stage: Stage) -> float:
    """Of short requests: so many that the service is at work, and far from full."""
    began_s = stage.clock.now_s()
    for _ in range(_MEASURED):
        reply = await stage.subject.owner.chat(QUESTION, output_tokens_max=OUTPUT_TOKENS)
        if not reply.is_answered:
            raise DrillError(f"a short request isn't answered: {reply.status} {reply.reason}")
    return min(_RATE_MAX_PER_S, _LOAD_SHARE * _MEASURED / (stage.clock.now_s() - began_s))


def _must_be_whole(load: SteadyLoad) -> None:
    if spoilt := [answer for answer in load.answers if answer.fate is not Fate.OK]:
        raise DrillError(f"requests fail before anything is broken: {spoilt[0].fate} {spoilt[0].reason}")

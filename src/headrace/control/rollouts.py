"""Which version of each deployment serves, and how does a change of it go? The driver of policies/rollout.py.

It shows the pure state machine what is there, hands back what that wants kept, and has acceptance sets run where it asks for
them. It holds nothing that the next controller would miss: what was counted since the last look, and results that came
just now, are made again.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import msgspec

from headrace.control.acceptance import AcceptanceRuns, RunsAcceptance
from headrace.control.steering import Bounds, DeploymentSeen, Scaled, Steering, TargetSeen
from headrace.core.deployment_terms import Gate
from headrace.core.deployments import AppliedVersion
from headrace.core.errors import HeadraceError
from headrace.core.fleet import Arm, Mirror, ReplicaState, Route, target_key
from headrace.core.load import TargetLoad
from headrace.policies import decisions, rollout_record
from headrace.policies.decisions import Decision
from headrace.policies.rollout_commands import Command, Said, obey
from headrace.policies.rollout_record import KIND, Inputs
from headrace.policies.rollout_samples import EMPTY, Pairs, Sample, pairs_of, sample_of
from headrace.policies.rollout_state import (
    Result,
    RolloutState,
    Seen,
    VersionSeen,
    Wanted,
    Wish,
)
from headrace.stores.deployments import Word

BLIND_S = 10.0
"""Without a report of the data planes for so long nobody knows how a version does."""

AGAIN_S = 5.0
RETURNS = ("rollback", "remove")
"""Why a version is wanted that was there before, in the words of stores/deployments.py."""


class Observed(Protocol):
    """Told of what happened to a deployment's rollouts, once for each step that is recorded."""

    def __call__(self, name: str, reason: str, before: RolloutState, after: RolloutState) -> None: ...


class WantsAgain(Protocol):
    """Has a version of a deployment wanted from now on; blocks. Raises HeadraceError.

    Args:
        instead_of: Only while that one is wanted; None in any case.
    """

    def __call__(self, name: str, version: int, *, reason: str, instead_of: int | None) -> object: ...


class _Return(NamedTuple):
    version: int
    reason: str
    instead_of: int | None


class GatedRollouts:
    """A `Rollouts`. State, all of it the loop's: `_loads`, each target's load at the last look, None before its first request;
    `_began_s`, when it first looked; `_returns`, names whose wanted version is being set back.

    Args:
        applied: A version of a deployment; None where there is none.
        observed: Told of what is recorded.
    """

    def __init__(
        self,
        *,
        applied: Callable[[str, int], AppliedVersion | None],
        run_acceptance: RunsAcceptance,
        want: WantsAgain,
        observed: Observed = lambda *_: None,
    ) -> None:
        self._applied = applied
        self._acceptance = AcceptanceRuns(run_acceptance)
        self._want = want
        self._observed = observed
        self._loads: dict[tuple[str, int], TargetLoad | None] = {}
        self._began_s: float | None = None
        self._returns: dict[str, _Return] = {}
        self._must_return = asyncio.Event()

    # What the controller asks.

    def begun(self, version: int) -> str:
        """The state of a deployment that serves with that version without ever having had a rollout."""
        return _kept(RolloutState(accepted=version, answered=version))

    def versions(self, kept: str) -> frozenset[int]:
        state = _state(kept)
        named = {state.accepted, state.previous}
        if state.rollout is not None:
            named |= {state.rollout.candidate, state.rollout.accepted}
        if state.rehearsal is not None:
            named.add(state.rehearsal.version)
        return frozenset(version for version in named if version is not None)

    def steer(
        self, seen: DeploymentSeen, scaled: Mapping[int, Scaled], kept: str, *, now_s: float, wall_s: float
    ) -> Steering:
        before, made = self._heard(seen, kept)
        inputs = Inputs(
            before, _wanted(seen), self._seen(seen, scaled, before, now_s=now_s, wall_s=wall_s), now_s
        )
        state, wish = rollout_record.decide(inputs)
        self._ask_for_runs(seen, wish)
        self._set_back(seen, state)
        if (reason := rollout_record.reason(before, state)) is not None:
            outcome = rollout_record.outcome(before, state, wish)
            made.append(decisions.decision(KIND, seen.name, reason, inputs, outcome))
            self._observed(seen.name, reason, before, state)
        return Steering(
            kept=_kept(state),
            accepted=state.accepted,
            route=_route(seen.name, wish),
            replicas={version: Bounds(each.least, each.most) for version, each in wish.replicas.items()},
            kept_versions=tuple(sorted(wish.replicas)),
            decisions=tuple(made),
            is_news=rollout_record.is_news(_state(kept), state),
            summary=rollout_record.summary(seen.name, state, wish),
        )

    async def run(self) -> None:
        """Acceptance sets, one after the other, and versions that are wanted again; until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._acceptance.run(), name="acceptance")
            tasks.create_task(self._want_again(), name="wanted again")

    # What it hears and sees.

    def _heard(self, seen: DeploymentSeen, kept: str) -> tuple[RolloutState, list[Decision]]:
        """The state after every word that is new; those to a deployment that was removed since mean nothing any more."""
        state, made = _state(kept), list[Decision]()
        if not kept and seen.words:
            return msgspec.structs.replace(state, heard=seen.words[-1].number), made
        for word in seen.words:
            if word.number > state.heard:
                state, decision = self._obey(seen, state, word)
                made.append(decision)
        return state, made

    def _obey(self, seen: DeploymentSeen, state: RolloutState, word: Word) -> tuple[RolloutState, Decision]:
        version = word.version
        if version is None and word.command == Command.REHEARSE:
            version = next((each for each in reversed(state.proven) if each != state.accepted), None)
        target = None if version is None else self._applied(seen.name, version)
        said = Said(
            seen.name,
            state,
            Command(word.command),
            None if target is None else target.version,
            None if target is None else target.spec.rollout,
            word.number,
        )
        after, answer = obey(said)
        if answer.wants is not None:
            self._return(seen.name, _Return(answer.wants, "retry", None))
        if answer.is_done:
            self._observed(seen.name, word.command, state, after)
        outcome = rollout_record.obeyed(said, after, answer)
        return after, decisions.decision(KIND, seen.name, word.command, said, outcome)

    def _seen(
        self,
        seen: DeploymentSeen,
        scaled: Mapping[int, Scaled],
        state: RolloutState,
        *,
        now_s: float,
        wall_s: float,
    ) -> Seen:
        versions, pairs = {}, Pairs()
        for version, target in seen.targets.items():
            fresh, compared = self._fresh(seen.name, version, target)
            versions[version] = _version_seen(target, scaled.get(version), fresh)
            if state.rollout is not None and version == state.rollout.candidate:
                pairs = compared
        self._began_s = now_s if self._began_s is None else self._began_s
        heard_s = max([self._began_s, *(target.load_s for target in seen.targets.values())])
        return Seen(
            versions=versions,
            refusal=_refusal(seen, state),
            blind="" if now_s - heard_s <= BLIND_S else f"no data plane has said anything for {BLIND_S:g} s",
            fresh_pairs=pairs,
            acceptance=self._acceptance.results(seen.name),
            wall_s=wall_s,
        )

    def _fresh(self, name: str, version: int, target: TargetSeen) -> tuple[Sample, Pairs]:
        """What it did since the last look. Of what a target did before this controller looked at it nothing is known."""
        key = name, version
        if target.load is None:
            if target.load_s:
                self._loads[key] = None  # it has done nothing yet
            return EMPTY, Pairs()
        earlier, is_known = self._loads.get(key), key in self._loads
        self._loads[key] = target.load
        if not is_known or earlier is target.load:
            return EMPTY, Pairs()
        load = target.load.since(earlier)
        return sample_of(load), pairs_of(load)

    # Work of its own.

    def _ask_for_runs(self, seen: DeploymentSeen, wish: Wish) -> None:
        runs = []
        for run in wish.acceptance:
            target = seen.targets.get(run.candidate)
            gates = () if target is None else target.applied.spec.rollout.gates
            runs.append((run, next((gate for gate in gates if gate.metric == run.gate), Gate(run.gate))))
        self._acceptance.wish(seen.name, runs)

    def _set_back(self, seen: DeploymentSeen, state: RolloutState) -> None:
        """What was refused isn't wanted any more: else the next newer version would be rolled back to it."""
        ended = state.ended
        if ended is None or state.rollout is not None or state.accepted is None or seen.wanted is None:
            return
        is_refused = (
            ended.result in (Result.ROLLED_BACK, Result.ABORTED) and ended.candidate != state.accepted
        )
        if is_refused and state.answered == ended.candidate == seen.wanted.version:
            self._return(seen.name, _Return(state.accepted, ended.result.value, ended.candidate))

    def _return(self, name: str, what: _Return) -> None:
        if self._returns.get(name) != what:
            self._returns[name] = what
            self._must_return.set()

    async def _want_again(self) -> None:
        while True:
            await self._must_return.wait()
            self._must_return.clear()
            for name, what in list(self._returns.items()):
                try:
                    await asyncio.to_thread(
                        self._want, name, what.version, reason=what.reason, instead_of=what.instead_of
                    )
                except HeadraceError:  # the next look finds it as it was, and asks again
                    await asyncio.sleep(AGAIN_S)
                if self._returns.get(name) == what:
                    del self._returns[name]


def _state(kept: str) -> RolloutState:
    return msgspec.json.decode(kept, type=RolloutState) if kept else RolloutState()


def _kept(state: RolloutState) -> str:
    return msgspec.json.encode(state).decode()


def _wanted(seen: DeploymentSeen) -> Wanted | None:
    if seen.wanted is None:
        return None
    spec = seen.wanted.spec
    return Wanted(
        seen.wanted.version,
        spec.rollout,
        is_return=seen.reason in RETURNS,
        replicas_min=spec.scale.min,
        replicas_max=spec.scale.max,
    )


def _version_seen(target: TargetSeen, scaled: Scaled | None, fresh: Sample) -> VersionSeen:
    able = [each for each in target.replicas if not each.is_draining]
    failures = [each.reason for each in able if each.failures and each.reason]
    return VersionSeen(
        ready=sum(each.state is ReplicaState.READY for each in able),
        present=len(target.replicas),
        wished=0 if scaled is None else scaled.replicas,
        failures=sum(each.failures for each in able),
        failure=failures[-1] if failures else "",
        is_hopeless=any(each.is_stuck for each in able),
        slot_cost=_slot_cost(target),
        fresh=fresh,
    )


def _slot_cost(target: TargetSeen) -> int:
    """What a slot costs in an hour, in 1e-12 of the currency; 0 where nobody says what a replica costs."""
    slots = max((each.slots for each in target.replicas), default=1)
    return target.applied.spec.budget.replica_hour_pico // max(1, slots)


def _refusal(seen: DeploymentSeen, state: RolloutState) -> str:
    """Of the version that is to be started beside what serves."""
    if state.rollout is not None:
        version = state.rollout.candidate
    elif state.rehearsal is not None:
        version = state.rehearsal.version
    elif seen.wanted is not None:
        version = seen.wanted.version
    else:
        return ""
    target = seen.targets.get(version)
    return "" if target is None else target.refusal


def _route(name: str, wish: Wish) -> Route | None:
    if not wish.arms:
        return None
    mirror = wish.mirror
    return Route(
        arms=tuple(Arm(target_key(name, arm.version), arm.weight_ppm) for arm in wish.arms),
        is_sticky=wish.is_sticky,
        mirror=None if mirror is None else Mirror(target_key(name, mirror.version), mirror.share_ppm),
        is_experiment=wish.is_experiment,
    )

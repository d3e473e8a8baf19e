"""A fleet for rollouts, on a clock that is turned by hand: versions that behave as they are told, and a steady load."""

import random
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.core.deployment_terms import Gate, MirrorTerms, RolloutTerms, Step
from headrace.core.load import TargetLoad
from headrace.core.verdicts import Verdict
from headrace.policies import rollout
from headrace.policies import rollout_gates as gates
from headrace.policies.rollout_commands import Answer, Command, Said, obey
from headrace.policies.rollout_gates import Judge
from headrace.policies.rollout_samples import EMPTY, Pairs, Sample, sample_of
from headrace.policies.rollout_state import (
    WHOLE_PPM,
    Acceptance,
    AcceptanceRun,
    RolloutState,
    Seen,
    VersionSeen,
    Wanted,
    Wish,
)
from headrace.policies.rollout_wish import wish

FAILURES = Gate("failure_rate", max_delta=0.01)
SLOWNESS = Gate("ttft_p95", max_ratio=1.5)
QUALITY = Gate("quality:acceptance", min_delta=-0.01)

RESTARTS_MAX = 2

TERMS = RolloutTerms(
    steps=(Step(10.0, 100), Step(50.0, 100)),
    interval_s=10.0,
    gate=(FAILURES, SLOWNESS, QUALITY),
    keep_previous_s=600.0,
)


def terms(**changes: object) -> RolloutTerms:
    """Those of a canary in two steps, checked every ten seconds, but for these."""
    return msgspec.structs.replace(TERMS, **changes)


def mirrored(**changes: object) -> RolloutTerms:
    """A shadow of a fifth of the traffic first."""
    return terms(mirror=MirrorTerms(20.0, 100), gate=(FAILURES, Gate("agreement", min=0.9)), **changes)


@dataclass
class Version:
    """How one version behaves.

    Attributes:
        ready_after_s: None never; its failure then is a stage that took too long, after `stuck_after_s`.
        dies_after_s: Each of its replicas does, so long after its start.
        failure_share: Of its requests.
        right_share: Of its answers, as an acceptance set finds them; None where the set can't be run.
        verdict: What the set says in any case.
        disagrees: Share of mirrored answers that differ by more than they may.
    """

    ready_after_s: float | None = 2.0
    stuck_after_s: float = 30.0
    dies_after_s: float | None = None
    failure_share: float = 0.0
    ttft_s: float = 0.1
    right_share: float | None = 0.95
    verdict: Verdict | None = None
    disagrees: float = 0.0


@dataclass
class Replica:
    """A process that was started."""

    version: int
    born_s: float
    is_ready: bool = False


@dataclass
class Fleet:
    """One deployment whose wished replicas are started and ended, and whose requests are shared out.

    Attributes:
        rate: Requests a second.
        wished: What the autoscaler wishes for, by version.
        fits: Replicas that the machine has room for.
        lost: Requests that nobody could answer. broken: that a candidate failed; another version answers those instead.
        routed: Requests by version since the start.
        said: All results, as they came.
        blind: Why nothing is known of what versions do.
        judge: Says what the gates say.
    """

    versions: dict[int, Version]
    rate: float = 50.0
    wanted: Wanted | None = None
    state: RolloutState = field(default_factory=RolloutState)
    now_s: float = 1000.0
    tick_s: float = 0.5
    fits: int = 100
    wished: dict[int, int] = field(default_factory=dict)
    replicas: list[Replica] = field(default_factory=list)
    failures: dict[int, int] = field(default_factory=dict)
    wish: Wish = field(default_factory=Wish)
    lost: int = 0
    broken: int = 0
    routed: dict[int, int] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    blind: str = ""
    judge: Judge = gates.judge

    def __post_init__(self) -> None:
        self._random = random.Random(7)
        self._owed = 0.0
        self.fresh: dict[int, TargetLoad] = {}
        self.pairs = Pairs()
        self._mirror_owed = 0.0

    # What an operator does.

    def want(
        self, version: int, its: RolloutTerms = TERMS, *, replicas: int = 1, is_return: bool = False
    ) -> None:
        self.wanted = Wanted(version, its, is_return, replicas_min=1, replicas_max=replicas)
        self.wished.setdefault(version, 1)

    def say(self, command: Command) -> Answer:
        self.state, answer = obey(Said("chat", self.state, command))
        return answer

    def serving(self, version: int, replicas: int = 1) -> "Fleet":
        """It is accepted, with so many replicas ready."""
        self.state = RolloutState(accepted=version, answered=version)
        self.want(version, replicas=replicas)
        self.wished[version] = replicas
        self.replicas = [Replica(version, self.now_s, is_ready=True) for _ in range(replicas)]
        self.tick()
        return self

    # What is seen of it.

    def ready(self, version: int) -> int:
        return sum(replica.version == version and replica.is_ready for replica in self.replicas)

    def present(self, version: int) -> int:
        return sum(replica.version == version for replica in self.replicas)

    def share(self, version: int) -> float:
        """Of the traffic, at this moment."""
        return sum(arm.weight_ppm for arm in self.wish.arms if arm.version == version) / WHOLE_PPM

    def seen(self) -> Seen:
        numbers = {replica.version for replica in self.replicas} | set(self.versions)
        refusal = ""
        if self.present(self.state.accepted or 0) + 1 > self.fits:
            refusal = f"no memory beside version {self.state.accepted}"
        return Seen(
            versions={
                number: VersionSeen(
                    ready=self.ready(number),
                    present=self.present(number),
                    wished=self.wished.get(number, 0),
                    failures=self.failures.get(number, 0),
                    failure="it ended" if self.failures.get(number) else "",
                    is_hopeless=self._is_stuck(number) or self.failures.get(number, 0) >= RESTARTS_MAX,
                    fresh=self._sample(number),
                )
                for number in numbers
            },
            refusal=refusal,
            blind=self.blind,
            wall_s=self.now_s,
            fresh_pairs=self.pairs,
            acceptance=tuple(self._acceptance(run) for run in self.wish.acceptance),
        )

    def _is_stuck(self, number: int) -> bool:
        version = self.versions[number]
        return version.ready_after_s is None and any(
            replica.version == number and self.now_s - replica.born_s >= version.stuck_after_s
            for replica in self.replicas
        )

    def _sample(self, number: int) -> Sample:
        load = self.fresh.get(number)
        return EMPTY if load is None else sample_of(load)

    def _acceptance(self, run: AcceptanceRun) -> Acceptance:
        share = self.versions[run.candidate].right_share
        if share is None:
            return Acceptance(run.of, run.gate, run.attempt, Verdict.ERROR, detail="the set could not be run")
        verdict = self.versions[run.candidate].verdict or (Verdict.PASS if share >= 0.9 else Verdict.FAIL)
        return Acceptance(run.of, run.gate, run.attempt, verdict, share, 0.95, detail=f"{share:.0%} right")

    # Time.

    def tick(self) -> None:
        """One look of the controller, after the requests that came since the last one."""
        self.now_s += self.tick_s
        self._live()
        self._serve()
        before = self.state.ended
        self.decide()
        if self.state.ended is not None and self.state.ended != before:
            self.said.append(
                f"{self.state.ended.candidate} {self.state.ended.result}: {self.state.ended.reason}"
            )
        self._reconcile()

    def decide(self) -> None:
        """By the state machine itself; what drives it may stand in its place."""
        seen = self.seen()
        self.state = rollout.step(self.state, self.wanted, seen, now_s=self.now_s, judge=self.judge)
        self.wish = wish(self.state, seen)
        self.fresh, self.pairs = {}, Pairs()

    def run(self, seconds: float) -> "Fleet":
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.tick()
        return self

    def run_until_ended(self, within_s: float = 3600.0) -> "Fleet":
        """Until there is no rollout."""
        self.tick()
        end_s = self.now_s + within_s
        while self.state.rollout is not None:
            assert self.now_s < end_s, (
                f"still {self.state.rollout.stage}, waiting for {self.state.rollout.waits_for}"
            )
            self.tick()
        return self

    def _live(self) -> None:
        for replica in list(self.replicas):
            version = self.versions[replica.version]
            age_s = self.now_s - replica.born_s
            if version.dies_after_s is not None and age_s >= version.dies_after_s:
                self.replicas.remove(replica)
                self.failures[replica.version] = self.failures.get(replica.version, 0) + 1
            elif version.ready_after_s is not None and age_s >= version.ready_after_s:
                replica.is_ready = True

    def _serve(self) -> None:
        self._owed += self.rate * self.tick_s
        while self._owed >= 1.0:
            self._owed -= 1.0
            self._request()

    def _request(self) -> None:
        point, target = self._random.random() * WHOLE_PPM, None
        for arm in self.wish.arms:
            point -= arm.weight_ppm
            if point < 0:
                target = arm.version
                break
        if target is None:
            return
        accepted = self.wish.arms[0].version
        if not self.ready(target):
            target = accepted
        if not self.ready(target):
            self.lost += 1
            return
        self.routed[target] = self.routed.get(target, 0) + 1
        is_whole = self._answer(target)
        if not is_whole:
            self.broken += 1
        mirror = self.wish.mirror
        if not is_whole or mirror is None or self._random.random() * WHOLE_PPM >= mirror.share_ppm:
            return
        if self._answer(mirror.version):
            differs = self._random.random() < self.versions[mirror.version].disagrees
            self.pairs = self.pairs.plus(Pairs(1, int(differs)))

    def _answer(self, number: int) -> bool:
        version = self.versions[number]
        load = self.fresh.setdefault(number, TargetLoad(target=f"chat@v{number}", name="chat", revision="r"))
        if self._random.random() < version.failure_share:
            load.failed += 1
            return False
        load.delivered += 1
        ttft_s = version.ttft_s * (0.5 + self._random.random())
        load.ttft.observe(ttft_s)
        load.total.observe(3.0 * ttft_s)
        load.itl.observe(ttft_s / 10.0)
        return True

    def _reconcile(self) -> None:
        """As the controller does: what is wished for is started; of what is too much, the least ready end first."""
        for number in sorted({*self.wish.replicas, *(replica.version for replica in self.replicas)}):
            bounds = self.wish.replicas.get(number)
            wanted = 0 if bounds is None else bounds.hold(self.wished.get(number, 0))
            mine = sorted(
                (replica for replica in self.replicas if replica.version == number),
                key=lambda replica: replica.is_ready,
            )
            for replica in mine[: max(0, len(mine) - wanted)]:
                self.replicas.remove(replica)
            for _ in range(wanted - len(mine)):
                self.replicas.append(Replica(number, self.now_s))


def fleet(candidate: Version, *, replicas: int = 2, **kind: Any) -> Fleet:
    """Version 1 serves with so many replicas, and version 2 behaves like that."""
    return Fleet({1: Version(), 2: candidate}, **kind).serving(1, replicas)

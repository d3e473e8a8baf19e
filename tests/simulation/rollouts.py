"""What rollouts do to the fleet of a run: some models have two revisions, whose shares change, and which fail, go and come back.

A law of its own holds for them: whoever asks is sent by the weights in force, and nobody is turned away because a revision goes.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random

from headrace.core.fleet import PPM, Arm, Deployment, FleetSnapshot, Route, Task
from tests.simulation.history import History
from tests.simulation.replica import SimulatedReplica

WEIGHTS = (0.0, 0.05, 0.3, 0.5, 0.9, 1.0)


@dataclass
class Rollout:
    """Of one model: which of its replicas run the candidate, how much it gets, and whether it is there, and is ready."""

    candidate: frozenset[str]
    weight: float = 0.0
    is_offered: bool = True
    is_ready: bool = True
    is_sticky: bool = True


@dataclass
class Shares:
    """How many requests a candidate should have got, and how many came; for many runs together."""

    expected: float = 0.0
    variance: float = 0.0
    arrived: int = 0

    def add(self, share: float, *, is_candidate: bool) -> None:
        self.expected += share
        self.variance += share * (1.0 - share)
        self.arrived += is_candidate


@dataclass
class Rollouts:
    """All of a run. `shares` is what came of the weights."""

    deployments: dict[str, list[SimulatedReplica]]
    chance: Random
    history: History
    running: dict[str, Rollout] = field(default_factory=dict)
    shares: Shares = field(default_factory=Shares)

    def draw(self) -> None:
        """Models whose replicas can be shared out between two revisions."""
        for name, replicas in self.deployments.items():
            if len(replicas) > 1 and self.chance.random() < 0.5:
                count = self.chance.randint(1, len(replicas) - 1)
                chosen = frozenset(replica.name for replica in replicas[-count:])
                self.running[name] = Rollout(
                    chosen, self.chance.choice(WEIGHTS), is_sticky=self.chance.random() < 0.8
                )

    def step(self) -> None:
        """One of them goes on, back, away, or comes again."""
        name = self.chance.choice(list(self.running))
        rollout = self.running[name]
        rollout.weight = self.chance.choice(WEIGHTS)
        rollout.is_offered = self.chance.random() < 0.6
        rollout.is_ready = self.chance.random() < 0.7
        self.history.add("rollout", name, rollout.weight if rollout.is_offered else "withdrawn")

    def snapshot(self, version: int, *, without: str) -> FleetSnapshot:
        """What is offered, but for that deployment or replica."""
        offered: list[Deployment] = []
        routes: dict[str, Route] = {}
        for name, replicas in self.deployments.items():
            if name == without:
                continue
            there = [replica for replica in replicas if replica.name != without]
            rollout = self.running.get(name)
            if rollout is None:
                offered.append(_target(name, 0, there))
                continue
            arms = [(1, [each for each in there if each.name not in rollout.candidate], 1.0 - rollout.weight)]
            ready = [each for each in there if rollout.is_ready and each.name in rollout.candidate]
            arms.append((2, ready, rollout.weight))
            if not rollout.is_offered:
                arms = [(1, arms[0][1], 1.0)]
            offered += [_target(name, number, part) for number, part, _ in arms]
            routes[name] = Route(
                tuple(Arm(f"{name}@v{number}", round(weight * PPM)) for number, _, weight in arms),
                is_sticky=rollout.is_sticky,
            )
        return FleetSnapshot(version, {each.key: each for each in offered}, routes)

    def arrived(self, model: str, target: str, offered: Collection[str]) -> None:
        """A request came to that target; `offered` are those with a ready replica."""
        rollout = self.running.get(model)
        if rollout is None:
            return
        is_ready = rollout.is_offered and f"{model}@v2" in offered
        share = rollout.weight if is_ready else 0.0
        is_candidate = target == f"{model}@v2"
        self.history.require(not is_candidate or share > 0.0, f"a request came to {target}, which gets none")
        self.history.require(
            is_candidate or share < 1.0, f"a request came to {target}, past the one that gets all"
        )
        self.shares.add(share, is_candidate=is_candidate)

    def revision(self, model: str, replica: str) -> str:
        """What that replica runs of the model."""
        rollout = self.running.get(model)
        return "sha256:0" if rollout is None else f"sha256:{1 + (replica in rollout.candidate)}"


def _target(name: str, version: int, replicas: list[SimulatedReplica]) -> Deployment:
    return Deployment(
        name=name,
        upstream_model=f"up-{name}",
        tasks=frozenset(Task),
        revision=f"sha256:{version}",
        replicas=tuple(replica.value() for replica in replicas),
        version=version,
    )

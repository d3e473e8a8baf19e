"""Claims about the driver of rollouts: what it sees, what it has stored, and that another controller goes on from that."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import msgspec

from headrace.control.rollouts import GatedRollouts
from headrace.control.steering import DeploymentSeen, ReplicaSeen, Scaled, Steering, TargetSeen
from headrace.core.deployment_terms import BudgetTerms, Gate, RolloutTerms, ScaleTerms
from headrace.core.deployments import AppliedVersion, DeploymentSpec, EngineKind, Identity, Revision
from headrace.core.fleet import ReplicaState, Task
from headrace.core.ids import ReplicaId
from headrace.core.load import TargetLoad
from headrace.core.verdicts import Verdict
from headrace.policies import decisions, rollout_record
from headrace.policies.decisions import Decision
from headrace.policies.rollout_state import Acceptance, AcceptanceRun, Arm, ReplicaBounds, RolloutState, Wish
from headrace.stores.deployments import Word
from tests.policies.rollout_rig import TERMS, Fleet, Version, terms


def applied(version: int, its: RolloutTerms = TERMS) -> AppliedVersion:
    spec = DeploymentSpec(
        Identity("chat", EngineKind.SCRIPTED),
        rollout=its,
        scale=ScaleTerms(max=4),
        budget=BudgetTerms(replica_hour="2.5"),
    )
    return AppliedVersion("chat", version, spec, Revision(Task.CHAT, EngineKind.SCRIPTED), 0.0, "test")


class Driven(Fleet):
    """A fleet that the real driver decides for."""

    def start(self, driver: GatedRollouts) -> "Driven":
        self.driver = driver
        self.kept = driver.begun(1)
        self.reason = "apply"
        self.words: tuple[Word, ...] = ()
        self.decisions: list[Decision] = []
        self.loads: dict[int, TargetLoad] = {}
        self.heard_s = self.now_s
        self.serving(1, 2)
        return self

    def decide(self) -> None:
        for version, load in self.fresh.items():
            before = self.loads.get(version)
            self.loads[version] = load if before is None else before.plus(load)
        self.fresh = {}
        if not self.blind:
            self.heard_s = self.now_s
        wanted = None if self.wanted is None else applied(self.wanted.version, self.wanted.terms)
        numbers = self.driver.versions(self.kept) | {replica.version for replica in self.replicas}
        numbers |= frozenset() if wanted is None else {wanted.version}
        self.steering = self.driver.steer(
            DeploymentSeen(
                "chat", wanted, self.reason, {number: self.target(number) for number in numbers}, self.words
            ),
            {number: Scaled("", self.wished.get(number, 0), 0.0) for number in numbers},
            self.kept,
            now_s=self.now_s,
            wall_s=self.now_s,
        )
        self.decisions += self.steering.decisions
        self.kept = self.steering.kept
        self.state = msgspec.json.decode(self.kept, type=RolloutState)
        arms = () if self.steering.route is None else self.steering.route.arms
        self.wish = Wish(
            tuple(Arm(int(arm.target.partition("@v")[2]), arm.weight_ppm) for arm in arms),
            replicas={
                number: ReplicaBounds(each.least, each.most)
                for number, each in self.steering.replicas.items()
            },
        )

    def target(self, number: int) -> TargetSeen:
        mine = [replica for replica in self.replicas if replica.version == number]
        its = TERMS if self.wanted is None or self.wanted.version != number else self.wanted.terms
        return TargetSeen(
            applied(number, its),
            tuple(
                ReplicaSeen(
                    ReplicaId(f"chat-{index}"),
                    number,
                    0,
                    ReplicaState.READY if replica.is_ready else ReplicaState.STARTING,
                    replica.born_s,
                    replica.born_s,
                    reason="it ended" if self.failures.get(number) else "",
                    failures=self.failures.get(number, 0),
                    is_stuck=self.failures.get(number, 0) >= 2,
                )
                for index, replica in enumerate(mine)
            ),
            self.loads.get(number),
            self.heard_s,
            refusal="" if self.fits > len(self.replicas) else "no memory",
        )

    def hear(self, command: str, version: int | None = None) -> dict[str, object]:
        """The driver's answer to another word."""
        number = len(self.words) + 1
        self.words = (*self.words, Word(number, "chat", command, version))
        self.tick()
        answers = [msgspec.json.decode(each.outcome) for each in self.decisions if each.reason == command]
        found: dict[str, object] = next(each for each in answers if each["word"] == number)
        return found


NOTHING = "chat has no rollout in progress: nothing has changed"
Runs = Callable[[str, AcceptanceRun, Gate], Awaitable[Acceptance]]


class Rig:
    """The driver, with what it asks of others: `wanted`, and `run`, acceptance runs so far."""

    def __init__(self, verdict: Verdict = Verdict.PASS, waits: asyncio.Event | None = None) -> None:
        self.wanted: list[tuple[int, str, int | None]] = []
        self.run: list[AcceptanceRun] = []
        self.told: list[str] = []
        self.cancelled = 0
        self._was_wanted = threading.Event()
        self._verdict = verdict
        self._waits = waits

    def driver(self) -> GatedRollouts:
        return GatedRollouts(
            applied=lambda name, version: applied(version) if version < 9 else None,
            run_acceptance=self._run_acceptance,
            want=self._want,
            observed=lambda name, reason, before, after: self.told.append(reason),
        )

    async def is_wanted(self) -> None:
        """Until the driver has had a version wanted since this was asked last."""
        assert await asyncio.to_thread(self._was_wanted.wait, 30.0)
        self._was_wanted.clear()

    async def _run_acceptance(self, name: str, run: AcceptanceRun, gate: Gate) -> Acceptance:
        self.run.append(run)
        assert (name, gate.metric) == ("chat", run.gate)
        if self._waits is not None:
            try:
                await self._waits.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return Acceptance(run.of, run.gate, run.attempt, self._verdict, 0.9, 0.9)

    def _want(self, name: str, version: int, *, reason: str, instead_of: int | None) -> None:
        self.wanted.append((version, reason, instead_of))
        self._was_wanted.set()


async def until(world: Driven, is_done: Callable[[], bool]) -> None:
    """Ticks, with turns for the driver's own work between them."""
    for _ in range(4000):
        if is_done():
            return
        world.tick()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    raise AssertionError(f"still {world.steering.summary}")


def driven(candidate: Version, rig: Rig, story: Callable[[Driven], Awaitable[None]]) -> None:
    async def run() -> None:
        driver = rig.driver()
        world = Driven({1: Version(), 2: candidate, 3: Version()}).start(driver)
        work = asyncio.ensure_future(driver.run())
        try:
            await story(world)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    asyncio.run(run())


def test_a_good_version_is_promoted_and_each_decision_is_recorded_so_that_it_can_be_made_again() -> None:
    rig = Rig()

    async def story(world: Driven) -> None:
        world.want(2, terms(), replicas=2)
        await until(world, lambda: world.steering.accepted == 2)
        assert [run.candidate for run in rig.run] == [2], "each set is run once"
        assert world.steering.route is not None
        assert [(arm.target, arm.weight_ppm) for arm in world.steering.route.arms] == [("chat@v2", 1_000_000)]
        assert world.lost == 0
        assert "passed" in rig.told
        replays = {rollout_record.KIND: rollout_record.replay}
        assert {decisions.difference(each, replays) for each in world.decisions} == {""}

    driven(Version(), rig, story)


def test_a_refused_version_is_not_wanted_any_more() -> None:
    """Else a later `rollback` would go to it."""
    rig = Rig()

    async def story(world: Driven) -> None:
        world.want(2, terms(), replicas=2)
        await until(world, lambda: "gate_failed" in rig.told)
        assert world.steering.route is not None
        assert [arm.target for arm in world.steering.route.arms] == ["chat@v1"]
        await rig.is_wanted()
        assert rig.wanted == [(1, "rolled_back", 2)]
        world.want(1, terms(), replicas=2)
        world.tick()
        assert world.steering.accepted == 1

    driven(Version(failure_share=0.5), rig, story)


def test_another_controller_goes_on_where_the_last_one_ended() -> None:
    """At any moment: what it needs is stored, and what was counted since is counted anew."""
    rig = Rig()

    async def story(world: Driven) -> None:
        world.want(2, terms(), replicas=2)
        works = []
        for _ in range(12):
            for _ in range(40):
                world.tick()
                await asyncio.sleep(0)
            world.driver = rig.driver()
            works.append(asyncio.ensure_future(world.driver.run()))
            await asyncio.sleep(0)
        await until(world, lambda: world.steering.accepted == 2)
        assert (world.lost, world.said) == (0, ["2 promoted: passed"])
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    driven(Version(), rig, story)


def test_an_acceptance_run_ends_with_the_rollout_that_it_was_for() -> None:
    async def started() -> None:
        rig = Rig(waits=asyncio.Event())
        driver = rig.driver()
        world = Driven({1: Version(), 2: Version(), 3: Version()}).start(driver)
        work = asyncio.ensure_future(driver.run())
        world.want(2, terms(), replicas=2)
        await until(world, lambda: bool(rig.run))
        world.want(3, terms(), replicas=2)
        await until(world, lambda: len(rig.run) == 2)
        assert (rig.cancelled, [run.candidate for run in rig.run]) == (1, [2, 3])
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    asyncio.run(started())


def test_words_are_heard_once_and_answered_by_a_decision_with_their_number() -> None:
    rig = Rig()

    async def story(world: Driven) -> None:
        before = world.kept
        assert world.hear("abort") == {"word": 1, "is_done": False, "wants": None, "text": NOTHING}
        assert msgspec.structs.replace(world.state, heard=0) == msgspec.json.decode(before, type=RolloutState)
        world.want(2, terms(), replicas=2)
        await until(world, lambda: world.share(2) > 0.0)
        assert world.hear("abort")["result"] == "aborted"
        assert world.present(2) == 0
        world.want(1, terms(), replicas=2)
        world.tick()
        assert world.hear("retry")["wants"] == 2
        await rig.is_wanted()
        assert rig.wanted[-1] == (2, "retry", None)
        assert world.hear("rehearse", 3)["is_done"]
        await until(world, lambda: "rehearsed" in rig.told)
        assert world.steering.summary["rehearsed"]["verdict"] == "pass"
        assert not world.hear("rehearse", 9)["is_done"], "there is no such version"
        assert not world.hear("rehearse")["is_done"], "nothing else was ever accepted"
        world.want(2, terms(), replicas=2)
        await until(world, lambda: world.steering.accepted == 2)
        assert "chat@v1" in str(world.hear("rehearse")["text"])

    driven(Version(), rig, story)


def test_words_to_a_deployment_that_was_removed_mean_nothing_to_the_next_of_its_name() -> None:
    rig = Rig()

    async def story(world: Driven) -> None:
        world.words = (Word(1, "chat", "abort", None), Word(2, "chat", "hold", None))
        world.kept = ""
        world.want(1, terms(gate=()), replicas=2)
        world.tick()
        assert world.state.heard == 2
        assert {each.reason for each in world.decisions} <= {"begun", "passed"}

    driven(Version(), rig, story)


def test_silence_of_the_data_planes_is_an_error_of_the_check_and_no_pass() -> None:
    rig = Rig()

    async def story(world: Driven) -> None:
        world.want(2, terms(error_limit=2), replicas=2)
        await until(world, lambda: world.share(2) > 0.0)
        world.blind = "gone"
        await until(world, lambda: "gate_errors" in rig.told)

    driven(Version(), rig, story)


def test_what_does_not_fit_and_what_crashes_is_seen() -> None:
    for changes, reason in (({"fits": 2}, "does_not_fit"), ({}, "replicas_failed")):
        rig = Rig()

        async def story(
            world: Driven, changes: dict[str, int] = changes, reason: str = reason, rig: Rig = rig
        ) -> None:
            world.fits = changes.get("fits", 100)
            world.want(2, terms(), replicas=2)
            await until(world, lambda: reason in rig.told)

        driven(Version(dies_after_s=1.0), rig, story)


def test_a_removed_deployment_ends_and_an_implicit_one_comes_back_without_gates() -> None:
    rig = Rig()

    async def story(world: Driven) -> None:
        world.wanted = None
        world.tick()
        assert (world.steering.route, world.steering.replicas) == (None, {})
        assert world.driver.versions(world.kept) == frozenset()

    driven(Version(), rig, story)


def test_the_summary_of_a_deployment_without_rollouts_is_short() -> None:
    rig = Rig()

    async def story(world: Driven) -> None:
        steering: Steering = world.steering
        assert steering.summary["weights"] == {"chat@v1": 1.0}
        assert not steering.is_news

    driven(Version(), rig, story)

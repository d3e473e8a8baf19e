"""Laws of rollouts, whatever happens in whatever order: replicas that come and go, words, newer versions, crashes of the controller."""

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.core.deployment_terms import Gate, MirrorTerms, RolloutTerms, Step
from headrace.core.verdicts import Interval, Judgement, Reason, Verdict
from headrace.policies import rehearsal, rollout
from headrace.policies.rehearsal import NotRehearsed
from headrace.policies.rollout_commands import Command, Said, obey
from headrace.policies.rollout_gates import Material
from headrace.policies.rollout_samples import Pairs, Sample
from headrace.policies.rollout_state import (
    WHOLE_PPM,
    Acceptance,
    Result,
    RolloutState,
    Seen,
    VersionSeen,
    Wanted,
    Wish,
)
from headrace.policies.rollout_wish import wish

VERSIONS = range(1, 5)
MAX_DURATION_S = 500.0

TERMS = st.builds(
    RolloutTerms,
    strategy=st.sampled_from(("canary", "bluegreen", "shadow", "recreate", "ab")),
    steps=st.lists(st.sampled_from((1.0, 10.0, 33.3, 50.0, 100.0)), min_size=1, max_size=3, unique=True).map(
        lambda weights: tuple(Step(weight, 20, 3.0) for weight in sorted(weights))
    ),
    sticky=st.sampled_from(("conversation", "none")),
    mirror=st.sampled_from((0.0, 20.0)).map(lambda percent: MirrorTerms(percent, 20)),
    interval_s=st.sampled_from((1.0, 10.0)),
    fail_limit=st.integers(1, 3),
    error_limit=st.integers(1, 3),
    inconclusive=st.sampled_from(("hold", "rollback", "promote")),
    max_duration_s=st.just(MAX_DURATION_S),
    keep_previous_s=st.sampled_from((0.0, 60.0)),
    gate=st.sampled_from(
        (
            (),
            (Gate("ttft_p95", max_ratio=1.5),),
            (Gate("quality:acceptance", min_delta=0.0), Gate("ttft_p95", compare="absolute", max=1.0)),
            (Gate("quality:acceptance", min_delta=0.0, dry_run=True), Gate("agreement", min=0.9)),
        )
    ),
)


class Rollouts(RuleBasedStateMachine):
    """A controller that does what is wished, a world that does what it likes, and judges that say what they like."""

    @initialize(replicas=st.integers(0, 3), terms=TERMS, looks=st.integers(0, 8))
    def begin(self, replicas: int, terms: RolloutTerms, looks: int) -> None:
        """A rollout that has come to any of its stages."""
        self.now_s = 0.0
        self.state = RolloutState(accepted=1, answered=1)
        self.wanted: Wanted | None = Wanted(2, terms, replicas_max=4)
        self.ready = {1: replicas}
        self.starting: dict[int, int] = {}
        self.failures: dict[int, int] = {}
        self.wished = {1: replicas}
        self.refusal = self.blind = ""
        self.acceptance: tuple[Acceptance, ...] = ()
        self.verdicts: dict[str, Verdict] = {}
        self.wish = Wish()
        self.results: dict[int, Result] = {}
        self.requests: dict[int, int] = {}
        self.look(0.0)
        self.all_goes_well(looks)

    # What happens.

    @rule(elapsed_s=st.sampled_from((0.0, 0.5, 2.0, 11.0, 40.0)))
    def look(self, elapsed_s: float) -> None:
        """The controller looks and does what follows."""
        self.now_s += elapsed_s
        seen, before = self.seen(), self.state
        self.state = rollout.step(before, self.wanted, seen, now_s=self.now_s, judge=self.judge)
        self.wish = wish(self.state, seen)
        self.requests, self.failures = {}, {} if self.state.rollout is None else self.failures
        self.settle(before)
        self.laws(before, seen)
        self.reconcile()

    @rule(version=st.sampled_from(VERSIONS), most=st.sampled_from((1, 9)))
    def get_ready(self, version: int, most: int) -> None:
        count = min(most, self.starting.get(version, 0))
        self.starting[version] = self.starting.get(version, 0) - count
        self.ready[version] = self.ready.get(version, 0) + count

    @rule(looks=st.integers(1, 4))
    def all_goes_well(self, looks: int) -> None:
        """For a while, so that also late stages are met."""
        self.verdicts, self.refusal, self.blind = {}, "", ""
        for _ in range(looks):
            for version in VERSIONS:
                self.get_ready(version, 9)
            self.a_gate_says("quality", Verdict.PASS)
            self.requests_come(500)
            self.look(11.0)

    @rule(of_candidate=st.booleans(), is_counted=st.booleans())
    def all_die(self, of_candidate: bool, is_counted: bool) -> None:
        """All replicas of one of the two versions; not every loss is a failure."""
        current = self.state.rollout
        version = current.candidate if of_candidate and current is not None else self.state.accepted
        if version is not None and self.ready.get(version):
            self.ready[version] = 0
            self.failures[version] = self.failures.get(version, 0) + is_counted

    @rule(version=st.sampled_from((0, *VERSIONS)), terms=TERMS, is_return=st.booleans())
    def is_wanted(self, version: int, terms: RolloutTerms, is_return: bool) -> None:
        """0: it is removed."""
        self.wanted = Wanted(version, terms, is_return, replicas_max=4) if version else None

    @rule(version=st.sampled_from(VERSIONS), terms=TERMS)
    def is_rehearsed(self, version: int, terms: RolloutTerms) -> None:
        try:
            self.state = rehearsal.begun("chat", self.state, version, terms)
        except NotRehearsed:
            return
        assert self.state.rollout is None

    @rule(command=st.sampled_from(Command))
    def is_told(self, command: Command) -> None:
        before = self.state
        self.state, answer = obey(Said("chat", before, command))
        assert answer.is_done or self.state == before
        if before.rollout is None and command is not Command.RETRY:
            assert self.state == before, "with nothing in progress it touches nothing"
        self.settle(before)

    @rule(count=st.sampled_from((5, 50, 500)))
    def requests_come(self, count: int) -> None:
        for arm in self.wish.arms:
            part = count * arm.weight_ppm // WHOLE_PPM
            self.requests[arm.version] = self.requests.get(arm.version, 0) + part
        if self.wish.mirror is not None:
            version = self.wish.mirror.version
            self.requests[version] = self.requests.get(version, 0) + count

    @rule(
        metric=st.sampled_from(("quality", "failure_rate", "ttft_p95", "agreement")),
        verdict=st.sampled_from(Verdict),
    )
    def a_gate_says(self, metric: str, verdict: Verdict) -> None:
        if metric == "quality":
            self.acceptance = tuple(
                Acceptance(run.of, run.gate, run.attempt, verdict) for run in self.wish.acceptance
            )
        else:
            self.verdicts[metric] = verdict

    @rule(
        wished=st.dictionaries(st.sampled_from(VERSIONS), st.integers(0, 4)),
        refusal=st.sampled_from(("", "no memory")),
        blind=st.sampled_from(("", "no report")),
    )
    def surroundings_change(self, wished: dict[int, int], refusal: str, blind: str) -> None:
        self.wished, self.refusal, self.blind = wished, refusal, blind

    @rule()
    def controller_is_killed(self) -> None:
        """The next one goes on from what was stored, and wishes for the same."""
        stored = msgspec.json.decode(msgspec.json.encode(self.state), type=RolloutState)
        assert stored == self.state
        assert wish(stored, self.seen()) == wish(self.state, self.seen())
        self.state = stored

    # What is seen.

    def judge(self, gate: Gate, material: Material) -> Judgement:
        verdict = self.verdicts.get(gate.metric, Verdict.PASS)
        if material.blind:
            verdict = Verdict.ERROR
        reason = Reason.TOO_FEW_SAMPLES if not material.candidate.ended else Reason.UNDECIDED
        if not material.candidate.ended and verdict is Verdict.PASS:
            verdict = Verdict.INCONCLUSIVE
        return Judgement(verdict, reason, Interval(None, None, None), 0.0, 0.05, 0, 0)

    def seen(self) -> Seen:
        return Seen(
            versions={
                version: VersionSeen(
                    ready=self.ready.get(version, 0),
                    present=self.ready.get(version, 0) + self.starting.get(version, 0),
                    wished=self.wished.get(version, 0),
                    failures=self.failures.get(version, 0),
                    is_hopeless=self.failures.get(version, 0) >= 2,
                    fresh=Sample(delivered=self.requests.get(version, 0)),
                )
                for version in VERSIONS
            },
            refusal=self.refusal,
            blind=self.blind,
            fresh_pairs=Pairs(sum(self.requests.values())),
            acceptance=self.acceptance,
        )

    def reconcile(self) -> None:
        for version in VERSIONS:
            bounds = self.wish.replicas.get(version)
            wanted = 0 if bounds is None else bounds.hold(self.wished.get(version, 0))
            ready = self.ready.get(version, 0)
            self.starting[version] = max(0, wanted - ready)
            self.ready[version] = min(ready, wanted)

    # What always holds.

    def settle(self, before: RolloutState) -> None:
        """A rollout ends once, with one result."""
        ended = self.state.ended
        if (
            ended is not None
            and ended is not before.ended
            and (before.ended is None or ended != before.ended)
        ):
            assert ended.number not in self.results, "it has ended before"
            self.results[ended.number] = ended.result
        under_way = () if self.state.rollout is None else (self.state.rollout.number,)
        assert set(self.results) | set(under_way) <= set(range(1, self.state.count + 1))
        assert not set(under_way) & set(self.results)

    def laws(self, before: RolloutState, seen: Seen) -> None:
        state, current = self.state, self.state.rollout
        arms = self.wish.arms
        assert sum(arm.weight_ppm for arm in arms) == (WHOLE_PPM if arms else 0)
        assert all(arm.weight_ppm >= 0 for arm in arms)
        if state.accepted is None:
            assert not arms or (current is not None and [arm.version for arm in arms] == [current.candidate])
        else:
            assert arms[0].version == state.accepted
        for arm in arms[1:]:
            assert current is not None, "without a rollout everything goes to the accepted version"
            assert arm.version == current.candidate
            assert seen.of(arm.version).ready, "nothing goes to a version without a ready replica"
        if self.wish.mirror is not None:
            assert current is not None
            assert seen.of(self.wish.mirror.version).ready
        self.capacity_law(before, seen)
        trial = state.rehearsal
        named = {state.accepted, state.previous, current and current.candidate, trial and trial.version} - {
            None
        }
        assert set(self.wish.replicas) <= named, "only versions that have a part in it have replicas"

    def capacity_law(self, before: RolloutState, seen: Seen) -> None:
        """What serves keeps its replicas, and what takes over has as many."""
        current = self.state.rollout
        if current is not None and current.accepted is not None and not current.is_recreate:
            assert self.wish.replicas[current.accepted].least >= current.capacity
        ended, began = self.state.ended, before.rollout
        if ended is None or began is None or ended.number != began.number:
            return
        if ended.result is Result.PROMOTED:
            needed = max(1, min(began.capacity, began.replicas_max))
            assert seen.of(ended.candidate).ready >= needed

    @invariant()
    def looking_again_changes_nothing(self) -> None:
        """In the same moment, at the same things: what is done twice is done once."""
        if not hasattr(self, "state"):
            return
        seen = msgspec.structs.replace(
            self.seen(), fresh_pairs=Pairs(), versions={
                number: msgspec.structs.replace(each, fresh=Sample()) for number, each in self.seen().versions.items()
            },
        )  # fmt: skip
        once = rollout.step(self.state, self.wanted, seen, now_s=self.now_s, judge=self.judge)
        assert rollout.step(once, self.wanted, seen, now_s=self.now_s, judge=self.judge) == once

    def teardown(self) -> None:
        """Where nothing more happens, time ends every rollout, and everything goes to one version."""
        if not hasattr(self, "state"):
            return
        for _ in range(int(MAX_DURATION_S / 40.0) + 3):
            self.look(40.0)
        assert self.state.rollout is None
        assert self.state.rehearsal is None
        assert len(self.wish.arms) <= 1


Rollouts.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestRollouts = Rollouts.TestCase

"""What is kept of a deployment's rollouts, what is seen of its versions, and what is wished for? The values of policies/rollout.py.

Everything that must outlive the controller is in `RolloutState`, which is stored after each change and before anything
follows from it. Times in it are durations that have passed while it was looked after, so that neither a stepped clock
nor an outage of the controller moves a deadline.
"""

from enum import StrEnum

import msgspec

from headrace.core.deployment_terms import RolloutTerms, Step
from headrace.core.verdicts import Judgement, Verdict
from headrace.policies.rollout_samples import EMPTY, Pairs, Sample

WHOLE_PPM = 1_000_000
QUALITY_PREFIX = "quality:"


class Stage(StrEnum):
    """Where a rollout stands; which of them it passes, its strategy says (`stages_of`).

    PREPARING: replicas of the candidate start, and nothing is taken from the accepted version for them.
    ACCEPTANCE: the acceptance set is run against the candidate, before it gets a request of a customer.
    MIRRORING: it gets copies of requests, and nobody sees its answers.
    STEPPING: it gets a share of the traffic.
    PROMOTING: as many replicas of it start as the accepted version has; then it takes over, by one routing write.
    """

    PREPARING = "preparing"
    ACCEPTANCE = "acceptance"
    MIRRORING = "mirroring"
    STEPPING = "stepping"
    PROMOTING = "promoting"


def stages_of(terms: RolloutTerms, *, is_first: bool, is_return: bool) -> tuple[Stage, ...]:
    """What a rollout passes through, in this order.

    Args:
        is_first: Nothing is accepted yet: there is nothing to compare with, and nobody to take traffic from.
        is_return: Back to a version that was accepted before.
    """
    if is_return:
        return (Stage.PREPARING, Stage.PROMOTING)
    stages = [Stage.PREPARING]
    if any(gate.metric.startswith(QUALITY_PREFIX) for gate in terms.gates):
        stages.append(Stage.ACCEPTANCE)
    if not is_first and terms.strategy != "recreate":
        if terms.mirror.percent and terms.strategy in ("canary", "shadow"):
            stages.append(Stage.MIRRORING)
        stages.append(Stage.STEPPING)
    return (*stages, Stage.PROMOTING)


class Result(StrEnum):
    """How a rollout ended; it ends once."""

    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"
    ABORTED = "aborted"
    SUPERSEDED = "superseded"


class Reason(StrEnum):
    """Why a rollout ended, or what it waits for."""

    # It ended because
    PASSED = "passed"
    OPERATOR = "operator"
    NEWER_VERSION = "newer_version"
    DOES_NOT_FIT = "does_not_fit"
    REPLICAS_FAILED = "replicas_failed"
    GATE_FAILED = "gate_failed"
    GATE_ERRORS = "gate_errors"
    UNDECIDED = "undecided"
    MAX_DURATION = "max_duration"
    # It waits for
    REPLICAS = "replicas"
    OLD_REPLICAS = "old_replicas"
    ACCEPTANCE_RUN = "acceptance_run"
    REQUESTS = "requests"
    SHARE = "share"
    TIME = "time"
    NEXT_CHECK = "next_check"
    EVIDENCE = "evidence"
    HELD = "held"
    PROMOTION = "promotion"


class Acceptance(msgspec.Struct, frozen=True):
    """What a run of an acceptance set found.

    Attributes:
        of: The rollout or rehearsal that it was run for.
        gate: The gate's metric, `quality:SET`.
        attempt: Which run of it, from 0: one that could not be made is repeated.
        candidate_share, accepted_share: Of the cases that were answered as they should be; None where not known.
        detail: For people.
    """

    of: str
    gate: str
    attempt: int
    verdict: Verdict
    candidate_share: float | None = None
    accepted_share: float | None = None
    detail: str = ""


class VersionSeen(msgspec.Struct, frozen=True):
    """What is seen of one version at this moment.

    Attributes:
        ready: Replicas that take requests.
        present: Replicas that exist in whatever stage, those that drain included.
        wished: Replicas that the autoscaler wishes for.
        failures: Failed starts in a row, of all its replicas together, and lives that ended soon.
        failure: The last of them, for people.
        is_hopeless: A replica of it has had more of them than `lifecycle.restarts_max` allows.
        slot_cost: What one of its slots costs in some time; 0 where nobody says.
        fresh: What it did since the last look.
    """

    ready: int = 0
    present: int = 0
    wished: int = 0
    failures: int = 0
    failure: str = ""
    is_hopeless: bool = False
    slot_cost: float = 0.0
    fresh: Sample = EMPTY


UNSEEN = VersionSeen()


class Seen(msgspec.Struct, frozen=True):
    """What is seen of a deployment at one moment.

    Attributes:
        versions: By number.
        refusal: Why the candidate can't run beside the accepted version, "" if it can: memory, budget.
        blind: Why nothing is known of what versions did since the last look, "" if it is.
        fresh_pairs: Mirrored requests that were compared since the last look.
        acceptance: Results of the runs that were wished for.
        wall_s: Unix seconds, for what is remembered with its date.
    """

    versions: dict[int, VersionSeen] = {}
    refusal: str = ""
    blind: str = ""
    fresh_pairs: Pairs = Pairs()
    acceptance: tuple[Acceptance, ...] = ()
    wall_s: float = 0.0

    def of(self, version: int | None) -> VersionSeen:
        return UNSEEN if version is None else self.versions.get(version, UNSEEN)


class Wanted(msgspec.Struct, frozen=True):
    """The version that somebody wants.

    Attributes:
        is_return: It is wanted back, now: if it was accepted once, no gate is asked.
        replicas_min, replicas_max: Bounds of its scale.
    """

    version: int
    terms: RolloutTerms
    is_return: bool = False
    replicas_min: int = 1
    replicas_max: int = 1


class Checked(msgspec.Struct, frozen=True):
    """One gate at one check.

    Attributes:
        is_dry: It is told, and decides nothing.
    """

    metric: str
    judgement: Judgement
    is_dry: bool = False


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout that is under way.

    Attributes:
        number: Counts the rollouts of this deployment.
        accepted: None for the first version of all.
        capacity: Replicas that the accepted version had as it began: so many it keeps until the end.
        age_s: Since it began. stage_s: in this stage or step. check_s: since the last check.
        is_open: The stage has what it needs, and its share of the traffic is in force.
        weight_ppm: The candidate's share that is in force, also while the next step is being prepared.
        looks: Checks of this stage for which more requests had ended than for the one before, `looked_at` of them.
        undecided: Checks that had enough requests, and neither passed nor failed.
        fails, errors: Of each gate: failed checks in this stage, and checks in a row that couldn't be made.
        candidate_did, accepted_did, pairs: Since the stage was opened, or the one before that, until the next one is.
        acceptance: Results so far. attempt: which run of the acceptance sets is the present one.
        checked: The last check.
        is_held: An operator said so.
        is_waved: An operator said that it may leave this stage, whatever its gates say.
        is_return: Back to a version that was accepted before, and is wanted now.
        waits_for: Why it stays where it is.
    """

    number: int
    candidate: int
    accepted: int | None
    terms: RolloutTerms
    stages: tuple[Stage, ...]
    capacity: int
    replicas_min: int
    replicas_max: int
    stage: Stage = Stage.PREPARING
    step: int = 0
    age_s: float = 0.0
    stage_s: float = 0.0
    check_s: float = 0.0
    is_open: bool = False
    weight_ppm: int = 0
    looks: int = 0
    looked_at: int = 0
    undecided: int = 0
    fails: dict[str, int] = {}
    errors: dict[str, int] = {}
    candidate_did: Sample = EMPTY
    accepted_did: Sample = EMPTY
    pairs: Pairs = Pairs()
    acceptance: tuple[Acceptance, ...] = ()
    attempt: int = 0
    checked: tuple[Checked, ...] = ()
    is_held: bool = False
    is_waved: bool = False
    is_return: bool = False
    waits_for: Reason = Reason.REPLICAS

    @property
    def mark(self) -> str:
        """What its acceptance runs are known by."""
        return f"rollout-{self.number}"

    @property
    def is_recreate(self) -> bool:
        """The old replicas end before the new ones start."""
        return self.terms.strategy == "recreate" and self.accepted is not None

    @property
    def is_between(self) -> bool:
        """It has a share of the traffic, and the next step or the promotion waits for replicas, or for an operator."""
        return not self.is_open and self.weight_ppm > 0

    @property
    def steps(self) -> tuple[Step, ...]:
        """Those of its strategy: `bluegreen` has one, to everything."""
        last = self.terms.steps[-1] if self.terms.steps else Step(100.0)
        match self.terms.strategy:
            case "bluegreen":
                return (Step(100.0, last.min_requests, last.min_s),)
            case "ab":
                return self.terms.steps[:1] or (Step(50.0),)
            case _:
                return self.terms.steps

    @property
    def share_ppm(self) -> int:
        """The most of the traffic that the candidate gets in its present stage, mirrored or real, or in what follows next."""
        if self.stage is Stage.PROMOTING or Stage.STEPPING not in self.stages:
            return WHOLE_PPM
        percent = self.steps[self.step].weight
        if self.stage is not Stage.STEPPING and Stage.MIRRORING in self.stages:
            percent = max(percent, self.terms.mirror.percent)
        return ppm(percent)

    def replicas_needed(self, seen: Seen) -> int:
        """Ready replicas of the candidate that its share takes, by what the accepted version has for everything."""
        whole = max(1, self.replicas_min, self.capacity, seen.of(self.accepted).wished)
        whole = max(1, min(whole, self.replicas_max))
        return max(1, -(-whole * self.share_ppm // WHOLE_PPM))


class Ended(msgspec.Struct, frozen=True):
    """A rollout that is over.

    Attributes:
        stage, step: Where it stood.
        detail: For people: the gate, the figures, the failure.
    """

    number: int
    candidate: int
    accepted: int | None
    result: Result
    reason: Reason
    stage: Stage
    step: int
    age_s: float
    detail: str = ""
    was_recreate: bool = False
    checked: tuple[Checked, ...] = ()


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    """A version that nobody is served by is started once more, to see that it could be gone back to.

    Attributes:
        number: Counts the rehearsals of this deployment.
        beside: Replicas of it that are kept ready anyway; the rehearsal starts one more.
        gates: Metrics of its acceptance sets.
        ready_s: From the launch to an answered canary request; None before.
    """

    number: int
    version: int
    accepted: int
    beside: int
    gates: tuple[str, ...]
    error_limit: int
    max_duration_s: float
    age_s: float = 0.0
    ready_s: float | None = None
    attempt: int = 0
    acceptance: tuple[Acceptance, ...] = ()

    @property
    def mark(self) -> str:
        """What its acceptance runs are known by."""
        return f"rehearsal-{self.number}"


class Rehearsed(msgspec.Struct, frozen=True):
    """What the last rehearsal showed.

    Attributes:
        at_s: Unix seconds.
        detail: For people, where it didn't pass.
    """

    version: int
    verdict: Verdict
    at_s: float
    ready_s: float | None
    acceptance: tuple[Acceptance, ...] = ()
    detail: str = ""


class RolloutState(msgspec.Struct, frozen=True, kw_only=True):
    """All that is kept of a deployment's rollouts.

    Attributes:
        accepted: The version that serves; None before the first was promoted.
        answered: The wanted version that was answered last: by a rollout, however it ended, or by nothing to do.
        previous: The version that was accepted before, while its replicas are kept ready; with how many, for how long,
            and for how long already.
        floor, floor_s: The accepted version has at least so many replicas for a while after a rollout, because what its
            autoscaler saw during the rollout was not all of the traffic.
        at_s: When this was last looked at; None while nothing in it takes time.
        proven: Versions that were accepted once, the newest last: those alone may come back without a gate.
        heard: Number of the last operator's word that was heard.
        count: Rollouts so far. rehearsals: of those too.
    """

    accepted: int | None = None
    answered: int | None = None
    previous: int | None = None
    previous_replicas: int = 0
    keep_s: float = 0.0
    kept_s: float = 0.0
    floor: int = 0
    floor_s: float = 0.0
    at_s: float | None = None
    proven: tuple[int, ...] = ()
    heard: int = 0
    count: int = 0
    rollout: Rollout | None = None
    ended: Ended | None = None
    rehearsals: int = 0
    rehearsal: Rehearsal | None = None
    rehearsed: Rehearsed | None = None


def ppm(percent: float) -> int:
    """A share in millionths."""
    return round(percent * WHOLE_PPM / 100.0)


class Arm(msgspec.Struct, frozen=True):
    """A version's share of a name's traffic."""

    version: int
    weight_ppm: int


class Mirror(msgspec.Struct, frozen=True):
    """A copy of that share of the requests goes to that version."""

    version: int
    share_ppm: int


class ReplicaBounds(msgspec.Struct, frozen=True):
    """How many replicas a version may have, whatever its autoscaler wishes for; `most` None sets no bound."""

    least: int = 0
    most: int | None = None

    def hold(self, replicas: int) -> int:
        """That number, within these bounds."""
        return max(self.least, replicas if self.most is None else min(replicas, self.most))


class AcceptanceRun(msgspec.Struct, frozen=True):
    """An acceptance set to be run: the same one is wished for until its result is seen.

    Attributes:
        of: The rollout or rehearsal that it is for; with the two others it is known by that.
        accepted: Whose answers it is compared with; None where nothing is accepted.
    """

    of: str
    gate: str
    attempt: int
    candidate: int
    accepted: int | None


class Wish(msgspec.Struct, frozen=True):
    """How everything should be now: a function of the state and of what is seen, so that saying it again changes nothing.

    Attributes:
        arms: The accepted version is the first; none while nothing may serve.
        is_sticky: A conversation stays with its version.
        is_experiment: Either version may take over from the other.
        replicas: By version; a version that isn't named should have none, whatever its autoscaler says.
    """

    arms: tuple[Arm, ...] = ()
    is_sticky: bool = False
    is_experiment: bool = False
    mirror: Mirror | None = None
    replicas: dict[int, ReplicaBounds] = {}
    acceptance: tuple[AcceptanceRun, ...] = ()

"""What did a drill show? Figures against bounds that were stated before, and what callers got and the operator was told."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from headrace.evidence.drill_load import Answer, Fate

Verdict = Literal["pass", "fail", "error"]


class Bounds(msgspec.Struct, frozen=True):
    """What a drill may show at most. Times are seconds from the fault.

    Attributes:
        callers_s: Until the last request was due that got no whole answer.
        recovered_s: Until everything is as it was before.
        failed, broken, refused: Requests; `lost` is always 0.
    """

    callers_s: float = 10.0
    recovered_s: float = 30.0
    failed: int = 0
    broken: int = 0
    refused: int = 0
    lost: int = 0


class Check(msgspec.Struct, frozen=True):
    """One figure and its bound; without a value it has never come."""

    what: str
    value: float | None
    at_most: float

    @property
    def is_met(self) -> bool:
        return self.value is not None and self.value <= self.at_most


class Line(msgspec.Struct, frozen=True):
    """What the operator was told, in seconds from the fault."""

    after_s: float
    event: str
    fields: dict[str, Any]


class Latency(msgspec.Struct, frozen=True):
    """Of whole answers, from when each was due to be sent."""

    p50_s: float
    p95_s: float
    max_s: float


class Requests(msgspec.Struct, frozen=True):
    """What callers got.

    Attributes:
        fates: How many ended how, `ok` among them.
        reasons: Of those that got no whole answer: how, and the service's reason.
    """

    sent: int
    fates: dict[str, int]
    reasons: dict[str, int]
    before: Latency | None
    after: Latency | None


class DrillReport(msgspec.Struct, frozen=True):
    """One drill.

    Attributes:
        simulated: What was really done, and what it stands for.
        detail: Why it failed, or couldn't be made.
        codes: Reasons that `headrace status` showed at replicas, with the seconds from the fault.
        terms: Rate of requests and what else the drill was run with.
    """

    drill: str
    question: str
    simulated: str
    verdict: Verdict
    detail: str
    checks: tuple[Check, ...] = ()
    requests: Requests | None = None
    told: tuple[Line, ...] = ()
    codes: dict[str, float] = {}
    terms: dict[str, Any] = {}
    machine: str = ""
    versions: dict[str, str] = {}
    command: str = ""
    began: str = ""
    took_s: float = 0.0


def requests(answers: Sequence[Answer], *, fault_s: float) -> Requests:
    fates = Counter(str(answer.fate) for answer in answers)
    reasons = Counter(f"{answer.fate} {answer.reason}" for answer in answers if answer.fate is not Fate.OK)
    return Requests(
        sent=len(answers),
        fates={str(fate): fates[fate] for fate in Fate},
        reasons=dict(reasons.most_common()),
        before=_latency([answer for answer in answers if answer.due_s < fault_s]),
        after=_latency([answer for answer in answers if answer.due_s >= fault_s]),
    )


def _latency(answers: Sequence[Answer]) -> Latency | None:
    took_s = sorted(answer.took_s for answer in answers if answer.fate is Fate.OK)
    if not took_s:
        return None
    p50_s, p95_s = (took_s[min(len(took_s) - 1, int(len(took_s) * share))] for share in (0.5, 0.95))
    return Latency(round(p50_s, 3), round(p95_s, 3), round(took_s[-1], 3))


def last_spoilt_s(answers: Sequence[Answer], *, fault_s: float) -> float:
    """From the fault until the last request was due that got no whole answer; 0 where each has got one, or was due before."""
    return max(
        (
            answer.due_s - fault_s
            for answer in answers
            if answer.fate is not Fate.OK and answer.due_s > fault_s
        ),
        default=0.0,
    )


def of_callers(counted: Requests, bounds: Bounds) -> list[Check]:
    """What each of the fates may come to."""
    most = {
        Fate.REFUSED: bounds.refused,
        Fate.FAILED: bounds.failed,
        Fate.BROKEN: bounds.broken,
        Fate.LOST: bounds.lost,
    }
    return [Check(f"requests {fate}", counted.fates[fate], at_most) for fate, at_most in most.items()]


def verdict(checks: Sequence[Check]) -> tuple[Verdict, str]:
    missed = [check for check in checks if not check.is_met]
    if not missed:
        return "pass", ""
    return "fail", "; ".join(
        f"{check.what}: {'never' if check.value is None else f'{check.value:g}'}, at most {check.at_most:g}"
        for check in missed
    )


def fields(line: Mapping[str, Any]) -> dict[str, Any]:
    """Of a line of the log, what isn't in the report anyway."""
    return {name: value for name, value in line.items() if name not in ("ts", "event")}

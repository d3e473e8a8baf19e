"""What is tried, and against what? The keys of an experiment file.

Field names are the file's keys, and defaults are the file's; docs/guides/experiments.md is the same for people.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec

from headrace.core.deployment_terms import Section
from headrace.core.workload import Name

Changes = dict[str, Any]
"""Keys of a deployment file, or of `[target]`, with what they are instead; tables within tables."""


class Measured(StrEnum):
    """What one repetition is summed up to, and judged by; docs/reference/load-report.md has each of them."""

    TTFT_P50 = "ttft_p50"
    TTFT_P95 = "ttft_p95"
    TPOT_P50 = "tpot_p50"
    TPOT_P95 = "tpot_p95"
    TOTAL_P50 = "total_p50"
    TOTAL_P95 = "total_p95"
    REQUESTS_PER_S = "requests_per_s"
    OUTPUT_TOKENS_PER_S = "output_tokens_per_s"

    @property
    def is_better_lower(self) -> bool:
        return self not in (Measured.REQUESTS_PER_S, Measured.OUTPUT_TOKENS_PER_S)


class Load(Section, frozen=True):
    """What each repetition asks.

    Attributes:
        workload: A file, from the experiment's folder, or the name of a workload that comes with headrace.
        rate_per_s, concurrency: Instead of the workload's own; the one or the other.
        duration_s: Of one repetition, with its warm-up.
        late_p99_ms: How late the generator may be before a repetition is void.
    """

    workload: str = "document-assistant"
    rate_per_s: Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None = None
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=4096)] | None = None
    duration_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 30.0
    warmup_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 5.0
    deadline_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 60.0
    late_p99_ms: Annotated[float, msgspec.Meta(gt=0, le=60_000)] = 50.0


class Primary(Section, frozen=True):
    """What decides, stated before there is an answer.

    Attributes:
        margin: The smallest change that matters, as a share of the baseline's.
        alpha: Chance, one-sided, that any of the experiment's verdicts is wrong.
    """

    metric: Measured
    margin: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.05
    alpha: Annotated[float, msgspec.Meta(gt=0, lt=0.5)] = 0.05


class Quality(Section, frozen=True):
    """The cases that a level must not answer worse than the baseline.

    Attributes:
        cases: A tuning set, as of `headrace eval --cases`.
        margin: How much smaller its share of right answers may be.
    """

    cases: str
    margin: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.05
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=256)] = 4


class Server(Section, frozen=True):
    """A server that others run, instead of a deployment; `key` names the secret, as env:NAME or file:PATH."""

    url: str
    model: str
    key: str = ""


class Experiment(Section, frozen=True):
    """The whole file. What is neither `deployment` nor `[target]` holds for all levels alike.

    Attributes:
        question: What is to be decided, in words.
        deployment: The baseline: a deployment file, from the experiment's folder.
        target: The baseline, where it is a server that runs.
        fixed: What is other than in that file for all alike, the baseline among them: `scale`, say.
        blocks: In each of them every level has one repetition.
        variables: By name, the levels of each, and what each changes of the baseline.
    """

    name: Name
    load: Load
    primary: Primary
    variables: dict[str, dict[str, Changes]]
    question: str = ""
    deployment: str = ""
    target: Server | None = None
    fixed: Changes = msgspec.field(default_factory=dict)
    quality: Quality | None = None
    blocks: Annotated[int, msgspec.Meta(ge=3, le=1000)] = 6
    seed: int = 1
    api: Literal["v1"] = "v1"


class Arm(msgspec.Struct, frozen=True):
    """The baseline, or one level of one variable, or the winners of several together.

    Attributes:
        name: `baseline`, `VARIABLE=LEVEL`, or several of those with ` + ` between.
    """

    name: str
    variable: str = ""
    level: str = ""
    changes: tuple[Changes, ...] = ()


BASELINE = Arm("baseline")


class Repetition(msgspec.Struct, frozen=True, kw_only=True):
    """One arm in one block, done.

    Attributes:
        figures: By metric; None where it has none, as of no whole answer.
        outcomes: Of the intended requests.
        void: Why it says nothing.
        marks: Of the cases, by their id.
        revisions: What answered.
    """

    arm: str
    block: int
    figures: dict[str, float | None]
    outcomes: dict[str, int]
    void: tuple[str, ...] = ()
    marks: dict[str, str] = {}
    revisions: tuple[str, ...] = ()
    began_s: float = 0.0
    took_s: float = 0.0

    @property
    def unsuccessful(self) -> int:
        """Intended requests without a whole answer in time; who was cancelled as planned isn't one."""
        return self.intended - self.outcomes.get("ok", 0)

    @property
    def intended(self) -> int:
        return sum(self.outcomes.values()) - self.outcomes.get("cancelled", 0)

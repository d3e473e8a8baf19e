"""What is promised of a deployment's service? The sections of a file in `slos/`.

Field names are the file's keys, and defaults are the file's; docs/reference/slo-file.md is the same for people. What keeps a
promise and what breaks it, policies.slo says.
"""

from enum import StrEnum
from typing import Annotated, Literal

import msgspec

from headrace.core import money
from headrace.core.deployment_terms import Section
from headrace.core.usage import TOKENS_MAX

Tokens = Annotated[int, msgspec.Meta(ge=1, le=TOKENS_MAX)]


SHARE_MAX = 0.999999999
"""What is promised more surely than that leaves no miss that could be counted, as `miss_share_max` is rounded."""


class Metric(StrEnum):
    """What a bound is put on, of each request.

    TTFT: from the moment it was due to the first of its answer, queueing included.
    ITL: the longest pause between two events of its stream.
    TPOT: the time after the first of its answer, for each output token but the first.
    TOTAL: from the moment it was due to the end of its answer.
    """

    TTFT = "ttft"
    ITL = "itl"
    TPOT = "tpot"
    TOTAL = "total"


class Objective(Section, frozen=True):
    """One promise about time: at least `share` of the requests are within the bound."""

    metric: Metric
    within_ms: Annotated[float, msgspec.Meta(gt=0, le=86_400_000)]
    share: Annotated[float, msgspec.Meta(gt=0, le=SHARE_MAX)]

    @property
    def within_s(self) -> float:
        return self.within_ms / 1000

    @property
    def miss_share_max(self) -> float:
        """How many may miss it. Rounded, since 1 - 0.9 is a little below 0.1 in binary."""
        return round(1 - self.share, 9)

    @property
    def name(self) -> str:
        """What tables and alerts call it: `ttft 2000 ms`."""
        return f"{self.metric} {self.within_ms:g} ms"


class LoadLimits(Section, frozen=True):
    """The load up to which all of it holds; None is no limit.

    Attributes:
        requests_per_s_max: That arrive, all callers together.
        concurrency_max: That are there at once, waiting or at work.
        input_tokens_max, output_tokens_max: Of one request. A larger one is nobody's broken promise.
    """

    requests_per_s_max: Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None = None
    concurrency_max: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    input_tokens_max: Tokens | None = None
    output_tokens_max: Tokens | None = None


class CostTerms(Section, frozen=True):
    """What a qualified result may cost us: whole, within every bound, and as good as the quality floor asks.

    Attributes:
        currency: ISO 4217.
        per_qualified_result_max: An exact decimal; "" sets no bound.
    """

    currency: str = "USD"
    per_qualified_result_max: str = ""

    @property
    def max_pico(self) -> int | None:
        """Pico-units of the currency."""
        return money.parse_amount(self.per_qualified_result_max) if self.per_qualified_result_max else None


class Slo(Section, frozen=True):
    """The whole file.

    Attributes:
        deployment: Whose service it is about, by the name that callers use.
        window_days: Over which the error budget counts.
        failure_share_max: Share of the requests that may be refused, fail, break, or come after their deadline, by our fault.
        objectives: Each has its own share; a request that got no whole answer is within none of them.
    """

    deployment: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}\Z")]
    window_days: Annotated[float, msgspec.Meta(gt=0, le=366)] = 28.0
    failure_share_max: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None
    objectives: tuple[Objective, ...] = ()
    load: LoadLimits = LoadLimits()
    cost: CostTerms = CostTerms()
    about: str = ""
    api: Literal["v1"] = "v1"

    @property
    def window_s(self) -> float:
        return self.window_days * 86_400

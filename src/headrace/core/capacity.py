"""What can one replica do? The record of a measurement: a model, its runtime and the hardware, and what they did at each load."""

from enum import StrEnum

import msgspec

from headrace.core.verdicts import Interval, Judgement

NOTHING = Interval(None, None, None)


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """What it ran on.

    Attributes:
        memory_bytes: That this process may use, of the machine or its container.
        gpus: Name of each device.
    """

    cpu: str
    cores: int
    memory_bytes: int
    gpus: tuple[str, ...] = ()


class Quantiles(msgspec.Struct, frozen=True):
    """A duration in seconds; a quantile that so few samples can't bear has no bounds, and none at all of no sample."""

    p50: Interval = NOTHING
    p95: Interval = NOTHING
    p99: Interval = NOTHING
    samples: int = 0


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """What it did under one load, ramp-up and drain left out.

    Attributes:
        shape: Which lengths were asked: `short-short`, input first.
        concurrency: Callers of the closed loop; 0 of an open one, which has `rate_per_s`.
        is_held_out: No pace was fitted to it; it is there to try the pace on.
        window_s: How long was counted.
        input_tokens, output_tokens: Of a request, on average, as the server counted them.
        cached_share: Of the input tokens.
        in_flight: At once, on average: the time of all requests over the window's (Little's law).
        outcomes: Requests that were due in the window, by how they ended.
        throughput: Completed requests per second, with bounds.
        output_tokens_per_s: Of completed ones.
        quality_right, quality_asked: Of the cases that were asked beside the load; 0 where none were.
        memory_bytes: Most that the engine's processes had at once.
    """

    shape: str
    concurrency: int
    rate_per_s: float | None = None
    is_held_out: bool = False
    window_s: float
    input_tokens: float
    output_tokens: float
    cached_share: float = 0.0
    in_flight: float
    outcomes: dict[str, int]
    throughput: Interval
    output_tokens_per_s: float
    ttft: Quantiles = Quantiles()
    itl: Quantiles = Quantiles()
    tpot: Quantiles = Quantiles()
    total: Quantiles = Quantiles()
    quality_right: int = 0
    quality_asked: int = 0
    memory_bytes: int = 0

    @property
    def requests_per_s(self) -> float:
        return self.throughput.estimate or 0.0

    @property
    def completed(self) -> int:
        return self.outcomes.get("ok", 0)

    @property
    def failed(self) -> int:
        """All that was asked of it and not answered whole; who was cancelled as planned isn't one of them."""
        return sum(self.outcomes.values()) - self.completed - self.outcomes.get("cancelled", 0)


class Bound(StrEnum):
    """What showed that more load would bring no more.

    THROUGHPUT: more callers, and not more results. LATENCY: a bound of the SLO is passed. FAILURES: requests are refused, or fail.
    NONE: nothing did, before the sweep ended: the figures are what it can do at least.
    """

    THROUGHPUT = "throughput"
    LATENCY = "latency"
    FAILURES = "failures"
    NONE = "none"


class Saturation(msgspec.Struct, frozen=True, kw_only=True):
    """Where more load brings no more, of one shape.

    Attributes:
        concurrency: The fewest callers with which it does about all that it can.
        requests_per_s, output_tokens_per_s: What it does then, with bounds.
        service_s: How long a request takes there.
        confirmed_rate_per_s: Highest rate of an open loop that it kept up with; None where none was tried.
    """

    shape: str
    bound: Bound
    concurrency: int
    requests_per_s: Interval
    output_tokens_per_s: Interval
    service_s: float
    confirmed_rate_per_s: float | None = None

    @property
    def is_proven(self) -> bool:
        return self.bound is not Bound.NONE


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How fast it works, fitted by least squares, for whoever simulates it.

    time to the first token = overhead + uncached input tokens / prefill_tokens_per_s
    time of one step        = step_s + step_per_active_s x requests that are being answered

    Attributes:
        prefill_tokens_per_s: 0 where it takes no time that could be measured.
        errors: By metric (`ttft`, `tpot`, `total`, `requests_per_s`): root of the mean square of fitted over measured, less 1.
        held_out_errors: Likewise, of levels that the fit hasn't seen; positive where it says more than was measured.
    """

    overhead_s: float
    prefill_tokens_per_s: float
    step_s: float
    step_per_active_s: float
    errors: dict[str, float] = {}
    held_out_errors: dict[str, float] = {}


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine's processes had, beside what was planned.

    Attributes:
        planned: Bytes by part: weights, KV cache, workspace, process.
        slope_bytes_per_s: At constant load, with bounds: a drift is shown where both are above 0. None where it was not held long
            enough to tell a start from a drift.
        held_s: How long that load was held.
    """

    planned: dict[str, int] = {}
    idle_bytes: int = 0
    peak_bytes: int = 0
    slope_bytes_per_s: Interval = NOTHING
    held_s: float = 0.0
    samples: int = 0

    @property
    def planned_bytes(self) -> int:
        return sum(self.planned.values())


class QualityUnderLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The same cases at rest and beside the load of the knee, case by case.

    Attributes:
        cases: That were asked both times.
        idle_right, loaded_right: Of them.
        idle_only, loaded_only: Right at that time alone; what they share says nothing of the load.
        idle_errors, loaded_errors: That got no answer.
        judgement: Whether they are not worse under load by more than was agreed, as pairs.
    """

    cases: int
    idle_right: int
    loaded_right: int
    idle_only: int
    loaded_only: int
    idle_errors: int
    loaded_errors: int
    judgement: Judgement


class CapacityRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of one replica, kept by model, runtime and hardware.

    Attributes:
        model: As callers name it.
        digest: Of the revision; "" where the server says none.
        runtime: Software and its version.
        flags: What the engine was started with, as it was applied.
        saturation: One for each shape.
        quality: None where no cases were asked, or no load was found to ask them beside.
        measured_s: Unix seconds of its end.
        command: That repeats it.
    """

    model: str
    digest: str
    runtime: str
    hardware: Hardware
    flags: dict[str, str] = {}
    slots: int
    levels: tuple[Level, ...]
    saturation: tuple[Saturation, ...]
    pace: Pace | None = None
    memory: MemoryUse = MemoryUse()
    quality: QualityUnderLoad | None = None
    measured_s: float
    took_s: float
    command: str = ""
    seed: int = 1
    workload: str = ""
    version: str = ""

    @property
    def requests_per_s(self) -> float:
        """Of the main lengths, which are the first; 0 where nothing was found."""
        return self.saturation[0].requests_per_s.estimate or 0.0 if self.saturation else 0.0

"""How is a deployment run? The sections of its file about shape, promises, scale, money, life and rollout.

Field names are the file's keys, and defaults are the file's. What is run stands in core.deployments.
"""

from typing import Annotated, Literal

import msgspec

from headrace.core import money

Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=31_536_000)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=86_400_000)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]
Factor = Annotated[float, msgspec.Meta(ge=0, le=1000)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the file: immutable, and strict about its keys."""


# What it runs on, and what is promised


class ShapeTerms(Section, frozen=True):
    """What one replica runs on.

    Attributes:
        gpus: Devices of one replica.
        memory_mib: What one replica may use of the machine's memory; 0 takes what the memory plan says.
        headroom: Share of the machine's memory that the plan leaves alone.
    """

    kind: Literal["single", "tp", "multinode", "serverless", "edge"] = "single"
    gpus: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0
    backend: Literal["local", "ray", "k8s"] = "local"
    memory_mib: Count = 0
    headroom: Share = 0.1


class SloTerms(Section, frozen=True):
    """What is promised of this deployment; None promises nothing.

    Attributes:
        ttft_p95_ms: To the first token, queueing included.
        tpot_p95_ms: Per output token after the first.
        error_rate: Share of requests that may fail by our fault.
    """

    ttft_p95_ms: Milliseconds | None = None
    tpot_p95_ms: Milliseconds | None = None
    error_rate: Share | None = None


# How many


class TargetTerms(Section, frozen=True):
    """What one replica should have; each that is given is a signal, and the largest proposal counts. 0 is not given.

    Attributes:
        inflight: Requests in progress and waiting. Where no target is given at all, slots are filled but for some to spare.
        requests_per_s: Arrivals.
        queue_wait_s: Time that a request waits before its work begins.
        kv: Share of the KV cache that is in use.
        gpu: Share of time that the GPU is busy.
        uncached_tokens_per_s: Prompt tokens that no cache had.
        slo: Share of the latencies in [slo] above which replicas are added, such as 0.9.
    """

    inflight: Factor = 0.0
    requests_per_s: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    queue_wait_s: Seconds = 0.0
    kv: Share = 0.0
    gpu: Share = 0.0
    uncached_tokens_per_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    slo: Share = 0.0


class PanicTerms(Section, frozen=True):
    """When a burst is answered at once: load over the short window is `ratio` times what is there."""

    window_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 6.0
    ratio: Annotated[float, msgspec.Meta(gt=1, le=100)] = 2.0


class UpTerms(Section, frozen=True):
    """How it grows: after the load has asked for it that long, to at most that many times what is there."""

    delay_s: Seconds = 0.0
    max_factor: Annotated[float, msgspec.Meta(gt=1, le=1000)] = 2.0


class DownTerms(Section, frozen=True):
    """How it shrinks.

    Attributes:
        delay_s: The load has asked for less that long; at least `scale.window_s`.
        max_step: Replicas removed at once; then a window passes.
        margin: The highest load of that delay must be below this share of what would be left.
    """

    delay_s: Seconds = 300.0
    max_step: Positive = 2
    margin: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9


class ScaleTerms(Section, frozen=True):
    """How many replicas.

    Attributes:
        min, max: Bounds. `min = 0` needs `idle_to_zero_s`.
        warm: Replicas beyond what the load needs, kept ready.
        mode: "advise" decides and tells, and changes nothing.
        window_s: Over which load is averaged.
        tolerance: A proposal this close to what is there changes nothing.
        idle_to_zero_s: Without a request for that long the last replica ends too; 0 is never.
        waiting_room_max: Requests that may wait for the first replica while there is none.
        predict: "auto" chooses by replay of the deployment's own history.
        max_age_h: Replicas older than this are replaced, drained; 0 is never.
    """

    min: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 1
    max: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    warm: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    mode: Literal["act", "advise"] = "act"
    target: TargetTerms = TargetTerms()
    window_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 60.0
    tolerance: Share = 0.1
    panic: PanicTerms = PanicTerms()
    up: UpTerms = UpTerms()
    down: DownTerms = DownTerms()
    idle_to_zero_s: Seconds = 0.0
    waiting_room_max: Count = 64
    predict: Literal["off", "auto", "constant", "kalman"] = "off"
    max_age_h: Annotated[float, msgspec.Meta(ge=0, le=100_000)] = 0.0


class BudgetTerms(Section, frozen=True):
    """What its replicas may cost. Amounts are exact decimals.

    Attributes:
        currency: ISO 4217.
        replica_hour: Cost of one replica for an hour; "0" where nobody counts it.
        per_day: Most that a UTC day may cost; "0" sets no bound.
        on_exceed: "freeze_up" adds no more replicas, "shrink_to_min" goes back to `scale.min`, "stop" ends all.
    """

    currency: str = "USD"
    replica_hour: str = "0"
    per_day: str = "0"
    on_exceed: Literal["freeze_up", "shrink_to_min", "stop"] = "freeze_up"

    @property
    def replica_hour_pico(self) -> int:
        """Pico-units of the currency."""
        return money.parse_amount(self.replica_hour)

    @property
    def per_day_pico(self) -> int:
        """Pico-units of the currency; 0 for no bound."""
        return money.parse_amount(self.per_day)


# The life of a replica


class ReadyTerms(Section, frozen=True):
    """The request that a replica must answer before it gets any other: readiness is an answer, not an open port.

    Attributes:
        expect: The answer must contain this; "" takes any that is one.
    """

    prompt: str = "ping"
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 1
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 60.0
    expect: str = ""


class LifecycleTerms(Section, frozen=True):
    """How long each stage of a replica's life may take.

    Attributes:
        fetch_timeout_s, start_timeout_s: For all of fetching, and of starting.
        fetch_stall_s, start_stall_s: Without progress, however much of the time is left.
        drain_s: How long requests in progress may go on at a replica that gets no more. It ends with the last of them.
        may_cut_requests: Says so where `drain_s` is shorter than the longest deadline that a request may have.
        stop_grace_s: Between SIGTERM and SIGKILL.
        slow_start_s: How long a new replica takes to its full share.
        restarts_max: Failed starts in a row; then the replica's version is crash-looping, which stops its rollout.
    """

    fetch_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=604_800)] = 1800.0
    fetch_stall_s: Annotated[float, msgspec.Meta(gt=0, le=604_800)] = 120.0
    start_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=604_800)] = 1800.0
    start_stall_s: Annotated[float, msgspec.Meta(gt=0, le=604_800)] = 300.0
    ready: ReadyTerms = ReadyTerms()
    drain_s: Seconds = 3600.0
    may_cut_requests: bool = False
    stop_grace_s: Seconds = 15.0
    slow_start_s: Seconds = 10.0
    restarts_max: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 5


# From one version to the next


class Step(Section, frozen=True):
    """One step of a rollout.

    Attributes:
        weight: Percent of the traffic that the candidate gets.
        min_requests: Requests that it must have ended before anything is judged; time alone proves nothing. 0 asks for no
            judgement.
        min_s: Time that the step takes at least.
    """

    weight: Annotated[float, msgspec.Meta(gt=0, le=100)]
    min_requests: Count = 50
    min_s: Seconds = 0.0


class Gate(Section, frozen=True):
    """One condition that a candidate must meet. At least one bound is given.

    Attributes:
        metric: "failure_rate", "ttft_p95", "itl_p95", "total_p95" or another quantile, "cost_per_request", "cost_per_qualified_result",
            "agreement" (of mirrored answers), or "quality:SET" with an acceptance set.
        compare: "control" with the accepted version during the same time, "absolute" with the bounds alone.
        max_ratio, max_delta, min_delta: Against the accepted version: at most that many times, above, below it.
        max, min: Bounds of the metric itself; latencies in seconds.
        confidence: With which the statistics must be sure before they say pass or fail.
        dry_run: Judged and told, and decides nothing.
    """

    metric: str
    compare: Literal["control", "absolute"] = "control"
    max_ratio: Annotated[float, msgspec.Meta(gt=0, le=1000)] | None = None
    max_delta: float | None = None
    min_delta: float | None = None
    max: float | None = None
    min: float | None = None
    confidence: Annotated[float, msgspec.Meta(ge=0.5, lt=1)] = 0.95
    dry_run: bool = False


class MirrorTerms(Section, frozen=True):
    """Shadow traffic before the first step: a copy of requests goes to the candidate, and no caller sees its answers.

    Attributes:
        percent: Of the requests; 0 mirrors none.
        min_requests: Mirrored pairs that must have ended.
    """

    percent: Percent = 0.0
    min_requests: Count = 50


class RolloutTerms(Section, frozen=True):
    """How a version takes over from the accepted one.

    Attributes:
        strategy: "canary" by steps; "bluegreen" all at once, when the new one is ready at full size; "shadow" mirrors and
            then waits for `rollout promote`; "recreate" ends the old one first, where both don't fit; "ab" stays at its
            first step until somebody decides.
        sticky: "conversation" keeps a conversation with the version that it began with.
        interval_s: Between two checks.
        fail_limit, error_limit: Failed checks, and checks that could not be made, until it is rolled back.
        inconclusive: What is done when a check says nothing at the end of its time.
        max_duration_s: For the whole rollout; then it is rolled back.
        keep_previous_s: How long replicas of the previous version stay ready after the promotion.
        gate: `[[rollout.gate]]`; none given means `DEFAULT_GATES`.
    """

    strategy: Literal["canary", "bluegreen", "shadow", "recreate", "ab"] = "canary"
    steps: tuple[Step, ...] = (Step(5.0, 50), Step(25.0, 100), Step(50.0, 200))
    sticky: Literal["conversation", "none"] = "conversation"
    mirror: MirrorTerms = MirrorTerms()
    interval_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 60.0
    fail_limit: Positive = 2
    error_limit: Positive = 4
    inconclusive: Literal["hold", "rollback", "promote"] = "hold"
    max_duration_s: Annotated[float, msgspec.Meta(gt=0, le=31_536_000)] = 7200.0
    keep_previous_s: Seconds = 3600.0
    gate: tuple[Gate, ...] = ()

    @property
    def gates(self) -> tuple[Gate, ...]:
        """Those that hold."""
        return self.gate or DEFAULT_GATES


DEFAULT_GATES = (Gate("failure_rate", max_delta=0.01), Gate("ttft_p95", max_ratio=1.5))
"""Without any of its own, a rollout stops where more fails, or the first token comes clearly later."""

"""What is planned for? The sections of a file in `capacity/`: load, promise, one replica, spare, and what things cost.

Field names are the file's keys, and defaults are the file's; docs/reference/capacity-file.md is the same for people. Amounts of
money are exact decimals in quotes.
"""

from typing import Annotated, Literal

import msgspec

from headrace.core.deployment_terms import Count, Positive, Seconds, Section, Share

Rate = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
Above = Annotated[float, msgspec.Meta(gt=0, le=1e12)]
Ratio = Annotated[float, msgspec.Meta(ge=0, le=1000)]
Proper = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class LoadTerms(Section, frozen=True):
    """What comes.

    Attributes:
        rate_per_s: In the mean.
        peak: The busiest hour, as a multiple of that; quiet: the quietest ones.
        burstiness: Of the arrivals: 1 is Poisson, 3 bursty.
        input_tokens, output_tokens: Of a request in the mean; 0 where only times are known.
        spread: Standard deviation of both over their means.
    """

    rate_per_s: Rate
    peak: Annotated[float, msgspec.Meta(ge=1, le=1000)] = 1.5
    quiet: Share = 0.2
    burstiness: Annotated[float, msgspec.Meta(ge=0.1, le=100)] = 1.0
    input_tokens: Count = 0
    output_tokens: Count = 0
    spread: Annotated[float, msgspec.Meta(ge=0, le=5)] = 1.0


class PromiseTerms(Section, frozen=True):
    """What `share` of the requests must be within, all bounds together.

    Attributes:
        slo: Or a file in `slos/`, by its name: its objectives take the place of everything here.
    """

    slo: str = ""
    share: Proper = 0.99
    ttft_s: Seconds | None = None
    tpot_s: Seconds | None = None
    total_s: Seconds | None = None


class ArchitectureTerms(Section, frozen=True):
    """What is published of a model's architecture; policies.memory_plan.Architecture says what each key is."""

    layers: Positive
    kv_heads: Positive
    head_size: Positive
    embedding: Positive
    feed_forward: Positive
    vocabulary: Positive
    value_size: Count = 0
    latent_size: Count = 0
    position_size: Count = 0
    window_tokens: Count = 0
    windowed_layers: Count = 0


class MemoryTerms(Section, frozen=True):
    """What a replica's memory holds, from which follows how many requests it can run at once.

    Attributes:
        device_mib: Memory of one device.
        devices: Of one replica, between which weights and cache are split.
        used_share: Of a device's memory that the engine may use.
        reserved_mib: Of each device, what the engine and one step's computing take; None as the memory plan has it.
        model: Weights that are here, by their name or their path; in a choice, "" and no `architecture` means as of the first.
        parameters: Of the model; 0 as its files say.
        weights_bits: Of one parameter; 0 for weights as large as their files.
        batch_tokens: Of one step.
        context_tokens: That each request reserves, as the embedded engine does; 0 for an engine that pages, where a request
            has what it needs.
    """

    device_mib: Positive
    devices: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 1
    used_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9
    reserved_mib: Count | None = None
    model: str = ""
    architecture: ArchitectureTerms | None = None
    parameters: Annotated[float, msgspec.Meta(ge=0, le=1e14)] = 0.0
    weights_bits: Annotated[float, msgspec.Meta(ge=0, le=64)] = 0.0
    kv_cache_type: str = "f16"
    batch_tokens: Positive = 2048
    context_tokens: Count = 0


class ReplicaTerms(Section, frozen=True):
    """One replica, by figures that somebody published; a capacity record takes their place.

    Attributes:
        source: Where the figures are from, with a date.
        at_once: Requests that it runs and still serves well, at most; 0 for what `memory` and the promise allow.
        time_s: What a request takes then, as `time_share` of them do, or all in the mean where that is 0.
        time_spread: Standard deviation of the times over their mean.
        prefill_tokens_per_s, step_s, step_per_active_s: Its pace; 0 where only times are known.
        start_s: Until another one answers.
    """

    at_once: Count = 0
    source: str = ""
    time_s: Seconds = 0.0
    time_share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    time_spread: Annotated[float, msgspec.Meta(ge=0, le=5)] = 0.5
    overhead_s: Seconds = 0.0
    prefill_tokens_per_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    step_s: Seconds = 0.0
    step_per_active_s: Seconds = 0.0
    start_s: Seconds = 60.0
    memory: MemoryTerms | None = None


class SpareTerms(Section, frozen=True):
    """What is kept beyond what carries the load.

    Attributes:
        share: Of it.
        losses: Replicas that may be lost while the promise holds.
    """

    share: Ratio = 0.3
    losses: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 1


class CostTerms(Section, frozen=True):
    """What things cost, on that day; amounts in quotes.

    Attributes:
        replica_hour: Hardware of one replica, whether it works or not.
        storage_month, monitoring_month, operations_month: Of the whole service.
        network_gb: Of what goes out; `bytes_per_token` go out for each output token.
        completed, within, accepted: Shares of attempts that end whole, of those within the promise, of those that the quality
            check accepts. What isn't is paid for all the same.
        attempts: Per request; what is above 1 is tried again.
        price_input_mtok, price_output_mtok: What a million tokens is sold for; "" where nothing is.
    """

    date: str
    currency: str = "USD"
    replica_hour: str = "0"
    storage_month: str = "0"
    monitoring_month: str = "0"
    operations_month: str = "0"
    network_gb: str = "0"
    bytes_per_token: Ratio = 200.0
    completed: Share = 1.0
    within: Share = 0.99
    accepted: Share = 1.0
    attempts: Annotated[float, msgspec.Meta(ge=1, le=100)] = 1.0
    price_input_mtok: str = ""
    price_output_mtok: str = ""


class Choice(Section, frozen=True):
    """Another way to carry the same load: a smaller model, a quantised one, several devices for each replica.

    Attributes:
        hour: What a replica of it costs; "" as much as the first.
    """

    name: str
    replica: ReplicaTerms
    hour: str = ""
    accepted: Share | None = None


class CapacityPlan(Section, frozen=True):
    """The whole file."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}\Z")]
    load: LoadTerms
    replica: ReplicaTerms
    promise: PromiseTerms = PromiseTerms()
    spare: SpareTerms = SpareTerms()
    costs: CostTerms | None = None
    choices: tuple[Choice, ...] = ()
    about: str = ""
    seed: int = 1
    api: Literal["v1"] = "v1"

"""What work does a service get? A workload file's sections: how requests arrive, how long they are, and what they have in common.

Field names are the file's keys, and defaults are the file's; docs/reference/workload-file.md is the same for people. Which
requests a workload makes, policies.workload_plan says.
"""

import hashlib
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple

import msgspec

from headrace.core.deployment_terms import Count, Positive, Seconds, Section, Share
from headrace.core.usage import TOKENS_MAX

Rate = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
Tokens = Annotated[int, msgspec.Meta(ge=0, le=TOKENS_MAX)]
Length = Annotated[int, msgspec.Meta(ge=1, le=TOKENS_MAX)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}\Z")]


# How long


class LengthKind(StrEnum):
    """CONSTANT: always `value`. UNIFORM: anything from `minimum` to `maximum`. LOGNORMAL: by `median` and `sigma`. EMPIRICAL: as
    `quantiles` say."""

    CONSTANT = "constant"
    UNIFORM = "uniform"
    LOGNORMAL = "lognormal"
    EMPIRICAL = "empirical"


class Lengths(Section, frozen=True):
    """How numbers of tokens, or of turns, are distributed. What is drawn below `minimum` or above `maximum` is that bound.

    Attributes:
        value: The one length of CONSTANT.
        median: Half of all are shorter; its logarithm is the distribution's mu.
        sigma: Standard deviation of the logarithm.
        quantiles: At shares from 0 to 1 in equal steps, rising; what lies between two of them is between them.
    """

    kind: LengthKind
    value: Length | None = None
    median: Annotated[float, msgspec.Meta(ge=1, le=TOKENS_MAX)] | None = None
    sigma: Annotated[float, msgspec.Meta(ge=0, le=5)] | None = None
    quantiles: Annotated[tuple[Length, ...], msgspec.Meta(max_length=1001)] = ()
    minimum: Length = 1
    maximum: Length = 1_000_000


def constant(value: int) -> Lengths:
    return Lengths(LengthKind.CONSTANT, value=value)


# When

SPAN_MIN_S = 0.1
"""A rate that changes faster than that is one that no service could tell from its mean, and takes for ever to plan."""


class ArrivalKind(StrEnum):
    """POISSON: independent of each other. GAMMA: in bursts, by `burstiness`. CONSTANT: at equal distances. DIURNAL: by the
    hour of a day. RAMP: more and more. TRACE: when a file says. CLOSED: each caller asks again when it was answered."""

    POISSON = "poisson"
    GAMMA = "gamma"
    CONSTANT = "constant"
    DIURNAL = "diurnal"
    RAMP = "ramp"
    TRACE = "trace"
    CLOSED = "closed"


class Arrivals(Section, frozen=True):
    """When requests are due.

    Attributes:
        rate_per_s: Requests, all turns of a conversation counted: the mean of a DIURNAL period, the start of a RAMP, what the
            mean of a TRACE is brought to (None leaves it as it was).
        burstiness: Standard deviation of the gaps between arrivals over their mean: 1 is Poisson, 3 bursty, 13 extreme.
        swing: How far the rate goes above and below its mean, as a share of it; lowest at the start.
        modulation: Standard deviation of the rate over its mean, which a slow change of it makes; each level holds for
            modulation_s.
        busy_s, idle_s: Periods that follow each other; in the second kind the rate is `idle_share` of what it is in the first.
        concurrency: Callers of CLOSED; each thinks for `think_s` on average between an answer and its next request.
        file: The trace, from the workload's folder.
        sha256: What its bytes must be; "" takes what is there.
    """

    kind: ArrivalKind
    rate_per_s: Rate | None = None
    burstiness: Annotated[float, msgspec.Meta(ge=0.1, le=100)] = 1.0
    rate_end_per_s: Rate | None = None
    ramp_s: Seconds | None = None
    period_s: Seconds = 86400.0
    swing: Share = 0.5
    modulation: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.0
    modulation_s: Seconds = 60.0
    busy_s: Seconds | None = None
    idle_s: Seconds | None = None
    idle_share: Share = 0.0
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None
    think_s: Seconds = 0.0
    file: str = ""
    sha256: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""


class Arrived(NamedTuple):
    """One request of a trace; None is what the trace doesn't say.

    Attributes:
        at_s: From the first request.
        blocks: What its prompt consists of, in pieces of BLOCK_TOKENS; an equal number is an equal text in an equal place.
        conversation: Whose turn it is; "" where there is but one.
        cancel_after_s: When its caller left, from its arrival.
    """

    at_s: float
    input_tokens: int | None = None
    output_tokens: int | None = None
    blocks: tuple[int, ...] = ()
    conversation: str = ""
    is_streamed: bool | None = None
    cached_tokens: int | None = None
    cancel_after_s: float | None = None


BLOCK_TOKENS = 512
"""Of a trace's blocks, as of Mooncake's."""


# What they have in common


class Prefixes(Section, frozen=True):
    """What prompts begin with. A prompt that is shorter than its prefix has the beginning of it.

    Attributes:
        system_tokens: What all prompts begin with.
        groups: So many texts, such as documents, are asked about again and again; after the common beginning comes one of them.
        share: Of the conversations, how many are about one of them.
        tokens: Length of each of them.
        skew: How much more often the first are asked about: the n-th is chosen in proportion to n ** -skew.
    """

    system_tokens: Tokens = 0
    groups: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    share: Share = 1.0
    tokens: Lengths | None = None
    skew: Annotated[float, msgspec.Meta(ge=0, le=5)] = 0.0


class Turns(Section, frozen=True):
    """How conversations go on.

    Attributes:
        count: Requests of one conversation; it ends early where its prompt would be longer than `input_tokens.maximum`.
        gap_s: From one turn to the next, on average.
        tokens: What the caller adds with each turn after the first.
    """

    count: Lengths = constant(1)
    gap_s: Seconds = 10.0
    tokens: Lengths = constant(50)


class Cancel(Section, frozen=True):
    """Callers who leave before the end.

    Attributes:
        share: Of all requests.
        after_s, after_tokens: When they leave, on average; the one or the other.
    """

    share: Share = 0.0
    after_s: Seconds | None = None
    after_tokens: Length | None = None


class Workload(Section, frozen=True):
    """The whole file.

    Attributes:
        input_tokens: Of the first prompt of a conversation, with all that it shares.
        output_tokens: Of an answer.
        stream_share: Of the answers that come as a stream.
        deadline_s: After which an answer is of no use to its caller; None waits.
        duration_s, requests_max: How long it goes on; None leaves that to whoever uses it.
        seed: What is drawn is the same again from the same one.
    """

    name: Name
    arrivals: Arrivals
    input_tokens: Lengths | None = None
    output_tokens: Lengths | None = None
    prefixes: Prefixes = Prefixes()
    turns: Turns = Turns()
    cancel: Cancel = Cancel()
    stream_share: Share = 1.0
    deadline_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] | None = None
    duration_s: Annotated[float, msgspec.Meta(gt=0, le=31_536_000)] | None = None
    requests_max: Positive | None = None
    seed: Count = 1
    about: str = ""
    api: Literal["v1"] = "v1"

    @property
    def digest(self) -> str:
        """Of all that decides which requests there are; not of where its trace lies, nor of what is said about it."""
        arrivals = msgspec.structs.replace(self.arrivals, file="")
        said = msgspec.structs.replace(self, arrivals=arrivals, name="", about="")
        return f"sha256:{hashlib.sha256(msgspec.json.encode(said, order='sorted')).hexdigest()}"


def at_rate(workload: Workload, rate_per_s: float) -> Workload:
    """The same requests at another rate; of a closed loop, as a Poisson process."""
    arrivals = workload.arrivals
    if arrivals.kind is ArrivalKind.CLOSED:
        changed = Arrivals(ArrivalKind.POISSON, rate_per_s=rate_per_s)
    else:
        end = arrivals.rate_end_per_s
        if end is not None and arrivals.rate_per_s is not None:
            end *= rate_per_s / arrivals.rate_per_s
        changed = msgspec.structs.replace(arrivals, rate_per_s=rate_per_s, rate_end_per_s=end)
    return msgspec.structs.replace(workload, arrivals=changed)


def closed(workload: Workload, concurrency: int, *, think_s: float = 0.0) -> Workload:
    """The same requests, each when the one before it of its caller was answered."""
    arrivals = Arrivals(ArrivalKind.CLOSED, concurrency=concurrency, think_s=think_s)
    return msgspec.structs.replace(workload, arrivals=arrivals)

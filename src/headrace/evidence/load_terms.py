"""How is a load to be driven, and what do its processes tell each other?"""

from collections.abc import Callable

import msgspec

from headrace.core.load_records import LoadRecord, Outcome

OPEN_MAX = 4096
REQUESTS_MAX = 1_000_000


class LoadTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is to be, beside its workload.

    Attributes:
        duration_s: How long requests are due; what is open then still gets its answer.
        rate_per_s: Instead of the workload's own.
        concurrency: So many callers in a closed loop, instead of the workload's arrivals.
        warmup_s: Requests that are due before don't count.
        open_max: Requests that may be open at once, all processes together; what is due beyond that is unsent.
        requests_max: Where a run ends, whatever its duration.
        deadline_s: Of a request whose workload says none. The server is told it, and who hears nothing by then is late.
        nonce: Another one asks other questions of the same lengths, so that no cache knows them from an earlier run.
        learns_lengths: Ask a few questions first, to know how many tokens the model makes of a word.
    """

    duration_s: float = 60.0
    rate_per_s: float | None = None
    concurrency: int | None = None
    warmup_s: float = 0.0
    open_max: int = OPEN_MAX
    requests_max: int = REQUESTS_MAX
    deadline_s: float = 60.0
    nonce: int = 0
    learns_lengths: bool = True


class Progress(msgspec.Struct, frozen=True):
    """How far a run is.

    Attributes:
        elapsed_s: Since the first request could be due.
        sent, open: Of requests.
        late_by_s: How late requests were sent of late, at most.
    """

    elapsed_s: float = 0.0
    duration_s: float = 0.0
    sent: int = 0
    open: int = 0
    outcomes: dict[Outcome, int] = {}
    late_by_s: float = 0.0


Tell = Callable[[Progress], None]
Keep = Callable[[list[LoadRecord]], None]


class Part(msgspec.Struct, frozen=True):
    """What one process has to report of a run.

    Attributes:
        ended_s: How long it sent, from the start, at most as long as was asked.
        cpu_share: Of one core, in that time.
        complaint: What the last connection that couldn't be made failed for.
        lost: How the process ended where that wasn't as it should.
    """

    process: int
    records: list[LoadRecord]
    ended_s: float
    cpu_share: float
    sent: int = 0
    is_stopped: bool = False
    complaint: str = ""
    lost: str = ""


def together(parts: list[Progress]) -> Progress:
    """All processes as one."""
    outcomes: dict[Outcome, int] = {}
    for part in parts:
        for outcome, count in part.outcomes.items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
    return Progress(
        max((part.elapsed_s for part in parts), default=0.0),
        max((part.duration_s for part in parts), default=0.0),
        sum(part.sent for part in parts),
        sum(part.open for part in parts),
        outcomes,
        max((part.late_by_s for part in parts), default=0.0),
    )

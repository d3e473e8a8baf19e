"""What became of each request of a load test, as its caller saw it? One record for each that was intended, sent or not.

All times are seconds from the start of the run, by one monotonic clock that all processes of a machine share.
"""

from bisect import bisect_left
from enum import StrEnum

import msgspec

from headrace.core.load import EDGES_S, Histogram


class Outcome(StrEnum):
    """Each is a population of its own; no percentile mixes two of them.

    OK: the whole answer, with output in it, within the caller's deadline. LATE: whole after that deadline, or never within it.
    REFUSED: told to come back (429, 503). FAILED: no answer, one that says there is none, or one without any output.
    BROKEN: it had begun, and ended by an error or without its proper end. CANCELLED: the caller left, as planned.
    UNSENT: it was due, and this generator didn't send it.
    """

    OK = "ok"
    LATE = "late"
    REFUSED = "refused"
    FAILED = "failed"
    BROKEN = "broken"
    CANCELLED = "cancelled"
    UNSENT = "unsent"


class Gaps(msgspec.Struct, array_like=True, gc=False):
    """Times between two events with output of one stream; of events that came in one read all but the first have a gap of 0.

    Attributes:
        buckets: How many by index of EDGES_S, as core.load.Histogram has them; only those that are not 0.
    """

    count: int = 0
    sum_s: float = 0.0
    max_s: float = 0.0
    buckets: dict[int, int] = {}

    def observe(self, gap_s: float) -> None:
        self.count += 1
        self.sum_s += gap_s
        if gap_s > self.max_s:
            self.max_s = gap_s
        index = bisect_left(EDGES_S, gap_s)
        self.buckets[index] = self.buckets.get(index, 0) + 1

    def observe_together(self, events: int) -> None:
        """So many more events in the read of the last one."""
        self.count += events
        self.buckets[0] = self.buckets.get(0, 0) + events

    def add_to(self, histogram: Histogram) -> None:
        """Puts them to those of other streams."""
        if not self.buckets:
            return
        if not histogram.counts:
            histogram.counts = [0] * (len(EDGES_S) + 1)
        for index, count in self.buckets.items():
            histogram.counts[index] += count
        histogram.sum_s += self.sum_s


class LoadRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request.

    Attributes:
        number: As the plan has it.
        due_s: When it should have been sent: by the plan, or when the answer before it (and the time to think) allowed it.
        sent_s: When its bytes went to the socket, or a connection was begun for it; None if it was never sent.
        first_s, last_s: First and last event with output in it; of an answer that wasn't streamed both are when it was there.
            None if there was no output.
        ended_s: When its outcome was known.
        reason: The service's word for what it isn't OK for; ours where it said nothing.
        status: Of the HTTP answer; 0 if there was none.
        request_id: As the service named it (`x-request-id`); "" if it didn't.
        revision: What answered (`x-headrace-model-revision`); "" if it didn't say.
        input_tokens, cached_tokens, output_tokens: The service's own count; None if it gave none.
        events: Of the stream, those with output in them.
        is_cold: No request before it had its shared prefix.
        process: Which process of the generator sent it.
        planned_input_tokens, planned_output_tokens: How long it was meant to be.
        conversation: As the plan numbers them; all turns of one have the same.
    """

    number: int
    due_s: float
    sent_s: float | None
    first_s: float | None
    last_s: float | None
    ended_s: float
    outcome: Outcome
    reason: str = ""
    status: int = 0
    request_id: str = ""
    revision: str = ""
    has_retry_after: bool = False
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    events: int = 0
    gaps: Gaps = msgspec.field(default_factory=Gaps)
    is_streamed: bool = False
    turn: int = 1
    prefix_group: int | None = None
    is_cold: bool = True
    process: int = 0
    planned_input_tokens: int = 0
    planned_output_tokens: int = 0
    conversation: int = 0

    @property
    def late_by_s(self) -> float | None:
        """How late the generator was with it; None if it wasn't sent."""
        return None if self.sent_s is None else max(0.0, self.sent_s - self.due_s)


class Window(msgspec.Struct, frozen=True):
    """Which requests count: those that were due in it."""

    from_s: float
    to_s: float

    def holds(self, record: LoadRecord) -> bool:
        return self.from_s <= record.due_s < self.to_s


class Lateness(msgspec.Struct, frozen=True):
    """How late requests were sent, of those in the window; zero if there were none."""

    p50_s: float = 0.0
    p99_s: float = 0.0
    max_s: float = 0.0


class GeneratorProcess(msgspec.Struct, frozen=True):
    """One process of the generator.

    Attributes:
        cpu_share: Of one core, while requests were due.
        lost: How it ended where it didn't end well; what it should have sent counts as unsent.
    """

    number: int
    sent: int
    cpu_share: float
    lost: str = ""


class LoadRun(msgspec.Struct, frozen=True):
    """A whole run.

    Attributes:
        workload, digest: Its name, and the digest of all that decides which requests there are.
        began_at_s: Wall clock, for people.
        rate_per_s, concurrency: What drove it: an open loop's mean rate if one was set, or a closed loop's callers.
        duration_s: How long requests were due; shorter than planned if it was stopped.
        is_stopped: By whoever started it, before its end.
        environment: Versions and machine.
    """

    workload: str
    digest: str
    seed: int
    url: str
    model: str
    began_at_s: float
    duration_s: float
    window: Window
    records: list[LoadRecord]
    lateness: Lateness
    processes: list[GeneratorProcess]
    is_closed: bool
    rate_per_s: float | None = None
    concurrency: int | None = None
    is_stopped: bool = False
    environment: dict[str, str] = {}

    @property
    def cpu_share(self) -> float:
        """Of the process that had the least left of its core."""
        return max((process.cpu_share for process in self.processes), default=0.0)

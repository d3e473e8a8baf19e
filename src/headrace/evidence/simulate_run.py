"""What came of a simulated run? How each request ended and what its caller waited for, in columns: a million fit into memory."""

import math
from array import array
from collections.abc import Iterator
from typing import NamedTuple

from headrace.core.outcome import Outcome
from headrace.evidence.simulate_work import Work

_OUTCOMES = tuple(Outcome)
_CODES = {outcome: code for code, outcome in enumerate(_OUTCOMES)}


class End(NamedTuple):
    """How one request ended.

    Attributes:
        queue_s: In the queue of the gateway.
        ttft_s: From its arrival to the first token; infinite where there was none.
        total_s: From its arrival to its end.
        itl_s: Between two tokens in the mean; 0.0 where there were no two.
        is_well: Delivered, and as promised.
        asked_tokens: Of its prompt, and of the answer that it would have had.
    """

    arrival_s: float
    outcome: Outcome
    is_well: bool
    queue_s: float
    ttft_s: float
    total_s: float
    itl_s: float
    output_tokens: int
    cached_tokens: int
    asked_tokens: tuple[int, int] = (0, 0)


class Run:
    """One run.

    Attributes:
        cut: Requests whose replica was taken from under them.
        retries: Attempts after the first.
        reasons: How many were refused, by why.
        sizes: Wanted numbers of replicas, each with the moment from which it was wanted.
        ready: Ready replicas, each with the moment from which there were that many.
        busy_s: Seconds of slots that were taken.
        removed_busy: Replicas that were taken away while they had work, and drained.
        seconds: How long it was.
    """

    def __init__(self) -> None:
        self._floats = {name: array("d") for name in ("arrival_s", "queue_s", "ttft_s", "total_s", "itl_s")}
        self._outcomes = array("B")
        self._well = array("B")
        self._tokens = array("l")
        self._cached = array("l")
        self._prompts, self._answers = array("l"), array("l")
        self._counts = dict.fromkeys(Outcome, 0)
        self.served_well = 0
        self.cut = 0
        self.retries = 0
        self.reasons: dict[str, int] = {}
        self.replica_s = 0.0
        self.sizes: list[tuple[float, int]] = []
        self.ready: list[tuple[float, int]] = []
        self.busy_s = 0.0
        self.removed_busy = 0
        self.seconds = 0.0

    def end(
        self,
        work: Work,
        outcome: Outcome,
        now_s: float,
        *,
        is_well: bool = False,
        queue_s: float = 0.0,
        ttft_s: float = math.inf,
        itl_s: float = 0.0,
        output_tokens: int = 0,
        cached_tokens: int = 0,
    ) -> None:
        """A request has ended."""
        columns = self._floats
        columns["arrival_s"].append(work.arrival_s)
        columns["queue_s"].append(queue_s)
        columns["ttft_s"].append(ttft_s)
        columns["total_s"].append(now_s - work.arrival_s)
        columns["itl_s"].append(itl_s)
        self._outcomes.append(_CODES[outcome])
        self._well.append(is_well)
        self._tokens.append(output_tokens)
        self._cached.append(cached_tokens)
        self._prompts.append(work.prompt_tokens)
        self._answers.append(work.output_tokens)
        self._counts[outcome] += 1
        self.served_well += is_well

    def ends(self, *, from_s: float = 0.0) -> Iterator[End]:
        """In the order in which they ended; those that arrived before that moment are left out."""
        floats = zip(*self._floats.values(), strict=True)
        counts = zip(self._outcomes, self._well, self._tokens, self._cached, strict=True)
        asked = zip(self._prompts, self._answers, strict=True)
        for times_s, (code, is_well, tokens, cached), sizes in zip(floats, counts, asked, strict=True):
            arrival_s, queue_s, ttft_s, total_s, itl_s = times_s
            if arrival_s >= from_s:
                yield End(
                    arrival_s, _OUTCOMES[code], bool(is_well), queue_s, ttft_s, total_s, itl_s, tokens, cached,
                    sizes,
                )  # fmt: skip

    def count(self, outcome: Outcome) -> int:
        return self._counts[outcome]

    @property
    def requests(self) -> int:
        return len(self._outcomes)

    @property
    def refused(self) -> int:
        return self._counts[Outcome.REFUSED]

    @property
    def late(self) -> int:
        """Answered, and not as promised."""
        return self._counts[Outcome.DELIVERED] - self.served_well

    def worst_minute(self, *, requests_min: int = 20) -> float:
        """The least attainment of any minute with so many arrivals."""
        minutes: dict[int, list[bool]] = {}
        for end in self.ends():
            minutes.setdefault(int(end.arrival_s // 60), []).append(end.is_well)
        return min(
            (sum(each) / len(each) for each in minutes.values() if len(each) >= requests_min), default=1.0
        )

    @property
    def attainment(self) -> float:
        return self.served_well / self.requests if self.requests else 1.0

    @property
    def changes(self) -> int:
        return max(0, len(self.sizes) - 1)

    @property
    def replica_hours(self) -> float:
        return self.replica_s / 3600

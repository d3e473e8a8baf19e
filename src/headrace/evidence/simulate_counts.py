"""What does a simulated gateway report of its load? What the real one does, for whoever decides how many replicas there are."""

import math

from headrace.evidence.simulate_work import Work
from headrace.policies.autoscale_signals import Counts, LoadSample

# Upper edges of ten classes a decade, from a millisecond.
_EDGES_S = tuple(10 ** (step / 10) for step in range(-30, 81))


class Counted:
    """All since the last report."""

    def __init__(self) -> None:
        self.arrived = self.prompt_tokens = self.cached_tokens = self.ends = 0
        self.service_s = 0.0
        self.ttft: dict[float, int] = {}
        self.wait: dict[float, int] = {}
        self.itl: dict[float, int] = {}

    def ended(self, work: Work, *, cached_tokens: int, queue_s: float, ttft_s: float, itl_s: float) -> None:
        """A request that wasn't refused has ended.

        Args:
            ttft_s: Infinite where there was no first token.
            itl_s: 0.0 where there were no two tokens.
        """
        self.ends += 1
        self.prompt_tokens += work.prompt_tokens
        self.cached_tokens += cached_tokens
        _count(self.wait, queue_s)
        if math.isfinite(ttft_s):
            _count(self.ttft, ttft_s)
        if itl_s:
            _count(self.itl, itl_s)

    def sample(self, start_s: float, end_s: float, *, in_flight: int, queued: int) -> LoadSample:
        return LoadSample(
            start_s,
            end_s,
            arrived=self.arrived,
            ended=self.ends,
            service_s=self.service_s,
            in_flight=in_flight,
            queued=queued,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            ttft=_ascending(self.ttft),
            queue_wait=_ascending(self.wait),
            itl=_ascending(self.itl),
        )


def _count(counts: dict[float, int], seconds: float) -> None:
    edge_s = _EDGES_S[math.ceil(10 * math.log10(max(seconds, 0.001)) - 1e-9) + 30]
    counts[edge_s] = counts.get(edge_s, 0) + 1


def _ascending(counts: dict[float, int]) -> Counts:
    return tuple(sorted(counts.items()))

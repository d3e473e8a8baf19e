"""Is an engine at work or stuck? Judged by its progress, never by how quickly it answers a probe."""

from collections.abc import Mapping

BUSY = ("requests_processing", "requests_deferred")


class Liveness:
    """Remembers the last sign of life: an idle engine that answers, a counter that moved, a canary that came back.

    A slow probe is no sign of death, and an answered probe is no sign of life while work is waiting and nothing moves.
    Owner: the replica that feeds it; fields `_counters`, `_alive_s`.
    """

    def __init__(self, *, now_s: float) -> None:
        self._counters: dict[str, float] = {}
        self._alive_s = now_s

    def scraped(self, gauges: Mapping[str, float], *, now_s: float) -> None:
        """Takes in the engine's gauges and counters; counters are those named `..._total`."""
        counters = {name: value for name, value in gauges.items() if name.endswith("_total")}
        is_idle = not any(gauges.get(name, 0.0) for name in BUSY)
        if is_idle or counters != self._counters:
            self._alive_s = now_s
        self._counters = counters

    def answered(self, *, now_s: float) -> None:
        """A canary request was answered."""
        self._alive_s = now_s

    def silent_for_s(self, *, now_s: float) -> float:
        return now_s - self._alive_s

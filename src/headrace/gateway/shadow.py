"""Who hears of requests that shadow limits are to judge? The judge in this process, or the one that all workers share."""

from collections.abc import Callable
from typing import Protocol

from headrace.core.ids import TenantId
from headrace.core.leases import ShadowBegin, Shadowed, ShadowEnd
from headrace.core.tenant import Principal
from headrace.core.usage import TokenUsage
from headrace.policies.levels import Demand
from headrace.policies.shadow import ShadowLimiter, ShadowView

UNSENT_MAX = 256


class Shadow(Protocol):
    """`begin` for a caller with shadow limits; what it returns is for `end`."""

    def begin(self, shadow: Principal, demand: Demand, *, now_s: float) -> int: ...

    def end(self, number: int, usage: TokenUsage, *, now_s: float) -> None: ...


class OwnShadow:
    """For the only process."""

    def __init__(self, limiter: ShadowLimiter) -> None:
        self._limiter = limiter
        self._number = 0

    def begin(self, shadow: Principal, demand: Demand, *, now_s: float) -> int:
        self._number += 1
        self._limiter.begin((0, self._number), shadow, demand, now_s=now_s)
        return self._number

    def end(self, number: int, usage: TokenUsage, *, now_s: float) -> None:
        self._limiter.end((0, number), usage, now_s=now_s)

    def view(self, tenant: TenantId, *, now_s: float) -> ShadowView:
        return self._limiter.view(tenant, now_s=now_s)


class SentShadow:
    """For a worker: the service judges, a moment later, by the times that are sent with it. State: what is not sent yet."""

    def __init__(self, send: Callable[[Shadowed], None]) -> None:
        self._send = send
        self._number = 0
        self._events: list[ShadowBegin | ShadowEnd] = []

    def begin(self, shadow: Principal, demand: Demand, *, now_s: float) -> int:
        self._number += 1
        self._events.append(
            ShadowBegin(
                self._number,
                now_s,
                shadow.tenant,
                shadow.key_id,
                shadow.limits,
                shadow.key_limits,
                shadow.terms.model_limits.get(demand.model),
                *demand,
            )
        )
        self._flush_if_many()
        return self._number

    def end(self, number: int, usage: TokenUsage, *, now_s: float) -> None:
        self._events.append(ShadowEnd(number, now_s, usage))
        self._flush_if_many()

    def flush(self) -> None:
        """Called four times a second."""
        if self._events:
            events, self._events = self._events, []
            self._send(Shadowed(events))

    def _flush_if_many(self) -> None:
        if len(self._events) >= UNSENT_MAX:
            self.flush()


def judge(limiter: ShadowLimiter, worker: int, message: Shadowed) -> None:
    """In the service: what a worker has sent."""
    for event in message.events:
        match event:
            case ShadowBegin():
                limiter.begin((worker, event.number), event.caller, Demand(*event.demand), now_s=event.at_s)
            case ShadowEnd(number, at_s, usage):
                limiter.end((worker, number), usage, now_s=at_s)

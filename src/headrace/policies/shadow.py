"""What would limits refuse that nobody is held to yet? The real ones' rules, on buckets of their own."""

from collections import Counter, deque
from collections.abc import Callable

import msgspec

from headrace.core.errors import InvalidRequest, OverloadError
from headrace.core.ids import TenantId
from headrace.core.tenant import Principal
from headrace.core.usage import TokenUsage, UsageSource
from headrace.policies.levels import Demand, Receipt
from headrace.policies.limits import TenantLimiter

HOUR_MIN = 60
# A worker's number, and its number of the request.
RequestKey = tuple[int, int]


class ShadowView(msgspec.Struct, frozen=True):
    """What a tenant's shadow limits would have refused of the requests of the last hour, by reason."""

    requests: int
    refused: dict[str, int]


class _Hour:
    """Requests and refusals by the minute, for HOUR_MIN of them."""

    def __init__(self) -> None:
        self._minutes: deque[tuple[int, Counter[str]]] = deque(maxlen=HOUR_MIN)

    def add(self, reason: str, now_s: float) -> None:
        """`reason` is empty for a request that would have been let in."""
        minute = int(now_s // 60)
        if not self._minutes or self._minutes[-1][0] < minute:
            self._minutes.append((minute, Counter()))
        self._minutes[-1][1][reason] += 1

    def view(self, now_s: float) -> ShadowView:
        since = int(now_s // 60) - HOUR_MIN
        total: Counter[str] = sum((count for minute, count in self._minutes if minute > since), Counter())
        refused = {reason: count for reason, count in total.most_common() if reason}
        return ShadowView(total.total(), refused)


class ShadowLimiter:
    """Judges requests that were let in by the limits in force. State: those in progress that would have been let in here
    too, and each tenant's last hour.

    Args:
        judged: Told of each request, with its model and the reason of its refusal, or "".
    """

    def __init__(self, judged: Callable[[Principal, str, str], None]) -> None:
        self._judged = judged
        self._limiter = TenantLimiter()
        self._running: dict[RequestKey, Receipt] = {}
        self._hours: dict[TenantId, _Hour] = {}

    def begin(self, key: RequestKey, shadow: Principal, demand: Demand, *, now_s: float) -> None:
        """A request of the caller whose shadow limits are the limits of that Principal."""
        reason = ""
        try:
            self._running[key] = self._limiter.take_levels(shadow, demand, now_s=now_s)
        except (OverloadError, InvalidRequest) as refusal:
            reason = refusal.reason
        hour = self._hours.get(shadow.tenant)
        if hour is None:
            hour = self._hours[shadow.tenant] = _Hour()
        hour.add(reason, now_s)
        self._judged(shadow, demand.model, reason)

    def end(self, key: RequestKey, usage: TokenUsage, *, now_s: float) -> None:
        """The request has ended, and this is what it used."""
        receipt = self._running.pop(key, None)
        if receipt is not None:
            self._limiter.release_levels(receipt)
            self._limiter.settle(receipt, usage, now_s=now_s)

    def lost(self, worker: int, *, now_s: float) -> None:
        """The worker is gone, and its requests with it; nobody knows what they used."""
        for key in [key for key in self._running if key[0] == worker]:
            self.end(key, TokenUsage(source=UsageSource.UNKNOWN), now_s=now_s)

    def view(self, tenant: TenantId, *, now_s: float) -> ShadowView:
        hour = self._hours.get(tenant)
        return ShadowView(0, {}) if hour is None else hour.view(now_s)

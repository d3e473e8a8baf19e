"""Who is asking, and what have we agreed with them?"""

from dataclasses import dataclass

from headrace.core.ids import KeyId, TenantId


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """The agreed limits of one tenant; enforced before any expensive work.

    Attributes:
        requests_per_minute: Sustained rate; tokens refill continuously at this rate. 0 means no limit.
        requests_burst: Size of the bucket, at least 1: how many requests may come at once.
        concurrency_max: Requests in progress (queued or running) at any moment. 0 means no limit.
    """

    requests_per_minute: int = 600
    requests_burst: int = 60
    concurrency_max: int = 64


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    Attributes:
        tenant: Whose limits, usage and cache partition apply.
        key_id: The public part of the API key, safe to log.
        limits: The tenant's limits at the moment of authentication.
    """

    tenant: TenantId
    key_id: KeyId
    limits: TenantLimits

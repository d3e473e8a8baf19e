"""What is one request served by, from its head to its end? Values of one version of the configuration, never of two.

A head is judged together with what its request will go by (gateway.call.Screened), so that nothing needs to be looked up, or
held, for each request. What requests share goes by the moment: the fleet, a queue's bounds, the budget of retries.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.core.errors import InvalidRequest
from headrace.policies.addresses import Network
from headrace.protocols import bounds

EXACT_BELOW_S = 0.5  # two looks of gateway/watch.py
_DEADLINE_HEADER = bounds.DEADLINE_HEADER.lower().encode()


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long a request may take; see config.RequestConfig.

    Attributes:
        default_s: If it doesn't say.
        max_s: At most, whatever it says.
    """

    default_s: float
    max_s: float

    def of(self, headers: Mapping[bytes, bytes], *, received_s: float) -> float:
        """When the request's time is over: what its header asks for, or what every request has. Raises InvalidRequest."""
        value = headers.get(_DEADLINE_HEADER)
        if value is None:
            return received_s + self.default_s
        if not value.isdigit() or len(value) > bounds.DEADLINE_DIGITS_MAX or int(value) == 0:
            raise InvalidRequest(
                f"{bounds.DEADLINE_HEADER} must be a whole number of milliseconds, at least 1"
            )
        return received_s + min(self.max_s, int(value) / 1000.0)


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """See config.RequestConfig."""

    first_event_limit_s: float
    stall_limit_s: float
    write_stall_limit_s: float

    @property
    def are_short(self) -> bool:
        """Whether one of them may pass before the next look."""
        return min(self.first_event_limit_s, self.stall_limit_s) < 2 * EXACT_BELOW_S


@dataclass(frozen=True, slots=True)
class RetryRules:
    """See config.RequestConfig; `ratio` and `floor_per_s` are of the budget that the requests of a model share."""

    attempts_max: int
    ratio: float
    floor_per_s: float
    backoff_s: float


@dataclass(frozen=True, slots=True)
class MediaRules:
    """See config.MediaConfig; `networks` are allowed although they are not the public internet."""

    may_fetch: bool
    bytes_max: int
    time_s: float
    redirects_max: int
    fetches_max: int
    networks: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestRules:
    """All of it.

    Attributes:
        version: Of the configuration that it is made of.
        heartbeat_s: See config.RequestConfig.
        is_exact: Whether `limits` are too short for looks alone; what they say themselves, found out once.
    """

    version: int
    deadlines: Deadlines
    heartbeat_s: float
    limits: AttemptLimits
    retries: RetryRules
    media: MediaRules
    is_exact: bool


@dataclass(frozen=True, slots=True)
class PortLimits:
    """What connections go by; see config.ServerConfig and config.RequestConfig."""

    header_timeout_s: float
    idle_timeout_s: float
    write_stall_limit_s: float
    body_bytes_per_s_min: int
    body_bytes_max: int
    websocket_origins: frozenset[bytes]
    trusted_proxies: tuple[Network, ...]

"""What was used: token counts with their source, and the two records that the ledger keeps."""

from enum import StrEnum

import msgspec

from headrace.core import endings
from headrace.core.endings import Charge, Stage
from headrace.core.ids import KeyId, ReplicaId, RequestId, TenantId


class UsageSource(StrEnum):
    """Where the counts came from, best first.

    FINAL: the engine's own usage at the end of the answer.
    CUMULATIVE: the engine's last running count before the answer stopped.
    ESTIMATED: our estimate from the text, one token per four UTF-8 bytes.
    NONE: no engine ever worked on it, so zero is the truth.
    UNKNOWN: work may have been done and nothing was reported; never read as zero.
    """

    FINAL = "final"
    CUMULATIVE = "cumulative"
    ESTIMATED = "estimated"
    NONE = "none"
    UNKNOWN = "unknown"


class Unit(StrEnum):
    """What a task is counted in beside tokens."""

    VECTOR = "vector"
    IMAGE = "image"
    AUDIO_MS = "audio_ms"
    ACTION_CHUNK = "action_chunk"

    @property
    def count_max(self) -> int:
        """More of them in one request can't be true."""
        return _COUNT_MAX[self]


_COUNT_MAX = {
    Unit.VECTOR: 1_000_000,
    Unit.IMAGE: 1000,
    Unit.AUDIO_MS: 100_000_000,
    Unit.ACTION_CHUNK: 100_000,
}

TOKENS_MAX = 100_000_000
"""More tokens in one request can't be true."""


class TokenUsage(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one request.

    Attributes:
        prompt_tokens: All prompt tokens, cached ones included.
        cached_tokens: Prompt tokens reused from the prefix cache, at most prompt_tokens.
        completion_tokens: Generated tokens, summed over choices.
        reasoning_tokens: Those of the completion tokens that the model thought with, at most completion_tokens.
        units: How many of the endpoint's unit there were, such as vectors; 0 where it has none.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    source: UsageSource = UsageSource.NONE
    reasoning_tokens: int = 0
    units: int = 0


class UsageRecord(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The terminal record of one request; exactly one per request that was admitted, keyed by request_id.

    Attributes:
        started_s: Unix seconds of arrival.
        outcome, reason: Values of core.outcome.Outcome and core.outcome.Reason.
        status: HTTP status of the answer, or of the error that took its place or broke it off; 499 when the caller left.
        queue_wait_s, ttft_s, total_s: Durations by the monotonic clock; ttft_s is None when nothing was delivered.
        attempts: How many replicas were tried.
        price_version: The version in the price book that the charge was made by; empty where no price is set.
        charge_pico: What the request costs its tenant, in pico-units (core/money.py) of that version's currency.
        reasoning_tokens, units: As in TokenUsage.
        user: For whom the tenant's key asked, where it says so.
    """

    request_id: RequestId
    tenant: TenantId
    key_id: KeyId
    model: str
    revision: str
    endpoint: str
    is_streaming: bool
    started_s: float
    outcome: str
    reason: str
    status: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    usage_source: str
    queue_wait_s: float
    ttft_s: float | None
    total_s: float
    attempts: int
    price_version: str = ""
    charge_pico: int = 0
    reasoning_tokens: int = 0
    units: int = 0
    user: str = ""

    @property
    def usage(self) -> TokenUsage:
        """The counts by themselves."""
        return TokenUsage(
            self.prompt_tokens,
            self.completion_tokens,
            self.cached_tokens,
            UsageSource(self.usage_source),
            self.reasoning_tokens,
            self.units,
        )

    @property
    def charge_rule(self) -> Charge:
        """What is billed of it, by core/endings.py."""
        if not self.attempts:
            stage = Stage.UNSTARTED
        else:
            stage = Stage.WORKING if self.ttft_s is None else Stage.ANSWERING
        return endings.find(self.reason, stage).charge


class ExecutionRecord(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The terminal record of one attempt on one replica, keyed by (request_id, attempt); attempts count from 1.

    Attributes:
        revision: What the replica ran, where that isn't the revision of the request's record, because another took over;
            "" where it is.
    """

    request_id: RequestId
    attempt: int
    replica: ReplicaId
    generation: int
    started_s: float
    duration_s: float
    ttft_s: float | None
    outcome: str
    upstream_status: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    usage_source: str
    revision: str = ""


def estimate_tokens(utf8_bytes: int) -> int:
    """Tokens in a text of that many UTF-8 bytes, rounded up; the same for any cutting of the text.

    Source: the rule of thumb "one token is about four characters of English" (OpenAI, "What are tokens").
    """
    return -(-utf8_bytes // 4)

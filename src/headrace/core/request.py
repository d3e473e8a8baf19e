"""One request as we understand it, after its bytes have been read once."""

from enum import StrEnum
from typing import Any

import msgspec

from headrace.core.fleet import Task
from headrace.core.ids import RequestId, TargetKey
from headrace.core.tenant import Principal, Priority
from headrace.core.usage import Unit


class Endpoint(StrEnum):
    """The inference endpoints of the public port; the value is the path."""

    CHAT_COMPLETIONS = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"

    @property
    def task(self) -> Task:
        return Task.EMBEDDINGS if self is Endpoint.EMBEDDINGS else Task.CHAT

    @property
    def unit(self) -> Unit | None:
        """What its answers are counted in beside tokens."""
        return Unit.VECTOR if self is Endpoint.EMBEDDINGS else None


class InferenceRequest(msgspec.Struct, frozen=True, gc=False):
    """A validated request; everything behind the parser reads this and never the wire form.

    Attributes:
        canonical: The caller's JSON object as parsed, known and unknown fields alike, serialised again without what
            engines/wire.py writes anew for each replica and without the opening brace: what was checked is what is sent.
        wire_fields: What the caller wrote in the fields that are written anew. Treat as frozen.
        is_streaming: Whether the caller wants server-sent events.
        wants_usage: Whether the caller asked for usage in the stream.
        prompt_bytes: UTF-8 bytes of the prompt text, for estimates when an engine reports nothing.
        output_tokens_max: The caller's bound on generated tokens, or None.
        is_bound_ours: The caller set no bound, so that one is passed on which its quota needs.
        choices: `n`, at least 1.
        arrived_s, deadline_s: Monotonic seconds.
        is_keyed: It came with an Idempotency-Key.
        arrived_wall_s: Unix seconds, for records.
        priority: The band that the caller asks for; what it gets depends on its tenant's class.
        target: Which deployment of the name `model` it came to; "" for the one that has no other name.
        is_pinned: It asked for that one, and no other may answer.
        config_version: Of the configuration that it is served by, from its head to its end.
    """

    id: RequestId
    principal: Principal
    endpoint: Endpoint
    model: str
    canonical: bytes
    wire_fields: dict[str, Any]
    is_streaming: bool
    wants_usage: bool
    prompt_bytes: int
    output_tokens_max: int | None
    choices: int
    arrived_s: float
    arrived_wall_s: float
    deadline_s: float
    is_keyed: bool = False
    priority: Priority = Priority.NORMAL
    is_bound_ours: bool = False
    target: TargetKey = ""
    is_pinned: bool = False
    config_version: int = 0

"""One request as we understand it, after its bytes have been read once."""

from enum import StrEnum
from typing import Any

import msgspec

from headrace.core.fleet import Task
from headrace.core.ids import RequestId
from headrace.core.tenant import Principal


class Endpoint(StrEnum):
    """The inference endpoints of the public port; the value is the path."""

    CHAT_COMPLETIONS = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"

    @property
    def task(self) -> Task:
        return Task.EMBEDDINGS if self is Endpoint.EMBEDDINGS else Task.CHAT


class InferenceRequest(msgspec.Struct, frozen=True, gc=False):
    """A validated request; everything behind the parser reads this and never the wire form.

    Attributes:
        fields: The caller's JSON object as parsed, known and unknown fields alike; re-serialised for a replica, so
            that what was checked is what is sent. Treat as frozen.
        canonical: `fields` as JSON.
        is_streaming: Whether the caller wants server-sent events.
        wants_usage: Whether the caller asked for usage in the stream.
        prompt_bytes: UTF-8 bytes of the prompt text, for estimates when an engine reports nothing.
        output_tokens_max: The caller's bound on generated tokens, or None.
        choices: `n`, at least 1.
        arrived_s, deadline_s: Monotonic seconds.
        arrived_wall_s: Unix seconds, for records.
    """

    id: RequestId
    principal: Principal
    endpoint: Endpoint
    model: str
    fields: dict[str, Any]
    canonical: bytes
    is_streaming: bool
    wants_usage: bool
    prompt_bytes: int
    output_tokens_max: int | None
    choices: int
    arrived_s: float
    arrived_wall_s: float
    deadline_s: float

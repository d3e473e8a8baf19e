"""What does a replica get to read? A checked request, with a few fields in the words of the replica's dialect."""

from typing import Any

from headrace.core.fleet import Replica
from headrace.core.request import Endpoint, InferenceRequest
from headrace.policies.partition import SlotGrant
from headrace.protocols import openai

_USAGE = {"include_usage": True}


def is_streamed(request: InferenceRequest, replica: Replica) -> bool:
    """Whether the replica is asked for a stream: because the caller wants one, or because the engine would run a whole
    answer to its end although the caller has left."""
    return request.is_streaming or (
        replica.traits.streams_only and request.endpoint is not Endpoint.EMBEDDINGS
    )


def encode(
    request: InferenceRequest,
    replica: Replica,
    *,
    is_streamed: bool,
    upstream_model: str,
    grant: SlotGrant | None,
) -> tuple[bytes, bytes]:
    """The body to send, in two pieces that follow each other: what we write, and what the caller wrote.

    The second may be megabytes, so it is neither serialised nor copied here. No name can be in both: the parser took ours
    out. Usage is always asked for, because the ledger needs it; slot and cache fields are ours, whatever the caller wrote.
    """
    traits = replica.traits
    fields: dict[str, Any] = {"model": upstream_model}
    if request.wire_fields:
        fields.update(request.wire_fields)
    if is_streamed:
        fields["stream"] = True
        if traits.stream_usage:
            options = fields.get("stream_options")
            fields["stream_options"] = {**options, "include_usage": True} if options else _USAGE
        if traits.reports_progress:
            fields["timings_per_token"] = True
    if traits.partitions_slots and request.endpoint is not Endpoint.EMBEDDINGS:
        assert grant is not None, "a partitioned replica is used only through its slots"
        fields["id_slot"] = grant.index
        fields["cache_prompt"] = grant.may_reuse
    return openai.encode(fields)[:-1] + b",", request.canonical

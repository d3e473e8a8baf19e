"""What does a replica get to read? A checked request, re-serialised in the words of the replica's dialect."""

from headrace.core.fleet import Replica
from headrace.core.request import Endpoint, InferenceRequest
from headrace.policies.partition import SlotGrant
from headrace.protocols import openai


def is_streamed(request: InferenceRequest, replica: Replica) -> bool:
    """Whether the replica is asked for a stream: because the caller wants one, or because the engine would run a whole
    answer to its end although the caller has left."""
    return request.is_streaming or (
        replica.traits.streams_only and request.endpoint is not Endpoint.EMBEDDINGS
    )


def encode(
    request: InferenceRequest, replica: Replica, *, upstream_model: str, grant: SlotGrant | None
) -> bytes:
    """The body to send.

    Usage is always asked for, because the ledger needs it; slot and cache fields are ours, whatever the caller wrote.
    """
    traits = replica.traits
    if upstream_model == request.model and not is_streamed(request, replica) and not traits.partitions_slots:
        return request.canonical
    fields = dict(request.fields)
    fields["model"] = upstream_model
    if is_streamed(request, replica):
        fields["stream"] = True
        if traits.stream_usage:
            options = fields.get("stream_options")
            fields["stream_options"] = {
                **(options if isinstance(options, dict) else {}),
                "include_usage": True,
            }
        if traits.reports_progress:
            fields["timings_per_token"] = True
    if traits.partitions_slots and request.endpoint is not Endpoint.EMBEDDINGS:
        assert grant is not None, "a partitioned replica is used only through its slots"
        fields["id_slot"] = grant.index
        fields["cache_prompt"] = grant.may_reuse
    return openai.encode(fields)

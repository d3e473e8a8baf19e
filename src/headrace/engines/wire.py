"""What does a replica get to read? A checked request, re-serialised in the words of the replica's dialect."""

from headrace.core.fleet import Replica
from headrace.core.request import Endpoint, InferenceRequest
from headrace.policies.partition import SlotGrant
from headrace.protocols import openai

# A caller who could name the salt of an engine's prefix cache could look into another's: salts are ours to give.
SALT = "cache_salt"


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
) -> bytes:
    """The body to send.

    Usage is always asked for, because the ledger needs it; slot and cache fields are ours, whatever the caller wrote.
    """
    traits = replica.traits
    if (
        not (is_streamed or traits.partitions_slots or upstream_model != request.model)
        and SALT not in request.fields
    ):
        return request.canonical
    fields = dict(request.fields)
    fields["model"] = upstream_model
    fields.pop(SALT, None)
    if is_streamed:
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

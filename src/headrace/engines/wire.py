"""What does a replica get to read? A checked request, with a few fields in the words of the replica's dialect."""

from typing import Any

from headrace.core import isolation
from headrace.core.fleet import EngineTraits, Replica
from headrace.core.isolation import CacheIsolation
from headrace.core.request import Endpoint, InferenceRequest
from headrace.policies.partition import SlotGrant
from headrace.protocols import openai, salting

SALT_FIELD = "cache_salt"  # the word of all engines that have one
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
    if request.is_bound_ours:
        fields["max_tokens"] = request.output_tokens_max
    if is_streamed:
        fields["stream"] = True
        if traits.stream_usage:
            options = fields.get("stream_options")
            fields["stream_options"] = {**options, "include_usage": True} if options else _USAGE
        if traits.reports_progress:
            fields["timings_per_token"] = True
    canonical = request.canonical
    if traits.isolation is CacheIsolation.SALT:
        if request.endpoint in traits.salted:
            salt = request.principal.cache_partition
            assert salt, "whoever is authenticated has a partition"
            fields[SALT_FIELD] = salt
    elif traits.isolation is not CacheIsolation.NONE:
        canonical = _isolate(request, traits, fields, grant)
    return openai.encode(fields)[:-1] + b",", canonical


def _isolate(
    request: InferenceRequest, traits: EngineTraits, fields: dict[str, Any], grant: SlotGrant | None
) -> bytes:
    """Writes what isolates the prefix cache of an engine without a salt for each tenant; returns the caller's fields.

    Engines of these kinds keep no prefixes of what they embed, and a line before it would change the vector.
    """
    if request.endpoint is Endpoint.EMBEDDINGS and not traits.salted:
        return request.canonical
    match traits.isolation:
        case CacheIsolation.SLOTS:
            assert grant is not None, "a partitioned replica is used only through its slots"
            fields["id_slot"] = grant.index
            fields["cache_prompt"] = grant.may_reuse
        case CacheIsolation.OFF if traits.salted:
            if request.endpoint in traits.salted:
                fields[SALT_FIELD] = isolation.once(request.principal.cache_partition, request.id)
        case CacheIsolation.OFF:
            fields["cache_prompt"] = False
        case CacheIsolation.PROMPT:
            return salting.salted(request.canonical, isolation.salt_line(request.principal.cache_partition))
        case _:
            pass
    return request.canonical

"""What does a call ask for? Its body, which was parsed before, and its headers as one request with a deadline and a priority."""

from headrace.core.errors import InvalidRequest
from headrace.core.fleet import Deployment
from headrace.core.request import Endpoint, InferenceRequest
from headrace.core.tenant import PRIORITIES, Priority
from headrace.gateway.call import Call
from headrace.gateway.idempotency import KEY_HEADER
from headrace.protocols import openai


def request_of(
    call: Call,
    endpoint: Endpoint,
    parsed: openai.ParsedBody,
    deployment: Deployment,
    *,
    deadline_s: float,
    wall_s: float,
) -> InferenceRequest:
    """What that deployment is asked for, if it can do it. Raises InvalidRequest.

    Args:
        wall_s: The Unix time of its arrival.
    """
    assert call.principal is not None, "inference is never anonymous"
    call.body = b""  # megabytes, perhaps, which what was parsed holds again
    if call.must_stream and parsed.wire_fields.get("stream") is False:
        raise InvalidRequest("every answer is streamed here", param="stream")
    if endpoint.task not in deployment.tasks:
        raise InvalidRequest(f"the model `{parsed.model}` does not serve {endpoint.value}", param="model")
    openai.check_against(deployment, parsed)
    return InferenceRequest(
        id=call.request_id,
        principal=call.principal,
        endpoint=endpoint,
        model=deployment.name,
        canonical=parsed.canonical,
        wire_fields=parsed.wire_fields,
        is_streaming=parsed.is_streaming or call.must_stream,
        wants_usage=parsed.wants_usage,
        prompt_bytes=parsed.prompt_bytes,
        output_tokens_max=parsed.output_tokens_max,
        choices=parsed.choices,
        arrived_s=call.received_s,
        arrived_wall_s=wall_s,
        deadline_s=deadline_s,
        is_keyed=KEY_HEADER in call.head.headers,
        priority=_priority_asked(call.head.headers),
        target=deployment.key,
        is_pinned=parsed.model != deployment.name,
        config_version=call.rules.version,
    )


def _priority_asked(headers: dict[bytes, bytes]) -> Priority:
    """The band that a request asks for in its header."""
    value = headers.get(b"x-headrace-priority")
    if value is None:
        return Priority.NORMAL
    priority = PRIORITIES.get(value.decode("ascii", "replace").lower())
    if priority is None:
        raise InvalidRequest(f"X-Headrace-Priority must be one of {', '.join(PRIORITIES)}")
    return priority

"""Requests that measure exactly so much at one place, made from a bound of a contract, so that no bound is forgotten."""

from typing import Any

from headrace.core.fleet import Deployment, Task
from headrace.core.request import Endpoint
from headrace.protocols import bounds
from headrace.protocols.bounds import Bound, Measure
from tests.support import pictures

Body = dict[str, Any]

BODIES: dict[Endpoint, Body] = {
    Endpoint.CHAT_COMPLETIONS: {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]},
    Endpoint.COMPLETIONS: {"model": "scripted", "prompt": "hi"},
    Endpoint.EMBEDDINGS: {"model": "scripted", "input": "hi"},
}
PLAIN = Deployment("scripted", "scripted", frozenset(Task), "unpinned")
# What the objects on the way to a field must hold beside it.
_COMPANY: dict[str, Body] = {
    "messages[]": {"role": "user", "content": "hi"},
    "messages[].tool_calls[].function": {"name": "look"},
    "tools[]": {"type": "function", "function": {"name": "look"}},
    "tools[].function": {"name": "look"},
}
_PICTURE = {"type": "image_url", "image_url": {"url": pictures.data_url(pictures.png(1, 1))}}


def is_of_body(bound: Bound) -> bool:
    """Whether it is about a field; the rest is about the request around it."""
    return bound.field not in ("body", "head") and not bound.field.startswith("header ")


def edges(bound: Bound) -> list[tuple[float | int, float | int | None]]:
    """What is just inside, and what is just outside of it; None where nothing can be."""
    found: list[tuple[float | int, float | int | None]] = []
    if bound.at_least is not None:
        is_count = bound.measure not in (Measure.VALUE, Measure.TOKEN_IDS)
        found.append((bound.at_least, None if is_count and bound.at_least == 0 else bound.at_least - 1))
    if bound.at_most is not None:
        found.append((bound.at_most, bound.at_most + 1))
    return found


def body_of(endpoint: Endpoint, bound: Bound, amount: float | int) -> Body:
    """A body that keeps every bound but perhaps this one."""
    if bound.measure is Measure.TOKEN_IDS and bound.field.endswith(".*"):
        return {**BODIES[endpoint], bound.field[:-2]: {str(amount): 1}}
    return _put(BODIES[endpoint], bound.field, _value(bound, amount))


def _value(bound: Bound, amount: float | int) -> Any:
    """What measures that much at the bound's field."""
    match bound.measure:
        case Measure.VALUE | Measure.TOKEN_IDS:
            return amount
        case Measure.CHARACTERS:
            return "a" * int(amount)
        case Measure.ITEMS | Measure.TEXTS:
            return [_item(f"{bound.field}[]")] * int(amount)
        case Measure.MEMBERS:
            return {str(number): 1 for number in range(int(amount))}
        case Measure.BYTES:
            return {"x": "a" * (int(amount) - len('{"x":""}'))}
        case Measure.DEPTH:
            schema: Any = {"type": "string"}
            for _ in range(int(amount)):
                schema = {"type": "array", "items": schema}
            return schema
        case Measure.PIECES:
            # One for the schema, four for each value, and one for each schema inside.
            values, rest = divmod(int(amount) - 1, 4)
            return {"enum": list(range(values)), **({"anyOf": [{}] * rest} if rest else {})}
        case Measure.MEDIA_PARTS:
            return [{"role": "user", "content": [_PICTURE] * int(amount) or "hi"}]
        case Measure.HEADERS:
            raise AssertionError("no field is counted so")


def _item(place: str) -> Any:
    """Something that may stand in that list."""
    return 1 if place.endswith("token_ids[]") else _COMPANY.get(place, "a")


def _put(body: Body, place: str, value: Any) -> Body:
    """The body with that value at that place, and around it whatever must be there."""
    made = value
    while place:
        if place.endswith("[]"):
            place, made = place[:-2], [made]
        elif place.endswith(".*"):
            place, made = place[:-2], {"7": made}
        else:
            parent, _, name = place.rpartition(".")
            place, made = parent, {**(_COMPANY.get(parent, {}) if parent else body), name: made}
    assert isinstance(made, dict)
    return made


def cases(deployment: Deployment = PLAIN) -> list[tuple[Endpoint, Bound]]:
    return [
        (endpoint, bound)
        for endpoint in Endpoint
        for bound in bounds.of(endpoint, deployment, body_bytes_max=4 * 1024 * 1024)
    ]


def name(value: Endpoint | Bound) -> str:
    """For the ids of tests."""
    return value.name.lower() if isinstance(value, Endpoint) else f"{value.field}-{value.measure}"

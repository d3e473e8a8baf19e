"""Which bounds does a request have to keep? All of them, as values, from the same places that the gateway's checks read."""

import functools
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from headrace.core.errors import InvalidRequest, PayloadTooLarge
from headrace.core.fleet import Deployment
from headrace.core.request import Endpoint
from headrace.protocols import http1, media, openai, patterns, schemas, shapes

IDEMPOTENCY_KEY = "Idempotency-Key"
IDEMPOTENCY_KEY_CHARACTERS_MAX = 255
DEADLINE_HEADER = "X-Headrace-Deadline-Ms"
DEADLINE_DIGITS_MAX = 9
OUTPUT_FIELDS = ("max_tokens", "max_completion_tokens", "n_predict")
CHOICE_FIELDS = ("n", "best_of", "n_cmpl")
TOKEN_ID_FIELDS = ("logit_bias.*", "stop_token_ids[]", "allowed_token_ids[]", "prompt[]", "input[]")


class Measure(StrEnum):
    """What is counted or compared."""

    VALUE = "value"
    CHARACTERS = "characters"
    ITEMS = "items"
    MEMBERS = "members"
    BYTES = "bytes"
    TEXTS = "texts"
    TOKEN_IDS = "token ids"
    PIECES = "pieces"
    DEPTH = "depth"
    MEDIA_PARTS = "media parts"
    HEADERS = "headers"


class Bound(msgspec.Struct, frozen=True, omit_defaults=True):
    """One bound; whoever is outside of it is refused with `code`.

    Attributes:
        field: A place in the body, where `[]` is any item of a list and `.*` any member of an object; `body` and `head` are
            the whole of each, and what begins with `header ` is one.
        at_least, at_most: Both belong to what is accepted.
        says: What `measure` counts, where it isn't plain.
    """

    field: str
    measure: Measure
    at_least: float | int | None = None
    at_most: float | int | None = None
    status: int = 400
    code: str = InvalidRequest.code
    says: str = ""


_KEYWORDS = {
    "minimum": (Measure.VALUE, True),
    "maximum": (Measure.VALUE, False),
    "minLength": (Measure.CHARACTERS, True),
    "maxLength": (Measure.CHARACTERS, False),
    "minItems": (Measure.ITEMS, True),
    "maxItems": (Measure.ITEMS, False),
    "minProperties": (Measure.MEMBERS, True),
    "maxProperties": (Measure.MEMBERS, False),
}
_Edges = dict[tuple[str, Measure], dict[bool, float | int]]


def of(endpoint: Endpoint, deployment: Deployment, *, body_bytes_max: int) -> list[Bound]:
    """Those of the fields, as they are declared; then those of the deployment; then those of every request."""
    kind = shapes.SHAPES[endpoint].request
    fields = {field.name for field in msgspec.structs.fields(kind)}
    narrowed = {
        **dict.fromkeys(OUTPUT_FIELDS, openai.output_tokens_bound(deployment)),
        **dict.fromkeys(CHOICE_FIELDS, deployment.choices_max),
    }
    return [
        *(
            Bound(field, measure, at_least=least, at_most=narrowed.get(field, most))
            for field, measure, least, most in _declared(kind)
        ),
        *_of_deployment(fields, deployment),
        *_of_constraints(fields, deployment),
        *_of_requests(body_bytes_max),
    ]


@functools.cache
def _declared(
    kind: type[msgspec.Struct],
) -> list[tuple[str, Measure, float | int | None, float | int | None]]:
    """Place, measure, least and most of every bound in a struct, in the order of the places. Treat as frozen."""
    known = shapes.schemas([kind])
    edges: _Edges = {}
    _collect(known[shapes.name_of(kind)], "", known, edges)
    found = [(field, measure, edge.get(True), edge.get(False)) for (field, measure), edge in edges.items()]
    return sorted(found, key=lambda row: row[0])


def _collect(schema: Mapping[str, Any], path: str, known: Mapping[str, Any], edges: _Edges) -> None:
    """Every bound in a schema, by its place."""
    schema = shapes.resolve(schema, known)
    for keyword, (measure, is_least) in _KEYWORDS.items():
        if keyword in schema:
            edges.setdefault((path, measure), {})[is_least] = schema[keyword]
    for branch in schema.get("anyOf", ()):
        _collect(branch, path, known, edges)
    for name, inner in schema.get("properties", {}).items():
        _collect(inner, f"{path}.{name}" if path else name, known, edges)
    for keyword, step in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(schema.get(keyword), dict):
            _collect(schema[keyword], path + step, known, edges)


def _of_deployment(fields: set[str], deployment: Deployment) -> Iterator[Bound]:
    """What the model can do."""
    if "prompt" in fields:
        yield Bound(
            "prompt", Measure.TEXTS, at_most=deployment.choices_max, says="texts in one request, times `n`"
        )
    if "input" in fields:
        yield Bound("input", Measure.TEXTS, at_most=openai.INPUTS_MAX, says="texts in one request")
    for place in TOKEN_ID_FIELDS:
        name = place.rstrip("[].*")
        if name in fields and (name != "prompt" or deployment.takes_token_ids):
            yield Bound(
                place,
                Measure.TOKEN_IDS,
                at_least=0,
                at_most=openai.vocabulary_bound(deployment) - 1,
                says="the vocabulary of the model" if deployment.vocabulary_tokens else "",
            )
    if "messages" in fields:
        yield Bound(
            "messages",
            Measure.MEDIA_PARTS,
            at_most=media.PARTS_MAX if deployment.takes_media else 0,
            says="pictures, sound and files",
        )
    if "stream_options" in fields:
        yield Bound("stream_options", Measure.BYTES, at_most=openai.STREAM_OPTIONS_BYTES_MAX)


def _of_constraints(fields: set[str], deployment: Deployment) -> Iterator[Bound]:
    """What may constrain an answer; the fields are those of chat, of OpenAI's and of engines' own words."""
    if "max_tokens" not in fields:
        return
    yield Bound(
        "json_schema",
        Measure.PIECES,
        at_most=min(deployment.constraint_pieces_max, schemas.PIECES_MAX),
        says="of all schemas, grammars and patterns of a request: a schema is one, a value of an `enum` four, and "
        "optional properties count once more by their square",
    )
    yield Bound(
        "json_schema", Measure.DEPTH, at_most=schemas.DEPTH_MAX, says="schemas that lie inside each other"
    )
    yield Bound("regex", Measure.CHARACTERS, at_least=0, at_most=patterns.LENGTH_MAX)
    yield Bound("guided_choice", Measure.ITEMS, at_least=0, at_most=schemas.LIST_MAX)
    yield Bound("tools[].function.name", Measure.CHARACTERS, at_least=1, at_most=schemas.NAME_MAX)


def _of_requests(body_bytes_max: int) -> Iterator[Bound]:
    """What holds for whatever is sent."""
    too_large = PayloadTooLarge
    yield Bound("body", Measure.BYTES, at_most=body_bytes_max, status=too_large.status, code=too_large.code)
    yield Bound(
        "head",
        Measure.HEADERS,
        at_most=http1.HEADERS_MAX,
        says=f"and, with the request line, about {http1.HEAD_BYTES_MAX} bytes",
    )
    yield Bound(
        f"header {IDEMPOTENCY_KEY}",
        Measure.CHARACTERS,
        at_least=1,
        at_most=IDEMPOTENCY_KEY_CHARACTERS_MAX,
        says="printable ASCII",
    )
    yield Bound(
        f"header {DEADLINE_HEADER}",
        Measure.VALUE,
        at_least=1,
        at_most=10**DEADLINE_DIGITS_MAX - 1,
        says="milliseconds; cut to the longest deadline",
    )

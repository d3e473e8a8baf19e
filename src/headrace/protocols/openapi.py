"""Which requests does the public port take, and what does it answer? As an OpenAPI 3.1 document, the same for every service.

What depends on a deployment or its configuration is in the contract of the deployment; both are made of the same values.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

import headrace
from headrace.core import errors
from headrace.core.errors import HeadraceError, OverloadError
from headrace.core.request import Endpoint
from headrace.core.tenant import PRIORITIES
from headrace.protocols import bounds, shapes
from headrace.protocols.contract import Contract

Schema = dict[str, Any]

_SUMMARIES = {
    Endpoint.CHAT_COMPLETIONS: "A chat completion, whole or streamed",
    Endpoint.COMPLETIONS: "A text completion, whole or streamed",
    Endpoint.EMBEDDINGS: "Embeddings",
}
# What any request with a key may meet, whatever it asks; then what one that is about a model may, and what work may.
_ANY: tuple[type[HeadraceError], ...] = (
    errors.InvalidRequest,
    errors.Unauthenticated,
    errors.Forbidden,
    errors.BodyTooSlow,
    errors.PayloadTooLarge,
    errors.InternalError,
)
_OF_MODEL: tuple[type[HeadraceError], ...] = (*_ANY, errors.ModelNotFound)
_NEVER = (errors.ClientGone, errors.NotFound)
_OF_WORK = tuple(kind for kind in errors.catalogue() if kind not in _NEVER)

_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer", "minimum": 0}
_HEADERS: dict[str, tuple[str, Schema]] = {
    "x-request-id": ("this request's name in logs and records", _TEXT),
    "x-headrace-model-revision": (
        "digest of what made the answer, or `unpinned` for a server that others run",
        _TEXT,
    ),
    "x-headrace-config-version": ("the version of the configuration that the request was served by", _WHOLE),
    "x-ratelimit-limit-requests": ("requests that may come at once; where a rate applies", _WHOLE),
    "x-ratelimit-remaining-requests": ("how many of them are left", _WHOLE),
    "x-ratelimit-reset-requests": ("seconds until all are, such as `1.250s`", _TEXT),
    "x-ratelimit-limit-tokens": ("tokens that may come at once; where a rate applies", _WHOLE),
    "x-ratelimit-remaining-tokens": ("how many of them are left", _WHOLE),
    "x-ratelimit-reset-tokens": ("seconds until all are, such as `1.250s`", _TEXT),
    "x-headrace-quota": (
        "the quota or budget with the least left, such as `tokens/day; limit=10; remaining=3; reset=30114`",
        _TEXT,
    ),
    "x-headrace-reason": ("the error's `code`", _TEXT),
    "x-should-retry": ("what OpenAI's client libraries obey", {"enum": ["true", "false"]}),
    "retry-after": ("whole seconds", {"type": "integer", "minimum": 1}),
    "x-headrace-idempotent-replay": ("`true` on an answer that was kept", {"enum": ["true"]}),
    "x-headrace-original-request-id": ("the request that did its work", _TEXT),
    "www-authenticate": ("how to say who asks", {"enum": ["Bearer"]}),
}
_OF_ANSWERS = ("x-request-id",)
_OF_ANSWERED_WORK = tuple(
    name
    for name in _HEADERS
    if name not in ("x-headrace-reason", "x-should-retry", "retry-after", "www-authenticate")
)


def document() -> Schema:
    """The whole document, as JSON values."""
    kinds: list[type[msgspec.Struct]] = [
        shapes.Error,
        shapes.Model,
        shapes.ModelList,
        shapes.Status,
        Contract,
    ]
    for shape in shapes.SHAPES.values():
        kinds += [shape.request, shape.answer, *([shape.event] if shape.event is not None else [])]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "headrace",
            "version": headrace.__version__,
            "summary": "The public port of an inference provider in a box",
            "description": "Fields that stand in no schema are passed to the engine as they are. What holds for one "
            "deployment, such as the size of its context, is in its contract, at `/v1/models/{model}/contract`. Every "
            "path but `/livez` and `/readyz` is 401 without a valid key or token, whether it exists or not; with one, "
            "every path or method that isn't here is 404 `not_found`. `GET` on the paths of completions with a WebSocket "
            "handshake opens a WebSocket.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"key": []}, {"token": []}],
        "paths": {
            **{endpoint.value: {"post": _work(endpoint)} for endpoint in Endpoint},
            "/v1/models": {
                "get": _question("listModels", "The models that this key may use", shapes.ModelList, _ANY)
            },
            "/v1/models/{model}": {
                "parameters": [_MODEL],
                "get": _question("getModel", "One of them", shapes.Model, _OF_MODEL),
            },
            "/v1/models/{model}/contract": {
                "parameters": [_MODEL],
                "get": _question(
                    "getContract", "What is promised to who asks, and what is billed", Contract, _OF_MODEL
                ),
            },
            "/openapi.json": {"get": _question("getOpenapi", "This document", None, _ANY)},
            "/livez": {"get": _probe("isAlive", "Whether the process answers", {"200"})},
            "/readyz": {"get": _probe("isReady", "Whether it should get requests", {"200", "503"})},
        },
        "components": {
            "schemas": shapes.schemas(kinds),
            "headers": {
                name: {"description": text, "schema": schema} for name, (text, schema) in _HEADERS.items()
            },
            "responses": {kind.code: _refusal(kind) for kind in errors.catalogue() if kind not in _NEVER},
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key, `hr_...`; `headrace keys create` prints one.",
                },
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "JWT",
                    "description": "An access token of an identity provider that the service knows (OAuth 2).",
                },
            },
        },
    }


_MODEL: Schema = {
    "name": "model",
    "in": "path",
    "required": True,
    "description": "A model's name; it may be percent-encoded.",
    "schema": {"type": "string", "minLength": 1},
}
_REQUEST_HEADERS: list[Schema] = [
    {
        "name": bounds.IDEMPOTENCY_KEY,
        "in": "header",
        "description": "A name for this work, which is then done once.",
        "schema": {
            "type": "string",
            "pattern": f"^[ -~]{{1,{bounds.IDEMPOTENCY_KEY_CHARACTERS_MAX}}}$",
        },
    },
    {
        "name": bounds.DEADLINE_HEADER,
        "in": "header",
        "description": "Milliseconds that the request has.",
        "schema": {"type": "integer", "minimum": 1, "maximum": 10**bounds.DEADLINE_DIGITS_MAX - 1},
    },
    {
        "name": "X-Headrace-Priority",
        "in": "header",
        "description": "Who goes first while requests wait; never above the tenant's class.",
        "schema": {"enum": list(PRIORITIES)},
    },
]


def _work(endpoint: Endpoint) -> Schema:
    shape = shapes.SHAPES[endpoint]
    content: Schema = {"application/json": {"schema": _ref(shape.answer)}}
    if shape.event is not None:
        content["text/event-stream"] = {"schema": _TEXT, "x-event": _ref(shape.event)}
    return {
        "operationId": _operation(endpoint),
        "summary": _SUMMARIES[endpoint],
        "parameters": _REQUEST_HEADERS,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _ref(shape.request)}},
        },
        "responses": {
            "200": {
                "description": "The answer. A stream's events hold one JSON object each; the last is `[DONE]`, or an "
                "error object where the answer broke.",
                "headers": _headers(_OF_ANSWERED_WORK),
                "content": content,
            },
            **_refusals(_OF_WORK),
        },
    }


def _operation(endpoint: Endpoint) -> str:
    head, *rest = endpoint.value.removeprefix("/v1/").split("/")
    return "create" + head.capitalize() + "".join(map(str.capitalize, rest))


def _question(
    name: str, summary: str, answer: type[msgspec.Struct] | None, kinds: Iterable[type[HeadraceError]]
) -> Schema:
    schema: Schema = {"type": "object"} if answer is None else _ref(answer)
    return {
        "operationId": name,
        "summary": summary,
        "responses": {
            "200": {
                "description": "The answer.",
                "headers": _headers(_OF_ANSWERS),
                "content": {"application/json": {"schema": schema}},
            },
            **_refusals(kinds),
        },
    }


def _probe(name: str, summary: str, statuses: set[str]) -> Schema:
    answer = {
        "description": "The answer.",
        "headers": _headers(_OF_ANSWERS),
        "content": {"application/json": {"schema": _ref(shapes.Status)}},
    }
    return {
        "operationId": name,
        "summary": summary,
        "security": [],
        "responses": {
            **dict.fromkeys(sorted(statuses), answer),
            **_refusals(
                [errors.InvalidRequest, errors.BodyTooSlow, errors.PayloadTooLarge, errors.InternalError]
            ),
        },
    }


def _refusals(kinds: Iterable[type[HeadraceError]]) -> Schema:
    """By status; where several codes share one, `code` tells them apart."""
    by_status: dict[int, list[type[HeadraceError]]] = {}
    for kind in kinds:
        by_status.setdefault(kind.status, []).append(kind)
    return {
        str(status): {"$ref": f"#/components/responses/{group[0].code}"}
        if len(group) == 1
        else _refusal(*group)
        for status, group in sorted(by_status.items())
    }


def _refusal(*kinds: type[HeadraceError]) -> Schema:
    names = ["x-request-id", "x-headrace-reason"]
    if any(kind.should_retry is not None for kind in kinds):
        names.append("x-should-retry")
    if any(issubclass(kind, OverloadError) for kind in kinds):
        names.append("retry-after")
    if errors.Unauthenticated in kinds:
        names.append("www-authenticate")
    codes = [kind.code for kind in kinds]
    return {
        "description": "; ".join(f"`{kind.code}`: {kind.remedy}" for kind in kinds),
        "headers": _headers(names),
        "content": {
            "application/json": {
                "schema": {
                    "allOf": [
                        _ref(shapes.Error),
                        {"properties": {"error": {"properties": {"code": {"enum": codes}}}}},
                    ]
                }
            }
        },
    }


def _headers(names: Iterable[str]) -> Schema:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _ref(kind: type[msgspec.Struct]) -> Schema:
    return {"$ref": shapes.reference(shapes.name_of(kind))}

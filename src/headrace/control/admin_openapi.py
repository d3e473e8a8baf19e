"""Which requests does the admin port take? As an OpenAPI 3.1 document, made of the very table of routes that answers them.

What each of them does, in words, stands in docs/reference/admin-api.md.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import headrace
from headrace.control.admin_routes import AdminRoute, Asked, Reply, reply
from headrace.core import errors
from headrace.core.errors import HeadraceError
from headrace.core.roles import Role

PATH = "/admin/v1/openapi.json"

_NAMED = re.compile(r"\{([a-z_]+)\}")
_TEXT = {"type": "string"}
_METRICS = "text/plain"
_REFUSALS: tuple[type[HeadraceError], ...] = (
    errors.InvalidRequest,
    errors.Unauthenticated,
    errors.Forbidden,
    errors.NotFound,
    errors.BodyTooSlow,
    errors.PayloadTooLarge,
    errors.InternalError,
    errors.Saturated,
)


def route(table: Callable[[], Sequence[AdminRoute]]) -> AdminRoute:
    """Where the document is asked for; `table` is the whole of which it is a row."""

    def answer(asked: Asked) -> Reply:
        return reply(document(table()))

    return AdminRoute("GET", PATH, Role.VIEWER, answer)


def document(routes: Sequence[AdminRoute]) -> dict[str, Any]:
    """The whole document, as JSON values; paths in their order by name."""
    paths: dict[str, dict[str, Any]] = {}
    for each in sorted(routes, key=lambda row: (row.path, row.method)):
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "headrace admin API",
            "version": headrace.__version__,
            "description": "JSON over the admin port. `x-headrace-role` is the lowest role that may ask.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {kind.code: _refusal(kind) for kind in _REFUSALS},
            "schemas": {"Error": _ERROR},
        },
    }


_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "code", "request_id"],
            "properties": {
                "message": _TEXT,
                "type": _TEXT,
                "param": {"type": ["string", "null"]},
                "code": _TEXT,
                "request_id": _TEXT,
            },
        }
    },
}


def _operation(row: AdminRoute) -> dict[str, Any]:
    named = [
        {"name": name, "in": "path", "required": True, "schema": _TEXT} for name in _NAMED.findall(row.path)
    ]
    query = [{"name": name, "in": "query", "schema": _TEXT} for name in row.query]
    operation: dict[str, Any] = {
        "operationId": _operation_id(row),
        "x-headrace-role": row.role.word,
        "responses": _responses(row),
    }
    if named or query:
        operation["parameters"] = [*named, *query]
    if row.fields:
        operation["requestBody"] = {"content": {"application/json": {"schema": _body(row)}}}
    return operation


def _operation_id(row: AdminRoute) -> str:
    """`getTenantsUse` of `GET /admin/v1/tenants/{tenant}/use`; a name in braces is `By...`."""
    words = row.path.removeprefix("/admin/v1").strip("/").split("/")
    told = [
        f"By{_capital(word.strip('{}'))}" if word.startswith("{") else _capital(word.replace(".", "_"))
        for word in words
    ]
    return row.method.lower() + "".join(told)


def _capital(word: str) -> str:
    return word[:1].upper() + word[1:]


def _body(row: AdminRoute) -> dict[str, Any]:
    fields = {
        name: {"x-headrace-role": row.guarded[name].word} if name in row.guarded else {}
        for name in row.fields
    }
    return {"type": "object", "additionalProperties": False, "properties": fields}


def _responses(row: AdminRoute) -> dict[str, Any]:
    content = (
        {_METRICS: {}} if row.path == "/metrics" else {"application/json": {"schema": {"type": "object"}}}
    )
    answers: dict[str, Any] = {"2XX": {"description": "done", "content": content}}
    for kind in _REFUSALS:
        answers[str(kind.status)] = {"$ref": f"#/components/responses/{kind.code}"}
    return answers


def _refusal(kind: type[HeadraceError]) -> dict[str, Any]:
    return {
        "description": kind.remedy,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }

"""Who comes through the admin port, and how far? Tokens and roles are checked before anything is read, names before anything is done."""

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.control.admin_routes import AdminRoute, Asked, Caller, Turn, reply
from headrace.core.errors import (
    BodyTooSlow,
    ConfigError,
    Forbidden,
    HeadraceError,
    InternalError,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    Saturated,
    Unauthenticated,
)
from headrace.core.roles import Role
from headrace.protocols import openai
from headrace.stores.agreements import nearest
from headrace.stores.database import DatabaseUnavailable

LOOP_SILENCE_MAX_S = 30.0
# A connection says what it wants within this time, from its start or from the answer before; a body has as long again.
REQUEST_LIMIT_S = 10.0
OWNER = Caller("admin:owner", Role.ADMIN)
Endpoint = Callable[[Request], Awaitable[Response]]


class Gate:
    """The edge of the admin application: nothing but `GET /livez` passes without a token, no exception passes out.

    Args:
        token: The owner's.
        find: Whose another token is; None for nobody's.
        on_error: Gets what can only be a bug of ours, and the request's id.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        *,
        find: Callable[[bytes], Caller | None],
        on_error: Callable[[Exception, str], None],
    ) -> None:
        self._app = app
        self._token = token.encode("ascii")
        self._find = find
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "lifespan and websockets are off"
        scope["request_id"] = f"req_{secrets.token_hex(16)}"
        try:
            if not (scope["path"] == "/livez" and scope["method"] in ("GET", "HEAD")):
                scope["caller"] = await self._identify(scope["headers"])
            await self._app(scope, receive, send)
        except HeadraceError as error:  # who it is isn't known
            await _refusal(error, scope)(scope, receive, send)
        except Exception as error:  # noqa: BLE001 -- the outermost edge of a request; Starlette has sent the 500
            self._on_error(error, scope["request_id"])

    async def _identify(self, headers: list[tuple[bytes, bytes]]) -> Caller:
        given = [value for name, value in headers if name == b"authorization"]
        scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        if scheme.lower() == b"bearer":
            token = token.strip()
            if hmac.compare_digest(token, self._token):
                return OWNER
            try:
                caller = await asyncio.to_thread(self._find, token)
            except ConfigError as error:
                raise _unavailable() from error
            if caller is not None:
                return caller
        raise Unauthenticated("This port needs an admin token: Authorization: Bearer TOKEN.")


def application(routes: Sequence[AdminRoute], *, heartbeat: Callable[[], float]) -> Starlette:
    """What stands behind the gate: `/livez`, and every row of the table.

    Args:
        heartbeat: Seconds since the gateway's loop last turned.
    """
    # What asks the gateway's loop waits for it, on a thread: `/livez` must be answered meanwhile. One at a time, since
    # scrapes must not overlap, and a stuck gateway must not tie up a thread for each who asks. The same holds for the
    # database and the ledger, but for each of them on its own.
    turns = {turn: asyncio.Lock() for turn in Turn}

    async def livez(request: Request) -> Response:
        is_alive = heartbeat() < LOOP_SILENCE_MAX_S
        answer = reply({"status": "alive" if is_alive else "stalled"}, status=200 if is_alive else 503)
        return Response(answer.body, answer.status, media_type=answer.content_type)

    async def unmatched(request: Request, error: Exception) -> Response:
        return _refusal(NotFound("There is nothing at this path with this method."), request.scope)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HeadraceError)
        return _refusal(error, request.scope)

    async def broken(request: Request, error: Exception) -> Response:
        return _refusal(InternalError("A bug of ours; the log names it as internal.error."), request.scope)

    app = Starlette(
        routes=[
            Route("/livez", livez),
            *(
                Route(route.path, _endpoint(route, turns[route.turn]), methods=[route.method])
                for route in routes
            ),
        ],
        exception_handlers={HTTPException: unmatched, HeadraceError: refused, Exception: broken},
    )
    app.router.redirect_slashes = False
    return app


def _endpoint(route: AdminRoute, turn: asyncio.Lock) -> Endpoint:
    """One row as Starlette asks it: role first, then names and body, then the answer on a thread."""

    async def answer(request: Request) -> Response:
        caller: Caller = request.scope["caller"]
        if caller.role < route.role:
            raise Forbidden(f"This needs the role `{route.role.word}`; this token's is `{caller.role.word}`.")
        asked = Asked(caller, request.path_params, _query(request, route), await _fields(request, route))
        for name in asked.fields:
            if caller.role < (role := route.guarded.get(name, route.role)):
                raise Forbidden(
                    f"`{name}` needs the role `{role.word}`; this token's is `{caller.role.word}`.",
                    param=name,
                )
        async with turn:
            try:
                found = await asyncio.to_thread(route.answer, asked)
            except DatabaseUnavailable as error:
                raise _unavailable() from error
            except ConfigError as error:
                # What the operator of a command line must change, the caller of this port must.
                raise InvalidRequest(error.message) from error
        return Response(found.body, found.status, media_type=found.content_type)

    return answer


def _query(request: Request, route: AdminRoute) -> dict[str, str]:
    """Raises InvalidRequest for a name that isn't known or comes twice."""
    query: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in route.query:
            hint = nearest(name, route.query) if route.query else "it takes none"
            raise InvalidRequest(f"no query parameter `{name[:100]}` here; {hint}", param=name[:100])
        if name in query:
            raise InvalidRequest(f"the query parameter `{name}` is given twice", param=name)
        query[name] = value
    return query


async def _fields(request: Request, route: AdminRoute) -> dict[str, Any]:
    """The members of the body, where the route takes some. Raises HeadraceError."""
    if not route.fields:
        return {}
    try:
        async with asyncio.timeout(REQUEST_LIMIT_S):
            body = await _body(request, route.body_bytes_max)
    except TimeoutError:
        raise BodyTooSlow(f"the body took longer than {REQUEST_LIMIT_S:.0f} s") from None
    except ClientDisconnect:
        raise InvalidRequest("the body ended before its end") from None
    try:
        fields: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any]) if body.strip() else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest("the body is no JSON object") from None
    for name in fields:
        if name not in route.fields:
            raise InvalidRequest(
                f"no field `{name[:100]}` here; {nearest(name, route.fields)}", param=name[:100]
            )
    return fields


async def _body(request: Request, bytes_max: int) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > bytes_max:
            raise PayloadTooLarge(f"a body here has at most {bytes_max} bytes")
    return bytes(body)


def _unavailable() -> Saturated:
    return Saturated("the database can't be had at the moment", retry_after_s=1.0, reason="database")


def _refusal(error: HeadraceError, scope: Scope) -> Response:
    body = openai.error_body(error, request_id=scope["request_id"])
    headers = {}
    if error.status == Unauthenticated.status:
        headers["www-authenticate"] = "Bearer"
    if error.retry_after_s is not None:
        headers["retry-after"] = str(int(error.retry_after_s))
    return Response(body, error.status, headers, "application/json")

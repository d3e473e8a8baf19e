"""What does the operator's port answer? Liveness for anyone, and what stands in the table of routes for who may ask it.

The port has its own thread and event loop so that it still answers, and says so, when the gateway's loop is stuck.
"""

import asyncio
import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.control import admin_openapi
from headrace.control.admin_gate import REQUEST_LIMIT_S, Gate, application
from headrace.control.admin_routes import AdminRoute, Caller, Reply, Turn, reply
from headrace.core.errors import ConfigError
from headrace.core.roles import Role
from headrace.telemetry.exposition import CONTENT_TYPE, Exposition
from headrace.telemetry.logs import Log
from headrace.telemetry.merging import MetricsState
from headrace.telemetry.metrics import Metrics

STOP_LIMIT_S = 5.0
CONNECTIONS_MAX = 64
HEAD_BYTES_MAX = 16 * 1024
TOKEN_FILE = "admin.token"
TOKEN_LENGTH_MIN = 16


def admin_token(run_dir: Path) -> str:
    """The admin port's token, kept in `admin.token` (mode 0600) of that directory and made when it isn't there.

    Raises ConfigError when the file holds no usable token or can't be read or made.
    """
    path = run_dir / TOKEN_FILE
    try:
        if not path.exists():
            _create_token(path)
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the admin token can't be read or made: {error}") from error
    if len(token) < TOKEN_LENGTH_MIN:
        raise ConfigError(
            f"{path}: an admin token has at least {TOKEN_LENGTH_MIN} characters; remove the file for a new one"
        )
    return token


class AdminServer:
    """The admin port: `/livez` for anyone, the routes for those with a token whose role is enough, 404 for the rest.

    Args:
        port: 0 chooses a free one.
        token: The owner's, who may do everything.
        status: The service as a JSON object. It runs on a thread of this server's, and may wait for the gateway's loop.
        heartbeat: Seconds since the gateway's loop last turned.
        elsewhere: What other processes of the service have counted; see telemetry.exposition.
        routes: Further rows of the table.
        find: Whose another token is; None for nobody's. It runs on a thread.

    Attributes:
        routes: The whole table.
    """

    def __init__(
        self,
        host: str,
        port: int,
        token: str,
        *,
        metrics: Metrics,
        status: Callable[[], dict[str, Any]],
        heartbeat: Callable[[], float],
        log: Log,
        elsewhere: Callable[[], Sequence[MetricsState]] = tuple,
        routes: Sequence[AdminRoute] = (),
        find: Callable[[bytes], Caller | None] = lambda token: None,
    ) -> None:
        self._host = host
        self._port = port
        self._metrics = metrics
        self._log = log
        exposition = Exposition(metrics, elsewhere=elsewhere)
        self.routes: tuple[AdminRoute, ...] = (
            AdminRoute(
                "GET",
                "/metrics",
                Role.VIEWER,
                lambda asked: Reply(exposition.render(), content_type=CONTENT_TYPE),
                turn=Turn.GATEWAY,
            ),
            AdminRoute(
                "GET", "/admin/v1/status", Role.VIEWER, lambda asked: reply(status()), turn=Turn.GATEWAY
            ),
            admin_openapi.route(lambda: self.routes),
            *routes,
        )
        self._server = uvicorn.Server(
            uvicorn.Config(
                Gate(application(self.routes, heartbeat=heartbeat), token, find=find, on_error=self._report),
                http=_BoundedProtocol,
                h11_max_incomplete_event_size=HEAD_BYTES_MAX,
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=1,
            )
        )
        self._thread: threading.Thread | None = None

    def start(self) -> int:
        """Opens the port and returns its number. Raises ConfigError when that address can't be had."""
        assert self._thread is None, "started once"
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            listening = socket.create_server((self._host, self._port), family=family)
        except OSError as error:
            raise ConfigError(
                f"admin port {self._host}:{self._port} can't be opened: {error.strerror or error}; "
                "choose another with --admin-port or `server.admin_port`"
            ) from error
        port: int = listening.getsockname()[1]
        # A daemon, so that a stuck admin request can't keep the process from ending.
        self._thread = threading.Thread(target=self._run, args=(listening,), name="admin", daemon=True)
        self._thread.start()
        return port

    def stop(self) -> None:
        """Closes the port, within STOP_LIMIT_S; does nothing before `start` and the second time."""
        if self._thread is not None:
            self._server.should_exit = True
            self._thread.join(STOP_LIMIT_S)

    def _run(self, listening: socket.socket) -> None:
        try:
            self._server.run(sockets=[listening])
        except Exception as error:  # noqa: BLE001 -- the outermost edge of the thread
            self._report(error)
        finally:
            listening.close()

    def _report(self, error: Exception, request_id: str | None = None) -> None:
        self._metrics.internal_errors.labels("admin").add()
        self._log.internal_error(error, where="admin", request_id=request_id)


class _BoundedProtocol(H11Protocol):
    """uvicorn's protocol on h11 (slower than on httptools, but it bounds the header block), with what it lacks: a limit on
    connections, whoever they are from, and a deadline for a request that doesn't come to its end."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()
            return
        self._deadline = self.loop.call_later(REQUEST_LIMIT_S, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = self.loop.call_later(REQUEST_LIMIT_S, self._give_up)
        super().on_response_complete()

    def _give_up(self) -> None:
        """An answer in progress is not cut; the next deadline begins when it is complete."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


def _create_token(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = path.with_name(f"{TOKEN_FILE}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"hr_admin_{secrets.token_urlsafe(32)}\n")
        # A link appears whole or not at all, and never replaces the token that another process has just made.
        os.link(made, path)
    except FileExistsError:
        pass
    finally:
        made.unlink()

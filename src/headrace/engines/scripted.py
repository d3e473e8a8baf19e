"""A deterministic OpenAI-compatible server: fixed text at a fixed pace, and faults by script.

For tests, demos and benchmarks. A request goes through this module (HTTP), scripted_question.py (what is asked),
scripted_faults.py (what shall go wrong), scripted_answer.py and scripted_plan.py (which bytes, and how they end), and
scripted_play.py (slots and pace).
"""

import asyncio
import contextlib
import fcntl
import signal
import socket
import struct
import sys
import termios
from collections import deque
from collections.abc import Callable
from typing import cast

import httptools
import msgspec
import uvloop

from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, HeadraceError
from headrace.engines import scripted_faults
from headrace.engines.scripted_faults import Kind, Scope
from headrace.engines.scripted_plan import error_body, response
from headrace.engines.scripted_play import Engine, Execution, Settings
from headrace.engines.scripted_question import Endpoint

BODY_BYTES_MAX = 64 * 1024 * 1024
PIPELINED_MAX = 32

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, zero seconds
_JSON = "application/json"
_OPEN_PATHS = frozenset({b"/health", b"/scripted/stats", b"/scripted/faults"})
_ENDPOINTS = {endpoint.value.encode(): endpoint for endpoint in Endpoint}


class _Call(msgspec.Struct, frozen=True):
    """One HTTP request as it came off the wire."""

    method: bytes
    path: bytes
    body: bytes
    request_id: str
    is_kept_alive: bool
    authorization: bytes


class Connection(asyncio.Protocol):
    """One client connection: bytes to calls, calls to answers, one after the other. Owns what it has not answered."""

    __slots__ = (
        "_authorization", "_body", "_body_bytes", "_calls", "_current", "_idle_timer", "_is_expecting", "_is_kept_alive", "_parser",
        "_request_id", "_url", "engine", "is_paused", "loop", "transport",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = engine
        self.loop = loop
        self.is_paused = False
        self._parser = httptools.HttpRequestParser(self)
        self._calls: deque[_Call] = deque()
        self._current: Execution | asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._is_kept_alive = True
        self.on_message_begin()

    # --- called by the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio.Transport in all but the class.
        self.transport = cast(asyncio.Transport, transport)
        self.engine.transports.add(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.engine.transports.discard(self.transport)
        self._calls.clear()
        self._stop_idle_timer()
        current, self._current = self._current, None
        if isinstance(current, Execution):
            current.abort()
        elif current is not None:
            current.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(400, "not an HTTP request that this engine understands")

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        if isinstance(self._current, Execution):
            self._current.resume()

    # --- called by the parser ---

    def on_message_begin(self) -> None:
        self._url = b""
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._request_id = ""
        self._authorization = b""
        self._is_expecting = False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # The length is compared first: it is cheap, and this is called for every header.
        if len(name) == 12 and name.lower() == b"x-request-id":
            self._request_id = value.decode("latin-1")
        elif len(name) == 13 and name.lower() == b"authorization":
            self._authorization = value
        elif len(name) == 6 and name.lower() == b"expect":
            self._is_expecting = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        if self._is_expecting and self._current is None:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > BODY_BYTES_MAX:
            self._refuse(413, f"a body may have {BODY_BYTES_MAX} bytes")
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        parser = self._parser
        call = _Call(
            parser.get_method(),
            self._url.partition(b"?")[0],
            body,
            self._request_id,
            parser.should_keep_alive(),
            self._authorization,
        )
        if self._current is None and not self._calls:
            self._serve(call)
        elif len(self._calls) < PIPELINED_MAX:
            self._calls.append(call)
        else:
            self.transport.abort()

    # --- answers ---

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def answered(self, *, idle_close_s: float | None = None) -> None:
        """The answer to the current call is written; the next one may be served."""
        self._current = None
        if not self._is_kept_alive:
            self.transport.close()
        elif self._calls:
            self._serve(self._calls.popleft())
        elif idle_close_s is not None:
            self._idle_timer = self.loop.call_later(idle_close_s, self.transport.close)

    def unsent_bytes(self) -> int:
        """Bytes that the client's machine has not acknowledged: ours, and those in the kernel (tcp(7), SIOCOUTQ)."""
        in_kernel = fcntl.ioctl(self._socket().fileno(), termios.TIOCOUTQ, bytes(4))
        return self.transport.get_write_buffer_size() + int.from_bytes(in_kernel, sys.byteorder)

    def end(self, *, is_reset: bool) -> None:
        """Ends the connection: by a reset, or by a FIN after what was written."""
        if is_reset:
            self._socket().setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self.transport.abort()
        else:
            self.transport.close()

    def _socket(self) -> socket.socket:
        return cast(socket.socket, self.transport.get_extra_info("socket"))

    def _serve(self, call: _Call) -> None:
        self._stop_idle_timer()
        self._is_kept_alive = call.is_kept_alive
        if self.transport.is_closing():
            return
        endpoint = _ENDPOINTS.get(call.path)
        key = self.engine.settings.api_key.encode()
        if self.engine.is_loading() and not call.path.startswith(b"/scripted/"):
            self._respond(503, error_body(503, "loading model"))
        elif key and call.authorization != b"Bearer " + key and call.path not in _OPEN_PATHS:
            self._respond(401, error_body(401, "not the key of this engine"))
        elif endpoint is None:
            self._serve_control(call)
        elif call.method != b"POST":
            self._respond(405, error_body(405, f"{endpoint.value} takes POST"))
        else:
            self._serve_inference(endpoint, call)

    def _serve_inference(self, endpoint: Endpoint, call: _Call) -> None:
        try:
            question, traces, plan = self.engine.ask(endpoint, call.body)
        except HeadraceError as error:
            body = error_body(error.status, error.message, param=error.param, code=error.code)
            self._respond(error.status, body)
            return
        self._current = execution = Execution(
            self.engine, self, question, traces=traces, plan=plan, request_id=call.request_id
        )
        self.engine.admit(execution)

    def _serve_control(self, call: _Call) -> None:
        engine = self.engine
        match call.method, call.path:
            case b"GET", b"/v1/models":
                slow_ms = engine.script.next(Scope.MODELS).number(Kind.MODELS_SLOW)
                self._respond_after((slow_ms or 0) / 1000, 200, engine.models())
            case b"GET", b"/health":
                faults = engine.script.next(Scope.HEALTH)
                is_down = faults.has(Kind.HEALTH_DOWN)
                body = error_body(503, "scripted: down") if is_down else b'{"status":"ok"}'
                slow_ms = faults.number(Kind.HEALTH_SLOW)
                self._respond_after((slow_ms or 0) / 1000, 503 if is_down else 200, body)
            case b"GET", b"/metrics":
                self._respond(200, engine.metrics(), "text/plain; version=0.0.4; charset=utf-8")
            case b"GET", b"/scripted/stats":
                self._respond(200, msgspec.json.encode(engine.stats))
            case b"POST", b"/scripted/faults":
                self._set_faults(call.body)
            case _:
                self._respond(404, error_body(404, "no such path, or not with this method"))

    def _set_faults(self, body: bytes) -> None:
        try:
            script = body.decode()
            self.engine.set_faults(scripted_faults.parse(script))
        except (ConfigError, UnicodeDecodeError) as error:
            self._respond(400, error_body(400, str(error)))
        else:
            self._respond(200, msgspec.json.encode({"faults": script}))

    def _respond_after(self, delay_s: float, status: int, body: bytes) -> None:
        if delay_s:
            self._current = self.loop.call_later(delay_s, self._respond, status, body)
        else:
            self._respond(status, body)

    def _respond(self, status: int, body: bytes, content_type: str = _JSON) -> None:
        self.transport.write(response(status, content_type, body))
        self.answered()

    def _refuse(self, status: int, message: str) -> None:
        """Answers what cannot be read further, and closes."""
        if not self.transport.is_closing():
            if self._current is None:
                self.transport.write(response(status, _JSON, error_body(status, message)))
            self.transport.close()

    def _stop_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None


def run(
    settings: Settings,
    *,
    clock: Clock,
    on_ready: Callable[[str], None],
    stops: Callable[[Callable[[], None]], None] = lambda stop: None,
) -> None:
    """Serves until SIGTERM or SIGINT; `on_ready` gets the URL once connections are accepted.

    `stops` is called on the loop with what ends it, for whoever has another reason to.

    Raises: ConfigError if the port or the log cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        log = None
        if settings.log is not None:
            try:
                # Unbuffered: a line must be in the file before the client can see the end, or before we are killed.
                log = stack.enter_context(settings.log.open("ab", buffering=0))
            except OSError as error:
                raise ConfigError(f"--log: {settings.log} cannot be opened: {error.strerror}") from error
        uvloop.run(_serve(Engine(settings, clock, log), on_ready, stops))


async def _serve(
    engine: Engine, on_ready: Callable[[str], None], stops: Callable[[Callable[[], None]], None]
) -> None:
    settings = engine.settings
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    stops(stopped.set)
    try:
        server = await loop.create_server(
            lambda: Connection(engine, loop), settings.host, settings.port, backlog=4096
        )
    except OSError as error:
        raise ConfigError(
            f"--port: cannot listen on {settings.host}:{settings.port}: {error.strerror}"
        ) from error
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    on_ready(f"http://{host}:{server.sockets[0].getsockname()[1]}")
    await stopped.wait()
    server.close()
    for transport in list(engine.transports):
        transport.abort()
    # Lets the aborted connections say what became of their requests.
    await asyncio.sleep(0)

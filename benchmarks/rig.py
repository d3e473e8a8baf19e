"""The processes that a benchmark needs: started on the core they belong to, waited for, and stopped by their pids."""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.loadgen import Target

HEADRACE = (sys.executable, "-P", "-m", "headrace")
TENANT = "bench"
START_LIMIT_S = 60.0
ANSWER_LIMIT_S = 30.0
STOP_LIMIT_S = 20.0
_POLL_S = 0.02

# Both configurations are what nginx is fastest with here: connections kept on both sides, nothing written to disk.
_NGINX_COMMON = """
worker_processes 1; daemon off; pid {folder}/{name}.pid; error_log stderr error;
events {{ worker_connections 8192; multi_accept on; }}
http {{
  access_log off; keepalive_requests 1000000000; keepalive_timeout 600; client_body_buffer_size 64k;
  client_body_temp_path {folder}/{name}-body; proxy_temp_path {folder}/{name}-proxy; default_type application/json;
  fastcgi_temp_path {folder}/{name}-fastcgi; uwsgi_temp_path {folder}/{name}-uwsgi; scgi_temp_path {folder}/{name}-scgi;
{inner}
}}
"""
_NGINX_FIXED_ANSWER = """
  server {{ {listens}
    location = /v1/models {{ return 200 '{models}'; }}
    location = /v1/chat/completions {{ return 200 '{answer}'; }}
    location / {{ return 200 '{{}}'; }}  # what routers ask their workers about themselves
  }}
"""
_NGINX_PROXY = """
  upstream {name} {{ least_conn; {servers} keepalive 512; keepalive_requests 1000000000; keepalive_timeout 600; }}
  server {{ listen 127.0.0.1:{port} backlog=4096; location / {{
    proxy_pass http://{name}; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    proxy_read_timeout 600; }} }}
"""


class BenchmarkFailed(Exception):
    """The benchmark can't be run, or its figures would mean nothing; the text says why."""


@dataclass(frozen=True, slots=True)
class Running:
    """A started program; `pids` includes the children that it had when it was ready."""

    pid: int
    pids: tuple[int, ...]


class Rig(contextlib.ExitStack):
    """All processes of one benchmark, in one temporary folder; leaving it stops them, the last one first."""

    def __enter__(self) -> "Rig":
        super().__enter__()
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
        return self

    def start(
        self, name: str, command: Sequence[str], *, port: int, core: int | str | None, path: str = "/v1/models",
        environment: dict[str, str] | None = None, limit_s: float = START_LIMIT_S,
    ) -> Running:  # fmt: skip
        """Starts it, pinned to that core, and returns once it answers on its port. Raises BenchmarkFailed."""
        pinned = ["taskset", "-c", str(core)] if core is not None else []
        log_path = self.folder / f"{name}.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [*pinned, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **(environment or {})},
            )  # fmt: skip
        self.callback(stop, process)
        until_s = time.monotonic() + limit_s
        while not _answers(port, path):
            if process.poll() is not None or time.monotonic() > until_s:
                raise BenchmarkFailed(f"{name} didn't start:\n{log_path.read_text()[-2000:]}")
            time.sleep(_POLL_S)
        if process.poll() is not None:  # then it was somebody else who answered
            raise BenchmarkFailed(f"{name} didn't start, port {port} is taken")
        return Running(process.pid, tuple(machine.family(process.pid)))

    def scripted(
        self, name: str, *, model: str, itl_ms: float, tokens: int, core: int | None, slots: int = 100_000,
        ttft_ms: float = 0.0,
    ) -> tuple[int, Running]:  # fmt: skip
        """A scripted engine, by default one that never makes anyone wait for a slot; its port and process."""
        port = free_port()
        command = [*HEADRACE, "engine", "scripted", "--port", str(port), "--model", model]
        command += ["--slots", str(slots), "--ttft-ms", f"{ttft_ms:g}", "--itl-ms", f"{itl_ms:g}"]
        command += ["--tokens", str(tokens)]
        return port, self.start(name, command, port=port, core=core)

    def fixed_answers(self, *, model: str, ports: Sequence[int], core: int) -> Running:
        """Servers that say the same whole answer to every question, at the speed of nginx."""
        models = {"object": "list", "data": [{"id": model, "object": "model", "owned_by": "benchmark"}]}
        answer = {
            "id": "chatcmpl-fixed", "object": "chat.completion", "created": 1700000000, "model": model,
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "The answer is forty-two. " * 8},
                         "logprobs": None, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 20, "completion_tokens": 48, "total_tokens": 68},
        }  # fmt: skip
        listens = " ".join(f"listen 127.0.0.1:{port} backlog=4096;" for port in ports)
        inner = _NGINX_FIXED_ANSWER.format(
            listens=listens, models=json.dumps(models), answer=json.dumps(answer, separators=(",", ":"))
        )
        return self._nginx("answers", inner, port=ports[0], core=core)

    def nginx_proxy(
        self, upstreams: Mapping[str, Sequence[int]], *, core: int
    ) -> tuple[dict[str, int], Running]:
        """nginx before the same servers; the port for each group of them, and the process."""
        ports = {name: free_port() for name in upstreams}
        inner = "".join(
            _NGINX_PROXY.format(
                name=name, port=ports[name], servers=" ".join(f"server 127.0.0.1:{port};" for port in group)
            )
            for name, group in upstreams.items()
        )
        return ports, self._nginx("proxy", inner, port=next(iter(ports.values())), core=core)

    def headrace(
        self, *, upstreams: Sequence[int] = (), core: int | str | None, data: Path | None = None,
        config: Path | None = None, environment: dict[str, str] | None = None, upstream_slots: int = 4096,
        name: str = "headrace", arguments: Sequence[str] = (), program: Sequence[str] = HEADRACE,
    ) -> tuple["Headrace", Running]:  # fmt: skip
        """`headrace up` with a tenant that no limit will stop; everything else as it comes. `core` may be a list, as `0,1`."""
        data = data or self.folder / "data"
        port = free_port()
        command = [*program, "up", "--data", str(data), "--port", str(port), "--admin-port", "0", *arguments]
        command += [part for each in upstreams for part in ("--upstream", f"http://127.0.0.1:{each}")]
        command += ["--upstream-slots", str(upstream_slots)] if upstreams else []
        command += ["--config", str(config)] if config else []
        running = self.start(name, command, port=port, core=core, path="/readyz", environment=environment)
        provider = Headrace(port, data)
        provider.cli(
            "tenants", "create", TENANT, "--requests-per-minute", "100000000", "--requests-burst", "100000000",
            "--concurrency", "100000",
        )  # fmt: skip
        return provider, running

    def _nginx(self, name: str, inner: str, *, port: int, core: int) -> Running:
        nginx = machine.program("nginx")
        assert nginx is not None, "the caller looks first"
        file = self.folder / f"{name}.conf"
        file.write_text(_NGINX_COMMON.format(folder=self.folder, name=name, inner=inner))
        return self.start(name, [nginx, "-e", "stderr", "-c", str(file)], port=port, core=core)


class Headrace:
    """A running `headrace up`."""

    def __init__(self, port: int, data: Path) -> None:
        self.port = port
        self.data = data

    def cli(self, *arguments: str) -> str:
        """What a headrace command on its data prints."""
        command = [*HEADRACE, *arguments, "--data", str(self.data)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise BenchmarkFailed(f"headrace {' '.join(arguments[:2])}: {done.stderr.strip()}")
        return done.stdout.strip()

    def key(self) -> str:
        return self.cli("keys", "create", "--tenant", TENANT)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.cli("status", "--json"))
        return found


def wait_for_answer(target: Target, *, stream: bool) -> None:
    """Returns once the target answers a chat completion with 200: models are found and keys come into force in time."""
    until_s = time.monotonic() + ANSWER_LIMIT_S
    while True:
        status, body = _ask(target, stream=stream)
        if status == 200:
            return
        if time.monotonic() > until_s:
            raise BenchmarkFailed(f"port {target.port} answered {status}: {body[:500]!r}")
        time.sleep(_POLL_S)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """This process, load client and all, on that core only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _ask(target: Target, *, stream: bool) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(target.host, target.port, timeout=30)
    headers = {"Authorization": f"Bearer {target.key}", "Content-Type": "application/json"}
    try:
        connection.request("POST", "/v1/chat/completions", target.body(stream=stream, max_tokens=1), headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

"""A real provider in its own process: `headrace up` on free ports, with a key, its usage, metrics, status and log."""

import http.client
import io
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from headrace.cli.main import main
from tests.support.models import shared_root, shared_store

# A machine that is busy with other things must not make a service give up keep-alive and work; tests of that say so.
CALM = "\n[pressure]\nlag_s_max = 30.0\n"
HEADRACE = [sys.executable, "-m", "headrace"]
START_LIMIT_S = 60.0


def wait_until(
    claim: Callable[[], Any], *, limit_s: float = 60.0, what: str | Callable[[], str] = "the condition"
) -> Any:
    """Polls until `claim()` is truthy and returns its value; fails after a generous limit that noise can't break."""
    until_s = time.monotonic() + limit_s
    while True:
        value = claim()
        if value:
            return value
        if time.monotonic() >= until_s:
            what = what if isinstance(what, str) else what()
            raise AssertionError(f"{what} did not come true within {limit_s} s")
        time.sleep(0.01)


class Provider:
    """A running `headrace up`. Use `provider(...)` to make one."""

    def __init__(
        self,
        process: "subprocess.Popen[str]",
        data: Path,
        *,
        started: str,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self.process = process
        self.data = data
        self.started = started
        facts = json.loads((data / "run" / "service.json").read_text())
        self.port: int = facts["public_port"]
        self.admin_port: int = facts["admin_port"]
        self.url = f"{facts['public_scheme']}://127.0.0.1:{self.port}/v1"
        self._trust = trust
        self._admin_token = (data / "run" / "admin.token").read_text().strip()

    @property
    def pid(self) -> int:
        return self.process.pid

    def cli(self, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Runs a headrace command on this provider's data, in this process: another Python would take half a second."""
        told, complaints = io.StringIO(), io.StringIO()
        with redirect_stdout(told), redirect_stderr(complaints):
            status = main([*arguments, "--data", str(self.data)])
        done = subprocess.CompletedProcess(arguments, status, told.getvalue(), complaints.getvalue())
        if check:
            assert status == 0, f"headrace {' '.join(arguments)} ended with {status}: {done.stderr}"
        return done

    def key(self, tenant: str = "demo", **limits: int) -> str:
        """A new key, in force when this returns; limits as in `headrace tenants create`: requests_per_minute=..."""
        flags = [
            item for name, value in limits.items() for item in (f"--{name.replace('_', '-')}", str(value))
        ]
        self.cli("tenants", "create", tenant, *flags, check=False)
        if flags:
            self.cli("tenants", "set", tenant, *flags)
        key = self.cli("keys", "create", "--tenant", tenant).stdout.strip()
        wait_until(lambda: self.get("/v1/models", key=key)[0] == 200, what="the key to be in force")
        return key

    def connect(self, *, timeout_s: float = 60.0) -> socket.socket:
        """A raw connection to the public port; no TLS."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s)

    def get(self, path: str, *, key: str = "") -> tuple[int, dict[str, str], bytes]:
        return self._ask("GET", path, key=key, body=None, port=self.port)

    def post(
        self, path: str, body: Any, *, key: str, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """One POST on a fresh connection; `body` is JSON-encoded unless it is bytes. Header names come back lower-case."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._ask("POST", path, key=key, body=data, port=self.port, headers=headers)

    def chat(
        self, key: str, *, model: str = "scripted", headers: dict[str, str] | None = None, **fields: Any
    ) -> tuple[int, dict[str, str], bytes]:
        """One chat completion; streamed answers come back as their raw bytes (what came before a cut, too)."""
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}], **fields}
        return self.post("/v1/chat/completions", body, key=key, headers=headers)

    def usage(self, *flags: str) -> list[dict[str, Any]]:
        """The ledger's request records, newest first (`headrace usage --requests --json`)."""
        found = json.loads(self.cli("usage", "--requests", "--json", *flags).stdout)
        rows: list[dict[str, Any]] = found["requests"] if isinstance(found, dict) else found
        return rows

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.admin("/admin/v1/status")[1])
        return answer

    def admin(self, path: str) -> tuple[int, bytes]:
        code, _, body = self._ask("GET", path, key=self._admin_token, body=None, port=self.admin_port)
        return code, body

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics by its full name with labels."""
        text = self.admin("/metrics")[1].decode()
        return {m[1]: float(m[2]) for m in re.finditer(r"^([a-z_]+(?:\{.*\})?) (\S+)$", text, re.MULTILINE)}

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of that name whose labels include these; 0.0 if there are none."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        samples = self.metrics().items()
        return sum(v for k, v in samples if k.partition("{")[0] == name and all(w in k for w in wanted))

    def log_lines(self) -> list[dict[str, Any]]:
        """The JSON log so far."""
        text = (self.data / "logs" / "headrace.log").read_text()
        return [
            json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()
        ]  # one may be half written

    @property
    def resident_bytes(self) -> int:
        """Resident memory of its process."""
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    @property
    def threads(self) -> int:
        """Threads of its process."""
        return len(os.listdir(f"/proc/{self.pid}/task"))

    @property
    def descriptors(self) -> int:
        """Open files of its process."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def stop(self, number: int = signal.SIGTERM, *, limit_s: float = 60.0) -> int:
        """Sends the signal and waits for the exit status."""
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
        return self.process.wait(limit_s)

    def _ask(
        self,
        method: str,
        path: str,
        *,
        key: str,
        body: bytes | None,
        port: int,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        if self._trust is not None and port == self.port:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                "127.0.0.1", port, timeout=60, context=self._trust
            )
        else:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            all_headers = {**({"authorization": f"Bearer {key}"} if key else {}), **(headers or {})}
            connection.request(method, path, body=body, headers=all_headers)
            response = connection.getresponse()
            try:
                content = response.read()
            except http.client.IncompleteRead as cut:
                content = cut.partial
            return response.status, {name.lower(): value for name, value in response.getheaders()}, content
        finally:
            connection.close()


@contextmanager
def provider(
    *,
    upstreams: Sequence[str] = (),
    config: str = "",
    data: Path | None = None,
    arguments: Sequence[str] = (),
    ready: bool = True,
    upstream_slots: int | None = None,
    trust: ssl.SSLContext | None = None,
    descriptors_max: int | None = None,
    program: Sequence[str] = HEADRACE,
) -> Iterator[Provider]:
    """Starts `headrace up` and stops it at the end, by its pid.

    Args:
        program: What to run instead of `headrace`.
        config: Text of a headrace.toml.
        ready: Wait until a replica is ready, not only until the port is open.
        trust: How to speak TLS with the public port, where `config` or `arguments` turn it on.
        descriptors_max: Its limit on open files, soft and hard.
        program: What runs instead of `headrace`.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-test-") as folder:
        home = data or Path(folder) / "data"
        command = [*program, "up", "--data", str(home), "--port", "0", "--admin-port", "0", *arguments]
        for url in upstreams:
            command += ["--upstream", url]
        if upstream_slots is not None:
            command += ["--upstream-slots", str(upstream_slots)]
        if "[pressure]" not in config and "--config" not in arguments:
            config += CALM
        if config:
            file = Path(folder) / "headrace.toml"
            file.write_text(config)
            command += ["--config", str(file)]
        if descriptors_max is not None:
            limit = f'ulimit -n {descriptors_max} && exec "$@"'
            command = ["/bin/sh", "-c", limit, "sh", *command]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            running = Provider(process, home, started=_read_until_open(process), trust=trust)
            if ready:
                wait_until(lambda: running.get("/readyz")[0] == 200, limit_s=START_LIMIT_S, what="/readyz")
            yield running
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(60)
            assert process.stdout is not None
            process.stdout.close()


@contextmanager
def embedded_provider(data: Path) -> Iterator[Provider]:
    """A provider with its own engines on the default models, both ready; `data` is an empty folder."""
    shared_store()
    (data / "models").symlink_to(shared_root())
    with provider(data=data) as running:
        wait_until(
            lambda: all(offer["ready"] for offer in running.status()["deployments"]),
            limit_s=START_LIMIT_S * 2,
            what="both engines to be ready",
        )
        yield running


def _read_until_open(process: "subprocess.Popen[str]") -> str:
    """What it printed until both ports were open."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("admin port"):
            return "".join(lines)
    raise AssertionError(f"headrace up ended with {process.wait(60)}:\n{''.join(lines)}")

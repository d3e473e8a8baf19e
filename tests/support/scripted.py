"""The scripted engine as a subprocess, for any test that needs a real server behind it."""

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_LIMIT_S = 20.0
STOP_LIMIT_S = 10.0


class ScriptedEngine:
    """A running engine. Made by `scripted_engine`, which also stops it."""

    host = "127.0.0.1"

    def __init__(self, process: "subprocess.Popen[str]", port: int, log: Path | None) -> None:
        self.process = process
        self.pid = process.pid
        self.port = port
        self.url = f"http://{self.host}:{port}"
        self._log = log

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Sends the signal, and doesn't wait for what comes of it."""
        self.process.send_signal(number)

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body of one request on a connection of its own."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def stats(self) -> dict[str, int]:
        """The engine's counters; see headrace.engines.scripted_play.Stats."""
        _, body = self.request("GET", "/scripted/stats")
        counters: dict[str, int] = json.loads(body)
        return counters

    def wait_for_stats(
        self, condition: Callable[[dict[str, int]], bool], *, within_s: float = 60.0
    ) -> dict[str, int]:
        """The counters once they satisfy the condition; fails with the last ones if they don't in time."""
        end_s = time.monotonic() + within_s
        while not condition(counters := self.stats()):
            assert time.monotonic() < end_s, f"not within {within_s} s: {counters}"
            time.sleep(0.01)
        return counters

    def set_faults(self, script: str) -> None:
        """Replaces the fault script; `@N` counts from here."""
        status, body = self.request("POST", "/scripted/faults", script.encode())
        assert status == 200, body.decode()

    def executions(self) -> list[dict[str, Any]]:
        """The execution log so far, oldest first; only with `log=True`."""
        assert self._log is not None, "start the engine with log=True"
        return [json.loads(line) for line in self._log.read_text().splitlines()]


@contextmanager
def scripted_engine(
    *,
    slots: int = 4,
    ttft_ms: float = 0,
    itl_ms: float = 0,
    tokens: int = 20,
    answers: Mapping[str, str] | None = None,
    faults: str = "",
    models: tuple[str, ...] = ("scripted",),
    owned_by: str = "headrace-scripted",
    port: int = 0,
    log: bool = False,
    prefix_cache: int = 0,
    prefill_tokens_per_s: float = 0,
) -> Iterator[ScriptedEngine]:
    """A scripted engine on a free port (or `port`), serving when it is handed over and gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="scripted-") as folder:
        log_file = Path(folder) / "executions.jsonl" if log else None
        command = [sys.executable, "-m", "headrace", "engine", "scripted", "--port", str(port)]
        command += ["--slots", str(slots), "--ttft-ms", str(ttft_ms), "--itl-ms", str(itl_ms)]
        command += ["--tokens", str(tokens), "--model", *models, "--owned-by", owned_by, "--fault", faults]
        command += ["--prefix-cache", str(prefix_cache), "--prefill-tokens-per-s", str(prefill_tokens_per_s)]
        if answers is not None:
            (Path(folder) / "answers.json").write_text(json.dumps(answers))
            command += ["--answers", str(Path(folder) / "answers.json")]
        if log_file is not None:
            log_file.touch()
            command += ["--log", str(log_file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
            try:
                yield ScriptedEngine(process, _port_when_ready(process), log_file)
            finally:
                _stop(process)


def _port_when_ready(process: "subprocess.Popen[str]") -> int:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert " ready on http://" in line, f"the engine did not start: {line!r}, exit status {process.poll()}"
    return int(line.rsplit(":", 1)[1])


def _stop(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)  # a stopped process takes no SIGTERM
        process.terminate()
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()

"""A running service whose configuration file a test changes, and callers who note what each answer was served by."""

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from typing import Any, NamedTuple

from tests.support.provider import CALM, Provider, provider

NOTHING = "nothing has changed"


class Served(NamedTuple):
    """What one answer shows of what it was served by."""

    outcome: str
    version: int
    text: str
    burst: int


class Callers:
    """Threads that ask one after the other. State: `seen`, how often each combination; `failures` among them."""

    def __init__(self, port: int, key: str, *, pause_s: float) -> None:
        self._port, self._key, self._pause_s = port, key, pause_s
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.seen: Counter[Served] = Counter()

    @property
    def failures(self) -> list[Served]:
        return [served for served in self.seen if served.outcome != "200"]

    @property
    def versions(self) -> set[int]:
        with self._lock:
            return {served.version for served in self.seen}

    def run(self) -> None:
        body = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "hello"}]})
        headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        while not self._stop.wait(self._pause_s):
            try:
                connection.request("POST", "/v1/chat/completions", body, headers)
                answer = connection.getresponse()
                content = answer.read()
                text = json.loads(content)["choices"][0]["message"]["content"] if answer.status == 200 else ""
                served = Served(
                    str(answer.status),
                    int(answer.getheader("x-headrace-config-version", "0")),
                    text,
                    int(answer.getheader("x-ratelimit-limit-requests", "0")),
                )
            except (OSError, HTTPException, ValueError) as error:
                served = Served(type(error).__name__, 0, "", 0)
                connection.close()
            with self._lock:
                self.seen[served] += 1
        connection.close()

    def stop(self) -> None:
        self._stop.set()


class Configured:
    """A service and its file. Use `configured(...)` to make one."""

    def __init__(self, running: Provider) -> None:
        self.provider = running
        self.file = running.data.parent / "headrace.toml"
        self.key = running.key()

    def write(self, text: str) -> None:
        self.file.write_text(text + CALM if "[pressure]" not in text else text)

    def reload(self, text: str) -> dict[str, Any]:
        """Has the file say that, and the service read it. Fails where it is refused."""
        self.write(text)
        done: dict[str, Any] = json.loads(self.provider.cli("reload", "--json").stdout)
        return done

    def refused(self, text: str) -> str:
        """As `reload`, where it must be refused: what the operator is told."""
        self.write(text)
        done = self.provider.cli("reload", check=False)
        assert done.returncode == 2, (done.returncode, done.stdout)
        return done.stderr

    def signal(self) -> None:
        os.kill(self.provider.pid, signal.SIGUSR1)

    @contextmanager
    def callers(self, count: int = 8, *, pause_s: float = 0.01) -> Iterator[Callers]:
        callers = Callers(self.provider.port, self.key, pause_s=pause_s)
        threads = [threading.Thread(target=callers.run) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield callers
        finally:
            callers.stop()
            for thread in threads:
                thread.join(60.0)


@contextmanager
def configured(text: str, *, workers: int = 1) -> Iterator[Configured]:
    """Starts a service with that file."""
    with provider(config=text, arguments=("--workers", str(workers))) as running:
        yield Configured(running)

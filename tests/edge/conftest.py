"""One engine and one provider that most tests of the edge share; what changes either starts its own."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.http_answers import Answer, answers, read_answers
from tests.support.provider import Provider, provider
from tests.support.scripted import ScriptedEngine, scripted_engine
from tests.support.wire import read


@dataclass(frozen=True)
class Edge:
    """A provider in front of a scripted engine, and a key without limits.

    Attributes:
        engine: Its counters prove what reached it; it logs its executions.
    """

    engine: ScriptedEngine
    service: Provider
    key: str

    def send(self, request: bytes, *, count: int | None = None) -> tuple[list[Answer], str]:
        """All answers on one connection, and how it ended: "fin", "reset", or "open" once `count` answers have come.

        Without `count` the connection is expected to end: half a minute of silence is "open" too.
        """
        with self.service.connect() as connection:
            connection.sendall(request)
            seen = read_answers(connection, count=count) if count else read(connection, silence_s=30)
        return answers(seen.data), seen.end

    def requests(self) -> int:
        """How many inference requests the engine has received."""
        return self.engine.stats()["requests"]

    def is_healthy(self) -> bool:
        return self.service.chat(self.key)[0] == 200

    def ask(self, method: str, path: str, body: bytes | None = None, /, **headers: str) -> Answer:
        """One request with the key on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.service.port, timeout=60)
        try:
            connection.request(method, path, body, {"authorization": f"Bearer {self.key}", **headers})
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        """A POST of JSON, or of bytes as they are."""
        return self.ask(
            "POST", path, body if isinstance(body, bytes) else json.dumps(body).encode(), **headers
        )


@contextmanager
def running_edge(
    *,
    config: str = "",
    upstream_slots: int | None = None,
    descriptors_max: int | None = None,
    **engine: Any,
) -> Iterator[Edge]:
    """A pair of their own for tests that change them; `engine` as for scripted_engine."""
    with (
        scripted_engine(**engine) as running,
        provider(
            upstreams=[running.url],
            config=config,
            upstream_slots=upstream_slots,
            descriptors_max=descriptors_max,
        ) as service,
    ):
        yield Edge(running, service, service.key("unlimited", requests_per_minute=0, concurrency=0))
        # Whatever a test did: no bug of ours was met on the way.
        log = (service.data / "logs" / "headrace.log").read_text().split("\n")
        assert [line for line in log if '"event":"internal.error"' in line] == []


@pytest.fixture(scope="session")
def edge() -> Iterator[Edge]:
    with running_edge(log=True, models=("scripted", "org/model")) as running:
        yield running

"""What does one request cost in our own Python, without sockets, kernel and disk?

The real gateway, from the bytes of a request to its records, between transports that only collect what is written: connections
that ask again and again, and a replica whose answers are put into its connections by hand. Nothing waits, so the figure is the
same in every round but for what disturbs the machine; the fastest round is the one to compare between two versions of the code.
"""

import argparse
import asyncio
import io
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

import uvloop

from benchmarks import machine, table
from benchmarks.loadgen import Target
from headrace.app.budgets import no_budgets
from headrace.app.gateway_parts import build_gateway
from headrace.config import Config
from headrace.core import keys
from headrace.core.clock import SystemClock
from headrace.core.fleet import Deployment, FleetSnapshot, Replica, Task
from headrace.core.ids import KeyId, ReplicaId, TenantId
from headrace.core.tenant import Principal, TenantLimits
from headrace.engines import http
from headrace.gateway.auth import Authenticator
from headrace.gateway.connection import ClientConnection
from headrace.gateway.usage import Confirmation
from headrace.stores.key_ring import KeyEntry
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics

CONNECTIONS = 64
MODEL = "walked"
KEY = keys.make("live", id_random=bytes(keys.ID_RANDOM_BYTES), secret_random=bytes(keys.SECRET_RANDOM_BYTES))
EVENTS = 20


class _Transport(asyncio.Transport):
    """Takes what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[bytes] = []

    def write(self, data: Any) -> None:
        self.taken.append(data)

    def writelines(self, pieces: Any) -> None:
        self.taken += pieces

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass


class _NoDisk:
    """A ledger that forgets."""

    is_behind = False

    def begin(self, request: object, replica: object, attempt: int) -> None:
        pass

    def append(self, usage: object, executions: object) -> None:
        pass

    replace = append

    def confirm(self) -> Confirmation:
        raise NotImplementedError


async def _open(made: "asyncio.Future[http.UpstreamConnection]", client: Any, opened: list[Any]) -> None:
    """In the place of opening a connection to the replica."""
    connection = http.UpstreamConnection(client)
    transport = _Transport()
    connection.connection_made(transport)
    opened.append((connection, transport))
    made.set_result(connection)


def _answer(*, stream: bool) -> list[bytes]:
    """What the replica sends, as reads of its connection."""
    if not stream:
        body = (
            b'{"id":"c","object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,"message":{"role":'
            b'"assistant","content":"'
            + b"The answer is forty-two. "
            * 8
            + b'"},"logprobs":null,"finish_reason":"stop"}],'
            b'"usage":{"prompt_tokens":20,"completion_tokens":48,"total_tokens":68}}'
        )
        return [
            b"HTTP/1.1 200 OK\r\nServer: nginx\r\nDate: Sun, 29 Nov 2026 00:00:00 GMT\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\nConnection: keep-alive\r\n\r\n%b" % (len(body), body)
        ]
    start = b'{"id":"c","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":['
    events = [
        start + b'{"index":0,"delta":{"content":"word "},"logprobs":null,"finish_reason":null}]}'
    ] * EVENTS
    events += [
        start + b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}',
        start + b'],"usage":{"prompt_tokens":20,"completion_tokens":20,"total_tokens":40}}',
        b"[DONE]",
    ]
    chunks = [b"%x\r\ndata: %b\n\n\r\n" % (len(event) + 8, event) for event in events]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return [head + chunks[0], *chunks[1:-1], chunks[-1] + b"0\r\n\r\n"]


async def _measure(*, stream: bool, rounds: int) -> list[float]:
    """Microseconds of CPU for each request, by round; with `stream` for each request with its EVENTS events."""
    clock = SystemClock()
    auth = Authenticator(bytes(32), clock=clock)
    principal = Principal(TenantId("bench"), KeyId("bench"), TenantLimits(10**8, 10**8, 10**5))
    auth.replace({keys.digest(bytes(32), KEY.encode()): KeyEntry(principal, None)})
    gateway = build_gateway(
        Config(), auth=auth, ladder=None, records=_NoDisk(), budgets=no_budgets(clock), metrics=Metrics(), log=Log(io.StringIO(), clock), clock=clock,
        chance=random.Random(1),
    )  # fmt: skip
    replicas = tuple(Replica(ReplicaId(f"r{n}"), "127.0.0.1", 9 + n, 4096) for n in range(2))
    offer = Deployment(MODEL, MODEL, frozenset({Task.CHAT}), "unpinned", replicas)
    upstream: list[tuple[http.UpstreamConnection, _Transport]] = []
    http.ReplicaClient._open = lambda client, made, limit_s: _open(made, client, upstream)  # type: ignore[method-assign]
    target = Target(80, MODEL, KEY)
    request = target.request(target.body(stream=stream))
    answer = _answer(stream=stream)
    taken = []
    async with asyncio.TaskGroup() as tasks:
        gateway.upstream.open(tasks)
        gateway.publish(FleetSnapshot(1, {MODEL: offer}))
        callers = [(ClientConnection(gateway), _Transport()) for _ in range(CONNECTIONS)]
        for connection, transport in callers:
            connection.connection_made(transport)
        for _ in range(rounds + 3):
            started_s = time.process_time()
            for _ in range(20):
                await _turn(callers, upstream, request, answer)
            taken.append((time.process_time() - started_s) / (20 * CONNECTIONS) * 1e6)
    return taken[3:]


async def _turn(
    callers: list[tuple[ClientConnection, _Transport]],
    upstream: list[tuple[http.UpstreamConnection, _Transport]],
    request: bytes,
    answer: list[bytes],
) -> None:
    """Everyone asks, and everyone is answered."""
    for connection, _ in callers:
        connection.data_received(request)
    while sum(bool(transport.taken) for _, transport in upstream) < CONNECTIONS:  # noqa: ASYNC110 -- turns of the loop are counted
        await asyncio.sleep(0)
    asked = [(connection, transport) for connection, transport in upstream if transport.taken]
    for _, transport in asked:
        transport.taken.clear()
    for piece in answer:
        for replica, _ in asked:
            replica.data_received(piece)
        await asyncio.sleep(0)
    for _, transport in callers:
        assert transport.taken, "not answered"
        assert transport.taken[0].startswith(b"HTTP/1.1 200 "), transport.taken[0][:200]
        transport.taken.clear()


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.walk", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="of 1,280 requests each (default: 30)")
    table.add_json_argument(parser, "walk")
    arguments = parser.parse_args(argv)
    found = {}
    for name, stream in (("whole", False), ("stream", True)):
        taken = sorted(uvloop.run(_measure(stream=stream, rounds=arguments.rounds)))
        found[name] = {"best_us": taken[0], "median_us": taken[len(taken) // 2], "rounds": taken}
    rows = [[name, f"{each['best_us']:.1f}", f"{each['median_us']:.1f}"] for name, each in found.items()]
    print(table.rows([f"CPU us per request ({EVENTS} events a stream)", "best", "median"], rows))
    print(f"\n{table.write_json(arguments.json, 'walk', machine.facts(), found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

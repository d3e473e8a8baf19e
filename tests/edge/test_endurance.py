"""What a service has taken it gives back, however long it runs: memory, descriptors, tasks, threads, gauges, series.

Each has a short form that always runs and a full one behind the marker `long`.
"""

import json
import random
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from headrace.core.usage import UsageRecord
from headrace.stores.opening import open_database
from headrace.stores.usage_report import UsageReport
from tests.edge.conftest import Edge, running_edge
from tests.support.provider import provider, wait_until
from tests.support.scripted import scripted_engine
from tests.support.wire import read

pytestmark = pytest.mark.slow
MIB = 1024 * 1024
KIB = 1024
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n"
GAUGES = (
    "headrace_in_flight",
    "headrace_queue_length",
    "headrace_streams_open",
    "headrace_bodies_reading",
    "headrace_connections",
    "headrace_ledger_backlog",
    "headrace_pressure_level",
)
NO_LIMITS = "[tenant_defaults]\nrequests_per_minute = 0\nconcurrency_max = 0\n"


def question(edge: Edge, **fields: object) -> bytes:
    body = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "hi"}], **fields})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {edge.key}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def is_at_rest(edge: Edge) -> bool:
    return not any(
        value for name, value in edge.service.metrics().items() if name.partition("{")[0] in GAUGES
    )


@contextmanager
def room_for_descriptors(count: int) -> Iterator[None]:
    """This process's own limit, which is lower on some machines, lifted for a while."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"this machine allows {hard} open files, and {count} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_thousand_idle_connections_and_five_hundred_streams_are_cheap() -> None:
    """T11: the bounds are generous, what it takes is in benchmarks/."""
    idle_count, stream_count = 1000, 500
    with (
        room_for_descriptors(4096),
        running_edge(
            config=NO_LIMITS, upstream_slots=1000, slots=1000, ttft_ms=1, itl_ms=500, tokens=400
        ) as edge,
        ExitStack() as stack,
    ):
        edge.service.get("/livez")
        before_bytes = edge.service.resident_bytes
        idle = [stack.enter_context(edge.service.connect()) for _ in range(idle_count)]
        for connection in idle:
            connection.sendall(LIVEZ)
        for connection in idle:
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        idle_bytes = edge.service.resident_bytes
        streams = [stack.enter_context(edge.service.connect()) for _ in range(stream_count)]
        asked = question(edge, stream=True)
        for connection in streams:
            connection.sendall(asked)
        for connection in streams:
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        stream_bytes = edge.service.resident_bytes
        assert edge.service.get("/livez")[0] == 200
        wait_until(
            lambda: edge.service.status()["connections"] == idle_count + stream_count, what="all to be there"
        )
        assert (idle_bytes - before_bytes) / idle_count < 20 * KIB
        assert (stream_bytes - idle_bytes) / stream_count < 60 * KIB


@pytest.mark.parametrize(
    "count", [1_500, pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
def test_scanned_paths_models_and_users_make_no_series(edge: Edge, count: int) -> None:
    """T59, REPORTS 96: what callers invent is counted together."""

    def invent(index: int) -> None:
        with edge.service.connect() as connection:
            connection.sendall(
                f"GET /v1/{index}/p HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {edge.key}\r\n\r\n".encode()
                if index % 3 == 0
                else question(edge, model=f"model-{index}", user=f"user-{index}")
            )
            assert b" 404 " in connection.recv(64)

    for index in range(30):
        invent(index)
    series, resident_bytes = set(edge.service.metrics()), edge.service.resident_bytes
    for index in range(30, count):
        invent(index)
    assert set(edge.service.metrics()) == series
    assert edge.service.resident_bytes - resident_bytes < 10 * MIB


@pytest.mark.parametrize(
    ("streams", "chunks"),
    [(40, 500), pytest.param(1000, 1000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])],
)
def test_memory_and_threads_do_not_grow_with_chunks(streams: int, chunks: int) -> None:
    """REPORTS 93: the second half of many chunks takes no more memory than the first."""
    with (
        room_for_descriptors(4096),
        running_edge(config=NO_LIMITS, upstream_slots=streams, slots=streams, tokens=chunks) as edge,
    ):

        def relay() -> None:
            with ExitStack() as stack:
                opened = [stack.enter_context(edge.service.connect()) for _ in range(streams)]
                for connection in opened:
                    connection.sendall(question(edge, stream=True, max_tokens=chunks))
                for connection in opened:
                    assert read(connection, until=b"data: [DONE]\n\n").end == "open"

        relay()
        relay()
        resident_bytes, threads = edge.service.resident_bytes, edge.service.threads
        relay()
        relay()
        assert edge.service.resident_bytes - resident_bytes < 5 * MIB
        assert edge.service.threads == threads
        wait_until(lambda: is_at_rest(edge), what="everything to be given back")


@pytest.mark.parametrize(
    "count", [600, pytest.param(6_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
def test_memory_does_not_grow_with_prompts(count: int) -> None:
    """REPORTS 95: thousands of prompts that nobody asked before, with log-probabilities."""
    with running_edge(config=NO_LIMITS, tokens=20) as edge:

        def ask(first: int, last: int) -> None:
            with edge.service.connect() as connection:
                for index in range(first, last):
                    text = f"{index} " * 200
                    connection.sendall(
                        question(
                            edge,
                            messages=[{"role": "user", "content": text}],
                            stream=True,
                            logprobs=True,
                            top_logprobs=20,
                        )
                    )
                    assert read(connection, until=b"data: [DONE]\n\n").end == "open"

        ask(0, count // 2)
        resident_bytes = edge.service.resident_bytes
        ask(count // 2, count)
        assert edge.service.resident_bytes - resident_bytes < 4 * MIB


@pytest.mark.parametrize(
    "seconds", [8.0, pytest.param(1800.0, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
def test_after_a_long_mixed_load_everything_is_as_before(seconds: float) -> None:
    """T60: whole and streamed answers, callers that leave, broken engines, bad requests and scans, from several callers."""
    with running_edge(config=NO_LIMITS, slots=4, upstream_slots=4, itl_ms=1, tokens=30) as edge:
        run_mixed_load(edge, seconds=min(3.0, seconds / 3), seed=1)
        wait_until(lambda: is_at_rest(edge), what="rest after the warm-up")
        before = edge.service.metrics()
        resident_bytes, threads = edge.service.resident_bytes, edge.service.threads
        kinds = run_mixed_load(edge, seconds=seconds, seed=2)
        assert len(kinds) == len(KINDS), "not every kind had its turn"
        edge.engine.set_faults("")
        wait_until(lambda: is_at_rest(edge), what="every gauge to be 0")
        edge.engine.wait_for_stats(lambda stats: stats["running"] == stats["waiting"] == 0)
        after = edge.service.metrics()
        assert after["headrace_tasks"] <= before["headrace_tasks"]
        assert edge.service.threads <= threads + 1  # a pool of the admin port's may have made its last one
        # Connections to the engine are kept: at most one for each slot.
        assert after["process_open_fds"] <= before["process_open_fds"] + 4
        assert edge.service.resident_bytes - resident_bytes < 8 * MIB
        assert edge.is_healthy()


def whole(edge: Edge, connection: socket.socket, chance: random.Random) -> None:
    connection.sendall(question(edge))
    read(connection, silence_s=0.2)


def streamed(edge: Edge, connection: socket.socket, chance: random.Random) -> None:
    connection.sendall(question(edge, stream=True))
    read(connection, silence_s=0.2)


def leaves(edge: Edge, connection: socket.socket, chance: random.Random) -> None:
    connection.sendall(question(edge, stream=True))
    time.sleep(chance.random() * 0.05)  # the stimulus itself


def broken_off(edge: Edge, connection: socket.socket, chance: random.Random) -> None:
    asked = question(edge)
    connection.sendall(asked[: chance.randrange(1, len(asked))])


def malformed(edge: Edge, connection: socket.socket, chance: random.Random) -> None:
    connection.sendall(
        chance.choice([b"\x00\xff\r\n\r\n", question(edge, temperature=99), b"GET  / HTTP/1.1\r\n"])
    )
    read(connection, silence_s=0.2)


def stranger(edge: Edge, connection: socket.socket, chance: random.Random) -> None:
    connection.sendall(f"GET /{chance.random()} HTTP/1.1\r\nHost: t\r\n\r\n".encode())
    read(connection, silence_s=0.2)


KINDS: tuple[Callable[[Edge, socket.socket, random.Random], None], ...] = (
    whole, streamed, leaves, broken_off, malformed, stranger,
)  # fmt: skip


def run_mixed_load(edge: Edge, *, seconds: float, seed: int) -> set[str]:
    """Eight callers at once, each after its own seed; returns which kinds of request they sent."""
    ends_s = time.monotonic() + seconds
    seen: set[str] = set()
    problems: list[BaseException] = []

    def call(number: int) -> None:
        chance = random.Random(seed * 100 + number)
        try:
            while time.monotonic() < ends_s:
                kind = chance.choice(KINDS)
                seen.add(kind.__name__)
                with edge.service.connect() as connection:
                    kind(edge, connection, chance)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for turn in range(max(1, int(seconds))):
        edge.engine.set_faults(chance_of_faults(seed + turn))
        time.sleep(min(1.0, seconds))  # how long each script of faults is in force
    for thread in threads:
        thread.join()
    assert not problems, problems
    return seen


def chance_of_faults(seed: int) -> str:
    chance = random.Random(seed)
    return ",".join(
        chance.sample(["cut:3@2", "error:500@3", "ttft:50@1", "stall:5@4", "no_done@5", "html@6"], 3)
    )


def rows(data: Path) -> list[UsageRecord]:
    report = UsageReport(open_database(data, must_exist=True))
    try:
        return report.requests(limit=100)
    finally:
        report.close()


STEPPING = """
import itertools, sys, time
real, steps = time.time, itertools.cycle((0.0, 3600.0, -3600.0))
time.time = lambda: real() + next(steps)
sys.argv[0] = "headrace"
from headrace.__main__ import run
run()
"""


def test_a_clock_that_is_stepped_by_an_hour_moves_no_duration() -> None:
    """T32: each look at the wall clock is an hour off in another direction; durations, rates and limits don't look at it."""
    with (
        scripted_engine(itl_ms=1) as engine,
        provider(upstreams=[engine.url], program=[sys.executable, "-c", STEPPING]) as service,
    ):
        key = service.key("brisk", requests_per_minute=6, requests_burst=5)
        statuses = [service.chat(key)[0] for _ in range(4)]
        assert statuses == [200] * 4
        limited = [service.chat(key)[0] for _ in range(6)]
        assert 429 in limited  # an hour ahead would have filled the bucket
        wait_until(lambda: len(rows(service.data)) >= 4, what="the records")
        for row in rows(service.data):
            assert 0 <= row.queue_wait_s <= row.total_s < 60
            assert row.ttft_s is None or 0 <= row.ttft_s <= row.total_s
        sums = {name: value for name, value in service.metrics().items() if "_seconds_sum" in name}
        assert sums
        assert all(0 <= value < 60 for value in sums.values())

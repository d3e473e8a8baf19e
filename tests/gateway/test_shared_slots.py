"""One server that offers two models has its slots once, as the server itself counts."""

import json
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from tests.support import wire
from tests.support.provider import Provider, provider, wait_until
from tests.support.scripted import ScriptedEngine, scripted_engine

MODELS = ("first", "second")
UNLIMITED = "[tenant_defaults]\nrequests_per_minute = 0\nconcurrency_max = 0\n"


@contextmanager
def two_models(*, workers: int = 1, ttft_ms: float) -> Iterator[tuple[Provider, ScriptedEngine, str]]:
    """The engine would take 16 requests, and is given 2."""
    with scripted_engine(slots=16, ttft_ms=ttft_ms, tokens=2, models=MODELS) as engine:
        arguments = ["--workers", str(workers)]
        with provider(
            upstreams=[engine.url], upstream_slots=2, config=UNLIMITED, arguments=arguments
        ) as running:
            yield running, engine, running.key()


def ask_for_both(running: Provider, key: str, *, times: int) -> "Counter[int]":
    with ThreadPoolExecutor(times) as pool:
        return Counter(pool.map(lambda number: running.chat(key, model=MODELS[number % 2])[0], range(times)))


def test_two_models_never_use_more_than_the_slots_of_their_server() -> None:
    with two_models(ttft_ms=50) as (running, engine, key):
        assert ask_for_both(running, key, times=20) == {200: 20}
        assert engine.stats()["running_max"] == 2
        replicas = [row for offer in running.status()["deployments"] for row in offer["replicas"]]
        assert [row["in_flight"] for row in replicas] == [0, 0]
        for model in MODELS:
            assert running.metric("headrace_requests_total", model=model) == 10


def test_a_request_for_one_model_starts_when_work_for_the_other_ends() -> None:
    with two_models(ttft_ms=60_000) as (running, engine, key), ExitStack() as stack:

        def send(model: str) -> socket.socket:
            question = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
            connection = stack.enter_context(running.connect())
            connection.sendall(
                wire.post(
                    "/v1/chat/completions",
                    json.dumps(question).encode(),
                    headers=f"authorization: Bearer {key}\r\n",
                )
            )
            return connection

        held = [send("first") for _ in range(2)]
        engine.wait_for_stats(lambda stats: stats["running"] == 2)
        assert running.metric("headrace_in_flight", model="first") == 2
        assert running.metric("headrace_in_flight", model="second") == 0
        send("second")
        wait_until(lambda: running.metric("headrace_queue_length", model="second") == 1, what="its wait")
        held[0].close()
        engine.wait_for_stats(lambda stats: stats["requests"] == 3)
        assert engine.stats()["running_max"] == 2
        assert [running.metric("headrace_in_flight", model=model) for model in MODELS] == [1, 1]


@pytest.mark.slow
def test_nor_do_they_over_several_workers() -> None:
    """T53: the authority lends the slots of the server, not of its models; none is idle while somebody waits."""
    with two_models(workers=3, ttft_ms=20) as (running, engine, key):
        assert ask_for_both(running, key, times=60) == {200: 60}
        assert engine.stats()["running_max"] == 2

"""Claims about an Idempotency-Key over several workers: work is done once, whoever dies, and whoever is silent."""

import asyncio
import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.app import link as wire
from headrace.app.answers import UNSENT_BYTES_MAX, AnswerDesk, SharedAnswers
from headrace.app.pair import Line
from headrace.config import IdempotencyConfig
from headrace.core.clock import SystemClock
from headrace.core.errors import Saturated
from headrace.core.ids import RequestId, TenantId
from headrace.gateway.idempotency import KeptAnswer
from headrace.policies.idempotency import IdempotencyTable, Known
from tests.app.test_workers import ask, service, workers_of
from tests.support.provider import Provider, wait_until

TENANT = TenantId("acme")
NAMED = {"idempotency-key": "order-1"}
REPLAY = "x-headrace-idempotent-replay"
CONFIG = IdempotencyConfig(answer_bytes_max=1000)

Answer = tuple[int, dict[str, str], bytes]


def named(running: Provider, key: str, **fields: Any) -> Answer:
    """One request with the name, on a connection of its own; again where the service was late to say what is known of it."""
    while True:
        answer = running.chat(key, headers=NAMED, **fields)
        if answer[0] != 503 or json.loads(answer[2])["error"]["param"] != "Idempotency-Key":
            return answer


def begun(running: Provider, key: str) -> int:
    """Asks until the service was not late; returns how that went, 0 where the connection was cut."""
    while (status := ask(running, key, headers=NAMED)) == 503:
        pass
    return status


def taken(running: Provider, key: str) -> int:
    """Asks until the work is taken; returns how that went."""
    while True:
        try:
            status = named(running, key)[0]
        except (OSError, http.client.HTTPException):
            continue  # on its way to a worker that was killed
        if status != 429:
            return status


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
def test_work_is_done_once_however_many_ask_for_it_of_whichever_workers(stream: bool) -> None:
    """Those who come while it is done are told to come back, those who come later get the same bytes, and another body is
    refused, all over 50 connections and three workers."""
    with service(workers=3, slots=8, ttft_ms=500, tokens=5) as (running, engine):
        key = running.key()
        with ThreadPoolExecutor(50) as pool:
            answers = list(pool.map(lambda _: named(running, key, stream=stream), range(50)))
        assert engine.stats()["requests"] == 1
        done = [answer for answer in answers if answer[0] == 200]
        assert len({body for _, _, body in done}) == 1
        assert sum(REPLAY not in headers for _, headers, _ in done) == 1
        told = [answer for answer in answers if answer[0] != 200]
        assert {(status, headers["retry-after"]) for status, headers, _ in told} <= {(429, "1")}
        again = [named(running, key, stream=stream) for _ in range(12)]
        assert {(status, body) for status, _, body in again} == {(200, done[0][2])}
        assert len({headers["x-headrace-original-request-id"] for _, headers, _ in again}) == 1
        assert {named(running, key, stream=stream, max_tokens=1)[0] for _ in range(12)} == {400}
        assert engine.stats()["requests"] == 1
        assert running.metric("headrace_idempotent_replays_total") == len(done) - 1 + 12


def worker_at_work(running: Provider) -> int:
    [pid] = [row["pid"] for row in workers_of(running) if row["in_flight"]]
    return int(pid)


@pytest.mark.slow
def test_an_answer_outlives_the_worker_that_gave_it() -> None:
    with service(workers=3, slots=8, ttft_ms=1500, tokens=5) as (running, engine):
        key = running.key()
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(named, running, key)
            engine.wait_for_stats(lambda stats: stats["running"] == 1, within_s=60)
            owner = worker_at_work(running)
            first = pending.result()
        os.kill(owner, signal.SIGKILL)
        wait_until(
            lambda: (
                {row["state"] for row in workers_of(running)} == {"ready"}
                and owner not in {row["pid"] for row in workers_of(running)}
            ),
            limit_s=60,
            what="another worker in its place",
        )
        again = [named(running, key) for _ in range(12)]
        assert {(status, body) for status, _, body in again} == {(200, first[2])}
        assert {headers[REPLAY] for _, headers, _ in again} == {"true"}
        assert engine.stats()["requests"] == 1


@pytest.mark.slow
def test_work_whose_worker_died_is_done_anew_by_whoever_asks_again() -> None:
    """T53: the key is free when the service has seen its end, and not before."""
    with service(workers=3, slots=8, ttft_ms=60_000, tokens=3) as (running, engine):
        key = running.key()
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(begun, running, key)
            engine.wait_for_stats(lambda stats: stats["running"] == 1, within_s=60)
            assert {named(running, key)[0] for _ in range(12)} == {429}
            os.kill(worker_at_work(running), signal.SIGKILL)
            assert first.result() == 0
            again = pool.submit(taken, running, key)
            engine.wait_for_stats(lambda stats: stats["running"] == 1 and stats["requests"] == 2, within_s=60)
            engine.kill()
            assert again.result() in (502, 503)


@pytest.mark.slow
def test_while_the_service_is_silent_named_work_is_refused_and_never_done_twice() -> None:
    """T54: what had begun ends well, and its answer is kept once the service goes on; unnamed work is not held up."""
    with service(workers=3, slots=8, ttft_ms=1500, tokens=3) as (running, engine):
        key = running.key()
        with ThreadPoolExecutor(16) as pool:
            pending = pool.submit(named, running, key)
            engine.wait_for_stats(lambda stats: stats["running"] == 1, within_s=60)
            os.kill(running.pid, signal.SIGSTOP)
            try:
                began_s = time.monotonic()
                other = {"idempotency-key": "order-2"}
                answers = list(
                    pool.map(
                        lambda number: running.chat(key, headers=NAMED if number % 2 else other), range(48)
                    )
                )
                elapsed_s = time.monotonic() - began_s
                first = pending.result()
                assert running.chat(key)[0] == 200
            finally:
                os.kill(running.pid, signal.SIGCONT)
        for status, headers, body in answers:
            error = json.loads(body)["error"]
            assert (status, error["code"], error["param"]) == (503, "saturated", "Idempotency-Key")
            assert (headers["retry-after"], headers["x-should-retry"]) == ("1", "true")
        assert (
            elapsed_s < 30.0
        )  # half a second at most for the first question of each worker; the rest is the machine's
        assert first[0] == 200
        again = wait_until(
            lambda: next((each for each in [named(running, key)] if each[0] == 200), None), what="the answer"
        )
        assert again[2] == first[2]
        assert engine.stats()["requests"] == 2, "the named one, and one without a name"
        wait_until(
            lambda: running.chat(key, headers=other)[0] == 200, what="work that was refused to be taken"
        )
        assert engine.stats()["requests"] == 3


class Ends:
    """A worker's table and the service's, over a real socket pair. `reads` stops and starts the service's end."""

    def __init__(self) -> None:
        table: IdempotencyTable[KeptAnswer] = IdempotencyTable(
            ttl_s=100.0,
            entries_max=10,
            bytes_max=10**9,
            answer_bytes_max=10**9,
            size_of=lambda answer: answer.size,
        )
        self.desk = AnswerDesk(table, clock=SystemClock())
        self.answers_are_due = asyncio.Event()
        self.answers_are_due.set()
        self.heard: list[wire.Up] = []
        self._late: list[wire.Up] = []

    async def open(self) -> None:
        ours, theirs = socket.socketpair()
        self.service = await wire.service_end(ours, received=self._received, lost=lambda: None)
        self.worker = await wire.worker_end(theirs, received=self._told, lost=lambda: None)
        self.answers = SharedAnswers(self.worker, CONFIG)

    def close(self) -> None:
        self.worker.close()
        self.service.close()

    async def begin(self, key: bytes = b"k") -> Known | KeptAnswer:
        return await self.answers.begin(TENANT, key, digest=b"1", now_s=0.0)

    def is_silent(self, *, silent: bool) -> None:
        if silent:
            self.answers_are_due.clear()
        else:
            self.answers_are_due.set()
            late, self._late = self._late, []
            for message in late:
                self._received(message)

    async def settle(self, count: int) -> None:
        """Until the service has heard that many messages."""
        async with asyncio.timeout(10):
            while len(self.heard) < count:  # noqa: ASYNC110 -- sockets have no event for it
                await asyncio.sleep(0)

    def _received(self, message: wire.Up) -> None:
        if not self.answers_are_due.is_set():
            self._late.append(message)
            return
        self.heard.append(message)
        if isinstance(message, wire.Begin | wire.Keep | wire.Drop):
            begun = self.desk.received(0, message)
            if begun is not None:
                self.service.send(begun)

    def _told(self, message: wire.Down) -> None:
        assert isinstance(message, wire.Begun)
        self.answers.received(message)


def over_a_link(claim: Callable[[Ends], Awaitable[None]]) -> None:
    async def run() -> None:
        ends = Ends()
        await ends.open()
        try:
            await claim(ends)
        finally:
            ends.close()
            await asyncio.sleep(0)

    asyncio.run(run())


def kept(body: bytes) -> KeptAnswer:
    return KeptAnswer(RequestId("r"), b"", body, [])


def test_a_service_that_was_silent_is_asked_again_when_it_has_answered_and_not_before() -> None:
    """So what is to be sent to it stays bounded by what was in progress, however long it is silent."""

    async def claim(ends: Ends) -> None:
        ends.is_silent(silent=True)
        for _ in range(5):
            with pytest.raises(Saturated) as refused:
                await ends.begin()
            assert refused.value.reason == "work_unknown"
        ends.is_silent(silent=False)
        await ends.settle(2)
        assert [type(message) for message in ends.heard] == [wire.Begin, wire.Drop]
        async with asyncio.timeout(10):
            while True:
                try:
                    assert await ends.begin() is Known.NEW
                    return
                except Saturated:
                    await asyncio.sleep(0)

    over_a_link(claim)


def test_who_leaves_before_the_answer_leaves_the_key_free() -> None:
    async def claim(ends: Ends) -> None:
        ends.is_silent(silent=True)
        async with asyncio.TaskGroup() as tasks:
            leaving = tasks.create_task(ends.begin())
            await asyncio.sleep(0)
            leaving.cancel()
        ends.is_silent(silent=False)
        await ends.settle(2)
        assert await ends.begin() is Known.NEW

    over_a_link(claim)


def test_of_an_answer_while_the_service_does_not_read_only_that_it_was_given_is_handed_on() -> None:
    """Beyond a bound: a stopped service must not fill the memory of its workers."""

    async def claim(ends: Ends) -> None:
        for key in (b"a", b"b"):
            assert await ends.begin(key) is Known.NEW
        ends.worker.send(Line("x" * (UNSENT_BYTES_MAX + 2**20)))  # most of it doesn't fit into the socket
        ends.answers.keep(TENANT, b"a", kept(b"answer"))
        await ends.settle(4)
        ends.answers.keep(TENANT, b"b", kept(b"answer"))
        await ends.settle(5)
        assert await ends.begin(b"a") is Known.TOO_LARGE
        assert await ends.begin(b"b") == kept(b"answer")

    over_a_link(claim)

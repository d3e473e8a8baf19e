"""Claims about the half of the authority that speaks with the store: nobody waits for the store for long, and what it lends late is kept."""

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from functools import partial

from headrace.control.shared_rates import SharedRates
from headrace.core.clock import SystemClock
from headrace.core.leases import AskRate, GrantRate, RateKey, ReturnRate, WorkerId
from headrace.core.tenant import RateUnit
from headrace.policies.shared_rates import Answer, Lent, LimitStoreError, Wish
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics

KEY = RateKey(RateUnit.REQUESTS, "acme")
PATIENCE_S = 60.0


def asked(count: int, key: RateKey = KEY) -> AskRate:
    return AskRate(key, count, 1, 0, 600, 60, 1)


class Store:
    """Answers while `open`; lends what is needed. Attributes: `wishes`, all that it has heard."""

    name = "a store"

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.error = ""
        self.hosts = 1
        self.wishes: list[Wish] = []
        self.is_closed = False

    async def lend(self, wishes: list[Wish], *, is_beat: bool) -> Answer:
        await self.open.wait()
        if self.error:
            raise LimitStoreError(self.error)
        self.wishes += wishes
        return Answer(self.hosts, [Lent(wish.needed, 0.0) for wish in wishes])

    async def close(self) -> None:
        self.is_closed = True


class Host:
    """The rates of one host, what its workers were told, and its log."""

    def __init__(self) -> None:
        self.store = Store()
        self.metrics = Metrics()
        self.log = io.StringIO()
        clock = SystemClock()
        self.rates = SharedRates(
            self.store, workers=1, hosts_max=2, metrics=self.metrics, log=Log(self.log, clock), clock=clock
        )
        self.told: list[tuple[WorkerId, GrantRate]] = []
        self.rates.tell = lambda worker, message: self.told.append((worker, message))

    def grants(self) -> list[int]:
        return [message.count for _, message in self.told]

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.log.getvalue().splitlines()]

    @property
    def is_silent(self) -> bool:
        return bool(self.rates.status()["error"])


def play(story: Callable[[Host], Awaitable[None]]) -> Host:
    async def run() -> Host:
        host = Host()
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(host.rates.run())
            await story(host)
            running.cancel()
        return host

    return asyncio.run(run())


async def until(claim: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not claim():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def test_who_asks_gets_what_the_store_lends() -> None:
    async def story(host: Host) -> None:
        await until(lambda: host.rates.status()["hosts"] == 1)
        host.rates.ask(0, asked(3))
        await until(lambda: host.grants() == [3])
        host.rates.returned(ReturnRate(KEY, -2))
        await until(lambda: host.store.wishes[-1].back == -2)
        assert host.rates.view(KEY) is not None
        assert len(host.store.wishes) < 20  # a store that lends nothing ahead isn't asked for it without end

    host = play(story)
    assert host.store.is_closed
    assert host.events() == []


def test_a_silent_store_is_waited_for_once_and_then_by_nobody() -> None:
    """T54: who had asked is answered although the store says nothing; who asks then has the answer before the question returns. What
    was lent late is used, and the metric and one line each tell of a silence of a second."""

    async def story(host: Host) -> None:
        await until(lambda: host.rates.status()["hosts"] == 1)
        host.store.open.clear()
        host.rates.ask(0, asked(5))
        await until(lambda: len(host.told) == 1)
        assert host.is_silent
        host.rates.ask(0, asked(5))
        assert len(host.told) == 2
        host.store.open.set()
        await until(lambda: not host.is_silent)
        host.told.clear()
        host.rates.ask(0, asked(5))
        assert host.grants() == [5]  # those that came late

        host.store.error = "ConnectionError"
        host.rates.ask(0, asked(1))
        await until(lambda: "limits.failing" in host.events())
        assert host.metrics.limit_store_failing.labels().value == 1
        assert host.rates.status()["silent_s"] > 0
        host.store.error = ""
        await until(lambda: not host.is_silent)
        assert host.metrics.limit_store_failing.labels().value == 0

    assert play(story).events() == ["limits.failing", "limits.recovered"]


def test_a_lost_worker_is_told_nothing() -> None:
    async def story(host: Host) -> None:
        host.store.open.clear()
        host.rates.ask(0, asked(5))
        host.rates.lost(0)
        await until(lambda: host.is_silent)
        assert host.told == []
        host.store.open.set()

    play(story)


def has_told(host: Host, count: int) -> bool:
    return len(host.told) == count


def test_more_hosts_than_were_said_are_told_once() -> None:
    async def story(host: Host) -> None:
        host.store.hosts = 3
        for worker in range(3):
            host.rates.ask(worker, asked(1))
            await until(partial(has_told, host, worker + 1))
        assert host.metrics.limit_hosts.labels().value == 3

    assert play(story).events() == ["limits.too_many_hosts"]

"""Who fetches the rates of this host from the store that all hosts share? The authority's other half: it asks beside the requests.

A worker that waits is answered within twice OTHERS_LIMIT_S, by the store or, while that is silent, out of this host's even part of the rate.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Protocol

from headrace.core.clock import Clock
from headrace.core.leases import OTHERS_LIMIT_S, AskRate, GrantRate, RateKey, ReturnRate, WorkerId
from headrace.policies.limits import LimitView
from headrace.policies.shared_rates import Answer, LimitStoreError, SharedRate, Wish
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics

WINDOW_S = 0.25
BEAT_EVERY_S = 5.0
# Rates in one call: the server does nothing else meanwhile.
BATCH_MAX = 64
RETRY_S, RETRY_MAX_S = 0.05, 1.0
# A silence that is over sooner is counted, and not told.
TOLD_AFTER_S = 1.0


class Store(Protocol):
    """stores.limit_store.LimitStore."""

    @property
    def name(self) -> str: ...

    async def lend(self, wishes: list[Wish], *, is_beat: bool) -> Answer: ...

    async def close(self) -> None: ...


class SharedRates:
    """Owner of what this host holds of shared rates. State: the rates, which exist once they were asked for; `_due`, those that lack
    something; `_busy`, those to look at when the window ends; and since when the store has been silent.

    Args:
        workers: How many share what this host gets.
        hosts_max: How many hosts there are at most.
    """

    def __init__(
        self, store: Store, *, workers: int, hosts_max: int, metrics: Metrics, log: Log, clock: Clock
    ) -> None:
        self._store = store
        self._workers = workers
        self._hosts_max = hosts_max
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._rates: dict[RateKey, SharedRate] = {}
        self._due: dict[RateKey, SharedRate] = {}
        self._busy: dict[RateKey, SharedRate] = {}
        self._is_due = asyncio.Event()
        self._beat_s = float("-inf")
        self._silent_since_s: float | None = None
        self._error = ""
        self._is_told = False
        self._hosts = 0
        self.tell: Callable[[WorkerId, GrantRate], None] = lambda worker, message: None
        metrics.limit_store_failing.labels().set(0)

    # What the authority asks.

    def ask(self, worker: WorkerId, message: AskRate) -> None:
        """The answer comes by `tell`."""
        rate = self._rates.get(message.key)
        if rate is None:
            rate = self._rates[message.key] = SharedRate(
                message, workers=self._workers, hosts=self._hosts_max
            )
        rate.ask(worker, message)
        self._busy[message.key] = rate
        self._settle(rate)

    def returned(self, message: ReturnRate) -> None:
        rate = self._rates.get(message.key)
        if rate is not None:
            rate.returned(message.count, is_silent=self._silent_since_s is not None)
            self._busy[message.key] = rate
            self._settle(rate)

    def lost(self, worker: WorkerId) -> None:
        for rate in self._rates.values():
            rate.lost(worker)

    def view(self, key: RateKey) -> LimitView | None:
        """What is left of a rate; None where nobody has asked for it."""
        rate = self._rates.get(key)
        return None if rate is None else rate.view(self._clock.now_s())

    # The conversation with the store.

    async def run(self) -> None:
        """Until cancelled. Whatever the store does, this goes on."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._close_windows(), name="windows")
                tasks.create_task(self._serve(), name="limit store")
        finally:
            with contextlib.suppress(LimitStoreError):
                await self._store.close()

    def status(self) -> dict[str, Any]:
        """What `headrace status` shows of it."""
        since_s = self._silent_since_s
        return {
            "name": self._store.name,
            "hosts": self._hosts,
            "hosts_max": self._hosts_max,
            "error": self._error,
            "silent_s": 0.0 if since_s is None else self._clock.now_s() - since_s,
        }

    async def _serve(self) -> None:
        retry_s = RETRY_S
        await self._call([], is_beat=True)
        while True:
            if self._silent_since_s is not None:
                await asyncio.sleep(retry_s)
                retry_s = min(RETRY_MAX_S, 2 * retry_s)
                if await self._call([], is_beat=True):
                    self._spoke()
                    retry_s = RETRY_S
                continue
            await self._is_due.wait()
            now_s = self._clock.now_s()
            is_beat = now_s - self._beat_s >= BEAT_EVERY_S
            due = [self._due.pop(key) for key in list(self._due)[:BATCH_MAX]]
            if not self._due:
                self._is_due.clear()
            wished = [(rate, wish) for rate in due if (wish := rate.wish(now_s)) is not None]
            if wished or is_beat:
                await self._call(wished, is_beat=is_beat)

    async def _call(self, wished: list[tuple[SharedRate, Wish]], *, is_beat: bool) -> bool:
        """Whether the store has answered in time. A late answer is taken all the same: what it has lent is lent."""
        async with asyncio.TaskGroup() as tasks:
            call = tasks.create_task(self._answer([wish for _, wish in wished], is_beat=is_beat))
            await asyncio.wait({call}, timeout=OTHERS_LIMIT_S)
            for _ in range(3):  # if this process was late itself, the answer is in the socket now
                if not call.done():
                    await asyncio.sleep(0)
            is_late = not call.done()
            if is_late:
                self._metrics.limit_store_calls.labels("late").add()
                self._is_silent("no answer in time")
        answer = call.result()
        now_s = self._clock.now_s()
        if answer is None:
            for rate, wish in wished:
                rate.failed(wish)
        else:
            self._beat_s = now_s if is_beat else self._beat_s
            self._count_hosts(answer.hosts)
            for (rate, wish), lent in zip(wished, answer.lent, strict=True):
                rate.lent(wish, lent, now_s)
        for rate, _ in wished:
            self._settle(rate)
        return answer is not None and not is_late

    async def _answer(self, wishes: list[Wish], *, is_beat: bool) -> Answer | None:
        try:
            answer = await self._store.lend(wishes, is_beat=is_beat)
        except LimitStoreError as error:
            self._metrics.limit_store_calls.labels("failed").add()
            self._is_silent(str(error))
            return None
        self._metrics.limit_store_calls.labels("answered").add()
        return answer

    def _settle(self, rate: SharedRate) -> None:
        """Answers who can be answered, and asks the store for the rest."""
        for worker, message in rate.settle(self._clock.now_s(), silent_since_s=self._silent_since_s):
            self.tell(worker, message)
        if self._silent_since_s is None:
            self._due[rate.key] = rate
            self._is_due.set()

    def _is_silent(self, error: str) -> None:
        now_s = self._clock.now_s()
        self._error = error
        if self._silent_since_s is None:
            self._silent_since_s = now_s
            for rate in list(self._rates.values()):
                if rate.is_waiting:
                    self._settle(rate)
        if not self._is_told and now_s - self._silent_since_s >= TOLD_AFTER_S:
            self._is_told = True
            self._metrics.limit_store_failing.labels().set(1)
            self._log.event("limits.failing", error=error)

    def _spoke(self) -> None:
        assert self._silent_since_s is not None
        if self._is_told:
            self._log.event("limits.recovered", outage_s=self._clock.now_s() - self._silent_since_s)
            self._metrics.limit_store_failing.labels().set(0)
        self._silent_since_s, self._error, self._is_told = None, "", False
        for rate in self._rates.values():
            rate.spoke()
            if not rate.is_idle:
                self._settle(rate)

    def _count_hosts(self, hosts: int) -> None:
        if hosts > self._hosts_max >= self._hosts:
            self._log.event("limits.too_many_hosts", hosts=hosts, hosts_max=self._hosts_max)
        self._hosts = hosts
        self._metrics.limit_hosts.labels().set(hosts)

    async def _close_windows(self) -> None:
        while True:
            await asyncio.sleep(WINDOW_S)
            for key, rate in list(self._busy.items()):
                rate.close_window(is_silent=self._silent_since_s is not None)
                if rate.is_idle:
                    del self._busy[key]
                else:
                    self._settle(rate)
            if self._clock.now_s() - self._beat_s >= BEAT_EVERY_S:
                self._is_due.set()

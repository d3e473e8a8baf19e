"""Who lends the workers what they share? The authority: every rate and concurrency, every queue, every slot.

It decides with policies/leases.py and answers over the workers' links. What a lost worker held is back at once.
"""

import asyncio
from collections.abc import Callable

from headrace.control.shared_rates import SharedRates
from headrace.core.clock import Clock
from headrace.core.fleet import FleetSnapshot
from headrace.core.leases import (
    OTHERS_LIMIT_S,
    AskRate,
    LeaseAsking,
    Lending,
    PoolKey,
    PoolKind,
    RateKey,
    Return,
    ReturnRate,
    Want,
    WorkerId,
    slots_of,
)
from headrace.core.tenant import RateUnit
from headrace.policies.leases import LentRate, Messages, Pool
from headrace.policies.levels import Level
from headrace.policies.limits import LimitView, part_of

# An engine needs a moment to see that a worker is gone and to drop its work: llama.cpp 0.12 s.
SETTLE_S = 0.25

Send = Callable[[Lending], None]


class Authority:
    """Lends to the workers that have `joined`. State: the pools and rates, the newest revision of each pool's limit, and
    the pools in which a worker waits for what others answer.

    Pools and rates of limits, and of queues, exist once they were asked for, so they are bounded by the number of both.

    Args:
        workers: How many workers there are to be, alive or not: what an even share is.
        shared_rates: Where several hosts share the rates; else they are all lent out of buckets here.
        hosts: So many hosts have an even part each of every bound on concurrency.
    """

    def __init__(
        self, *, workers: int, clock: Clock, shared_rates: SharedRates | None = None, hosts: int = 1
    ) -> None:
        self._workers = workers
        self._hosts = hosts
        self._shared_rates = shared_rates
        if shared_rates is not None:
            shared_rates.tell = self._tell_one
        self._clock = clock
        self._senders: dict[WorkerId, Send] = {}
        self._pools: dict[PoolKey, Pool] = {}
        self._revisions: dict[PoolKey, int] = {}
        self._rates: dict[RateKey, LentRate] = {}
        self._waiting: set[PoolKey] = set()

    def joined(self, worker: WorkerId, send: Send) -> None:
        """A worker that holds nothing; it gets an even share of the slots that are free."""
        assert worker not in self._senders, "a lost worker is reported before the next one of its number"
        self._senders[worker] = send
        for pool in self._pools.values():
            if pool.key.kind is PoolKind.SLOTS:
                self._tell(pool.offer(worker))

    def lost(self, worker: WorkerId) -> None:
        """The worker is gone, and with it everything that it held, except parts of rates, which
        its last second has used."""
        if self._senders.pop(worker, None) is None:
            return
        if self._shared_rates is not None:
            self._shared_rates.lost(worker)
        for pool in list(self._pools.values()):
            settling, messages = pool.lost(worker, settles=pool.key.kind is PoolKind.SLOTS)
            self._tell(messages)
            if settling:
                asyncio.get_running_loop().call_later(SETTLE_S, self._settled, pool, settling)
            self._forget(pool)

    def received(self, worker: WorkerId, message: LeaseAsking) -> None:
        match message:
            case Want(key) | Return(key) if key.kind is PoolKind.SLOTS and key not in self._pools:
                pass  # sent before the worker heard that they are gone
            case Want(key, count):
                self._tell(self._limit(message))
                pool = self._pool(key)
                self._tell(pool.want(worker, count))
                if pool.is_waiting and key not in self._waiting:
                    self._waiting.add(key)
                    asyncio.get_running_loop().call_later(OTHERS_LIMIT_S, self._stop_waiting, key)
                self._forget(pool)
            case Return(key, count, slots):
                pool = self._pool(key)
                self._tell(pool.returned(worker, count, slots))
                self._forget(pool)
            case AskRate() if self._shared_rates is not None:
                self._shared_rates.ask(worker, message)
            case ReturnRate() if self._shared_rates is not None:
                self._shared_rates.returned(message)
            case AskRate(key):
                now_s = self._clock.now_s()
                rate = self._rates.get(key)
                if rate is None:
                    rate = self._rates[key] = LentRate(message, workers=self._workers, now_s=now_s)
                self._tell([(worker, rate.ask(message, now_s=now_s))])
            case ReturnRate(key, count):
                if key in self._rates:
                    self._rates[key].returned(count, now_s=self._clock.now_s())

    def view(self, level: Level, unit: RateUnit) -> LimitView | None:
        """What nobody holds of a rate; None where the level doesn't limit it."""
        per_minute, burst = level.limits.rate(unit)
        if not per_minute:
            return None
        key = RateKey(unit, level.subject)
        if self._shared_rates is not None:
            view = self._shared_rates.view(key)
        else:
            rate = self._rates.get(key)
            view = None if rate is None else rate.view(now_s=self._clock.now_s())
        return LimitView(burst, burst, 0.0) if view is None else view

    def publish(self, snapshot: FleetSnapshot) -> None:
        """Slots come and go with their replicas. The workers have the snapshot already.

        A replica that is gone may come back while work of before runs on it, so what is held of it stays known until it
        was given back.
        """
        offered: set[PoolKey] = set()
        for deployment in snapshot.deployments.values():
            for replica in deployment.replicas:
                key = slots_of(replica)  # the same for all of its models
                offered.add(key)
                pool = self._pools.get(key)
                if pool is not None:
                    self._tell(pool.resize(replica.slots))
                    continue
                pool = self._pools[key] = Pool(
                    key, replica.slots, workers=self._workers, has_caches=replica.traits.partitions_slots
                )
                for worker in self._senders:
                    self._tell(pool.offer(worker))
        for key, pool in list(self._pools.items()):
            if key.kind is PoolKind.SLOTS and key not in offered:
                self._tell(pool.resize(0))
                self._forget(pool)

    def _pool(self, key: PoolKey) -> Pool:
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = Pool(key, 0, workers=self._workers)
        return pool

    def _limit(self, asked: Want) -> Messages:
        """A tenant's or a queue's limit, as the worker with the newest state of them knows it."""
        if asked.key.kind is PoolKind.SLOTS or asked.revision < self._revisions.get(asked.key, 0):
            return []
        self._revisions[asked.key] = asked.revision
        total = asked.total
        if asked.key.kind is PoolKind.CONCURRENCY and total:
            total = part_of(total, self._hosts)
        return self._pool(asked.key).resize(total)

    def _stop_waiting(self, key: PoolKey) -> None:
        self._waiting.discard(key)
        if key in self._pools:
            self._tell(self._pools[key].stop_waiting())

    def _settled(self, pool: Pool, count: int) -> None:
        self._tell(pool.settled(count))
        self._forget(pool)

    def _forget(self, pool: Pool) -> None:
        if pool.is_over:
            self._pools.pop(pool.key, None)
            self._revisions.pop(pool.key, None)

    def _tell(self, messages: Messages) -> None:
        for worker, message in messages:
            self._tell_one(worker, message)

    def _tell_one(self, worker: WorkerId, message: Lending) -> None:
        if worker in self._senders:
            self._senders[worker](message)

"""Claims about leases: nothing is lent twice, nothing stays idle while another waits, and nothing is lost with a worker."""

import random
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.fleet import Replica
from headrace.core.ids import ReplicaId, TenantId
from headrace.core.leases import (
    AskRate,
    Deny,
    Grant,
    Lending,
    LentSlot,
    PoolKey,
    PoolKind,
    RateKey,
    Recall,
    Sated,
    slots_of,
)
from headrace.core.tenant import RateUnit
from headrace.policies.leases import LentRate, Messages, Pool
from headrace.policies.limits import LimitView

TENANT = TenantId("acme")
SLOTS = slots_of(Replica(ReplicaId("a"), "127.0.0.1", 1, 1))
PLACES = PoolKey(PoolKind.CONCURRENCY, "acme")


class Holder:
    """A worker by the rules of gateway/leases.py, in as few lines as it takes."""

    def __init__(self) -> None:
        self.held = self.in_use = self.waiting = self.keep = self.wanted = 0
        self.is_hungry = self.is_denied = False
        self.inbox: deque[Lending] = deque()
        self.slots: list[LentSlot] = []

    @property
    def usable(self) -> int:
        return min(self.held, self.keep) if self.is_hungry else self.held


class World:
    """A pool, its holders, and messages on their way in either direction, each in order."""

    def __init__(self, total: int, workers: int, *, key: PoolKey = SLOTS, has_caches: bool = False) -> None:
        self.total = total
        self.pool = Pool(key, total, workers=workers, has_caches=has_caches)
        self.holders = [Holder() for _ in range(workers)]
        self.outbox: list[deque[tuple[str, int, list[LentSlot]]]] = [deque() for _ in range(workers)]
        for worker in range(workers):
            self.deliver(self.pool.offer(worker))

    def deliver(self, messages: Messages) -> None:
        for worker, message in messages:
            self.holders[worker].inbox.append(message)

    def arrive(self, worker: int) -> None:
        holder = self.holders[worker]
        holder.waiting += 1
        self.start(worker)

    def finish(self, worker: int) -> None:
        holder = self.holders[worker]
        if holder.in_use:
            holder.in_use -= 1
            self.start(worker)
            if holder.is_hungry:
                self.give_back(worker, is_answer=False)

    def start(self, worker: int) -> None:
        holder = self.holders[worker]
        while holder.waiting and holder.in_use < holder.usable:
            holder.waiting -= 1
            holder.in_use += 1
        if holder.waiting and not holder.wanted:
            holder.wanted = holder.waiting
            self.outbox[worker].append(("want", holder.waiting, []))

    def give_back(self, worker: int, *, is_answer: bool) -> None:
        holder = self.holders[worker]
        count = max(0, holder.held - holder.in_use)
        if count or is_answer:
            slots, holder.slots = holder.slots[:count], holder.slots[count:]
            holder.held -= count
            self.outbox[worker].append(("return", count, slots))

    def step_down(self, worker: int) -> None:
        holder = self.holders[worker]
        match holder.inbox.popleft():
            case Grant(_, count, keep, slots):
                holder.held += count
                holder.keep = keep
                holder.slots += slots
                holder.wanted = max(0, holder.wanted - count)
                self.start(worker)
                if holder.is_hungry:
                    self.give_back(worker, is_answer=False)
            case Recall(_, keep):
                holder.is_hungry = True
                holder.keep = keep
                self.give_back(worker, is_answer=True)
            case Sated():
                holder.is_hungry = False
                self.start(worker)
            case Deny():
                holder.wanted = 1
                holder.waiting = 0
            case _:
                raise AssertionError

    def step_up(self, worker: int) -> None:
        kind, count, slots = self.outbox[worker].popleft()
        if kind == "want":
            self.deliver(self.pool.want(worker, count))
        else:
            self.deliver(self.pool.returned(worker, count, slots))

    def settle(self) -> None:
        """Until no message is on its way; that it comes to an end is a claim, too."""
        rounds = 0
        while any(self.outbox) or any(holder.inbox for holder in self.holders):
            rounds += 1
            assert rounds < 1000, "messages without end"
            for worker, holder in enumerate(self.holders):
                if self.outbox[worker]:
                    self.step_up(worker)
                if holder.inbox:
                    self.step_down(worker)

    def kill(self, worker: int, *, settles: bool) -> None:
        self.holders[worker] = Holder()
        self.outbox[worker].clear()
        settling, messages = self.pool.lost(worker, settles=settles)
        for _, message in messages:
            assert not settles or not isinstance(message, Grant) or message.count <= self.total
        self.deliver(messages)
        if settling:
            self.deliver(self.pool.settled(settling))

    def check(self) -> None:
        assert sum(holder.in_use for holder in self.holders) <= self.total
        for worker, holder in enumerate(self.holders):
            assert holder.in_use <= holder.held <= self.pool.held(worker)
        assert self.pool.free >= 0


def play(world: World, seed: int, steps: int) -> None:
    chance = random.Random(seed)
    workers = len(world.holders)
    for _ in range(steps):
        worker = chance.randrange(workers)
        match chance.randrange(10):
            case 0 | 1:
                world.arrive(worker)
            case 2 | 3:
                world.finish(worker)
            case 4 | 5 | 6 if world.outbox[worker]:
                world.step_up(worker)
            case 7 | 8 if world.holders[worker].inbox:
                world.step_down(worker)
            case 9 if chance.randrange(20) == 0:
                world.kill(worker, settles=chance.randrange(2) == 0)
            case _:
                pass
        world.check()


@given(
    st.integers(0, 2**32),
    st.integers(1, 12),
    st.integers(1, 5),
    st.sampled_from([SLOTS, PLACES]),
    st.booleans(),
)
def test_no_piece_is_in_two_hands_and_none_is_lost(
    seed: int, total: int, workers: int, key: PoolKey, has_caches: bool
) -> None:
    """T53: whatever the order of messages, requests and deaths."""
    world = World(total, workers, key=key, has_caches=has_caches)
    play(world, seed, 300)
    world.settle()
    for worker, holder in enumerate(world.holders):
        assert holder.held == world.pool.held(worker)
    for _ in range(10_000):
        if not any(holder.in_use or holder.waiting for holder in world.holders):
            break
        for worker in range(workers):
            world.finish(worker)
            world.settle()
    assert not any(holder.in_use or holder.waiting for holder in world.holders), "everyone is served"
    for worker in range(workers):
        world.kill(worker, settles=True)
    assert world.pool.free == total


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(2, 5))
def test_nothing_is_idle_while_another_worker_waits(seed: int, total: int, workers: int) -> None:
    world = World(total, workers)
    play(world, seed, 200)
    world.settle()
    if any(holder.waiting for holder in world.holders):
        assert sum(holder.in_use for holder in world.holders) == total


@given(st.integers(1, 9), st.integers(2, 5))
def test_workers_that_all_wait_get_even_shares_after_a_while(total: int, workers: int) -> None:
    """Also with fewer pieces than workers: then they take turns."""
    world = World(total, workers)
    served = [0] * workers
    for _ in range(40 * workers):
        for worker, holder in enumerate(world.holders):
            holder.waiting = max(holder.waiting, 1)
            world.start(worker)
            world.settle()
        for worker, holder in enumerate(world.holders):
            for _ in range(holder.in_use):
                served[worker] += 1
                holder.waiting += 1
                world.finish(worker)
                world.settle()
    assert min(served) >= 0.5 * sum(served) / workers


@given(st.integers(0, 2**32))
def test_a_slot_with_a_cache_is_with_one_worker_at_a_time_and_keeps_its_tenant(seed: int) -> None:
    world = World(6, 3, has_caches=True)
    play(world, seed, 200)
    world.settle()
    numbers = [slot.number for holder in world.holders for slot in holder.slots]
    assert len(numbers) == len(set(numbers)) == sum(holder.held for holder in world.holders)


def test_a_slot_tells_its_next_worker_whose_prompts_it_holds_and_a_lost_one_tells_nothing() -> None:
    pool = Pool(SLOTS, 2, workers=2, has_caches=True)
    pool.offer(0)
    pool.returned(0, 1, [LentSlot(0, "acme")])
    [(_, grant)] = pool.want(1, 2)
    assert isinstance(grant, Grant)
    assert sorted(grant.slots) == [LentSlot(0, "acme"), LentSlot(1, None)]
    settling, _ = pool.lost(1, settles=True)
    assert settling == 2
    assert pool.offer(0) == []
    pool.settled(2)
    [(_, again)] = pool.offer(0)
    assert isinstance(again, Grant)
    assert [slot.last_partition for slot in again.slots] == [None]


def test_slots_of_a_vanished_replica_come_back_without_a_word_about_their_tenants() -> None:
    pool = Pool(SLOTS, 3, workers=1, has_caches=True)
    pool.offer(0)
    [(_, recall)] = pool.resize(0)
    assert recall == Recall(SLOTS, 0)
    assert not pool.is_over
    pool.returned(0, 3, [])
    assert pool.is_over
    assert pool.resize(0) == []
    pool.resize(4)
    [(_, grant)] = pool.offer(0)
    assert isinstance(grant, Grant)
    assert [slot.number for slot in grant.slots] == [0, 1, 2, 3]


def test_slots_that_are_still_on_their_way_to_a_worker_are_not_what_it_gives_back() -> None:
    """Its replica was out for a moment: what it returns in a lump is what it had then, not what was lent to it since."""
    pool = Pool(SLOTS, 3, workers=2, has_caches=True)
    pool.offer(0)
    pool.resize(0)
    pool.resize(3)
    [(_, grant)] = pool.want(0, 2)
    assert isinstance(grant, Grant)
    assert [slot.number for slot in grant.slots] == [1, 2]
    pool.returned(0, 1, [])
    [(_, rest)] = pool.offer(1)
    assert isinstance(rest, Grant)
    assert [slot.number for slot in rest.slots] == [0]


def test_who_wanted_slots_of_a_replica_that_is_gone_asks_anew_when_it_is_back() -> None:
    pool = Pool(SLOTS, 1, workers=2)
    pool.offer(0)
    pool.want(1, 1)
    pool.resize(0)
    assert pool.want(1, 1) == []
    assert pool.returned(0, 1, []) == [(0, Sated(SLOTS))]
    assert pool.resize(1) == []
    assert pool.want(1, 1) == [(1, Grant(SLOTS, 1, 1))]


def test_a_lowered_limit_calls_back_what_is_too_much_and_says_when_it_is_enough() -> None:
    pool = Pool(PLACES, 8, workers=2)
    pool.offer(0)
    pool.offer(1)
    assert pool.resize(4) == [(0, Recall(PLACES, 2)), (1, Recall(PLACES, 2))]
    assert pool.returned(0, 2, []) == []
    messages = pool.returned(1, 2, [])
    assert messages == [(0, Sated(PLACES)), (1, Sated(PLACES))]


def test_whoever_waits_hears_at_once_that_all_is_in_use_and_later_that_it_is_not() -> None:
    pool = Pool(PLACES, 2, workers=2)
    pool.offer(0)
    pool.offer(1)
    assert pool.want(1, 3) == [(0, Recall(PLACES, 1))]
    assert pool.is_waiting
    assert pool.returned(0, 0, []) == [(1, Deny(PLACES))]
    assert not pool.is_waiting
    assert pool.returned(0, 1, [])[0] == (1, Grant(PLACES, 1, 2))


def test_every_question_has_an_answer_however_often_it_is_asked() -> None:
    """T54: a worker that has no answer takes the authority for silent."""
    pool = Pool(PLACES, 2, workers=2)
    pool.offer(0)
    pool.offer(1)
    pool.want(1, 3)
    pool.returned(0, 0, [])
    assert pool.want(1, 2) == [(1, Deny(PLACES))]


def test_a_worker_that_does_not_answer_holds_up_nobody() -> None:
    """T54: the others' answer comes without it."""
    pool = Pool(PLACES, 2, workers=2)
    pool.offer(0)
    pool.offer(1)
    pool.want(1, 1)
    assert pool.stop_waiting() == [(1, Deny(PLACES))]
    assert pool.want(1, 0) == [(0, Sated(PLACES))]


# Rates


def asked(
    count: int, *, least: int = 0, ahead: int = 0, rate: int = 1200, burst: int = 60, revision: int = 1
) -> AskRate:
    return AskRate(RateKey(RateUnit.REQUESTS, TENANT), count, least, ahead, rate, burst, revision)


@given(
    st.integers(2, 6),
    st.integers(60, 60_000),
    st.integers(1, 500),
    st.lists(
        st.tuples(st.floats(0.0, 0.3), st.integers(1, 50), st.integers(0, 200)), min_size=1, max_size=60
    ),
)
def test_workers_get_no_more_than_the_limit_and_no_lease_is_above_five_per_cent_of_a_minute(
    workers: int, rate: int, burst: int, questions: list[tuple[float, int, int]]
) -> None:
    """T51: what is lent never passes the bucket; what is lent ahead of requests is at most 5 % over all workers."""
    now_s = 1000.0
    lent = LentRate(asked(1, rate=rate, burst=burst), workers=workers, now_s=now_s)
    total = 0
    for wait_s, count, ahead in questions:
        now_s += wait_s
        answer = lent.ask(asked(count, ahead=ahead, rate=rate, burst=burst), now_s=now_s)
        total += answer.count
        assert answer.count <= count + rate / (20 * workers)
        assert total <= burst + (now_s - 1000.0) * rate / 60 + 1e-6
        assert answer.count or answer.left < 1


def test_tokens_that_come_back_are_lent_again_and_the_bucket_never_overflows() -> None:
    lent = LentRate(asked(60), workers=4, now_s=0.0)
    assert lent.ask(asked(60), now_s=0.0).count == 60
    assert lent.ask(asked(1), now_s=0.0).count == 0
    lent.returned(7, now_s=0.0)
    assert lent.ask(asked(60), now_s=0.0).count == 7
    lent.returned(1000, now_s=0.0)
    assert lent.ask(asked(100), now_s=0.0).count == 60


def test_what_was_used_without_a_lease_is_taken_from_what_comes_next() -> None:
    """T54: a silent authority costs the tenant nothing and gives it nothing."""
    lent = LentRate(asked(60), workers=4, now_s=0.0)
    lent.returned(-70, now_s=0.0)
    answer = lent.ask(asked(1), now_s=0.0)
    assert (answer.count, answer.left) == (0, -10.0)


def test_the_newest_limit_counts_whichever_worker_asks() -> None:
    lent = LentRate(asked(1), workers=2, now_s=0.0)
    assert lent.ask(asked(5, burst=2, revision=2), now_s=0.0).count == 2
    assert lent.ask(asked(5, burst=60, revision=1), now_s=60.0).count == 2


def test_less_than_helps_anybody_is_not_lent_and_what_is_left_is_told() -> None:
    lent = LentRate(asked(60), workers=4, now_s=0.0)
    assert lent.ask(asked(50), now_s=0.0).count == 50
    assert (lent.ask(asked(40, least=20, ahead=10), now_s=0.0).count, lent.view(now_s=0.0).remaining) == (
        0, 10,
    )  # fmt: skip
    assert lent.ask(asked(40, least=10), now_s=0.0).count == 10
    assert lent.view(now_s=1.5) == LimitView(60, 30, 1.5)


@given(st.data(), st.integers(1, 4), st.integers(60, 6000), st.integers(1, 200))
def test_whatever_order_messages_come_in_and_whoever_dies_no_more_is_used_than_was_there(
    data: st.DataObject, workers: int, rate: int, burst: int
) -> None:
    """T51, T53: what is used never passes the bucket and what has come in, but for the debt that a request leaves which used
    more than it took; and in the end, whoever holds something still, the bucket is full again."""
    now_s, used, beyond = 50.0, 0, 0
    lent = LentRate(asked(1, rate=rate, burst=burst), workers=workers, now_s=now_s)
    held = [0] * workers
    returning: list[int] = []
    for _ in range(data.draw(st.integers(1, 60))):
        now_s += data.draw(st.floats(0.0, 0.5))
        worker = data.draw(st.integers(0, workers - 1))
        match data.draw(st.sampled_from(["ask", "use", "give back", "settle", "arrive", "die"])):
            case "ask":
                count, ahead = data.draw(st.integers(0, 80)), data.draw(st.integers(0, 80))
                question = asked(
                    count, least=data.draw(st.integers(0, count)), ahead=ahead, rate=rate, burst=burst
                )
                held[worker] += lent.ask(question, now_s=now_s).count
            case "use":
                amount = data.draw(st.integers(0, held[worker]))
                held[worker] -= amount
                used += amount
            case "give back":
                returning.append(held[worker])
                held[worker] = 0
            case "settle" if used:
                unused = data.draw(st.integers(-20, used))
                used -= unused
                beyond += max(0, -unused)
                returning.append(unused)
            case "arrive" if returning:
                lent.returned(returning.pop(data.draw(st.integers(0, len(returning) - 1))), now_s=now_s)
            case "die":
                held[worker] = 0
        assert used <= burst + (now_s - 50.0) * rate / 60 + beyond + 1e-6
        assert lent.view(now_s=now_s).remaining <= burst
    for count in returning:
        lent.returned(count, now_s=now_s)
    assert lent.view(now_s=now_s + 1e6) == LimitView(burst, burst, 0.0)

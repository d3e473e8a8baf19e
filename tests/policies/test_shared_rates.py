"""Claims about a rate that several hosts share: whatever is asked, returned, delayed and lost, all together never get more than it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.leases import AskRate, RateKey
from headrace.core.tenant import RateUnit
from headrace.policies.limits import PartBucket
from headrace.policies.shared_rates import DENIAL_S, Lent, SharedRate, Wish

KEY = RateKey(RateUnit.REQUESTS, "acme")
RATE, BURST = 6000, 100


def asked(
    count: int = 0, *, least: int = 0, ahead: int = 0, revision: int = 1, rate: int = RATE, burst: int = BURST
) -> AskRate:
    return AskRate(KEY, count, least or min(1, count), ahead, rate, burst, revision)


def shared(*, workers: int = 2, hosts: int = 2, **fields: int) -> SharedRate:
    return SharedRate(asked(**fields), workers=workers, hosts=hosts)


def lend(rate: SharedRate, amount: int, *, left: float = 0.0, now_s: float = 0.0) -> Wish:
    """The store's answer to what is lacking."""
    wish = rate.wish(now_s)
    assert wish is not None
    rate.lent(wish, Lent(amount, left), now_s)
    return wish


def granted(rate: SharedRate, now_s: float = 0.0, *, silent_since_s: float | None = None) -> dict[int, int]:
    return {worker: message.count for worker, message in rate.settle(now_s, silent_since_s=silent_since_s)}


def test_what_waits_is_asked_for_with_some_ahead_and_answered_in_turn() -> None:
    rate = shared()
    rate.ask(0, asked(5, ahead=1000))
    rate.ask(1, asked(3))
    assert granted(rate) == {}
    assert rate.is_waiting
    assert not rate.is_idle
    wish = lend(rate, 8 + 37, left=50.0)
    assert wish == Wish(KEY, RATE, BURST, needed=8, least=1, ahead=6000 // (40 * 2) // 2, back=0)
    assert granted(rate) == {0: 5 + 37, 1: 3}
    assert rate.view(0.1).remaining == 60


def test_a_host_that_uses_a_rate_keeps_some_of_it_and_returns_what_it_does_not_use() -> None:
    rate = shared()
    rate.ask(0, asked(40))
    lend(rate, 40)
    assert granted(rate) == {0: 40}
    assert lend(rate, 75).ahead == 6000 // (40 * 2)
    assert rate.wish(1.0) is None
    rate.ask(1, asked(10, ahead=100))
    assert granted(rate) == {1: 10 + 37}  # without a question to the store
    for _ in range(3):
        assert not rate.is_idle
        rate.close_window(is_silent=False)
    wish = rate.wish(1.0)
    assert wish is not None
    assert wish.back == 28
    assert rate.is_idle


@pytest.mark.parametrize(("left", "back"), [(49.0, 75), (50.0, None)])
def test_of_what_is_scarce_other_hosts_get_at_once_what_was_not_used(left: float, back: int | None) -> None:
    """A request for tokens takes the most that it may use and returns most of it: to the host alone, that would keep all of it there."""
    rate = shared()
    rate.ask(0, asked(90))
    lend(rate, 90, left=left)
    assert granted(rate) == {0: 90}
    rate.returned(85)
    wish = rate.wish(1.0)
    assert (None if wish is None else wish.back) == back


def test_too_little_is_a_denial_that_holds_for_a_moment() -> None:
    rate = shared()
    rate.ask(0, asked(10, least=4))
    assert lend(rate, 3, left=0.5).least == 4
    [(_, denied)] = rate.settle(0.0)
    assert denied.count == 0
    assert denied.left == 3.5
    rate.ask(1, asked(10, least=2))
    assert granted(rate) == {1: 3}  # enough for one of its requests
    rate.ask(0, asked(1))
    assert granted(rate) == {0: 0}
    rate.ask(0, asked(1))
    assert granted(rate, DENIAL_S) == {}


def test_a_silent_store_leaves_an_even_part_that_begins_empty() -> None:
    """T54: 6000 a minute are 50 a second on each of two hosts, and a burst of 50."""
    rate = shared()
    rate.ask(0, asked(7))
    assert granted(rate, 10.0, silent_since_s=10.0) == {0: 0}
    rate.ask(0, asked(7))
    [(_, some)] = rate.settle(10.1, silent_since_s=10.0)
    assert some.count == 5
    rate.ask(0, asked(1))
    [(_, none)] = rate.settle(10.11, silent_since_s=10.0)
    assert none.count == 0
    assert (1 - none.left) * 60 / RATE == pytest.approx(
        0.01
    )  # when our part has one, by the rate that a worker knows of
    rate.ask(0, asked(500))
    assert granted(rate, 100.0, silent_since_s=10.0) == {0: 50}
    rate.ask(0, asked(ahead=5))
    assert granted(rate, 100.0, silent_since_s=10.0) == {0: 0}


def test_what_needs_more_than_our_part_may_go_when_that_is_full() -> None:
    rate = shared()
    rate.ask(0, asked(80, least=80))
    assert granted(rate, 0.9, silent_since_s=0.0) == {0: 0}
    rate.ask(0, asked(80, least=80))
    assert granted(rate, 1.1, silent_since_s=0.0) == {0: 80}
    rate.ask(0, asked(1))
    assert granted(rate, 1.6, silent_since_s=0.0) == {0: 0}  # it is in debt


def test_what_is_held_is_used_in_a_silence_and_not_returned() -> None:
    rate = shared()
    rate.ask(0, asked(9))
    lend(rate, 9)
    rate.close_window(is_silent=True)
    rate.ask(1, asked(20))
    assert granted(rate, 5.0, silent_since_s=5.0) == {0: 9, 1: 0}
    rate.returned(4)
    rate.close_window(is_silent=True)
    rate.ask(1, asked(20))
    assert granted(rate, 5.0, silent_since_s=5.0) == {1: 4}


def wished(rate: SharedRate) -> Wish:
    """Where there is something to ask for."""
    wish = rate.wish(1.0)
    assert wish is not None
    return wish


def test_what_was_admitted_in_a_silence_is_taken_from_the_bucket_as_far_as_that_has_filled() -> None:
    rate = shared()
    for second in range(1, 10):
        rate.ask(0, asked(30))
        assert granted(rate, float(second), silent_since_s=0.0) == {0: 30}
    rate.spoke()
    assert wished(rate).back == -BURST // 2


def test_debts_are_told_until_they_are_heard_and_gifts_once() -> None:
    """So that no failure lends anything twice."""
    rate = shared()
    rate.returned(-5)
    for _ in range(2):
        wish = wished(rate)
        assert wish.back == -5
        rate.failed(wish)
    rate.lent(wished(rate), Lent(0, 0.0), 0.0)
    rate.returned(3)
    for _ in range(3):
        rate.close_window(is_silent=False)
    gift = rate.wish(1.0)
    assert gift is not None
    assert gift.back == 3
    rate.failed(gift)
    assert rate.wish(1.0) is None


def test_a_changed_limit_holds_from_the_newest_question_on() -> None:
    rate = shared()
    rate.ask(0, asked(1, rate=60, burst=6, revision=2))
    rate.ask(1, asked(1, revision=1))
    wish = lend(rate, 2)
    assert (wish.per_minute, wish.burst) == (60, 6)
    rate.lost(1)
    assert granted(rate) == {0: 1}
    assert rate.view(0.0).limit == 6


class Store:
    """A model of the store's script, over time that the test moves."""

    def __init__(self) -> None:
        self.left = float(BURST)
        self.filled_s = 0.0

    def lend(self, wish: Wish, now_s: float) -> Lent:
        self.left = min(BURST, self.left + (now_s - self.filled_s) * RATE / 60)
        self.filled_s = now_s
        self.left = max(-BURST, min(BURST, self.left + wish.back))
        spare = max(0, math.floor(self.left - wish.needed - BURST / 2))
        amount = max(0, min(math.floor(self.left), wish.needed + min(wish.ahead, spare)))
        if amount < wish.least:
            amount = 0
        self.left -= amount
        return Lent(amount, self.left)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "return", "window", "outage", "lost answer", "lost question"]),
        st.integers(0, 1),
        st.integers(1, 200),
        st.sampled_from([0.0, 0.01, 0.1, 1.0]),
    ),
    max_size=80,
)


@given(steps=STEPS)
def test_all_hosts_together_never_get_more_than_the_limit_and_one_burst(
    steps: list[tuple[str, int, int, float]],
) -> None:
    """T51, T54: in any order of questions, returns, outages of the store, and answers and questions that are lost; beside what
    hosts owe for an outage and have not said yet."""
    store = Store()
    hosts = [shared(), shared()]
    silent_since_s: float | None = None
    used = [0, 0]
    owed = [0, 0]
    now_s = 0.0
    for step, index, amount, pause_s in steps:
        now_s += pause_s
        host = hosts[index]
        if step == "return":
            back = min(amount, used[index])
            used[index] -= back
            host.returned(back, is_silent=silent_since_s is not None)
        elif step == "window":
            host.close_window(is_silent=silent_since_s is not None)
        elif step == "outage" and silent_since_s is None:
            silent_since_s = now_s
        elif step == "outage":
            silent_since_s = None
            owed = [BURST // 2, BURST // 2]
            for each in hosts:
                each.spoke()
        else:
            host.ask(0, asked(amount, ahead=amount))
        wish = host.wish(now_s) if silent_since_s is None else None
        if wish is not None and step == "lost question":
            host.failed(wish)
        elif wish is not None:
            lent = store.lend(wish, now_s)
            owed[index] = 0
            if step == "lost answer":
                host.failed(wish)
            else:
                host.lent(wish, lent, now_s)
        for _, message in host.settle(now_s, silent_since_s=silent_since_s):
            used[index] += message.count
        assert sum(used) <= BURST + now_s * RATE / 60 + sum(owed) + 1e-6


def test_a_part_fills_as_fast_as_it_is_a_part() -> None:
    part = PartBucket(5.0)
    part.refill_part(600, 60, 3, 6.0)
    assert part.left == pytest.approx(10 / 3)
    part.refill_part(600, 60, 3, 600.0)
    assert part.left == 20.0

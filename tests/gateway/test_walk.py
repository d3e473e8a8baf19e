"""A walk goes on when what it awaits is there, ends once, and can be cancelled at every wait."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.gateway.walk import Signal, Walk


class Ends:
    """Counts how often a walk said that it has ended."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def test_a_signal_resumes_the_walk_before_set_returns() -> None:
    """No turn of the loop lies between the event and what follows it; there need not even be a loop."""
    seen: list[str] = []
    first, second = Signal(), Signal()

    async def path() -> None:
        seen.append("begun")
        await first
        seen.append("first")
        await second
        seen.append("second")

    ends = Ends()
    Walk(path(), on_end=ends).start()
    assert seen == ["begun"]
    first.set()
    assert seen == ["begun", "first"]
    second.set()
    assert (seen[-1], ends.count) == ("second", 1)


def test_a_signal_that_was_set_before_does_not_stop_the_walk() -> None:
    signal, ends = Signal(), Ends()
    signal.set()

    async def path() -> None:
        await signal

    Walk(path(), on_end=ends).start()
    assert ends.count == 1


def test_a_signal_set_twice_counts_once() -> None:
    signal, other, ends = Signal(), Signal(), Ends()

    async def path() -> None:
        await signal
        await other

    Walk(path(), on_end=ends).start()
    signal.set()
    signal.set()
    assert ends.count == 0, "the second set must not pass for the other signal"
    other.set()
    assert ends.count == 1


def test_a_walk_awaits_futures_of_the_loop_too() -> None:
    """A result and an exception arrive as they would in a task."""
    got: list[object] = []

    async def drive() -> None:
        loop = asyncio.get_running_loop()
        good: asyncio.Future[int] = loop.create_future()
        bad: asyncio.Future[int] = loop.create_future()

        async def path() -> None:
            got.append(await good)
            try:
                await bad
            except OSError as error:
                got.append(error)

        ended = asyncio.Event()
        Walk(path(), on_end=ended.set).start()
        loop.call_soon(good.set_result, 7)
        loop.call_later(0.001, bad.set_exception, OSError("gone"))
        await asyncio.wait_for(ended.wait(), 5)

    asyncio.run(drive())
    assert got[0] == 7
    assert isinstance(got[1], OSError)


Step = Callable[[], None]


@pytest.mark.parametrize("waits_passed", range(4))
def test_a_walk_can_be_cancelled_at_every_wait(waits_passed: int) -> None:
    """CancelledError is raised where it stands, `finally` runs, and it ends once; what it waited for comes to nothing."""
    signals = [Signal() for _ in range(4)]
    seen: list[int] = []
    cleaned: list[bool] = []

    async def inner(signal: Signal) -> None:
        await signal

    async def path() -> None:
        try:
            for index, signal in enumerate(signals):
                await inner(signal)
                seen.append(index)
        finally:
            cleaned.append(True)

    ends = Ends()
    walk = Walk(path(), on_end=ends)
    walk.start()
    for signal in signals[:waits_passed]:
        signal.set()
    walk.cancel()
    assert (ends.count, cleaned, seen) == (1, [True], list(range(waits_passed)))
    for signal in signals:
        signal.set()
    walk.cancel()
    assert (ends.count, seen) == (1, list(range(waits_passed)))


def test_a_future_that_comes_after_the_cancellation_is_ignored() -> None:
    async def drive() -> int:
        loop = asyncio.get_running_loop()
        late: asyncio.Future[None] = loop.create_future()
        other = Signal()
        steps: list[str] = []

        async def path() -> None:
            try:
                await late
            except asyncio.CancelledError:
                steps.append("cancelled")
                await other  # cleaning up may wait
                steps.append("cleaned")
                raise

        ends = Ends()
        walk = Walk(path(), on_end=ends)
        walk.start()
        walk.cancel()
        late.set_result(None)
        await asyncio.sleep(0.01)
        assert steps == ["cancelled"], "the future must not pass for the signal"
        other.set()
        assert steps == ["cancelled", "cleaned"]
        return ends.count

    assert asyncio.run(drive()) == 1


def test_a_walk_that_is_cancelled_while_it_runs_ends_at_its_next_wait() -> None:
    """Such as by a callback that it calls itself."""
    holder: list[Walk] = []
    seen: list[str] = []
    never = Signal()

    async def path() -> None:
        holder[0].cancel()
        seen.append("still running")
        try:
            await never
        finally:
            seen.append("cleaned")

    ends = Ends()
    walk = Walk(path(), on_end=ends)
    holder.append(walk)
    walk.start()
    assert (seen, ends.count) == (["still running", "cleaned"], 1)


def test_one_walk_may_end_inside_another() -> None:
    """The end of one request starts the next, which ends before the first call returns."""
    order: list[str] = []
    first, second = Signal(), Signal()

    async def leader() -> None:
        await first
        order.append("leader goes on")
        second.set()
        order.append("leader ends")

    async def follower() -> None:
        await second
        order.append("follower ends")

    ends = Ends()
    starts: list[Coroutine[Any, Any, None]] = [leader(), follower()]
    for coroutine in starts:
        Walk(coroutine, on_end=ends).start()
    first.set()
    assert order == ["leader goes on", "follower ends", "leader ends"]
    assert ends.count == 2


def test_a_bug_in_a_walk_ends_it_and_is_reported() -> None:
    """The exception reaches whoever resumed it (the event loop, which logs it), after the end was told."""
    signal, ends = Signal(), Ends()

    async def path() -> None:
        await signal
        raise RuntimeError("a bug")

    Walk(path(), on_end=ends).start()
    with pytest.raises(RuntimeError):
        signal.set()
    assert ends.count == 1

"""What runs the walk of a request? Its coroutine, driven by hand, in the very callbacks that bring what it waits for.

An asyncio Task does the same in the next turn of the loop, at the price of a future, a handle and a turn for each wait; that
was the largest single part of the gateway's own work per request. The price here: `asyncio.timeout` and all else that asks
for the current task don't work inside a walk, so every wait gets its limit from a timer.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any


class Signal:
    """Something that happens once, and that one walk awaits."""

    __slots__ = ("_walk", "is_set")

    def __init__(self) -> None:
        self._walk: Walk | None = None
        self.is_set = False

    def set(self) -> None:
        """It has happened: the walk that waits for it goes on before this returns. Again, it does nothing."""
        if self.is_set:
            return
        self.is_set = True
        walk, self._walk = self._walk, None
        if walk is not None:
            walk.go_on(self)

    def wait_with(self, walk: "Walk") -> None:
        """Called by the walk that has come to its `await`."""
        assert self._walk is None, "one walk waits for a signal"
        self._walk = walk

    def __await__(self) -> Generator["Signal", None, None]:
        if not self.is_set:
            yield self


class Walk:
    """One coroutine on its way. Owner of it; `_awaited` is the signal or future at which it stands.

    Args:
        on_end: Called once, when the coroutine has ended, whichever way. Only CancelledError may leave the coroutine.
    """

    __slots__ = ("_awaited", "_coroutine", "_is_running", "_must_end", "_on_end")

    def __init__(self, coroutine: Coroutine[Any, Any, None], *, on_end: Callable[[], None]) -> None:
        self._coroutine: Coroutine[Any, Any, None] | None = coroutine
        self._on_end = on_end
        self._awaited: Signal | asyncio.Future[Any] | None = None
        self._is_running = False
        self._must_end = False

    def start(self) -> None:
        """Runs to the first wait."""
        self._step(None)

    def cancel(self) -> None:
        """CancelledError where the coroutine waits; nothing if it has ended."""
        if self._is_running:
            self._must_end = True
        elif self._coroutine is not None:
            self._step(asyncio.CancelledError())

    def go_on(self, awaited: "Signal | asyncio.Future[Any]") -> None:
        """What was awaited is there; ignored if the walk has left it behind, by cancellation."""
        if self._awaited is awaited:
            self._step(None)

    def _step(self, error: BaseException | None) -> None:
        coroutine = self._coroutine
        assert coroutine is not None, "a walk that has ended takes no step"
        self._awaited = None
        self._is_running = True
        try:
            awaited = coroutine.send(None) if error is None else coroutine.throw(error)
        except (StopIteration, asyncio.CancelledError):
            self._coroutine = None
            self._on_end()
            return
        except BaseException:
            # A bug: the event loop reports it, and the connection must not wait for a walk that is no more.
            self._coroutine = None
            self._on_end()
            raise
        finally:
            self._is_running = False
        if self._must_end:
            self._must_end = False
            self._step(asyncio.CancelledError())
            return
        self._awaited = awaited
        if type(awaited) is Signal:
            awaited.wait_with(self)
        else:
            # What every driver of futures must do: https://docs.python.org/3/library/asyncio-extending.html
            awaited._asyncio_future_blocking = False
            awaited.add_done_callback(self.go_on)

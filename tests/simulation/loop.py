"""An event loop without a machine: its time is a number that jumps to the next timer, its network is tests/simulation/network.py.

Everything above asyncio's public interface runs on it unchanged, so the gateway doesn't know. What happens depends on the
seed alone: no socket, no thread, no clock of the machine is asked.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.network import Endpoint, Listener, Network

START_S = 1000.0
WALL_OFFSET_S = 1_800_000_000.0 - START_S
RESOLUTION_S = 1e-6


class Stuck(Exception):
    """Nothing is ready and no timer runs: whoever still waits would wait for ever."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """One turn of it is one step of the simulation.

    Attributes:
        on_turn: Called between two turns, when nothing is half done.
        lag_s: How much later than asked the next wait ends, once: a machine that was busy with something else.
    """

    def __init__(self, seed: str) -> None:
        super().__init__()
        # What BaseEventLoop asks of its subclasses: a selector, how exact time is, and the two methods below.
        self._selector = self
        self._clock_resolution = RESOLUTION_S
        self._now_s = START_S
        self.on_turn: Callable[[], None] = lambda: None
        self.lag_s = 0.0
        self.network = Network(self, Random(f"{seed}/network"))

    def time(self) -> float:
        return self._now_s

    def select(self, timeout: float | None) -> list[Any]:
        """Called by BaseEventLoop where a real loop would sleep until a socket is ready or `timeout` is over."""
        self.on_turn()
        if timeout is None:
            raise Stuck("no callback is ready and no timer runs")
        if timeout > 0:
            self._now_s += timeout + self.lag_s
            self.lag_s = 0.0
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        """Nothing comes from outside."""

    def _write_to_self(self) -> None:
        """Nobody calls from another thread."""

    def live_timers(self) -> list[asyncio.TimerHandle]:
        """The timers that would still run."""
        return [timer for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, **_: Any
    ) -> tuple[Endpoint, Any]:
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, **_: Any
    ) -> Listener:
        return self.network.listen(protocol_factory, host, port)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """Another thread's work takes a moment, and is done here when the moment is over."""
        done = self.create_future()

        def work() -> None:
            if done.cancelled():
                return
            try:
                done.set_result(func(*args))
            except Exception as error:
                done.set_exception(error)

        self.call_later(self.network.chance.uniform(0.0001, 0.02), work)
        return done


class LoopClock:
    """core.clock.Clock by the loop's time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_s(self) -> float:
        return self._loop.time()

    def wall_s(self) -> float:
        return self._loop.time() + WALL_OFFSET_S

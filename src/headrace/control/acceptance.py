"""Are acceptance sets run once for each wish, and their results there for whoever asks? One run at a time, ended when unwished."""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from headrace.core.deployment_terms import Gate
from headrace.policies.rollout_state import Acceptance, AcceptanceRun


class RunsAcceptance(Protocol):
    """Puts an acceptance set to a version. Never raises: what can't be run is an ERROR, with its reason."""

    async def __call__(self, name: str, run: AcceptanceRun, gate: Gate) -> Acceptance: ...


class _Key(NamedTuple):
    """What a run is known by."""

    name: str
    of: str
    gate: str
    attempt: int


class AcceptanceRuns:
    """State, of the loop: `_wished`, by key, in the order of their wishes; `_results`, of wished ones that have ended;
    `_current`, the one under way, with its task."""

    def __init__(self, run: RunsAcceptance) -> None:
        self._run = run
        self._wished: dict[_Key, tuple[AcceptanceRun, Gate]] = {}
        self._results: dict[_Key, Acceptance] = {}
        self._current: tuple[_Key, asyncio.Task[Acceptance]] | None = None
        self._news = asyncio.Event()

    def wish(self, name: str, runs: Iterable[tuple[AcceptanceRun, Gate]]) -> None:
        """All that one deployment needs now. What it no longer needs is ended, and its result forgotten."""
        wished = {_Key(name, run.of, run.gate, run.attempt): (run, gate) for run, gate in runs}
        before = {key for key in self._wished if key.name == name}
        for key in before - wished.keys():
            del self._wished[key]
            self._results.pop(key, None)
            if self._current is not None and self._current[0] == key:
                self._current[1].cancel()
        for key in wished.keys() - before:
            self._wished[key] = wished[key]
            self._news.set()

    def results(self, name: str) -> tuple[Acceptance, ...]:
        """Of its wishes that have been fulfilled."""
        return tuple(result for key, result in self._results.items() if key.name == name)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._news.clear()
                key = next((key for key in self._wished if key not in self._results), None)
                if key is None:
                    await self._news.wait()
                    continue
                run, gate = self._wished[key]
                task = tasks.create_task(self._run(key.name, run, gate), name=f"acceptance {key.of}")
                self._current = key, task
                await asyncio.wait({task})
                self._current = None
                if not task.cancelled() and key in self._wished:
                    self._results[key] = task.result()

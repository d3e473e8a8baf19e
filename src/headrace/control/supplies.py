"""Is everything here that an engine of this version needs? Fetched once for all of its replicas, and again after a failure."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from headrace.control.engine_spec import EngineSpec
from headrace.core.deployments import AppliedVersion
from headrace.core.errors import HeadraceError

AGAIN_S = 5.0


class Supplier(Protocol):
    """How a version becomes something that can be started."""

    async def prepare(self, applied: AppliedVersion) -> EngineSpec:
        """Fetches what isn't here. Raises HeadraceError, in words for the operator."""
        ...


class Supplies:
    """Owner of `_specs`, of the versions that can be started, and of `_problems`, why others can't.

    Args:
        changed: Called when either of them may have.
    """

    def __init__(self, supplier: Supplier, changed: Callable[[], None]) -> None:
        self._supplier = supplier
        self._changed = changed
        self._specs: dict[str, EngineSpec] = {}
        self._problems: dict[str, str] = {}
        self._running: set[str] = set()

    async def now(self, applied: AppliedVersion) -> EngineSpec:
        """Waits for it. Raises HeadraceError."""
        spec = self._specs[applied.key] = await self._supplier.prepare(applied)
        return spec

    def ask(self, applied: AppliedVersion, tasks: asyncio.TaskGroup) -> EngineSpec | None:
        """None while it isn't all here; then `problem` may say why, and `changed` is called when it is worth asking again."""
        key = applied.key
        if key not in self._specs and key not in self._running:
            self._running.add(key)
            tasks.create_task(self._fetch(applied), name=f"supplies of {key}")
        return self._specs.get(key)

    def problem(self, applied: AppliedVersion) -> str:
        """Why it can't be had; "" where nothing is wrong."""
        return self._problems.get(applied.key, "")

    def forget(self, key: str) -> None:
        """Nothing of that version is wanted any more."""
        self._specs.pop(key, None)
        self._problems.pop(key, None)

    async def _fetch(self, applied: AppliedVersion) -> None:
        try:
            await self.now(applied)
            self._problems.pop(applied.key, None)
        except HeadraceError as error:
            self._problems[applied.key] = str(error)
            self._changed()
            await asyncio.sleep(AGAIN_S)
        finally:
            self._running.discard(applied.key)
        self._changed()

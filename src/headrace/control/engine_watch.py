"""Does a ready engine still serve, or is it stuck? Looked at again and again; what its callers see is the gateway's to judge."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.control import probes
from headrace.control.engine_spec import EngineSpec
from headrace.core.clock import Clock
from headrace.core.errors import UpstreamError
from headrace.core.outcome import AttemptOutcome
from headrace.engines import gauges
from headrace.engines.starting import Kind
from headrace.policies.liveness import Liveness
from headrace.policies.replica_life import Ending, Hysteresis, Reason

# What proves that a server doesn't serve; a slow or a strange answer proves nothing.
_ABSENT = (AttemptOutcome.UNREACHABLE.value, AttemptOutcome.BUSY.value)


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """How a ready engine is watched; how long the stages before may take stands in its spec's terms.

    Attributes:
        scrape_every_s, scrape_s: Time between two looks; for the answer to each question of one.
        silence_max_s, last_canary_s: An engine without a sign of life for this long, that doesn't answer a canary
            within that either, is killed.
    """

    scrape_every_s: float = 2.0
    scrape_s: float = 5.0
    silence_max_s: float = 60.0
    last_canary_s: float = 10.0


class EngineWatch:
    """Watches one engine while it is ready. Owner: the task that runs `run`.

    Args:
        model: The name that it answers to.
        seen: Gets its gauges.
        turned: Called when it is to get no more requests, with the reason, and with "" when it may again.
    """

    def __init__(
        self,
        address: probes.Address,
        model: str,
        spec: EngineSpec,
        kind: Kind,
        *,
        limits: EngineLimits,
        clock: Clock,
        seen: Callable[[Mapping[str, float]], None],
        turned: Callable[[str], None],
    ) -> None:
        self._address = address
        self._model = model
        self._spec = spec
        self._kind = kind
        self._limits = limits
        self._clock = clock
        self._seen = seen
        self._turned = turned
        self._liveness = Liveness(now_s=clock.now_s())
        self._use = Hysteresis()

    async def run(self) -> Ending:
        """Until it has shown no sign of life for too long; returns that as the reason."""
        while True:
            await asyncio.sleep(self._limits.scrape_every_s)
            failure = await self._look()
            silent_for_s = self._liveness.silent_for_s(now_s=self._clock.now_s())
            if silent_for_s < self._limits.silence_max_s:
                continue
            try:
                await self._send_canary()
            except UpstreamError as error:
                text = f"no sign of life for {silent_for_s:.0f} s: {failure}; canary: {error.message}"
                return Ending(Reason.HUNG, text)
            self._liveness.answered(now_s=self._clock.now_s())

    async def _look(self) -> str:
        """One look at it; returns what speaks against it."""
        failure, is_good = "busy without progress", True
        limit_s = self._limits.scrape_s
        try:
            await probes.health(self._address, self._kind.ready_path, timeout_s=limit_s)
            text = await probes.metrics_text(self._address, timeout_s=limit_s)
        except UpstreamError as error:
            failure, is_good = error.message, error.reason not in _ABSENT
        else:
            found = gauges.read(text, self._kind.dialect)
            self._liveness.scraped(found, now_s=self._clock.now_s())
            self._seen(found)
        if self._use.probed(is_good=is_good):
            self._turned("" if self._use.is_in else failure)
        return failure

    async def _send_canary(self) -> None:
        await probes.canary(
            self._address,
            model=self._model,
            task=self._spec.task,
            timeout_s=self._limits.last_canary_s,
            terms=self._spec.terms.ready,
        )

"""When may a replica get its first request? Once it has answered one of ours; until then it has time as long as it gets on.

An open port proves nothing, and neither does a health page: an engine may accept connections long before its model is loaded,
and go on saying that it is well after its core has died.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from headrace.control import probes
from headrace.control.engine_spec import EngineSpec
from headrace.control.launchers import EngineHandle
from headrace.control.replica_files import EngineState
from headrace.core.clock import Clock
from headrace.core.errors import UpstreamError
from headrace.core.outcome import AttemptOutcome
from headrace.engines.starting import Kind
from headrace.policies.replica_life import Budget, Ending, Reason, StageWatch

LOOK_S = 0.1
# Memory that grows by less may only breathe.
MEMORY_STEP_BYTES = 1 << 20
# Measuring looks at every process of the machine.
MEASURE_EVERY_S = 1.0
ANSWER_LIMIT_S = 5.0
# A server that says so, or that nobody hears, is not ready yet; whatever else it says, it is not what we started.
_NOT_YET = (AttemptOutcome.BUSY.value, AttemptOutcome.UNREACHABLE.value)


@dataclass(frozen=True, slots=True)
class Proven:
    """A replica that may get requests.

    Attributes:
        model: The name that it answers to.
        context_tokens, vocabulary_tokens: As it says; 0 where it doesn't.
        loading_s, listening_s: When it began to load, and when its port was open; by the clock.
    """

    address: probes.Address
    model: str
    context_tokens: int
    vocabulary_tokens: int
    loading_s: float
    listening_s: float


class Proof:
    """One start of one engine, from its launch to its first answer. Owner: the task that runs `proven`."""

    def __init__(self, engine: EngineHandle, spec: EngineSpec, kind: Kind, clock: Clock) -> None:
        self._engine = engine
        self._spec = spec
        self._kind = kind
        self._clock = clock
        terms = spec.terms
        self._watch = StageWatch(
            Budget(terms.start_timeout_s, terms.start_stall_s),
            steps=(1, MEMORY_STEP_BYTES),
            now_s=clock.now_s(),
        )
        self._measured_s = clock.now_s()

    async def proven(self, *, listens: Callable[[], None]) -> Proven | Ending | None:
        """None when the process ended first; `listens` is called once its port answers."""
        port = await (self._reported() if self._kind.speaks_reports else self._answering())
        if not isinstance(port, int):
            return port
        listening_s = self._clock.now_s()
        state = self._engine.state
        assert state is not None
        if state.listening_s is not None:
            listening_s = state.listening_s
        listens()
        address = self._address(port)
        while True:
            try:
                model = await self._prove(address)
            except UpstreamError as error:
                if error.reason not in _NOT_YET:
                    return Ending(Reason.CANARY_FAILED, f"failed its canary: {error.message}")
                if (ending := self._too_long(f"is not ready: {error.message}")) is not None:
                    return ending
                await asyncio.sleep(LOOK_S)
                continue
            loading_s = state.launched_s if state.loading_s is None else state.loading_s
            return Proven(
                address, model.id, model.context_tokens, model.vocabulary_tokens, loading_s, listening_s
            )

    async def _reported(self) -> int | Ending | None:
        """The port that the engine says."""
        engine = self._engine
        while True:
            state: EngineState | None = engine.state
            if state is not None and state.stage == "listening":
                return state.port
            if state is not None and state.stage == "failed":
                return None  # it is about to end, and then it is known why
            try:
                async with asyncio.timeout(LOOK_S):
                    if await engine.next_state() is None:
                        return None
            except TimeoutError:
                if (ending := self._too_long("did not open its port")) is not None:
                    return ending

    async def _answering(self) -> int | Ending | None:
        """The port that it was told, once anybody answers there."""
        engine = self._engine
        while True:
            engine.look()
            try:
                await self._ask_health(self._address(engine.want.port))
            except UpstreamError as error:
                if error.reason == AttemptOutcome.UNREACHABLE.value:
                    if (ending := self._too_long("did not open its port")) is not None:
                        return ending
                    await asyncio.sleep(LOOK_S)
                    continue
            return engine.want.port

    async def _prove(self, address: probes.Address) -> probes.OfferedModel:
        """The model that it offers, after it has answered to its name. Raises UpstreamError."""
        if not self._kind.speaks_reports:
            await self._ask_health(address)
        limit_s = self._spec.terms.ready.timeout_s
        offered = await probes.offered_models(address, timeout_s=limit_s)
        if len(offered) != 1 or (self._kind.takes_name and offered[0].id != self._spec.deployment):
            names = ", ".join(model.id for model in offered[:3]) or "none"
            raise UpstreamError(f"it answers to another name: {names}", reason=AttemptOutcome.GARBAGE.value)
        await self._send_canary(address, offered[0].id, within_s=limit_s)
        return offered[0]

    async def _send_canary(self, address: probes.Address, model: str, *, within_s: float) -> None:
        spec = self._spec
        await probes.canary(address, model=model, task=spec.task, timeout_s=within_s, terms=spec.terms.ready)

    async def _ask_health(self, address: probes.Address) -> None:
        await probes.health(address, self._kind.ready_path, timeout_s=ANSWER_LIMIT_S)

    def _address(self, port: int) -> probes.Address:
        return probes.Address("127.0.0.1", port, authorization=self._engine.want.authorization)

    def _too_long(self, what: str) -> Ending | None:
        """Whether this start is to be given up."""
        now_s = self._clock.now_s()
        if now_s - self._measured_s >= MEASURE_EVERY_S:
            self._measured_s = now_s
            progress = self._engine.progress()
            self._watch.measured((progress.log_bytes, progress.rss_bytes), now_s=now_s)
        terms = self._spec.terms
        if self._watch.is_over(now_s=now_s):
            return Ending(Reason.START_TIMEOUT, f"{what} within {terms.start_timeout_s:g} s of its launch")
        if self._watch.is_stalled(now_s=now_s):
            return Ending(
                Reason.START_STALLED,
                f"{what}, and neither wrote nor took memory for {terms.start_stall_s:g} s",
            )
        return None

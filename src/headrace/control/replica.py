"""The life of one embedded engine: started, proven, watched, and started again when it ends."""

import asyncio
import hashlib
import secrets
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.control import probes
from headrace.control.launchers import EngineHandle, Launcher
from headrace.control.replica_files import Want
from headrace.control.status import ColdStart, ReplicaStatus
from headrace.core.chance import Chance
from headrace.core.clock import Clock
from headrace.core.errors import UpstreamError
from headrace.core.fleet import Deployment, Replica, ReplicaState, Task
from headrace.core.ids import ReplicaId
from headrace.core.outcome import AttemptOutcome
from headrace.engines import embedded
from headrace.engines.kinds import KINDS
from headrace.engines.openai_compatible import DIALECTS
from headrace.engines.starting import Asked, Kind
from headrace.policies.liveness import Liveness
from headrace.policies.restart import RestartPolicy

DEFAULT_RETRY_AFTER_S = 5.0
DEATH_NOTICE_S = 0.2
# llama.cpp matches the whole vocabulary against every alternative of a grammar, on the thread that generates for all: a
# thousand of them held up all streams for seconds.
CONSTRAINT_PIECES_MAX = 1024


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """An embedded engine that should run.

    Attributes:
        deployment: Model name offered.
        context_tokens: Prompt plus output of one request.
        threads: 0 means all cores but one.
        location: Where it runs; it makes no answer another one.
    """

    deployment: str
    model_path: Path
    model_sha256: str
    task: Task
    slots: int
    context_tokens: int
    threads: int
    location: str = ""
    engine: str = "embedded"

    def revision(self) -> str:
        """Digest of everything that makes this engine's answers; equal specs on equal software have equal ones."""
        parts = {
            "weights": self.model_sha256,
            "engine": embedded.engine_version(),
            "context_tokens": self.context_tokens,
            "slots": self.slots,
            "embedding": self.task is Task.EMBEDDINGS,
            "chat_template": "from weights",
        }
        return "sha256:" + hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """How long each step may take.

    Attributes:
        load_s: From the launch until the engine listens.
        canary_s: For the answer to the canary that makes it ready.
        scrape_every_s, scrape_s: Time between two scrapes; for the answer to one.
        silence_max_s, last_canary_s: An engine without a sign of life for this long, that doesn't answer a canary
            within that either, is killed.
    """

    load_s: float = 600.0
    canary_s: float = 60.0
    scrape_every_s: float = 2.0
    scrape_s: float = 5.0
    silence_max_s: float = 60.0
    last_canary_s: float = 10.0


class EngineReplica:
    """Keeps one engine of `spec` running until cancelled, and says what the gateway may use of it.

    Owner of the state below: the task that runs `run`. `changed` is called after each change that `status` or
    `deployment` shows.
    """

    def __init__(
        self,
        spec: EngineSpec,
        *,
        launcher: Launcher,
        clock: Clock,
        chance: Chance,
        limits: EngineLimits,
        restarts: RestartPolicy,
        changed: Callable[[ReplicaStatus], None],
        kinds: Mapping[str, Kind] = KINDS,
    ) -> None:
        self.id = ReplicaId(f"{spec.deployment}-0")
        self._spec = spec
        self._kind = kinds[spec.engine]
        self._launcher = launcher
        self._clock = clock
        self._chance = chance
        self._limits = limits
        self._restarts = restarts
        self._changed = changed
        self._created_s = int(clock.wall_s())
        self._revision = spec.revision()
        self._context_tokens = embedded.request_tokens_max(spec.task, spec.context_tokens)
        self._vocabulary_tokens = 0
        self._state = ReplicaState.PENDING
        self._reason = ""
        self._generation = 0
        self._pid: int | None = None
        self._replica: Replica | None = None
        self._ready_at_s: float | None = None
        self._cold_start: ColdStart | None = None
        self._gauges: dict[str, float] = {}

    def status(self) -> ReplicaStatus:
        return ReplicaStatus(
            deployment=self._spec.deployment,
            replica=self.id,
            generation=self._generation,
            state=self._state,
            reason=self._reason,
            pid=self._pid,
            restarts=self._generation,
            cold_start=self._cold_start,
            gauges=self._gauges,
            traits=DIALECTS["embedded"],
            location=self._spec.location,
        )

    def deployment(self) -> Deployment:
        """What is offered; without a replica while the engine is down, so that callers hear "not now", not "unknown"."""
        spec = self._spec
        return Deployment(
            name=spec.deployment,
            upstream_model=spec.deployment,
            tasks=frozenset({spec.task}),
            revision=self._revision,
            replicas=() if self._replica is None else (self._replica,),
            locations=(spec.location,),
            context_tokens=self._context_tokens,
            vocabulary_tokens=self._vocabulary_tokens,
            constraint_pieces_max=CONSTRAINT_PIECES_MAX,
            takes_media=False,  # that takes a projector beside the weights; without one llama.cpp answers 500
            choices_max=1,  # llama.cpp spreads several choices over slots of its own choosing, past our partition
            created_s=self._created_s,
            retry_after_s=self._cold_start.total_s if self._cold_start else DEFAULT_RETRY_AFTER_S,
        )

    async def run(self) -> None:
        """Until cancelled; then the engine is stopped within the launcher's grace."""
        quick_failures = 0
        try:
            while True:
                reason = await self._live()
                now_s = self._clock.now_s()
                ready_for_s = 0.0 if self._ready_at_s is None else now_s - self._ready_at_s
                quick_failures = self._restarts.quick_failures(quick_failures, ready_for_s=ready_for_s)
                never_ready = self._ready_at_s is None
                is_hopeless = never_ready or quick_failures > self._restarts.quick_failures_max
                self._become(ReplicaState.FAILED if is_hopeless else ReplicaState.PENDING, reason=reason)
                await asyncio.sleep(self._restarts.delay_s(quick_failures, self._chance))
                self._generation += 1
        finally:
            self._become(ReplicaState.STOPPED, reason=self._reason)

    async def _live(self) -> str:
        """One process from launch to end; returns why it ended."""
        self._ready_at_s = None
        api_key = self._kind.new_key()
        launched_at_s = self._clock.now_s()
        self._become(ReplicaState.STARTING, reason=self._reason)
        try:
            engine = await self._launcher.launch(self._want(api_key))
        except OSError as error:
            return f"cannot be launched: {error}"
        try:
            async with asyncio.TaskGroup() as tasks:
                ended = tasks.create_task(engine.ended())
                service = tasks.create_task(self._serve(engine, api_key, launched_at_s=launched_at_s))
                await asyncio.wait({ended, service}, return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    self._pid = None
                self._withdraw(ReplicaState.PENDING if ended.done() else ReplicaState.DRAINING)
                # A process that dies closes its sockets first: what failed on them is not the reason then.
                await asyncio.wait({ended}, timeout=DEATH_NOTICE_S)
                has_ended = ended.done()
                service.cancel()
                ended.cancel()
            if has_ended:
                status = await engine.wait()
                if service.cancelled() or status is None or status > 128:
                    return _why_ended(status, engine)
            return service.result()
        finally:
            self._withdraw(ReplicaState.DRAINING)
            await engine.stop()
            self._pid = None

    async def _serve(self, engine: EngineHandle, api_key: str, *, launched_at_s: float) -> str:
        """Everything while the process lives; returns why it should not live on."""
        try:
            async with asyncio.timeout(self._limits.load_s):
                state = engine.state
                while state is None or state.stage not in ("listening", "failed"):
                    self._pid = engine.pid
                    state = await engine.next_state()
                    if state is None:
                        return _why_ended(await engine.wait(), engine)
        except TimeoutError:
            return f"did not listen within {self._limits.load_s:g} s of its launch"
        self._pid = engine.pid
        if state.stage == "failed":
            return _why_ended(await engine.wait(), engine)
        assert state.loading_s is not None
        assert state.listening_s is not None
        loading_at_s, listening_at_s = state.loading_s, state.listening_s
        self._become(ReplicaState.WARMING, reason=self._reason)
        address = probes.Address("127.0.0.1", state.port, authorization=f"Bearer {api_key}")
        try:
            await self._learn_bounds(address)
            await self._send_canary(address, within_s=self._limits.canary_s)
        except UpstreamError as error:
            return f"failed its canary: {error.message}"
        self._cold_start = ColdStart(
            launch_s=loading_at_s - launched_at_s,
            load_s=listening_at_s - loading_at_s,
            warm_s=self._clock.now_s() - listening_at_s,
        )
        self._admit(address)
        return await self._watch(address)

    async def _watch(self, address: probes.Address) -> str:
        """Scrapes until the engine has shown no sign of life for too long; returns that as the reason."""
        liveness = Liveness(now_s=self._clock.now_s())
        while True:
            await asyncio.sleep(self._limits.scrape_every_s)
            try:
                self._gauges = await probes.gauges(address, timeout_s=self._limits.scrape_s)
            except UpstreamError as error:
                failure = error.message
            else:
                failure = "busy without progress"
                liveness.scraped(self._gauges, now_s=self._clock.now_s())
                self._changed(self.status())
            silent_for_s = liveness.silent_for_s(now_s=self._clock.now_s())
            if silent_for_s < self._limits.silence_max_s:
                continue
            try:
                await self._send_canary(address, within_s=self._limits.last_canary_s)
            except UpstreamError as error:
                return f"no sign of life for {silent_for_s:.0f} s: {failure}; canary: {error.message}"
            liveness.answered(now_s=self._clock.now_s())

    async def _learn_bounds(self, address: probes.Address) -> None:
        """The size of the vocabulary, and what one request may use of the context that was asked for: the engine cuts it to
        what the model can."""
        offered = await probes.offered_models(address, timeout_s=self._limits.canary_s)
        if [model.id for model in offered] != [self._spec.deployment]:
            raise UpstreamError("it answers to another name", reason=AttemptOutcome.GARBAGE.value)
        self._context_tokens = min(self._context_tokens, offered[0].context_tokens or self._context_tokens)
        self._vocabulary_tokens = offered[0].vocabulary_tokens

    async def _send_canary(self, address: probes.Address, *, within_s: float) -> None:
        await probes.canary(address, model=self._spec.deployment, task=self._spec.task, timeout_s=within_s)

    def _want(self, api_key: str) -> Want:
        spec, kind = self._spec, self._kind
        asked = Asked(
            model_name=spec.deployment,
            model_path=str(spec.model_path),
            task=spec.task,
            slots=spec.slots,
            context_tokens=spec.context_tokens,
            threads=spec.threads,
        )
        command = kind.command(asked, 0, api_key)
        return Want(
            replica=self.id,
            token=secrets.token_hex(16),
            deployment=spec.deployment,
            revision=self._revision,
            generation=self._generation,
            command=command.arguments,
            settings=command.settings,
            environment=dict(command.environment),
            speaks_reports=kind.speaks_reports,
            authorization=f"Bearer {api_key}",
            log=str(self._launcher.log_of(self.id)),
            grace_s=self._launcher.stop_grace_s,
        )

    def _admit(self, address: probes.Address) -> None:
        self._replica = Replica(
            id=self.id,
            host=address.host,
            port=address.port,
            slots=self._spec.slots,
            traits=DIALECTS["embedded"],
            authorization=address.authorization,
            generation=self._generation,
            location=self._spec.location,
        )
        self._ready_at_s = self._clock.now_s()
        self._become(ReplicaState.READY, reason="")

    def _withdraw(self, state: ReplicaState) -> None:
        """Out of the snapshot, before anything else is done about an engine that ended or has to."""
        if self._replica is not None:
            self._replica = None
            self._become(state, reason=self._reason)

    def _become(self, state: ReplicaState, *, reason: str) -> None:
        self._state = state
        self._reason = reason
        self._changed(self.status())


def _why_ended(status: int | None, engine: EngineHandle) -> str:
    if engine.state is not None and engine.state.stage == "failed":
        return "; ".join(filter(None, (f"failed to load: {engine.state.reason}", engine.first_error())))
    if status is None:
        return "; ".join(filter(None, ("its lifeline was killed", engine.first_error())))
    number = status - 128
    is_signal = number in signal.valid_signals()
    how = f"killed by {signal.Signals(number).name}" if is_signal else f"ended with status {status}"
    return "; ".join(filter(None, (how, engine.first_error())))

"""The life of one embedded engine: started, proven, watched, and started again when it ends."""

import asyncio
import hashlib
import secrets
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import msgspec

from headrace.control import probes
from headrace.control.launchers import EngineHandle, Launcher
from headrace.control.replica_files import Want
from headrace.control.status import ColdStart, ReplicaStatus
from headrace.core.chance import Chance
from headrace.core.clock import Clock
from headrace.core.deployments import EngineArgs
from headrace.core.errors import UpstreamError
from headrace.core.fleet import CHOICES_MAX, Deployment, Replica, ReplicaState, Task
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
ANY_CONSTRAINT_PIECES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """An embedded engine that should run.

    Attributes:
        deployment: Model name offered.
        context_tokens: Prompt plus output of one request.
        threads: 0 means all cores but one.
        location: Where it runs; it makes no answer another one.
        version, digest: Of the applied version; 0 and "" for what headrace.toml offers.
        args: What the deployment's file says in `revision.args` beyond these.
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
    version: int = 0
    digest: str = ""
    args: EngineArgs = field(default_factory=EngineArgs)

    def revision(self) -> str:
        """Digest of everything that makes this engine's answers; equal specs on equal software have equal ones."""
        if self.digest:
            return self.digest
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


class Launches(Protocol):
    """Numbers launches, and remembers them longer than this process lives."""

    async def next(self, replica: ReplicaId) -> tuple[int, str]:
        """Generation and token of the launch that begins now; no other one has them. Raises OSError where they can't be kept."""
        ...


class CountedLaunches:
    """For who doesn't outlive his engines."""

    def __init__(self) -> None:
        self._generations: Counter[ReplicaId] = Counter()

    async def next(self, replica: ReplicaId) -> tuple[int, str]:
        generation = self._generations[replica]
        self._generations[replica] += 1
        return generation, secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class Adopted:
    """An engine that an earlier controller has launched.

    Attributes:
        offered: As it is offered at this moment, with this replica alone; None where it isn't.
        status: As it was last told; None where it wasn't.
    """

    engine: EngineHandle
    offered: Deployment | None
    status: ReplicaStatus | None


class EngineReplica:
    """Keeps one engine of `spec` running until cancelled, and says what the gateway may use of it.

    Owner of the state below: the task that runs `run`. `changed` is called after each change that `status` or
    `deployment` shows.

    Args:
        launches: Asked before each launch.
        adopted: The engine to go on with; it stays offered as it is.
    """

    def __init__(
        self,
        spec: EngineSpec,
        *,
        id: ReplicaId | None = None,
        launches: Launches | None = None,
        adopted: Adopted | None = None,
        launcher: Launcher,
        clock: Clock,
        chance: Chance,
        limits: EngineLimits,
        restarts: RestartPolicy,
        changed: Callable[[ReplicaStatus], None],
        kinds: Mapping[str, Kind] = KINDS,
    ) -> None:
        self.id = id or ReplicaId(f"{spec.deployment}-0")
        self._spec = spec
        self._kind = kinds[spec.engine]
        self._traits = replace(DIALECTS[self._kind.dialect], is_ours=True)
        self._launcher = launcher
        self._clock = clock
        self._chance = chance
        self._limits = limits
        self._restarts = restarts
        self._launches = launches or CountedLaunches()
        self._adopted = adopted
        self._is_left = False
        self._restarted = 0
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
        self._launched_s = 0.0  # of an adopted engine its lifeline knows it
        self._ready_at_s: float | None = None
        self._cold_start: ColdStart | None = None
        self._gauges: Mapping[str, float] = {}
        if adopted is not None:
            self._go_on(adopted)

    @property
    def slots(self) -> int:
        return self._spec.slots

    def leave(self) -> None:
        """When it is cancelled, the engine runs on, for another controller to adopt it."""
        self._is_left = True

    def end(self) -> None:
        """The same with its end after all."""
        self._is_left = False

    def status(self) -> ReplicaStatus:
        return ReplicaStatus(
            deployment=self._spec.deployment,
            replica=self.id,
            generation=self._generation,
            state=self._state,
            reason=self._reason,
            pid=self._pid,
            restarts=self._restarted,
            version=self._spec.version,
            cold_start=self._cold_start,
            gauges=self._gauges,
            traits=self._traits,
            location=self._spec.location,
        )

    def deployment(self) -> Deployment:
        """What is offered; without a replica while the engine is down, so that callers hear "not now", not "unknown"."""
        spec = self._spec
        is_llama = self._traits.name in ("embedded", "llama.cpp")
        return Deployment(
            name=spec.deployment,
            upstream_model=spec.deployment,
            tasks=frozenset({spec.task}),
            revision=self._revision,
            replicas=() if self._replica is None else (self._replica,),
            locations=(spec.location,),
            context_tokens=self._context_tokens,
            vocabulary_tokens=self._vocabulary_tokens,
            constraint_pieces_max=CONSTRAINT_PIECES_MAX if is_llama else ANY_CONSTRAINT_PIECES_MAX,
            takes_media=not is_llama,  # that takes a projector beside the weights; without one llama.cpp answers 500
            # llama.cpp spreads several choices over slots of its own choosing, past our partition.
            choices_max=1 if self._traits.partitions_slots else CHOICES_MAX,
            created_s=self._created_s,
            retry_after_s=self._cold_start.total_s if self._cold_start else DEFAULT_RETRY_AFTER_S,
            version=spec.version,
        )

    async def run(self) -> None:
        """Until cancelled; then the engine is stopped within the launcher's grace, unless it was left."""
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
                self._restarted += 1
        finally:
            if not self._is_left:
                self._become(ReplicaState.STOPPED, reason=self._reason)

    async def _live(self) -> str:
        """One process from launch to end; returns why it ended."""
        adopted, self._adopted = self._adopted, None
        if adopted is not None:
            return await self._hold(adopted.engine)
        self._ready_at_s = None
        self._launched_s = self._clock.now_s()
        self._become(ReplicaState.STARTING, reason=self._reason)
        try:
            self._generation, token = await self._launches.next(self.id)
            engine = await self._launcher.launch(self._want(token, self._kind.new_key()))
        except OSError as error:
            return f"cannot be launched: {error}"
        return await self._hold(engine)

    async def _hold(self, engine: EngineHandle) -> str:
        """A process that was launched or adopted, to its end; returns why it ended."""
        try:
            async with asyncio.TaskGroup() as tasks:
                ended = tasks.create_task(engine.ended())
                service = tasks.create_task(self._serve(engine))
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
            if self._is_left:
                engine.let_go()
            else:
                self._withdraw(ReplicaState.DRAINING)
                await engine.stop()
                self._pid = None

    def _go_on(self, adopted: Adopted) -> None:
        """As it was, without telling anybody: for who asks, nothing has changed."""
        self._generation = adopted.engine.want.generation
        self._pid = adopted.engine.pid
        self._state = ReplicaState.STARTING
        if adopted.status is not None and adopted.status.generation == self._generation:
            self._cold_start, self._gauges = adopted.status.cold_start, adopted.status.gauges
            self._restarted, self._reason = adopted.status.restarts, adopted.status.reason
        if adopted.offered is not None:
            (self._replica,) = adopted.offered.replicas
            self._context_tokens = adopted.offered.context_tokens
            self._vocabulary_tokens = adopted.offered.vocabulary_tokens
            self._created_s = adopted.offered.created_s
            self._ready_at_s = self._clock.now_s()
            self._state = ReplicaState.READY

    async def _serve(self, engine: EngineHandle) -> str:
        """Everything while the process lives; returns why it should not live on."""
        if self._replica is not None:  # it has answered its canary to an earlier controller
            return await self._watch(_address(self._replica))
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
        address = probes.Address("127.0.0.1", state.port, authorization=engine.want.authorization)
        try:
            await self._learn_bounds(address)
            await self._send_canary(address, within_s=self._limits.canary_s)
        except UpstreamError as error:
            return f"failed its canary: {error.message}"
        self._cold_start = ColdStart(
            launch_s=loading_at_s - (self._launched_s or state.launched_s),
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

    def _want(self, token: str, api_key: str) -> Want:
        spec, kind = self._spec, self._kind
        asked = Asked(
            model_name=spec.deployment,
            model_path=str(spec.model_path),
            task=spec.task,
            slots=spec.slots,
            context_tokens=spec.context_tokens,
            threads=spec.threads,
            args=spec.args,
        )
        command = kind.command(asked, 0, api_key)
        return Want(
            replica=self.id,
            token=token,
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
            traits=self._traits,
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


def _address(replica: Replica) -> probes.Address:
    return probes.Address(replica.host, replica.port, authorization=replica.authorization)


def _why_ended(status: int | None, engine: EngineHandle) -> str:
    if engine.state is not None and engine.state.stage == "failed":
        return "; ".join(filter(None, (f"failed to load: {engine.state.reason}", engine.first_error())))
    if status is None:
        return "; ".join(filter(None, ("its lifeline was killed", engine.first_error())))
    number = status - 128
    is_signal = number in signal.valid_signals()
    how = f"killed by {signal.Signals(number).name}" if is_signal else f"ended with status {status}"
    return "; ".join(filter(None, (how, engine.first_error())))

"""The life of one replica: its files brought, its engine started, proven, watched, and started again when it ends."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from headrace.control import engine_spec, probes
from headrace.control.engine_spec import EngineSpec, Launch
from headrace.control.engine_watch import EngineLimits, EngineWatch
from headrace.control.launchers import EngineHandle, Launcher
from headrace.control.launches import Adopted, CountedLaunches, Launches
from headrace.control.readiness import Proof, Proven
from headrace.control.status import ColdStart, ReplicaStatus
from headrace.control.weights import Abandoned, CorruptModel, File, Meter, Weights
from headrace.core.chance import Chance
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.fleet import CHOICES_MAX, Deployment, Replica, ReplicaState
from headrace.core.ids import ReplicaId
from headrace.engines.kinds import KINDS
from headrace.engines.openai_compatible import DIALECTS
from headrace.engines.starting import Kind
from headrace.policies import replica_life
from headrace.policies.replica_life import (
    Budget,
    Ending,
    Event,
    Reason,
    Restarts,
    StageWatch,
    why_ended,
)

DEFAULT_RETRY_AFTER_S = 5.0
DEATH_NOTICE_S = 0.2
LAST_WORDS_S = 5.0
FETCH_LOOK_S = 0.1
# llama.cpp matches the whole vocabulary against every alternative of a grammar, on the thread that generates for all: a
# thousand of them held up all streams for seconds.
CONSTRAINT_PIECES_MAX = 1024
ANY_CONSTRAINT_PIECES_MAX = 10_000


class EngineReplica:
    """Keeps one engine of `spec` running until cancelled, and says what the gateway may use of it.

    Owner of the state below: the task that runs `run`. `changed` is called after each change that `status` or
    `deployment` shows.

    Args:
        launches: Asked before each launch.
        adopted: The engine to go on with; it stays offered as it is.
        weights: Where its files come from; without it nothing is fetched or checked.
    """

    def __init__(
        self,
        spec: EngineSpec,
        *,
        id: ReplicaId | None = None,
        launches: Launches | None = None,
        adopted: Adopted | None = None,
        weights: Weights | None = None,
        launcher: Launcher,
        clock: Clock,
        chance: Chance,
        limits: EngineLimits,
        restarts: Restarts,
        changed: Callable[[ReplicaStatus], None],
        kinds: Mapping[str, Kind] = KINDS,
    ) -> None:
        self.id = id or ReplicaId(f"{spec.deployment}-0")
        self.spec = spec
        self._kind = kinds[spec.engine]
        self._traits = replace(DIALECTS[self._kind.dialect], is_ours=True)
        self._weights = weights
        self._launcher = launcher
        self._clock = clock
        self._chance = chance
        self._limits = limits
        self._restarts = restarts
        self._launches = launches or CountedLaunches()
        self._adopted = adopted
        self._is_left = False
        self._changed = changed
        self._created_s = int(clock.wall_s())
        self._revision = spec.revision()
        self._model = spec.deployment
        self._context_tokens = spec.tokens_max
        self._vocabulary_tokens = 0
        self._state = ReplicaState.PENDING
        self._since_s = clock.now_s()
        self._ending: Ending | None = None
        self._reason = ""
        self._generation = 0
        self._restarted = 0
        self._short_lives = 0
        self._pid: int | None = None
        self._replica: Replica | None = None
        self._standby: Replica | None = None  # while it lives and doesn't serve
        self._ready_s: float | None = None
        self._has_been_ready = False  # in this life
        self._cold_start: ColdStart | None = None
        self._gauges: Mapping[str, float] = {}
        if adopted is not None:
            self._go_on(adopted)

    @property
    def slots(self) -> int:
        return self.spec.slots

    def leave(self) -> None:
        """When it is cancelled, the engine runs on, for another controller to adopt it."""
        self._is_left = True

    def end(self) -> None:
        """The same with its end after all."""
        self._is_left = False

    def status(self) -> ReplicaStatus:
        is_stuck = self._ready_s is None and self._restarts.is_stuck(
            self._short_lives, self._ending, most=self.spec.terms.restarts_max
        )
        return ReplicaStatus(
            deployment=self.spec.deployment,
            replica=self.id,
            generation=self._generation,
            state=self._state,
            reason=self._reason,
            pid=self._pid,
            restarts=self._restarted,
            version=self.spec.version,
            cold_start=self._cold_start,
            gauges=self._gauges,
            traits=self._traits,
            location=self.spec.location,
            code=self._ending.reason.value if self._ending is not None and self._reason else "",
            since_s=self._since_s,
            ready_s=self._ready_s,
            failures=self._short_lives,
            is_stuck=is_stuck,
        )

    def deployment(self) -> Deployment:
        """What is offered; without a replica while the engine is down, so that callers hear "not now", not "unknown"."""
        spec = self.spec
        is_llama = self._traits.name in ("embedded", "llama.cpp")
        return Deployment(
            name=spec.deployment,
            upstream_model=self._model,
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
        """Until cancelled; then the engine is stopped within its grace, unless it was left."""
        try:
            while True:
                ending = await self._live()
                ready_for_s = 0.0 if self._ready_s is None else self._clock.now_s() - self._ready_s
                self._ready_s = None
                self._restarted += 1
                self._short_lives = self._restarts.short_lives(self._short_lives, ready_for_s=ready_for_s)
                is_hopeless = not self._has_been_ready or self._restarts.is_crash_loop(
                    self._short_lives, most=self.spec.terms.restarts_max
                )
                self._ending, self._reason = ending, ending.text
                if is_hopeless:
                    self._become(Event.GIVE_UP)
                else:
                    self._ended()
                await asyncio.sleep(self._restarts.delay_s(self._short_lives, ending.reason, self._chance))
        finally:
            if not self._is_left:
                self._become(Event.RETIRE)

    # One life

    async def _live(self) -> Ending:
        """One process from its files to its end; returns why it ended."""
        adopted, self._adopted = self._adopted, None
        if adopted is not None:
            return await self._hold(adopted.engine, ColdStart(0.0, 0.0, 0.0))
        self._has_been_ready = False
        begun_s = self._clock.now_s()
        paths = await self._bring()
        if isinstance(paths, Ending):
            return paths
        fetched_s = self._clock.now_s()
        self._become(Event.LAUNCH)
        try:
            launch = Launch(self.id, *await self._launches.next(self.id))
            self._generation = launch.generation
            want = engine_spec.want(launch, self.spec, self._kind, paths, launcher=self._launcher)
            engine = await self._launcher.launch(want)
        except ConfigError as error:
            return Ending(Reason.UNSUITABLE, error.message)
        except OSError as error:
            return Ending(Reason.LAUNCH_FAILED, f"cannot be launched: {error}")
        room_s = self._clock.now_s() - fetched_s
        return await self._hold(
            engine, ColdStart(0.0, 0.0, 0.0, fetch_s=fetched_s - begun_s, capacity_s=room_s)
        )

    async def _bring(self) -> dict[str, Path] | Ending:
        """Where its files lie; FETCHING only while there is something to do."""
        spec, terms = self.spec, self.spec.terms
        known = (
            ()
            if spec.model_path is None or not spec.model_sha256
            else (File(spec.model_path, spec.model_sha256),)
        )
        weights = self._weights
        if weights is None or not (known or spec.artifacts):
            return {}
        meter = Meter()
        is_suspect = self._ending is not None and self._ending.reason is Reason.LOAD_FAILED
        self._become(Event.FETCH)
        watch = StageWatch(
            Budget(terms.fetch_timeout_s, terms.fetch_stall_s), steps=(1,), now_s=self._clock.now_s()
        )
        async with asyncio.TaskGroup() as tasks:
            work = tasks.create_task(self._brought(weights, known, meter, is_suspect=is_suspect))
            while True:
                await asyncio.wait({work}, timeout=FETCH_LOOK_S)
                if work.done():
                    return work.result()
                now_s = self._clock.now_s()
                watch.measured((meter.bytes_done,), now_s=now_s)
                if watch.is_over(now_s=now_s) or watch.is_stalled(now_s=now_s):
                    work.cancel()
                    if watch.is_over(now_s=now_s):
                        text = f"its files were not here within {terms.fetch_timeout_s:g} s"
                        return Ending(Reason.FETCH_TIMEOUT, text)
                    text = f"not a byte of its files came for {terms.fetch_stall_s:g} s"
                    return Ending(Reason.FETCH_STALLED, text)

    async def _brought(
        self, weights: Weights, known: tuple[File, ...], meter: Meter, *, is_suspect: bool
    ) -> dict[str, Path] | Ending:
        try:
            return await weights.bring(self.spec.artifacts, known, meter=meter, is_suspect=is_suspect)
        except CorruptModel as error:
            return Ending(Reason.CORRUPT_MODEL, str(error))
        except (HeadraceError, OSError, Abandoned) as error:
            return Ending(Reason.FETCH_FAILED, f"its files can't be had: {error}")

    async def _hold(self, engine: EngineHandle, took: ColdStart) -> Ending:
        """A process that was launched or adopted, to its end; returns why it ended.

        Args:
            took: What came before the launch.
        """
        has_failed = False
        try:
            ending = await self._lived(engine, took)
            has_failed = True
            return ending
        finally:
            # A life that has failed is ended, whoever holds it. What serves, or may yet, goes on also where it isn't the life
            # that ended but who held it: such as one who learns, as the engine gets ready, that another one has taken over.
            if self._is_left and not has_failed:
                engine.let_go()
            else:
                self._withdraw(Event.WITHDRAW)
                await _stopped(engine)
                self._pid = None

    async def _lived(self, engine: EngineHandle, took: ColdStart) -> Ending:
        """Returns why it ended, or must."""
        async with asyncio.TaskGroup() as tasks:
            ended = tasks.create_task(engine.ended())
            service = tasks.create_task(self._serve(engine, took))
            await asyncio.wait({ended, service}, return_when=asyncio.FIRST_COMPLETED)
            self._withdraw(Event.END if ended.done() else Event.WITHDRAW)
            # A process that dies closes its sockets first: what failed on them is not the reason then. And one that has said
            # that it can't load is given the time to end by itself.
            is_ending = service.done() and service.result() is None
            await asyncio.wait({ended}, timeout=LAST_WORDS_S if is_ending else DEATH_NOTICE_S)
            has_ended = ended.done()
            for task in (ended, service):
                task.cancel()
        found = None if service.cancelled() else service.result()
        if found is not None and not has_ended:
            return found
        status = await engine.wait() if has_ended else None
        return self._why_ended(engine, status) if found is None or status != 0 else found

    def _why_ended(self, engine: EngineHandle, status: int | None) -> Ending:
        state = engine.state
        if state is None:
            return why_ended(status, said=engine.first_error())
        return why_ended(
            status,
            said=engine.first_error(),
            failed_to_load=state.reason if state.stage == "failed" else "",
            was_told=state.was_told,
            oom_kills=state.oom_kills,
        )

    def _go_on(self, adopted: Adopted) -> None:
        """As it was, without telling anybody: for who asks, nothing has changed."""
        self._generation = adopted.engine.want.generation
        self._pid = adopted.engine.pid
        self._state = ReplicaState.STARTING
        status = adopted.status
        if status is not None and status.generation == self._generation:
            self._cold_start, self._gauges = status.cold_start, status.gauges
            self._restarted, self._reason = status.restarts, status.reason
            self._short_lives, self._since_s = status.failures, status.since_s
            self._ready_s, self._has_been_ready = status.ready_s, status.ready_s is not None
        if adopted.offered is not None:
            (self._replica,) = adopted.offered.replicas
            self._model = adopted.offered.upstream_model
            self._context_tokens = adopted.offered.context_tokens
            self._vocabulary_tokens = adopted.offered.vocabulary_tokens
            self._created_s = adopted.offered.created_s
            if self._ready_s is None:
                self._ready_s = self._clock.now_s()
            self._has_been_ready = True
            self._state = ReplicaState.READY

    async def _serve(self, engine: EngineHandle, took: ColdStart) -> Ending | None:
        """Everything while the process lives; returns why it should not live on, None where its end will say it."""
        if self._replica is not None:  # it has answered its canary to an earlier controller
            return await self._watch(_address(self._replica))
        proof = Proof(engine, self.spec, self._kind, self._clock)
        found = await proof.proven(listens=lambda: self._listens(engine))
        if not isinstance(found, Proven):
            return found
        state = engine.state
        assert state is not None
        if not self._has_been_ready:  # one that was ejected and adopted has started long ago
            self._cold_start = replace(
                took,
                launch_s=found.loading_s - state.launched_s,
                load_s=found.listening_s - found.loading_s,
                warm_s=self._clock.now_s() - found.listening_s,
            )
        self._admit(found)
        return await self._watch(found.address)

    def _listens(self, engine: EngineHandle) -> None:
        self._pid = engine.pid
        self._become(Event.LISTEN)

    # In service

    async def _watch(self, address: probes.Address) -> Ending:
        watch = EngineWatch(
            address,
            self._model,
            self.spec,
            self._kind,
            limits=self._limits,
            clock=self._clock,
            seen=self._take_gauges,
            turned=self._turned,
        )
        return await watch.run()

    def _take_gauges(self, found: Mapping[str, float]) -> None:
        self._gauges = found
        self._changed(self.status())

    def _turned(self, why: str) -> None:
        """Out of the snapshot while it says that it can't serve, or nobody hears it; and back, as the same process: it keeps
        its generation, and the count of what still runs on it."""
        if why:
            self._standby, self._replica = self._replica, None
            self._reason = why
            self._become(Event.EJECT)
        else:
            self._replica = self._standby
            self._become(Event.ANSWER)

    def _admit(self, found: Proven) -> None:
        self._model = found.model
        self._context_tokens = min(filter(None, (self.spec.tokens_max, found.context_tokens)), default=0)
        self._vocabulary_tokens = found.vocabulary_tokens
        self._replica = Replica(
            id=self.id,
            host=found.address.host,
            port=found.address.port,
            slots=self.spec.slots,
            traits=self._traits,
            authorization=found.address.authorization,
            generation=self._generation,
            location=self.spec.location,
            slow_start_s=self.spec.terms.slow_start_s if self.spec.version else None,
        )
        if not self._has_been_ready:
            self._ready_s = self._clock.now_s()
        self._has_been_ready = True
        self._become(Event.ANSWER)

    def _withdraw(self, event: Event) -> None:
        """Out of the snapshot, before anything else is done about an engine that ended or has to."""
        if self._replica is not None:
            self._replica = None
            self._become(event)

    def _ended(self) -> None:
        if self._state is ReplicaState.PENDING:  # which was told when it ended; now it is known why
            self._changed(self.status())
        else:
            self._become(Event.END)

    def _become(self, event: Event) -> None:
        state = replica_life.after(self._state, event)
        if state is not self._state:
            self._since_s = self._clock.now_s()
        self._state = state
        if event is Event.ANSWER:
            self._reason = ""
        self._changed(self.status())


def _address(replica: Replica) -> probes.Address:
    return probes.Address(replica.host, replica.port, authorization=replica.authorization)


async def _stopped(engine: EngineHandle) -> None:
    """Also when it is cancelled meanwhile: nobody else would see to it."""
    try:
        await engine.stop()
    except asyncio.CancelledError:
        await engine.stop()
        raise

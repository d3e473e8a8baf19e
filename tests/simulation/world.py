"""One run of the simulation: the real gateway between simulated callers and replicas, from the seed to the verdict."""

import asyncio
import gc
import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from headrace.app.budgets import no_budgets
from headrace.app.gateway_parts import build_gateway
from headrace.config import AdmissionConfig, Config, HealthConfig, RequestConfig, ServerConfig
from headrace.core import keys
from headrace.core.ids import KeyId, TenantId
from headrace.core.isolation import CachePartitions
from headrace.core.quotas import BudgetKey, Period, QuotaUnit
from headrace.engines.openai_compatible import DIALECTS, OPENAI
from headrace.gateway.auth import Authenticator
from headrace.stores.key_ring import KeyEntry
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics
from tests.simulation.budget_laws import BudgetLaws
from tests.simulation.caller import HOST, PORT, Caller, Manners, Request
from tests.simulation.history import History, Violation
from tests.simulation.laws import Laws
from tests.simulation.loop import LoopClock, SimulatedLoop
from tests.simulation.network import Listener, Network
from tests.simulation.plans import Fault
from tests.simulation.replica import Fleet, SimulatedReplica
from tests.simulation.rollouts import Rollouts, Shares
from tests.simulation.tenants import draw_tenants
from tests.simulation.watched import Records, watched

PEPPER = b"p" * 32
PARTITIONS = CachePartitions(PEPPER)
VIRTUAL_S_MAX = 3600.0
QUIET_S = 400.0  # longer than every limit of every run


@dataclass(frozen=True)
class Report:
    """What a run that broke no law has to say."""

    seed: str
    digest: str
    events: int
    requests: int
    executions: int
    virtual_s: float
    outcomes: dict[str, int]
    shares: Shares


class Failure(Exception):
    """A run that broke a law, with the way to repeat it.

    Attributes:
        is_by_law: A law of the simulation or an assertion of the code found it, no error in the simulation itself.
        last: The last lines of its history.
        trace: Where the law or the bug showed, for people.
    """

    def __init__(self, seed: str, cause: BaseException, history: History) -> None:
        super().__init__(
            f"SEED={seed}: {type(cause).__name__}: {cause}\nrepeat: python -m tests.simulation --seed {seed} --trace"
        )
        self.seed = seed
        self.is_by_law = isinstance(cause, AssertionError)
        self.last = list(history.last)
        self.trace = "".join(traceback.format_exception(cause))


def run(seed: str, *, tell: Callable[[str], None] | None = None) -> Report:
    """Runs the world of this seed to its end. Raises Failure."""
    unraisable: list[object] = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda seen: unraisable.append(seen.exc_value)
    try:
        ended = _run(seed, tell)
        if isinstance(ended, Failure):
            gc.collect()  # of the coroutines that a broken run left standing, none may end inside another run
            raise ended
        assert not unraisable, unraisable
        return ended
    finally:
        sys.unraisablehook = hook


def _run(seed: str, tell: Callable[[str], None] | None) -> Report | Failure:
    loop = SimulatedLoop(seed)
    history = History(loop.time, tell=tell)
    runner = asyncio.Runner(loop_factory=lambda: loop)
    try:
        world = World(seed, loop, history)
        report = runner.run(world.play())
        world.check_quiet()
        return report
    except (Exception, asyncio.CancelledError) as error:
        return Failure(seed, _first_leaf(error), history)
    finally:
        loop.on_turn = lambda: None  # what is left of a broken run may end as it likes
        runner.close()


def _first_leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class SimulatedPort:
    """gateway.listener.Port on the simulated network."""

    number = PORT
    keeps_waiting = False

    def __init__(self, network: Network) -> None:
        self._network = network
        self._listener: Listener | None = None

    async def open(self, make: Callable[[], asyncio.Protocol], *, count: Callable[[], int]) -> None:
        self._listener = self._network.listen(make, HOST, PORT)

    def tick(self, now_s: float) -> None:
        """There is always room."""

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()


class World:
    """Draws everything that the seed decides, then plays it."""

    def __init__(self, seed: str, loop: SimulatedLoop, history: History) -> None:
        self._seed = seed
        self._loop = loop
        self._history = history
        self._chance = chance = Random(f"{seed}/world")
        self._pace_s = chance.choice((0.02, 0.1, 0.5))
        self._config = _config(chance)
        self._lag_share = chance.choice((0.0, 0.0, 0.0005))
        self._started_s = loop.time()
        self._version = 0
        self._left_s: dict[str, float] = {}  # when callers left, by the nonce of their request
        faults = chance.sample([each for each in Fault if each is not Fault.NONE], chance.randint(0, 6))
        self._fleet = Fleet(
            network=loop.network,
            history=history,
            faults=faults,
            fault_share=chance.choice((0.05, 0.3, 0.8)),
            pace_s=self._pace_s,
        )
        self._deployments = self._draw_deployments()
        self._rollouts = Rollouts(self._deployments, Random(f"{seed}/rollouts"), history)
        self._rollouts.draw()
        self._tenants = draw_tenants(
            self._chance, levels=Random(f"{self._seed}/levels"), partitions=PARTITIONS
        )
        self._build()
        self._manners = self._draw_manners()
        loop.network.read = self._was_read
        loop.set_exception_handler(self._exception)

    # Drawing.

    def _draw_deployments(self) -> dict[str, list[SimulatedReplica]]:
        chance, sharing = self._chance, Random(f"{self._seed}/sharing")
        found: dict[str, list[SimulatedReplica]] = {}
        port = 9000
        for number in range(chance.randint(1, 2)):
            traits = chance.choice((OPENAI, DIALECTS["vllm"], DIALECTS["embedded"]))
            replicas = []
            for index in range(chance.randint(1, 4)):
                port += 1
                name = f"r{number}.{index}"
                replica_chance = Random(f"{self._seed}/{name}")
                slots = chance.randint(1, 4)
                replicas.append(
                    SimulatedReplica(self._fleet, name, port, replica_chance, slots=slots, traits=traits)
                )
            found[f"m{number}"] = replicas
        if (
            sharing.random() < 0.5
        ):  # the first one's servers offer another model, which others of their kind may offer too
            first = found["m0"]
            found["m1"] = [*(own for own in found.get("m1", ()) if own.traits == first[0].traits), *first]
        return found

    def _draw_manners(self) -> Manners:
        chance, request = self._chance, self._config.request
        return Manners(
            tenants=[(tenant, key) for tenant, (key, _) in self._tenants.items()],
            models=[
                (model, path)
                for model, replicas in self._deployments.items()
                for path in ("/v1/chat/completions", "/v1/chat/completions", "/v1/embeddings")
                # Engines whose slots we assign do one task each.
                if not (replicas[0].traits.partitions_slots and path.endswith("embeddings"))
            ],
            deadline_s=request.deadline_s,
            silence_s=request.heartbeat_s,
            stuck_s=request.write_stall_limit_s + 5.0,
            pace_s=self._pace_s,
            leave_share=chance.choice((0.0, 0.1, 0.5)),
            slow_share=chance.choice((0.0, 0.1, 0.3)),
            odd_share=chance.choice((0.0, 0.1)),
            hasty_share=chance.choice((0.0, 0.1, 0.5)),
            pipeline_share=chance.choice((0.0, 0.1)),
        )

    def _build(self) -> None:
        config, clock = self._config, LoopClock(self._loop)
        self._metrics = metrics = Metrics()
        log = Log(_LogStream(self._history), clock)
        auth = Authenticator(PEPPER, clock=clock)
        auth.replace(
            {
                keys.digest(PEPPER, key.encode()): KeyEntry(principal, None)
                for key, principal in self._tenants.values()
            }
        )
        self._records = Records(self._history)
        self._budgets = no_budgets(clock)
        with watched(config, self._rollouts, self._history) as (dispatchers, limiters):
            self._gateway = build_gateway(
                config,
                auth=auth,
                records=self._records,
                budgets=self._budgets,
                ladder=None,
                metrics=metrics,
                log=log,
                clock=clock,
                chance=Random(f"{self._seed}/gateway"),
            )
        self._agree_quotas()
        self._laws = Laws(
            config,
            gateway=self._gateway,
            budgets=BudgetLaws(
                self._budgets.budgets, lambda: self._records.usage, metrics=metrics, history=self._history
            ),
            dispatcher=dispatchers[0],
            limiter=limiters[0],
            records=self._records,
            fleet=self._fleet,
            metrics=metrics,
            rollouts=self._rollouts,
            left_s=self._left_s,
            models=len(self._deployments),
            started_s=self._started_s,
            history=self._history,
        )

    def _agree_quotas(self) -> None:
        """Some tenants may send few requests, or use few tokens, in all."""
        chance, limits = Random(f"{self._seed}/quotas"), dict[BudgetKey, int]()
        for tenant in self._tenants:
            if chance.random() < 0.2:
                unit, amount = chance.choice(((QuotaUnit.REQUESTS, 12), (QuotaUnit.TOKENS, 40_000)))
                limits[BudgetKey(TenantId(tenant), KeyId(""), unit, Period.TOTAL)] = amount
        self._budgets.begin(limits)
        self._gateway.reservations.go_by(limits, revision=1)

    # Playing.

    async def play(self) -> Report:
        chance, gateway = self._chance, self._gateway
        rejecting = {Fault.REJECTED, Fault.ERROR_FIRST, Fault.ERROR_INSIDE}
        self._laws.may_reject = not rejecting.isdisjoint(self._fleet.faults)
        self._laws.may_forget = True
        for replica in self._replicas():
            replica.start()
        self._publish()
        self._loop.on_turn = self._at_each_step
        callers = [
            Caller(
                f"c{n}",
                self._manners,
                Random(f"{self._seed}/c{n}"),
                self._history,
                left_s=self._left_s,
                visits=chance.randint(1, 4),
            )
            for n in range(chance.randint(3, 14))
        ]
        stops_early = chance.random() < 0.3
        async with asyncio.TaskGroup() as tasks:
            opened = self._loop.create_future()
            serving = tasks.create_task(
                gateway.serve(SimulatedPort(self._loop.network), opened=opened.set_result)
            )
            await opened
            weather = [tasks.create_task(self._weather()), tasks.create_task(self._roll_out())]
            async with asyncio.TaskGroup() as calling:
                for caller in callers:
                    calling.create_task(caller.run())
                if stops_early:
                    await asyncio.sleep(self._pace_s * chance.expovariate(0.1))
                    await self._stop(serving, limit_s=chance.choice((0.0, 1.0, 30.0)))
            for each in weather:
                each.cancel()
            if not stops_early:
                await self._stop(serving, limit_s=1000.0)
        requests = [request for caller in callers for request in caller.requests]
        for replica in self._replicas():
            replica.stop()
        await asyncio.sleep(QUIET_S)
        self._laws.at_the_end(requests)
        return self._report(requests)

    async def _stop(self, serving: "asyncio.Task[None]", *, limit_s: float) -> None:
        self._history.add("drain", limit_s)
        self._laws.stops_s = self._loop.time()
        cut = await self._gateway.drain(limit_s)
        self._history.add("stop", cut)
        serving.cancel()

    async def _weather(self) -> None:
        """What happens to the fleet and to the machine while callers call."""
        chance = self._chance
        events = [
            self._crash,
            self._deafen,
            self._resize,
            self._withdraw,
            self._offer_nothing,
            self._fall_behind,
        ]
        strength = chance.choice((0.0, 0.5, 3.0))
        if not strength:
            await self._loop.create_future()
        while True:
            await asyncio.sleep(self._pace_s * 40 * chance.expovariate(strength))
            await chance.choice(events)()

    async def _crash(self) -> None:
        """A process ends and comes back; where it is ours, as a new generation on a new port."""
        replica = self._chance.choice(self._replicas())
        replica.stop()
        await asyncio.sleep(self._chance.choice((0.0, 0.01, 1.0)))
        if replica.traits.is_ours:
            replica.generation += 1
            replica.port += 1000
        replica.start()
        self._publish()

    async def _deafen(self) -> None:
        replica = self._chance.choice(self._replicas())
        replica.set_deaf(True)
        await asyncio.sleep(self._chance.random() * 10.0)
        replica.set_deaf(False)

    async def _resize(self) -> None:
        self._chance.choice(self._replicas()).slots = self._chance.randint(1, 4)
        self._publish()

    async def _withdraw(self) -> None:
        """A replica leaves the fleet, although it runs, and comes back."""
        replica = self._chance.choice(self._replicas())
        self._publish(without=replica.name)
        await asyncio.sleep(self._chance.random() * self._pace_s * 20)
        self._publish()

    async def _offer_nothing(self) -> None:
        """A deployment is withdrawn and comes back."""
        self._publish(without=self._chance.choice(list(self._deployments)))
        await asyncio.sleep(self._chance.random() * self._pace_s * 20)
        self._publish()

    async def _roll_out(self) -> None:
        """The shares of revisions change all the time."""
        rollouts = self._rollouts
        while rollouts.running:
            await asyncio.sleep(self._pace_s * 10 * rollouts.chance.expovariate(1.0))
            rollouts.step()
            self._publish()

    async def _fall_behind(self) -> None:
        self._records.is_behind = True
        await asyncio.sleep(self._chance.random() * self._pace_s * 20)
        self._records.is_behind = False

    def _replicas(self) -> list[SimulatedReplica]:
        return [replica for replicas in self._deployments.values() for replica in replicas]

    def _publish(self, *, without: str = "") -> None:
        self._version += 1
        self._history.add("publish", self._version, without)
        self._gateway.publish(self._rollouts.snapshot(self._version, without=without))

    # Watching.

    def _at_each_step(self) -> None:
        now_s = self._loop.time()
        if now_s - self._started_s > VIRTUAL_S_MAX:
            self._history.require(False, "the run doesn't end")
        if self._lag_share and self._chance.random() < self._lag_share:
            self._loop.lag_s = self._chance.random() * 0.3
        try:
            self._laws.at_each_step(now_s)
        except Violation:
            pass  # it is on the list
        if self._history.broken:
            self._loop.on_turn = lambda: None
            raise self._history.broken[0]

    def _was_read(self, endpoint: Any, count: int) -> None:
        self._history.mix(self._loop.time(), count)

    def _exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._history.broken.append(context.get("exception") or Violation(context["message"]))

    def check_quiet(self) -> None:
        """When the run is over nothing is left in the loop. Called outside it."""
        if self._history.broken:
            raise self._history.broken[0]
        self._history.require(
            not self._loop.network.open,
            f"connections are left: {[each.name for each in self._loop.network.open]}",
        )
        self._history.require(not self._loop.network.listeners, "ports are left open")
        timers = self._loop.live_timers()
        self._history.require(not timers, f"timers are left: {timers[:5]}")
        tasks = asyncio.all_tasks(self._loop)
        self._history.require(not tasks, f"tasks are left: {tasks}")

    def _report(self, requests: list[Request]) -> Report:
        outcomes: dict[str, int] = {}
        for request in requests:
            key = "left" if request.has_left else request.answer.ended
            outcomes[key] = outcomes.get(key, 0) + 1
        return Report(
            seed=self._seed,
            digest=self._history.digest,
            events=self._history.count,
            requests=len(requests),
            executions=len(self._fleet.executions),
            virtual_s=self._loop.time() - self._started_s,
            outcomes=outcomes,
            shares=self._rollouts.shares,
        )


class _LogStream:
    """The gateway's log becomes part of the history, and a bug that it tells of breaks the run."""

    def __init__(self, history: History) -> None:
        self._history = history

    def write(self, text: str, /) -> None:
        self._history.add("log", text.strip())
        if json.loads(text)["event"] == "internal.error":
            self._history.broken.append(Violation(f"a bug: {text}"))

    def flush(self) -> None:
        """Nothing is kept back."""


def _config(chance: Random) -> Config:
    request = RequestConfig(
        deadline_s=chance.choice((5.0, 60.0, 200.0)),
        first_event_limit_s=chance.choice((0.5, 5.0, 60.0)),
        stall_limit_s=chance.choice((0.3, 2.0, 30.0)),
        write_stall_limit_s=chance.choice((2.0, 10.0)),
        heartbeat_s=chance.choice((0.5, 3.0, 15.0)),
        attempts_max=chance.randint(1, 4),
        retry_floor_per_s=chance.choice((0.0, 0.1, 1.0)),
    )
    return Config(
        server=ServerConfig(
            host=HOST, port=PORT, connections_max=chance.choice((4, 4096)), idle_timeout_s=20.0
        ),
        request=request,
        admission=AdmissionConfig(
            queue_length_max=chance.choice((0, 1, 5, 64)),
            queue_bytes_max=chance.choice((1000, 2**26)),
            queue_wait_max_s=chance.choice((0.5, 5.0, 60.0)),
        ),
        health=HealthConfig(failures_to_eject=chance.randint(1, 4), ejection_s=chance.choice((0.2, 5.0))),
    )

"""Claims about budgets that workers share, the code of both sides on a simulated loop: under any order of messages, requests,
deaths, periods and changes of quotas nothing is overspent, every charge has one cause, and all that was reserved comes back."""

import asyncio
import io
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from random import Random
from unittest import mock

import pytest

from headrace.control.budgets import BudgetAuthority
from headrace.core.errors import HeadraceError
from headrace.core.fleet import Deployment, Task
from headrace.core.ids import KeyId, RequestId, TenantId
from headrace.core.leases import ANSWER_LIMIT_S, EscrowLending, Settled
from headrace.core.quotas import BudgetKey, Limits, Period, QuotaUnit, Span
from headrace.core.request import Endpoint, InferenceRequest
from headrace.core.tenant import Principal, TenantLimits
from headrace.core.usage import UsageRecord
from headrace.gateway.leases import Lacking, Leases
from headrace.gateway.walk import Signal, Walk
from headrace.policies import spending
from headrace.policies.budgets import Budget
from headrace.stores.spending import Before, Corrected
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics
from tests.gateway.budgets_rig import KeptRecords, leased_reservations
from tests.gateway.leases_rig import Wire
from tests.simulation.loop import LoopClock, SimulatedLoop

TENANT = TenantId("acme")
OFFER = Deployment("m", "m", frozenset({Task.CHAT}), "unpinned")
DAY_S = 86400.0


def key(unit: QuotaUnit, period: Period = Period.DAY) -> BudgetKey:
    return BudgetKey(TENANT, KeyId(""), unit, period)


REQUESTS, TOKENS = key(QuotaUnit.REQUESTS), key(QuotaUnit.TOKENS)
MONEY = key(QuotaUnit.MONEY, Period.TOTAL)


def record(request: InferenceRequest, *, tokens: int, reason: str = "ok") -> UsageRecord:
    return UsageRecord(
        request.id, request.principal.tenant, request.principal.key_id, "m", "unpinned", "/v1/chat/completions",
        True, request.arrived_wall_s, "delivered", reason, 200, tokens, 0, 0, "final", 0.0, 0.1, 1.0, 1,
        "p1", 10 * tokens,
    )  # fmt: skip


class Worker:
    """One worker: its reservations, its two wires, and its records, which go up a little later."""

    def __init__(self, world: "World", number: int, generation: int) -> None:
        self.journal = Path(f"{number}.{generation}")
        self.unsent: list[tuple[UsageRecord, Sequence[Settled]]] = []
        self.walks: dict[Walk, None] = {}
        self._world = world
        self.up = Wire(world.loop, world.chance, lambda message: world.heard(number, message))
        self.down = Wire(world.loop, world.chance, self._received)
        self.leases = Leases(self.up.send, make=lambda key: pytest.fail(f"{key}"), clock=world.clock)
        self.reservations = leased_reservations(
            self.up.send, clock=world.clock, records=KeptRecords(self._recorded)
        )
        self.reservations.go_by(world.limits, revision=world.revision)

    def _received(self, message: EscrowLending) -> None:
        self.leases.heard()
        self.reservations.received(message)

    def _recorded(self, usage: UsageRecord, settled: Sequence[Settled]) -> None:
        if not self.unsent:
            self._world.loop.call_later(0.01, self._flush)
        self.unsent.append((usage, settled))

    def _flush(self) -> None:
        unsent, self.unsent = self.unsent, []
        if unsent and not self.up.is_cut:
            self.up.send(unsent)

    def ask(self, *, tokens: int, used: int | None, held_s: float) -> None:
        """One request that may use `tokens`, and has used so many when it ends; None: it ends without a record."""
        world = self._world
        world.count += 1
        request = InferenceRequest(
            id=RequestId(f"req{world.count}"),
            principal=Principal(TENANT, KeyId("key"), TenantLimits()),
            endpoint=Endpoint.CHAT_COMPLETIONS,
            model="m",
            canonical=b"",
            wire_fields={},
            is_streaming=False,
            wants_usage=False,
            prompt_bytes=0,
            output_tokens_max=tokens,
            choices=1,
            arrived_s=world.clock.now_s(),
            arrived_wall_s=world.clock.wall_s(),
            deadline_s=world.clock.now_s() + 300.0,
        )
        walk = Walk(self._walk(request, used, held_s), on_end=lambda: self.walks.pop(walk))
        self.walks[walk] = None
        walk.start()

    async def _walk(self, request: InferenceRequest, used: int | None, held_s: float) -> None:
        reservations, world = self.reservations, self._world
        until_s = world.clock.now_s() + ANSWER_LIMIT_S
        try:
            while True:
                try:
                    reservations.reserve(request, OFFER)
                    break
                except Lacking as lacking:
                    await self.leases.obtain(lacking, until_s=until_s)
            world.ends["admitted"] += 1
            over = Signal()
            timer = world.loop.call_later(held_s, over.set)
            try:
                await over
            finally:
                timer.cancel()
            if used is not None:
                world.written[request.id] = record(request, tokens=used)
                reservations.append(world.written[request.id], ())
        except HeadraceError as error:
            world.ends[error.reason] += 1
        finally:
            reservations.release(request.id)


class World:
    """An authority and its workers. `written` is what the ledger will hold, `_told` what of it the authority has heard of."""

    appended = committed = 0

    def __init__(self, seed: str, limits: Limits, *, workers: int) -> None:
        self.loop = SimulatedLoop(seed)
        self.chance = Random(seed)
        self.clock = LoopClock(self.loop)
        self.limits = limits
        self.revision = 1
        self.count = 0
        self.ends: Counter[str] = Counter()
        self.written: dict[RequestId, UsageRecord] = {}
        self._told: dict[RequestId, None] = {}
        self.is_steady = True
        self.corrected: list[Corrected] = []
        self.authority = BudgetAuthority(
            self,
            self,
            workers=workers,
            metrics=Metrics(),
            log=Log(io.StringIO(), self.clock),
            clock=self.clock,
        )
        self.authority.begin(limits)
        self.generation = 0
        self.workers = [self._join(number) for number in range(workers)]

    def spending(
        self,
        wanted: Sequence[tuple[BudgetKey, Span]],
        recorded: Callable[[BudgetKey], Iterable[RequestId]],
    ) -> Before:
        return Before([self._before(key, span, list(recorded(key))) for key, span in wanted], 0)

    def corrections(self, *, after: int) -> list[Corrected]:
        return [each for each in self.corrected if each.number > after]

    def _before(self, key: BudgetKey, span: Span, recorded: list[RequestId]) -> tuple[int, list[RequestId]]:
        """What the ledger says: every record is committed at once here."""
        told = [
            usage
            for usage in map(self.written.get, self._told)
            if usage is not None and span.start_s <= usage.started_s < span.end_s
        ]
        present = {usage.request_id for usage in told}.intersection(recorded)
        return sum(spending.used(usage).of(key.unit) for usage in told), list(present)

    def heard(self, number: int, message: object) -> None:
        if isinstance(message, list):
            for usage, settled in message:
                self.authority.settled(number, settled)
                self._spend(usage)
        else:
            self.authority.received(number, message)  # type: ignore[arg-type]

    def _spend(self, usage: UsageRecord) -> None:
        self.authority.spend(usage)
        self._told[usage.request_id] = None

    def _join(self, number: int) -> Worker:
        self.generation += 1
        worker = Worker(self, number, self.generation)
        self.authority.joined(number, worker.down.send)
        return worker

    def kill(self, number: int, *, adopted_s: float) -> None:
        """The worker dies; its journal, which has what it had not handed on, is read a little later."""
        dead = self.workers[number]
        dead.up.is_cut = dead.down.is_cut = True
        before = set(self.written)
        for walk in list(dead.walks):
            walk.cancel()
        for request in (
            self.written.keys() - before
        ):  # what its walks wrote while they were taken down never was
            del self.written[request]
        self.authority.lost(number, journal=dead.journal)
        self.loop.call_later(adopted_s, self._adopt, dead)
        self.workers[number] = self._join(number)

    def _adopt(self, dead: Worker) -> None:
        records = [usage for usage in self.written_by(dead) if usage.request_id not in self._told]
        self._told.update(dict.fromkeys(usage.request_id for usage in records))
        self.authority.adopted(dead.journal, records)

    def written_by(self, worker: Worker) -> list[UsageRecord]:
        records = worker.reservations._records
        assert isinstance(records, KeptRecords)
        return [usage for usage in records.usage if usage.request_id in self.written]

    async def set_limits(self, limits: Limits) -> None:
        """The operator has changed quotas: every worker hears of it, and goes by it when it is ready."""
        self.is_steady = False
        self.limits, self.revision = limits, self.revision + 1
        await asyncio.gather(*(self._go_by(worker, limits, self.revision) for worker in list(self.workers)))

    async def _go_by(self, worker: Worker, limits: Limits, revision: int) -> None:
        await worker.reservations.open(limits, revision=revision)
        worker.reservations.go_by(limits, revision=revision)

    def budgets(self) -> list[Budget]:
        return [budget for book in self.authority.budgets.agreed() for budget in book.budgets]

    def obey_laws(self) -> None:
        for budget in self.budgets():
            # Else what was promised before the limit was lowered is kept; that nothing more is lent then, `lend` sees to.
            if self.is_steady:
                assert budget.spent + budget.lent <= budget.limit, (
                    f"{budget.key}: {budget.spent} spent, {budget.lent} lent of {budget.limit}"
                )
            held = sum(
                escrow.held
                for worker in self.workers
                for escrow_id, escrow in worker.reservations._escrows.items()
                if escrow_id.key == budget.key and escrow_id.start_s == budget.span.start_s
            )
            assert held <= budget.lent, f"{budget.key}: workers hold {held} of {budget.lent}"
            assert budget.lent >= 0

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            for worker in self.workers:
                worker.reservations.tick(self.clock.wall_s())

    async def rest(self) -> None:
        while any(worker.walks for worker in self.workers):  # noqa: ASYNC110 -- each look is a moment of simulated time
            await asyncio.sleep(1.0)
        await asyncio.sleep(5.0)


def play(world: World, story: Coroutine[None, None, None]) -> None:
    """What happens, until nobody asks for anything any more; the laws hold in every turn, and at the end all is back."""

    async def whole() -> None:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(world.authority.run()), tasks.create_task(world.tick())]
            await asyncio.sleep(0.1)
            await story
            await world.rest()
            for task in running:
                task.cancel()

    world.loop.on_turn = world.obey_laws
    lend = Budget.lend

    def lend_within_limit(budget: Budget, holder: int, amount: int) -> bool:
        is_lent = lend(budget, holder, amount)
        assert not is_lent or not amount or budget.spent + budget.lent <= budget.limit
        return is_lent

    with mock.patch.object(Budget, "lend", lend_within_limit):
        _run(world, whole())


def _run(world: World, whole: Coroutine[None, None, None]) -> None:
    try:
        world.loop.run_until_complete(whole)
        for budget in world.budgets():
            assert budget.lent == 0, f"{budget.key}: {budget.lent} never came back"
    finally:
        world.loop.close()


def spent_by_the_ledger(world: World, key: BudgetKey, start_s: int = 0) -> int:
    return sum(
        spending.used(usage).of(key.unit)
        for usage in world.written.values()
        if key.period is Period.TOTAL or start_s <= usage.started_s < start_s + DAY_S
    )


def test_exactly_as_many_are_admitted_as_the_quota_has_whichever_workers_they_come_to() -> None:
    """T52 in small: 60 at once over four workers against a quota for 10."""
    world = World("1", {REQUESTS: 10}, workers=4)

    async def story() -> None:
        for number in range(60):
            world.workers[number % 4].ask(tokens=5, used=5, held_s=1.0)

    play(world, story())
    assert world.ends == {"admitted": 10, "quota_exhausted": 50}
    assert spent_by_the_ledger(world, REQUESTS, world.budgets()[0].span.start_s) == 10


def test_what_is_idle_in_one_worker_is_another_ones_at_once() -> None:
    """A worker that needs what another has no use for gets it, and nobody is refused while there is enough."""
    world = World("2", {TOKENS: 1000}, workers=2)
    first, second = world.workers

    async def story() -> None:
        for worker in (first, second) * 9:
            worker.ask(tokens=500, used=50, held_s=0.001)
            await asyncio.sleep(0.05)

    play(world, story())
    assert world.ends == {"admitted": 11, "quota_exhausted": 7}


def test_what_a_dead_worker_held_is_free_and_what_it_had_spent_is_spent() -> None:
    """T53: its journal says what it had spent; until that is read nobody else spends it."""
    world = World("3", {REQUESTS: 4, MONEY: 10**6}, workers=2)
    first, second = world.workers

    async def story() -> None:
        first.ask(tokens=5, used=5, held_s=0.0)
        for _ in range(3):
            first.ask(tokens=5, used=5, held_s=10.0)
        while not first.unsent:  # noqa: ASYNC110 -- each look is a moment of simulated time
            await asyncio.sleep(0.0005)
        world.kill(0, adopted_s=0.5)
        await asyncio.sleep(0.1)
        second.ask(tokens=5, used=5, held_s=0.1)
        await asyncio.sleep(0.1)
        assert world.ends == {"admitted": 4, "quota_exhausted": 1}
        await asyncio.sleep(1.0)
        for _ in range(5):
            second.ask(tokens=5, used=5, held_s=0.1)
            await asyncio.sleep(0.2)

    play(world, story())
    assert spent_by_the_ledger(world, REQUESTS, world.budgets()[0].span.start_s) == 4
    assert world.ends == {"admitted": 4 + 3, "quota_exhausted": 1 + 2}


def test_who_is_late_is_waited_for() -> None:
    """The service and another worker get no core for a moment, as on a busy machine: nobody is told that nobody knows."""
    world = World("3", {TOKENS: 1000}, workers=2)
    for worker in world.workers:
        worker.up.delay_s = worker.down.delay_s = 0.08

    async def story() -> None:
        for worker in world.workers * 4:
            worker.ask(tokens=500, used=50, held_s=0.001)
            await asyncio.sleep(1.0)

    play(world, story())
    assert world.ends == {"admitted": 8}


def test_a_silent_authority_is_waited_for_no_longer_than_anybody_may_and_only_what_is_held_is_spent() -> None:
    """T54: what is held is spent, then 503; when the authority speaks again all is as before."""
    world = World("4", {REQUESTS: 1000}, workers=2)
    worker = world.workers[0]

    async def story() -> None:
        for _ in range(20):
            worker.ask(tokens=1, used=1, held_s=0.01)
            await asyncio.sleep(0.01)
        worker.up.delay_s = 3.0
        await asyncio.sleep(0.01)
        for _ in range(200):
            worker.ask(tokens=1, used=1, held_s=0.01)
        await asyncio.sleep(ANSWER_LIMIT_S + 0.01)
        assert world.ends["quota_unavailable"] >= 100
        refused = world.ends["quota_unavailable"]
        worker.ask(tokens=1, used=1, held_s=0.01)
        assert world.ends["quota_unavailable"] == refused + 1, "and once it is silent nobody waits"
        worker.up.delay_s = 0.0
        await asyncio.sleep(4.0)
        admitted = world.ends["admitted"]
        worker.ask(tokens=1, used=1, held_s=0.01)
        await asyncio.sleep(0.1)
        assert world.ends["admitted"] == admitted + 1

    play(world, story())
    assert world.ends["quota_exhausted"] == 0


def test_a_correction_of_a_charge_gives_back_what_it_takes_back() -> None:
    """A command has made it, in the database; a second later it counts, and once."""
    world = World("5", {MONEY: 1000}, workers=2)
    worker = world.workers[0]

    async def story() -> None:
        worker.ask(tokens=90, used=90, held_s=0.01)
        await asyncio.sleep(0.1)
        worker.ask(tokens=50, used=50, held_s=0.01)
        await asyncio.sleep(0.1)
        assert world.ends == {"admitted": 1, "quota_exhausted": 1}
        world.corrected.append(Corrected(1, TENANT, -500, world.clock.wall_s()))
        world.corrected.append(Corrected(2, TenantId("other"), -500, world.clock.wall_s()))
        await asyncio.sleep(5.0)
        for _ in range(2):
            worker.ask(tokens=50, used=50, held_s=0.01)
            await asyncio.sleep(0.1)

    play(world, story())
    assert world.ends == {"admitted": 2, "quota_exhausted": 2}
    assert world.budgets()[0].spent == 900 - 500 + 500


@pytest.mark.parametrize("seed", [str(number) for number in range(24)])
def test_under_any_order_of_events_nothing_is_overspent_and_all_comes_back(seed: str) -> None:
    """T52-T54, REPORTS 39: requests of all kinds, with or without a record, workers that die, slow wires, a day that ends, and an
    operator who raises, lowers, gives up and agrees quotas."""
    chance = Random(f"{seed}/story")
    amounts = {
        REQUESTS: chance.choice((3, 40)),
        TOKENS: chance.choice((200, 5000)),
        MONEY: 10 ** chance.choice((4, 6)),
    }
    limits = {each: amounts[each] for each in chance.sample(list(amounts), chance.randint(1, 3))}
    world = World(seed, limits, workers=chance.choice((1, 2, 4)))
    changes = chance.random() < 0.5
    world.loop._now_s += chance.choice((0.0, DAY_S - (world.clock.wall_s() % DAY_S) - 2.0))

    async def story() -> None:
        for _ in range(chance.choice((40, 150))):
            worker = chance.choice(world.workers)
            match chance.choices(("ask", "kill", "slow", "limits"), (20, 1, 1, changes))[0]:
                case "ask":
                    tokens = chance.randint(1, 60)
                    used = chance.choice((None, 0, tokens // 2, tokens))
                    worker.ask(tokens=tokens, used=used, held_s=chance.choice((0.0, 0.01, 0.3)))
                case "kill":
                    world.kill(world.workers.index(worker), adopted_s=chance.random())
                case "slow":
                    worker.up.delay_s, worker.down.delay_s = chance.choice(
                        ((0.0, 0.0), (0.6, 0.0), (0.0, 0.6))
                    )
                case "limits":
                    chosen = chance.sample(list(amounts), chance.randint(0, 3))
                    await world.set_limits(
                        {each: amounts[each] * chance.choice((1, 2)) // 2 for each in chosen}
                    )
            await asyncio.sleep(chance.choice((0.0, 0.001, 0.05)))

    play(world, story())
    for budget in world.budgets():
        assert budget.spent == spent_by_the_ledger(world, budget.key, budget.span.start_s), budget.key

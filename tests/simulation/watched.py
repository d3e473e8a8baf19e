"""A second set of books beside the gateway: what passes through its dispatcher, its limiter and to its ledger."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from headrace.app import gateway_parts
from headrace.config import Config
from headrace.core.fleet import FleetSnapshot, Replica
from headrace.core.ids import TenantId
from headrace.core.outcome import AttemptOutcome
from headrace.core.request import InferenceRequest
from headrace.core.tenant import Principal
from headrace.core.usage import ExecutionRecord, TokenUsage, UsageRecord
from headrace.gateway.usage import Confirmation
from headrace.policies import reconciliation
from headrace.policies.dispatch import Dispatcher
from headrace.policies.health import Circuit
from headrace.policies.levels import Demand, Receipt
from headrace.policies.limits import TenantLimiter
from headrace.policies.prices import PriceBook
from headrace.policies.tickets import Action, Expire, ReplicaKey, ReplicaLoad, Shed, Start, Ticket
from tests.simulation.history import History
from tests.simulation.rollouts import Rollouts

LARGE_TOKENS = 1000
THIN_BYTES = 4096


class WatchedDispatcher(Dispatcher):
    """The dispatcher, with a second set of books. `running` maps tickets to their loads, `waiting` tickets to their bound."""

    def __init__(
        self, history: History, rollouts: Rollouts, *arguments: Any, queue_wait_max_s: float, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._rollouts = rollouts
        self._history = history
        self._queue_wait_max_s = queue_wait_max_s
        self.running: dict[Ticket, ReplicaLoad] = {}
        self.waiting: dict[Ticket, float] = {}
        self.retrying: set[Ticket] = set()
        self.retries = 0
        self.offers = 0  # of deployments; one that was withdrawn comes back with a purse of its own
        self._offered: set[str] = set()

    def publish(self, snapshot: FleetSnapshot, *, now_s: float) -> list[Action]:
        offered = {deployment.name for deployment in snapshot.deployments.values()}
        self.offers += len(offered - self._offered)
        self._offered = offered
        return self._saw(super().publish(snapshot, now_s=now_s), now_s)

    def wake(self, *, now_s: float) -> list[Action]:
        return self._saw(super().wake(now_s=now_s), now_s)

    def arrive(self, ticket: Ticket, *, now_s: float) -> bool:
        if not ticket.moved_to:
            ready = {target for target, _ in self.loads()}
            self._rollouts.arrived(ticket.model, ticket.target, ready)
        starts = super().arrive(ticket, now_s=now_s)
        if starts:
            self._saw_start(ticket, now_s)
        return starts

    def wait(self, ticket: Ticket, *, now_s: float) -> list[Action]:
        actions = super().wait(ticket, now_s=now_s)
        self._saw_wait(ticket, now_s)
        return self._saw(actions, now_s)

    def retry(self, ticket: Ticket, *, now_s: float) -> bool:
        self.retrying.add(ticket)
        starts = super().retry(ticket, now_s=now_s)
        (self._saw_start if starts else self._saw_wait)(ticket, now_s)
        return starts

    def fall_back(self, ticket: Ticket, *, now_s: float) -> bool:
        self.retrying.discard(ticket)  # what follows is no retry, and still beyond the bounds of a queue
        starts = super().fall_back(ticket, now_s=now_s)
        (self._saw_start if starts else self._saw_wait)(ticket, now_s)
        return starts

    def set_slots(self, key: ReplicaKey, slots: int | None, *, now_s: float) -> list[Action]:
        return self._saw(super().set_slots(key, slots, now_s=now_s), now_s)

    def give_back(
        self, ticket: Ticket, outcome: AttemptOutcome, *, now_s: float, **facts: Any
    ) -> tuple[Circuit | None, list[Action]]:
        self.running.pop(ticket)
        circuit, actions = super().give_back(ticket, outcome, now_s=now_s, **facts)
        self._history.add("give_back", outcome.value, "" if circuit is None else circuit.value)
        return circuit, self._saw(actions, now_s)

    def leave(self, ticket: Ticket, *, now_s: float) -> None:
        super().leave(ticket, now_s=now_s)
        self.waiting.pop(ticket, None)

    def _saw_wait(self, ticket: Ticket, now_s: float) -> None:
        self.waiting[ticket] = min(now_s + self._queue_wait_max_s, ticket.deadline_s)
        self._history.add("wait", ticket.target)

    def _saw_start(self, ticket: Ticket, now_s: float) -> None:
        load = ticket.load
        self._history.require(load is not None, "a ticket starts on a replica")
        assert load is not None
        self._history.require(now_s < ticket.deadline_s, "an expired request is dispatched")
        self._history.require(
            load.shared.outstanding <= load.shared.slots,
            f"{load.shared.outstanding} requests on {load.shared.slots} slots",
        )
        self.running[ticket] = load
        self.retries += ticket in self.retrying
        self._history.add(
            "start", ticket.target, load.replica.id, load.outstanding, ticket.tenant, ticket.grant or ""
        )

    def _saw(self, actions: list[Action], now_s: float) -> list[Action]:
        for action in actions:
            del self.waiting[action.ticket]
            match action:
                case Start(ticket):
                    self._saw_start(ticket, now_s)
                case Expire() | Shed():
                    self._history.add(type(action).__name__.lower(), action.ticket.target)
                    is_withdrawn = isinstance(action, Expire) and action.is_withdrawn
                    self._history.require(
                        not is_withdrawn or self.routing.offered(action.ticket.model) is None,
                        f"who waited for {action.ticket.target} is turned away, and another serves {action.ticket.model}",
                    )
        return actions


class WatchedLimiter(TenantLimiter):
    """The limiter, with its own count of each tenant, and of the tokens that are still to be settled."""

    def __init__(self, history: History, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._history = history
        self.counts: Counter[TenantId] = Counter()
        self.levels: Counter[str] = Counter()
        self.unsettled: dict[int, Receipt] = {}

    def take(self, principal: Principal, *, now_s: float) -> None:
        super().take(principal, now_s=now_s)
        self.counts[principal.tenant] += 1
        bound = principal.limits.concurrency_max
        self._history.require(
            not bound or self.counts[principal.tenant] <= bound, "more of a tenant at once than agreed"
        )

    def release(self, tenant: TenantId) -> None:
        super().release(tenant)
        self.counts[tenant] -= 1

    def take_levels(self, principal: Principal, demand: Demand, *, now_s: float) -> Receipt:
        receipt = super().take_levels(principal, demand, now_s=now_s)
        self.unsettled[id(receipt)] = receipt
        for level in receipt.levels:
            self.levels[level.subject] += 1
            bound = level.limits.concurrency_max
            self._history.require(
                not bound or self.levels[level.subject] <= bound,
                f"more of {level.subject} at once than agreed",
            )
        self.counts[principal.tenant] += 1
        return receipt

    def release_levels(self, receipt: Receipt) -> None:
        super().release_levels(receipt)
        for level in receipt.levels:
            self.levels[level.subject] -= 1
        self.counts[TenantId(receipt.levels[0].subject)] -= 1

    def settle(self, receipt: Receipt, usage: TokenUsage, *, now_s: float) -> None:
        super().settle(receipt, usage, now_s=now_s)
        self._history.require(self.unsettled.pop(id(receipt), None) is receipt, "tokens are settled twice")


@contextmanager
def watched(
    config: Config, rollouts: Rollouts, history: History
) -> Iterator[tuple[list[WatchedDispatcher], list[WatchedLimiter]]]:
    """What is composed inside uses the watched dispatcher and limiter, which are found in the lists afterwards."""
    dispatchers: list[WatchedDispatcher] = []
    limiters: list[WatchedLimiter] = []

    def dispatcher(*arguments: Any, **options: Any) -> WatchedDispatcher:
        wait_s = config.admission.queue_wait_max_s
        dispatchers.append(
            WatchedDispatcher(history, rollouts, *arguments, queue_wait_max_s=wait_s, **options)
        )
        return dispatchers[-1]

    def limiter(*arguments: Any, **options: Any) -> WatchedLimiter:
        limiters.append(WatchedLimiter(history, *arguments, **options))
        return limiters[-1]

    with mock.patch.multiple(gateway_parts, Dispatcher=dispatcher, TenantLimiter=limiter):
        yield dispatchers, limiters


class Records:
    """The ledger: what was recorded, and whether it keeps up."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.is_behind = False
        self.marked: set[str] = set()
        self.usage: dict[str, UsageRecord] = {}
        self.executions: dict[str, Sequence[ExecutionRecord]] = {}

    def begin(self, request: InferenceRequest, replica: Replica, attempt: int) -> None:
        self.marked.add(request.id)

    def append(self, usage: UsageRecord, executions: Sequence[ExecutionRecord]) -> None:
        self._history.require(
            (usage.request_id in self.marked) == (usage.attempts > 0), "what a replica had was marked"
        )
        self.marked.discard(usage.request_id)
        self._history.add(
            "record", usage.request_id, usage.outcome, usage.reason, usage.status, usage.attempts
        )
        self._history.require(
            usage.request_id not in self.usage, f"two terminal records of {usage.request_id}"
        )
        for difference in reconciliation.examine(usage, executions, PriceBook()):
            self._history.require(not difference.cause.is_fault, f"the books differ: {difference}")
        self.usage[usage.request_id] = usage
        self.executions[usage.request_id] = executions

    def replace(self, usage: UsageRecord, executions: Sequence[ExecutionRecord]) -> None:
        raise AssertionError("nobody here is durable")

    def confirm(self) -> Confirmation:
        raise AssertionError("nobody here is durable")

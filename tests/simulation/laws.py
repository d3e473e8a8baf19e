"""The laws of the gateway, as an observer beside it can check them: at every step, and when all is over.

Slots are counted twice, by tickets as they pass through the dispatcher and by what the replicas are at work on. Requests
are followed from the caller through the replica's executions to the ledger's record.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from headrace.config import Config
from headrace.gateway.server import Gateway
from headrace.policies.retry import WINDOW_S
from headrace.telemetry.metrics import Metrics
from tests.simulation.budget_laws import BudgetLaws
from tests.simulation.caller import SLACK_S, Oddity, Reading, Request
from tests.simulation.history import History
from tests.simulation.replica import Execution, Fleet
from tests.simulation.rollouts import Rollouts
from tests.simulation.watched import Records, WatchedDispatcher, WatchedLimiter

LARGE_TOKENS = 1000
THIN_BYTES = 4096


class Laws:
    """Checks one run. `lag_s` is by how much the machine was late so far: time that no law holds against the gateway."""

    def __init__(
        self,
        config: Config,
        *,
        gateway: Gateway,
        budgets: BudgetLaws,
        dispatcher: WatchedDispatcher,
        limiter: WatchedLimiter,
        records: Records,
        fleet: Fleet,
        metrics: Metrics,
        rollouts: Rollouts,
        left_s: dict[str, float],
        models: int,
        started_s: float,
        history: History,
    ) -> None:
        self.left_s = left_s
        self._models = models
        self._history = history
        self._config = config
        self._gateway = gateway
        self._budgets = budgets
        self._dispatcher = dispatcher
        self._limiter = limiter
        self._records = records
        self._fleet = fleet
        self._metrics = metrics
        self._rollouts = rollouts
        self._started_s = started_s

    def at_each_step(self, now_s: float) -> None:
        self._nobody_works_for_who_has_left(now_s)
        self._slots_are_what_runs()
        self._queue_is_bounded(now_s)
        self._retries_are_within_budget(now_s)
        self._tenants_are_counted()
        self._budgets.at_each_step()

    def _slots_are_what_runs(self) -> None:
        gateway, dispatcher = self._gateway, self._dispatcher
        by_load = Counter(id(load) for load in dispatcher.running.values())
        for _, load in gateway.dispatch.loads():
            self._history.require(
                load.outstanding == by_load[id(load)],
                f"{load.outstanding} slots of {load.replica.id} are taken by {by_load[id(load)]} requests",
            )
        by_slots = Counter(id(load.shared) for load in dispatcher.running.values())
        for _, load in gateway.dispatch.loads():
            self._history.require(
                load.shared.outstanding == by_slots[id(load.shared)],
                f"{load.shared.outstanding} slots of {load.replica.id} are taken over all of its models",
            )
        by_replica = Counter(load.replica.id for load in dispatcher.running.values())
        at_work = Counter(each.replica for each in self._fleet.running())
        for replica, count in at_work.items():
            self._history.require(
                count <= by_replica[replica],  # type: ignore[index]
                f"{replica} works on {count} requests, and {by_replica[replica]} slots of it are taken",  # type: ignore[index]
            )
        self._history.require(
            len(dispatcher.running) + len(dispatcher.waiting) <= gateway.in_progress,
            f"{len(dispatcher.running)} run and {len(dispatcher.waiting)} wait of {gateway.in_progress} in progress",
        )

    def _nobody_works_for_who_has_left(self, now_s: float) -> None:
        for execution in self._fleet.running():
            left_s = self.left_s.get(execution.question["nonce"])
            self._history.require(
                left_s is None or now_s <= left_s + SLACK_S,
                f"{execution.name} goes on for {execution.question['nonce']}, who has left",
            )

    def _queue_is_bounded(self, now_s: float) -> None:
        dispatcher, admission = self._dispatcher, self._config.admission
        waiting = Counter(ticket.target for ticket in dispatcher.waiting)
        # A retry has paid for its place, and who has slots of its own waits for them whatever others have sent.
        beyond = Counter(
            ticket.target
            for ticket in dispatcher.waiting
            if ticket in dispatcher.retrying or ticket.share.reserved_slots or ticket.moved_to
        )
        for target, count in waiting.items():
            self._history.require(
                count == self._gateway.dispatch.queue_length(target), "the queue holds who waits"
            )
            self._history.require(
                count - beyond[target] <= admission.queue_length_max, f"{count} wait for {target}"
            )
        for ticket, until_s in dispatcher.waiting.items():
            self._history.require(
                now_s <= until_s + SLACK_S, f"a request for {ticket.model} waits longer than it may"
            )
        for ticket in dispatcher.running:
            self._history.require(
                now_s <= ticket.deadline_s + SLACK_S, "a request runs on after its deadline"
            )

    def _retries_are_within_budget(self, now_s: float) -> None:
        rules = self._config.request
        requests = len(self._records.usage) + self._gateway.in_progress
        # Each model has a purse, which drips in, and has a window of it when it is opened.
        drips_s = self._models * (now_s - self._started_s) + self._dispatcher.offers * WINDOW_S
        paid = rules.retry_ratio * requests + rules.retry_floor_per_s * drips_s
        self._history.require(
            self._dispatcher.retries <= paid + 1e-6, f"{self._dispatcher.retries} retries, {paid:.1f} allowed"
        )

    def _tenants_are_counted(self) -> None:
        counts = self._limiter.counts
        self._history.require(
            sum(counts.values()) == self._gateway.in_progress,
            f"{dict(counts)} by tenant, {self._gateway.in_progress} in progress",
        )
        at_work = Counter(each.question["tenant"] for each in self._fleet.running())
        for tenant, count in at_work.items():
            self._history.require(
                count <= counts[tenant], f"{count} requests of {tenant} run, and {counts[tenant]} are counted"
            )

    def at_the_end(self, requests: Sequence[Request]) -> None:
        """Everything is zero, and every request ended once and as its record says."""
        self._budgets.at_the_end()
        gateway = self._gateway
        self._history.require(
            gateway.in_progress == len(gateway.streams) == gateway.dispatch.waiting == 0, "work is left"
        )
        self._history.require(
            gateway.connection_count == 0, f"{gateway.connection_count} connections are left"
        )
        self._history.require(
            not self._dispatcher.running and not self._dispatcher.waiting, "tickets are left"
        )
        self._history.require(not +self._limiter.counts, f"tenants are left: {self._limiter.counts}")
        self._history.require(not +self._limiter.levels, f"levels are left: {self._limiter.levels}")
        self._history.require(not self._limiter.unsettled, "tokens are never settled")
        for _, load in gateway.dispatch.loads():
            is_free = load.outstanding == load.shared.outstanding == 0
            self._history.require(is_free, f"a slot of {load.replica.id} is lost")
        for tenant in self._limiter.counts:
            self._history.require(
                self._limiter.in_progress(tenant) == 0, f"a request of {tenant} is counted for ever"
            )
        self._history.require(not self._fleet.running(), "a replica still works")
        self._history.require(_total(self._metrics.internal_errors) == 0, "an internal error was counted")
        executions = {each.name: each for each in self._fleet.executions}
        by_request = Counter(each.request_id for each in self._fleet.executions)
        for request_id, count in by_request.items():
            record = self._records.usage.get(request_id)
            self._history.require(record is not None, f"{request_id} was executed and left no record")
            assert record is not None
            # An attempt whose kept-alive connection turns out dead is sent a second time.
            self._history.require(
                count <= 2 * record.attempts, f"{count} executions in {record.attempts} attempts"
            )
            self._history.require(
                record.attempts <= self._config.request.attempts_max, f"{record.attempts} attempts"
            )
        for request in requests:
            self._check_request(request, executions)
        self._targets_are_counted()

    def _targets_are_counted(self) -> None:
        """All that came to a target has one end there, and what was delivered was recorded."""
        loads = self._gateway.usage.loads.report(self._gateway.dispatch).targets
        for load in loads:
            self._history.require(
                load.arrived == load.ended, f"{load.arrived} came to {load.target}, and {load.ended} ended"
            )
        delivered = sum(record.outcome == "delivered" for record in self._records.usage.values())
        self._history.require(
            sum(load.delivered for load in loads) == delivered, f"{delivered} records of what was delivered"
        )

    def _check_request(self, request: Request, executions: dict[str, Execution]) -> None:
        answer = request.answer
        name = f"{request.nonce} ({answer.ended}, {answer.status})"
        if answer.text:
            self._check_text(request, name, executions)
        if not answer.status:
            # Pipelined behind an answer that closed the connection, it was never read.
            is_excused = request.has_left or request.is_pipelined or request.oddity is not Oddity.NONE
            is_excused = is_excused or request.ended_s >= self.stops_s
            self._history.require(is_excused or request.reading is Reading.STUCK, f"{name}: no answer")
            return
        record = self._records.usage.get(answer.request_id)
        match answer.ended:
            case "delivered":
                self._history.require(
                    record is not None and record.outcome == "delivered", f"{name}: recorded as {record}"
                )
            case "broken":
                outcomes = ("broken", "failed")
                self._history.require(
                    record is None or record.outcome in outcomes, f"{name}: recorded as {record}"
                )
            case "refused":
                self._history.require(
                    record is None or record.outcome == "failed", f"{name}: recorded as {record}"
                )
                self._history.require(
                    record is None or record.status == answer.status, f"{name}: recorded as {record}"
                )
                self._history.require(
                    answer.error is not None and "code" in answer.error, f"{name}: {answer.error}"
                )
                self._check_refusal(request, answer.status, name)
            case "cut":
                is_excused = (
                    request.has_left
                    or request.reading is not Reading.EAGER
                    or request.ended_s >= self.stops_s
                )
                # Over a thin wire even an eager caller may take a large answer too slowly.
                is_excused = is_excused or len(answer.body) + len(answer.text) > THIN_BYTES
                # The caller may have seen little of what the gateway had already taken in.
                if record is not None and record.reason == "slow_reader":
                    is_excused = is_excused or record.completion_tokens > LARGE_TOKENS
                self._history.require(is_excused or request.is_pipelined, f"{name}: cut off without a word")

    def _check_text(self, request: Request, name: str, executions: dict[str, Execution]) -> None:
        """What came is the beginning of what one replica said to this very question, and all of it if it says so."""
        answer = request.answer
        execution = executions[answer.text.partition(".")[0]]
        self._history.require(
            execution.question["nonce"] == request.nonce, f"{name}: got the answer of another"
        )
        self._history.require(
            execution.request_id == answer.request_id, f"{name}: an answer under another id"
        )
        self._history.require(
            execution.text.startswith(answer.text),
            f"{name}: {answer.text[:200]!r} is not {execution.text[:200]!r}",
        )
        if answer.ended != "delivered":
            return
        self._history.require(answer.text == execution.whole, f"{name}: delivered, but not all of it")
        record = self._records.usage[answer.request_id]
        revision = self._rollouts.revision(record.model, execution.replica)
        self._history.require(record.revision == revision, f"{name}: recorded as of {record.revision}")
        if record.usage_source == "final" and answer.is_stream:
            self._history.require(
                record.completion_tokens == answer.tokens,
                f"{name}: {record.completion_tokens} tokens recorded",
            )

    def _check_refusal(self, request: Request, status: int, name: str) -> None:
        """A sound request is never told that it isn't."""
        expected = {
            Oddity.BAD_KEY: {401},
            Oddity.NO_MODEL: {404, 503},
            Oddity.NOT_JSON: {400, 503},
            Oddity.NOT_HTTP: {400},
            Oddity.SLOW_BODY: {408},
        }.get(request.oddity, set())
        usual = {429, 502, 503, 504}
        if self.may_reject:
            usual |= {400}
        if self.may_forget:
            usual |= {404}
        self._history.require(status in usual | expected, f"{name}: a status of {status}")

    stops_s = math.inf  # when the port was closed under its callers
    may_reject = False  # replicas of this run reject sound requests
    may_forget = False  # deployments of this run come and go


def _total(family: Any) -> float:
    return float(sum(value.value for _, value in family.series()))

"""The attempt loop: send to a replica, watch it, and decide with policies/retry.py whether another may try."""

import asyncio
from dataclasses import dataclass

from headrace.core import endings
from headrace.core.clock import Clock
from headrace.core.endings import Ending
from headrace.core.errors import DeadlineExceeded, HeadraceError
from headrace.core.fleet import FleetSnapshot, Replica
from headrace.core.outcome import AttemptOutcome
from headrace.core.request import InferenceRequest
from headrace.engines import wire
from headrace.engines.http import ReplicaClient, UpstreamConnection
from headrace.engines.outbox import Outbox
from headrace.gateway import reception
from headrace.gateway.attempt import Attempt
from headrace.gateway.call import Call
from headrace.gateway.delivery import Delivery
from headrace.gateway.dispatch import Slot
from headrace.gateway.usage import Account
from headrace.gateway.watch import AttemptLimits, Watch
from headrace.policies.dispatch import ReplicaKey
from headrace.policies.retry import RetryBudget
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics

ROUNDING_S = 0.005  # the event loop's timers may run that much early


@dataclass(frozen=True, slots=True)
class RetryRules:
    """See config.RequestConfig."""

    attempts_max: int
    ratio: float
    floor_per_s: float


class Upstream:
    """Runs attempts. Owner of the connection pools, one per replica and generation."""

    def __init__(
        self,
        *,
        rules: RetryRules,
        limits: AttemptLimits,
        outbox: Outbox,
        metrics: Metrics,
        log: Log,
        clock: Clock,
    ) -> None:
        self._attempts_max = rules.attempts_max
        self._budget = RetryBudget(ratio=rules.ratio, floor_per_s=rules.floor_per_s, now_s=clock.now_s())
        self._watch = Watch(limits, clock=clock)
        self._outbox = outbox
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._clients: dict[ReplicaKey, ReplicaClient] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def open(self, tasks: asyncio.TaskGroup) -> None:
        """Gets the group that owns the tasks which open connections."""
        self._tasks = tasks

    def tick(self, now_s: float) -> None:
        """Called four times a second: looks at every attempt in progress."""
        self._watch.tick(now_s)

    def publish(self, snapshot: FleetSnapshot) -> None:
        """Closes the pools of replicas that are gone."""
        live = {(r.id, r.generation) for d in snapshot.deployments.values() for r in d.replicas}
        for key in [key for key in self._clients if key not in live]:
            self._clients.pop(key).close()

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    async def run(
        self, request: InferenceRequest, slot: Slot, delivery: Delivery, call: Call, account: Account
    ) -> None:
        """Tries replicas until the delivery has ended, one way or another.

        Raises nothing but CancelledError, when the caller leaves; the attempt in progress is dropped then, which stops
        the engine.
        """
        self._budget.request()
        delivery.has_begun = True
        itl = self._metrics.itl_seconds.labels(request.model)
        while True:
            replica = slot.replica
            is_streamed = wire.is_streamed(request, replica)
            now_s = self._clock.now_s()
            receive = reception.kind_of(request, is_streamed=is_streamed)
            received = receive(request, replica, delivery, sent_s=now_s, itl=itl, clock=self._clock)
            attempt = Attempt(request, replica, call, received, now_s=now_s)
            body = wire.encode(
                request,
                replica,
                is_streamed=is_streamed,
                upstream_model=account.deployment.upstream_model,
                grant=slot.ticket.grant,
            )
            self._watch.begin(attempt)
            try:
                await self._send(attempt, body)
            finally:
                self._watch.end(attempt)
                end = attempt.close(self._clock)
                account.attempts.append(end)
                slot.give_back(end.outcome)
            if end.outcome is AttemptOutcome.COMPLETED:
                return
            ending = endings.find(end.outcome, delivery.stage)
            self._log.event(
                "attempt.failed",
                request_id=request.id,
                replica=end.replica.id,
                model=request.model,
                generation=end.replica.generation,
                attempt=len(account.attempts),
                reason=end.outcome.value,
                upstream_status=end.upstream_status,
                elapsed_s=end.ended_s - end.started_s,
            )
            if not self._may_retry(ending, attempts=len(account.attempts)):
                delivery.fail(failure(attempt.reception, ending))
                return
            try:
                await slot.move()
            except HeadraceError as no_alternative:
                too_late = isinstance(no_alternative, DeadlineExceeded)
                delivery.fail(no_alternative if too_late else failure(attempt.reception, ending))
                return
            self._metrics.retries.labels(request.model).add()

    async def _send(self, attempt: Attempt, body: tuple[bytes, bytes]) -> None:
        """One attempt on one replica. A kept-alive connection that turns out dead before its first byte of answer proves
        nothing about the replica (it closed an idle socket): the same attempt goes out again on a fresh one."""
        request, client = attempt.request, self._client(attempt.replica)
        payload = client.payload(request.endpoint, body, request_id=request.id)
        connection: UpstreamConnection | None = client.idle_connection()
        while True:
            if connection is None:
                left_s = request.deadline_s - self._clock.now_s()
                try:
                    connection = await client.connect(limit_s=left_s)
                except (OSError, TimeoutError):
                    is_late = self._clock.now_s() >= request.deadline_s - ROUNDING_S
                    attempt.reception.end(AttemptOutcome.DEADLINE if is_late else AttemptOutcome.UNREACHABLE)
                    return
            over = attempt.send(payload, connection)
            self._watch.sent(attempt)
            await over
            if not attempt.reception.is_stale:
                return
            attempt.reception = attempt.reception.again(sent_s=self._clock.now_s())
            connection = None

    def _client(self, replica: Replica) -> ReplicaClient:
        key = (replica.id, replica.generation)
        client = self._clients.get(key)
        if client is None:
            assert self._tasks is not None, "requests come after `open`"
            client = self._clients[key] = ReplicaClient(
                replica, outbox=self._outbox, tasks=self._tasks, clock=self._clock
            )
        return client

    def _may_retry(self, ending: Ending, *, attempts: int) -> bool:
        return (
            ending.may_retry
            and attempts < self._attempts_max
            and self._budget.take(now_s=self._clock.now_s())
        )


def failure(received: reception.Reception, ending: Ending) -> HeadraceError:
    """What the caller is told about an attempt that failed, if no other follows."""
    said = received.fault.message if received.fault is not None else ""
    return ending.as_error(said, retry_after_s=received.retry_after_s or 1.0)

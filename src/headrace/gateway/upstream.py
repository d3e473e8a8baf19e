"""The attempt loop: send to a replica, watch it, and decide with policies/retry.py whether another may try."""

import asyncio

from headrace.core import endings
from headrace.core.chance import Chance
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
from headrace.gateway.rules import RetryRules
from headrace.gateway.usage import Account, RecordSink
from headrace.gateway.walk import Signal
from headrace.gateway.watch import Watch
from headrace.policies import retry
from headrace.policies.retry import RetryBudget
from headrace.policies.tickets import ReplicaKey
from headrace.telemetry.families import Value
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics

BACKOFF_MAX_S = 1.0
ROUNDING_S = 0.005  # the event loop's timers may run that much early


class _Lane:
    """What the requests for one model share: their budget for retries, and the series that they count in."""

    __slots__ = ("budget", "retries")

    def __init__(self, budget: RetryBudget, *, retries: Value) -> None:
        self.budget = budget
        self.retries = retries


class Upstream:
    """Runs attempts. Owner of the connection pools, one per replica and generation, and of the lanes, one per model."""

    def __init__(
        self,
        *,
        rules: RetryRules,
        outbox: Outbox,
        records: RecordSink,
        metrics: Metrics,
        log: Log,
        clock: Clock,
        chance: Chance,
    ) -> None:
        self._rules = rules
        self._watch = Watch(clock=clock)
        self._outbox = outbox
        self._records = records
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._chance = chance
        self._clients: dict[ReplicaKey, ReplicaClient] = {}
        self._lanes: dict[str, _Lane] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def open(self, tasks: asyncio.TaskGroup) -> None:
        """Gets the group that owns the tasks which open connections."""
        self._tasks = tasks

    def go_by(self, rules: RetryRules) -> None:
        """Other budgets for retries from now on; what is in a purse stays there, up to what it may hold."""
        self._rules = rules
        for lane in self._lanes.values():
            lane.budget.set_terms(ratio=rules.ratio, floor_per_s=rules.floor_per_s)

    def tick(self, now_s: float) -> None:
        """Called four times a second: looks at every attempt in progress."""
        self._watch.tick(now_s)

    def publish(self, snapshot: FleetSnapshot) -> None:
        """Closes the pools of replicas that are gone, and forgets the models that are."""
        live = {(r.id, r.generation) for d in snapshot.deployments.values() for r in d.replicas}
        for key in [key for key in self._clients if key not in live]:
            self._clients.pop(key).close()
        for model in self._lanes.keys() - {d.name for d in snapshot.deployments.values()}:
            del self._lanes[model]

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
        lane = self._lanes.get(request.model) or self._open_lane(request.model)
        lane.budget.request()
        delivery.has_begun = True
        while True:
            if slot.ticket.moved_to is not None:
                account.follow(slot.ticket.moved_to)
                delivery.deployment = account.deployment
            attempt = self._attempt(request, slot, delivery, call, account)
            body = wire.encode(
                request,
                attempt.replica,
                is_streamed=attempt.reception.is_streamed,
                upstream_model=account.deployment.upstream_model,
                grant=slot.ticket.grant,
            )
            self._records.begin(request, attempt.replica, len(account.attempts) + 1)
            self._watch.begin(attempt)
            try:
                await self._send(attempt, body)
            finally:
                self._watch.end(attempt)
                end = attempt.close(self._clock)
                account.attempts.append(end)
                if end.outcome is AttemptOutcome.COMPLETED or end.usage.completion_tokens:
                    slot.fill()
                first_s = end.first_event_s if attempt.reception.is_streamed else None
                slot.give_back(
                    end.outcome,
                    retry_after_s=attempt.reception.retry_after_s,
                    ttft_s=None if first_s is None else first_s - end.started_s,
                    output_tokens=end.usage.completion_tokens,
                )
            if end.outcome is AttemptOutcome.COMPLETED:
                return
            self._log.event(
                "attempt.failed",
                request_id=request.id,
                replica=end.replica.id,
                model=request.model,
                revision=end.revision,
                generation=end.replica.generation,
                attempt=len(account.attempts),
                reason=end.outcome.value,
                upstream_status=end.upstream_status,
                elapsed_s=end.ended_s - end.started_s,
            )
            ending = endings.find(end.outcome, delivery.stage)
            error = await self._move(attempt, ending, slot, lane, tried=len(account.attempts))
            if error is not None:
                delivery.fail(error)
                return
            lane.retries.add()

    def _attempt(
        self, request: InferenceRequest, slot: Slot, delivery: Delivery, call: Call, account: Account
    ) -> Attempt:
        replica, now_s = slot.replica, self._clock.now_s()
        receive = reception.kind_of(request, is_streamed=wire.is_streamed(request, replica))
        received = receive(request, replica, delivery, sent_s=now_s, itl=account.load.itl, clock=self._clock)
        revision = account.deployment.revision
        return Attempt(request, replica, slot.health, call, received, revision=revision, now_s=now_s)

    async def _move(
        self, attempt: Attempt, ending: Ending, slot: Slot, lane: _Lane, *, tried: int
    ) -> HeadraceError | None:
        """Gets a slot on another replica, after a pause. Returns the error that ends the request if there is none to get.

        A retry is taken out of the budget only when there is somewhere to go, and put back if that was gone after the pause.
        """
        error = failure(attempt.reception, ending, authorization=attempt.replica.authorization)
        request, now_s, outcome = attempt.request, self._clock.now_s(), attempt.reception.outcome
        rules = attempt.call.rules.retries
        may_repeat = tried < rules.attempts_max and retry.may_repeat(
            outcome, endpoint=request.endpoint, was_sent=attempt.was_sent, has_key=request.is_keyed
        )
        if may_repeat and retry.may_fall_back(ending) and now_s < request.deadline_s and slot.can_fall_back:
            return await _fall_back(slot, error)
        pause_s = retry.pause_s(tried, first_s=rules.backoff_s, max_s=BACKOFF_MAX_S, chance=self._chance)
        if not (
            ending.may_retry
            and may_repeat
            and now_s + pause_s < request.deadline_s
            and slot.has_alternative
            and lane.budget.take(now_s=now_s)
        ):
            return error
        await _pause(pause_s)
        try:
            await slot.move()
        except HeadraceError as no_alternative:
            lane.budget.put_back()
            return no_alternative if isinstance(no_alternative, DeadlineExceeded) else error
        return None

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

    def _open_lane(self, model: str) -> _Lane:
        rules, metrics = self._rules, self._metrics
        budget = RetryBudget(ratio=rules.ratio, floor_per_s=rules.floor_per_s, now_s=self._clock.now_s())
        lane = self._lanes[model] = _Lane(budget, retries=metrics.retries.labels(model))
        return lane


async def _fall_back(slot: Slot, error: HeadraceError) -> HeadraceError | None:
    """At once, and outside the budget of retries: the accepted target gets no more than it would have without the other."""
    try:
        await slot.fall_back()
    except HeadraceError as no_place:
        return no_place if isinstance(no_place, DeadlineExceeded) else error
    return None


async def _pause(pause_s: float) -> None:
    """A sleep inside a walk, where asyncio's does not work; ends early if the walk is cancelled."""
    over = Signal()
    timer = asyncio.get_running_loop().call_later(pause_s, over.set)
    try:
        await over
    finally:
        timer.cancel()


KEY_PART_CHARS = 8


def failure(received: reception.Reception, ending: Ending, *, authorization: str = "") -> HeadraceError:
    """What the caller is told about an attempt that failed, if no other follows.

    Nothing of what the replica said, where that holds the key that we came with (`authorization`), or as much of it as
    the cut of a long message has left.
    """
    said = received.fault.message if received.fault is not None else ""
    key = authorization.rpartition(" ")[2]
    if key and key[:KEY_PART_CHARS] in said:
        said = ""
    return ending.as_error(said, retry_after_s=received.retry_after_s or 1.0)

"""How do requests get through a simulated gateway? By the policies that the real one goes by, with events for sockets.

The objects are the same: policies/dispatch.py decides who waits, who starts where and who is refused, and policies/retry.py who
may try again. Where the real gateway has sockets and timers, this has events of a virtual clock; there is no other difference in how the
policies are asked. What the gateway itself takes, some tens of microseconds a request, is left out.
"""

import math
from collections.abc import Iterable
from random import Random

from headrace.config import AdmissionConfig, HealthConfig, RequestConfig
from headrace.core.errors import DeadlineExceeded, HeadraceError
from headrace.core.fleet import Deployment, EngineTraits, FleetSnapshot, Replica, Task
from headrace.core.ids import ReplicaId, TenantId
from headrace.core.outcome import AttemptOutcome, Outcome, Reason
from headrace.evidence.simulate_counts import Counted
from headrace.evidence.simulate_events import Events
from headrace.evidence.simulate_replica import Pace, ReplicaModel
from headrace.evidence.simulate_run import Run
from headrace.evidence.simulate_work import Promise, Work
from headrace.policies import retry
from headrace.policies.admission import QueueBounds
from headrace.policies.dispatch import Dispatcher
from headrace.policies.health import HealthRules
from headrace.policies.tickets import Action, ReplicaKey, ReplicaLoad, Shed, Start, Ticket

MODEL = "model"
_TENANT = TenantId("caller")
TICK_S = 0.25
"""How often a gateway looks at its replicas."""
_BYTES_PER_TOKEN = 4
_BACKOFF_MAX_S = 1.0
_TRAITS = EngineTraits(is_ours=True)
_REQUESTS = RequestConfig()
_HEALTH = HealthConfig()


class Request(Ticket):
    """One request on its way. As a `Ticket` it is the dispatcher's; the rest is what the simulation must know.

    Attributes:
        epoch: One for each stage; see simulate_events.py.
        tokens: That will have been generated when it ends.
        ends_at, is_gone: The replica model's.
        first_s: When its first token was there, in this attempt; 0.0 before.
        has_joined: Its prompt is computed, and it is among the answers.
        attempts: That were begun.
    """

    __slots__ = (
        "attempts", "cached_tokens", "ends_at", "epoch", "first_s", "has_joined", "is_gone", "tokens", "work",
    )  # fmt: skip

    def __init__(self, work: Work, *, deadline_s: float) -> None:
        super().__init__(
            model=MODEL,
            tenant=_TENANT,
            deadline_s=deadline_s,
            prompt_bytes=_BYTES_PER_TOKEN * work.prompt_tokens,
        )
        self.work = work
        stop = work.cancel_after_tokens
        self.tokens = min(work.output_tokens, stop) if stop else work.output_tokens
        self.epoch = 0
        self.attempts = 0
        self.cached_tokens = 0
        self.ends_at = 0.0
        self.first_s = 0.0
        self.has_joined = False
        self.is_gone = False


class Server:
    """One replica as the gateway meets it.

    Attributes:
        replica: What is published of it.
        due_s: For when its next end is planned; infinite while it isn't.
        load: What the dispatcher keeps of it, since the first request.
        is_dead: Its process has ended; for a moment nobody knows.
    """

    __slots__ = ("due_s", "epoch", "is_dead", "load", "model", "replica", "running")

    def __init__(self, name: str, pace: Pace) -> None:
        self.replica = Replica(ReplicaId(name), "127.0.0.1", 1, pace.slots, traits=_TRAITS)
        self.model: ReplicaModel[Request] = ReplicaModel(pace)
        self.running: dict[Request, None] = {}
        self.load: ReplicaLoad | None = None
        self.due_s = math.inf
        self.epoch = 0
        self.is_dead = False

    @property
    def key(self) -> ReplicaKey:
        return self.replica.id, self.replica.generation


class Gateway:
    """Requests from their arrival to their end.

    State: `_servers` by the key of their replica, as long as anything runs on them.

    Attributes:
        counted: What has happened since somebody took it, for whoever decides how many replicas there should be.
    """

    def __init__(
        self, events: Events, run: Run, *, promise: Promise, seed: int, waits_for_first: bool
    ) -> None:
        self._events = events
        self._run = run
        self._promise = promise
        self._waits_for_first = waits_for_first
        self._servers: dict[ReplicaKey, Server] = {}
        self._chance = Random(f"{seed} dispatch")
        self._dispatcher = Dispatcher(
            bounds=QueueBounds(promise.queue_max, AdmissionConfig().queue_bytes_max, promise.wait_max_s),
            health=_health_rules(),
            chance=self._chance,
        )
        self._budget = retry.RetryBudget(
            ratio=_REQUESTS.retry_ratio, floor_per_s=_REQUESTS.retry_floor_per_s, now_s=0.0
        )
        self._version = 0
        self.in_system = 0
        self.counted = Counted()

    def publish(self, servers: Iterable[Server], now_s: float, *, ready_in_s: float) -> None:
        """These replicas are ready, and no others.

        Args:
            ready_in_s: How long the next one takes, where there is none.
        """
        offered = tuple(servers)
        self._servers.update((server.key, server) for server in offered)
        self._version += 1
        deployment = Deployment(
            name=MODEL,
            upstream_model=MODEL,
            tasks=frozenset({Task.CHAT}),
            revision="",
            replicas=tuple(server.replica for server in offered),
            retry_after_s=max(1.0, ready_in_s),
            waiting_room_max=self._promise.queue_max if self._waits_for_first else 0,
        )
        self._perform(
            self._dispatcher.publish(FleetSnapshot(self._version, {MODEL: deployment}), now_s=now_s), now_s
        )

    def tick(self, now_s: float) -> None:
        """A look at the replicas, as the real gateway takes one four times a second. A replica with answers in progress has
        said something in the meantime."""
        for server in self._servers.values():
            if server.load is not None and server.model.answers and not server.is_dead:
                server.load.health.heard(heard_s=now_s)
        self._dispatcher.look(now_s=now_s)
        self._perform(self._dispatcher.wake(now_s=now_s), now_s)

    def queue_length(self) -> int:
        return self._dispatcher.queue_length(MODEL)

    def forget(self, server: Server) -> None:
        """It is gone, and nothing runs on it."""
        self._servers.pop(server.key, None)

    # From the arrival to a slot

    def arrive(self, work: Work, now_s: float) -> None:
        self.in_system += 1
        self.counted.arrived += 1
        self._budget.request()
        request = Request(work, deadline_s=now_s + (work.deadline_s or _REQUESTS.deadline_s))
        if work.cancel_after_s:
            self._events.plan(now_s + work.cancel_after_s, self._cancel, _Always(request))
        if work.deadline_s:
            self._events.plan(request.deadline_s, self._out_of_time, _Always(request))
        try:
            if self._dispatcher.arrive(request, now_s=now_s):
                self._start(request, now_s)
                return
            actions = self._dispatcher.wait(request, now_s=now_s)
        except HeadraceError as error:
            self._end(request, _refusal(error), now_s, reason=error.reason)
            return
        self._wait(request, now_s)
        self._perform(actions, now_s)

    def _wait(self, request: Request, now_s: float) -> None:
        wait_max_s = self._promise.wait_max_s + (self._dispatcher.wakes_s(MODEL, now_s=now_s) or 0.0)
        request.epoch += 1
        self._events.plan(min(now_s + wait_max_s, request.deadline_s), self._waited_too_long, request)

    def _waited_too_long(self, request: Request, now_s: float) -> None:
        self._dispatcher.leave(request, now_s=now_s)
        if request.attempts or now_s >= request.deadline_s:
            self._end(request, Outcome.FAILED, now_s, reason=Reason.DEADLINE)
        else:
            self._end(request, Outcome.REFUSED, now_s, reason=Reason.QUEUE_TIME_OVER)

    def _perform(self, actions: list[Action], now_s: float) -> None:
        for action in actions:
            request = action.ticket
            assert isinstance(request, Request), "there are no others"
            if isinstance(action, Start):
                self._start(request, now_s)
            elif isinstance(action, Shed):
                self._end(request, Outcome.REFUSED, now_s, reason=Reason.DISPLACED)
            else:
                self._end(request, Outcome.FAILED, now_s, reason=Reason.DEADLINE)

    # On a replica

    def _start(self, request: Request, now_s: float) -> None:
        load = request.load
        assert load is not None, "it has a slot"
        server = self._servers[load.key]
        server.load = load
        server.running[request] = None
        request.epoch += 1
        request.attempts += 1
        request.first_s, request.has_joined, request.is_gone = 0.0, False, False
        if server.is_dead:
            self._events.plan(now_s, self._unreachable, request)
            return
        work = request.work
        cached = work.cached_tokens
        if work.prefix:
            cached = max(cached, server.model.cached_tokens(work.prefix, work.prefix_tokens))
        # An engine computes at least the last token of a prompt.
        request.cached_tokens = min(cached, max(0, work.prompt_tokens - 1))
        computed_s = server.model.take(work.prompt_tokens - request.cached_tokens, now_s)
        self._events.plan(computed_s, self._join, request)

    def _join(self, request: Request, now_s: float) -> None:
        assert request.load is not None, "it runs"
        server = self._servers[request.load.key]
        request.first_s = server.model.join(request, request.tokens, now_s)
        request.has_joined = True
        request.load.health.heard(heard_s=now_s)
        self._plan_end(server)

    def slow_down(self, server: Server, slowness: float, now_s: float) -> None:
        """From now on everything on that replica takes so many times as long."""
        server.model.slow_down(slowness, now_s)
        self._plan_end(server)

    def _plan_end(self, server: Server) -> None:
        """One event for the next end. Where that moves away, the event comes too early and looks again."""
        end_s = server.model.next_end_s()
        if end_s < server.due_s:
            server.epoch += 1
            server.due_s = end_s
            self._events.plan(end_s, self._ends, server)

    def _ends(self, server: Server, now_s: float) -> None:
        server.due_s = math.inf
        while (request := server.model.ended(now_s)) is not None:
            is_cancelled = request.tokens < request.work.output_tokens
            self._finish(
                request,
                server,
                AttemptOutcome.CANCELLED if is_cancelled else AttemptOutcome.COMPLETED,
                Outcome.CANCELLED if is_cancelled else Outcome.DELIVERED,
                now_s,
            )
        self._plan_end(server)

    def _finish(
        self,
        request: Request,
        server: Server,
        attempt: AttemptOutcome,
        outcome: Outcome,
        now_s: float,
        reason: str = "",
    ) -> None:
        actions = self._give_back(request, server, attempt, now_s)
        self._end(request, outcome, now_s, reason=reason)
        self._perform(actions, now_s)

    def _give_back(
        self, request: Request, server: Server, attempt: AttemptOutcome, now_s: float
    ) -> list[Action]:
        held_s = now_s - request.started_s
        self._run.busy_s += held_s
        del server.running[request]
        _, actions = self._dispatcher.give_back(
            request,
            attempt,
            now_s=now_s,
            ttft_s=request.first_s - request.started_s if request.first_s else None,
            output_tokens=request.tokens,
        )
        self.counted.service_s += held_s
        return actions

    # What goes wrong

    def lose(self, server: Server, now_s: float) -> None:
        """Its process ends, and with it all that runs on it."""
        server.is_dead = True
        server.epoch += 1
        for request in list(server.running):
            self._fail(request, server, AttemptOutcome.LOST, now_s)

    def _unreachable(self, request: Request, now_s: float) -> None:
        assert request.load is not None, "it has a slot there"
        self._fail(request, self._servers[request.load.key], AttemptOutcome.UNREACHABLE, now_s)

    def _fail(self, request: Request, server: Server, attempt: AttemptOutcome, now_s: float) -> None:
        """The attempt has failed. Before the first token another replica may try, within the budget."""
        has_begun = 0.0 < request.first_s <= now_s
        actions = self._give_back(request, server, attempt, now_s)
        request.epoch += 1
        pause_s = retry.pause_s(
            request.attempts, first_s=_REQUESTS.retry_backoff_s, max_s=_BACKOFF_MAX_S, chance=self._chance
        )
        if has_begun:
            self._end(request, Outcome.BROKEN, now_s, reason=attempt)
        elif (
            request.attempts < _REQUESTS.attempts_max
            and now_s + pause_s < request.deadline_s
            and self._dispatcher.has_alternative(request, now_s=now_s)
            and self._budget.take(now_s=now_s)
        ):
            self._events.plan(now_s + pause_s, self._try_again, request)
        else:
            self._end(request, Outcome.FAILED, now_s, reason=attempt)
        self._perform(actions, now_s)

    def _try_again(self, request: Request, now_s: float) -> None:
        try:
            is_started = self._dispatcher.retry(request, now_s=now_s)
        except HeadraceError:
            self._budget.put_back()
            self._end(request, Outcome.FAILED, now_s, reason=Reason.LOST)
            return
        self._run.retries += 1
        if is_started:
            self._start(request, now_s)
        else:
            self._wait(request, now_s)

    def _cancel(self, about: "_Always", now_s: float) -> None:
        self._break_off(about.request, AttemptOutcome.CANCELLED, Outcome.CANCELLED, Reason.CLIENT_GONE, now_s)

    def _out_of_time(self, about: "_Always", now_s: float) -> None:
        has_begun = 0.0 < about.request.first_s <= now_s
        outcome = Outcome.BROKEN if has_begun else Outcome.FAILED
        self._break_off(about.request, AttemptOutcome.DEADLINE, outcome, Reason.DEADLINE, now_s)

    def _break_off(
        self, request: Request, attempt: AttemptOutcome, outcome: Outcome, reason: Reason, now_s: float
    ) -> None:
        """Wherever the request is, it ends there."""
        if request.epoch < 0:
            return
        if request.load is None:
            self._dispatcher.leave(request, now_s=now_s)
            self._end(request, outcome, now_s, reason=reason)
            return
        server = self._servers[request.load.key]
        if request.has_joined:
            server.model.leave(request, now_s)
            self._plan_end(server)
        self._finish(request, server, attempt, outcome, now_s, reason)

    def _end(self, request: Request, outcome: Outcome, now_s: float, *, reason: str) -> None:
        """The one end of a request, whichever way it came."""
        work, promise, first_s = request.work, self._promise, request.first_s
        request.epoch = -1  # nothing that was planned for it takes place
        self.in_system -= 1
        counted = self.counted
        ttft_s = first_s - work.arrival_s if first_s else math.inf
        itl_s = max(0.0, now_s - first_s) / (request.tokens - 1) if first_s and request.tokens > 1 else 0.0
        if outcome is not Outcome.REFUSED:
            counted.ended(
                work,
                cached_tokens=request.cached_tokens,
                queue_s=request.waited_s,
                ttft_s=ttft_s,
                itl_s=itl_s,
            )
        elif reason:
            self._run.reasons[reason] = self._run.reasons.get(reason, 0) + 1
        self._run.end(
            work,
            outcome,
            now_s,
            is_well=outcome is Outcome.DELIVERED
            and ttft_s <= promise.ttft_s
            and itl_s <= promise.tpot_s
            and now_s - work.arrival_s <= promise.total_s,
            queue_s=request.waited_s,
            ttft_s=ttft_s,
            itl_s=itl_s,
            output_tokens=request.tokens if outcome is Outcome.DELIVERED else 0,
            cached_tokens=request.cached_tokens,
        )


class _Always:
    """A request whatever stage it is at: for what ends it from outside."""

    __slots__ = ("epoch", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.epoch = 0


def _refusal(error: HeadraceError) -> Outcome:
    return Outcome.FAILED if isinstance(error, DeadlineExceeded) else Outcome.REFUSED


def _health_rules() -> HealthRules:
    return HealthRules(
        failures_to_eject=_HEALTH.failures_to_eject,
        ejection_s=_HEALTH.ejection_s,
        ejection_max_s=_HEALTH.ejection_max_s,
        slow_start_s=_HEALTH.slow_start_s,
        rest_s=_HEALTH.rest_s,
        quiet_s=_HEALTH.quiet_s,
        silence_limit_s=_REQUESTS.stall_limit_s,
        silence_max_s=max(_REQUESTS.stall_limit_s, _REQUESTS.first_event_limit_s),
    )

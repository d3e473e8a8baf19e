"""The public port: which paths there are, and the walk of one request from its bytes to its records."""

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from headrace.core.chance import Chance
from headrace.core.clock import Clock
from headrace.core.errors import (
    Forbidden,
    HeadraceError,
    InternalError,
    InvalidRequest,
    ModelNotFound,
    NoReadyReplica,
    Saturated,
)
from headrace.core.fleet import Deployment, FleetSnapshot
from headrace.core.ids import KeyId, RequestId, request_id
from headrace.core.outcome import Reason
from headrace.core.request import Endpoint, InferenceRequest
from headrace.core.tenant import SYSTEM_TENANT, Principal
from headrace.engines.outbox import Outbox
from headrace.gateway import durable
from headrace.gateway.answer_headers import AnswerHeaders
from headrace.gateway.auth import Authenticator
from headrace.gateway.budgets import Reservations
from headrace.gateway.call import Call, Screened
from headrace.gateway.connection import ClientConnection, PortConnection
from headrace.gateway.delivery import Delivery
from headrace.gateway.dispatch import Dispatch
from headrace.gateway.http_call import HttpCall
from headrace.gateway.idempotency import Idempotency, RecordedCall
from headrace.gateway.information import Information
from headrace.gateway.intake import Intake
from headrace.gateway.ladder import Ladder
from headrace.gateway.listener import Port
from headrace.gateway.mirroring import Mirrors
from headrace.gateway.reading import request_of
from headrace.gateway.routes import InferenceRoute, InfoRoute, WebSocketRoute
from headrace.gateway.rules import PortLimits, RequestRules
from headrace.gateway.screening import Caller, Screening
from headrace.gateway.upstream import Upstream
from headrace.gateway.usage import Account, UsageCloser
from headrace.gateway.websocket import WebSocketConnection
from headrace.policies import scopes
from headrace.protocols import http1, openai, strict_json, websocket
from headrace.protocols.contract import ServiceTerms
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics

TICK_S = 0.25
FLUSH_CHECK_S = 0.02
PRESSED_IDLE_S = 1.0  # under pressure: how long a kept-alive connection may idle
Prepared = TypeVar("Prepared")


class Gateway:
    """The data plane of one process. State: open connections, whether it drains; the rest belongs to its parts.

    Attributes:
        uses: When each key was last used, by the clock; whoever writes that down takes the table and leaves an empty one.
    """

    def __init__(
        self,
        *,
        auth: Authenticator,
        dispatch: Dispatch,
        reservations: Reservations[Any],
        upstream: Upstream,
        usage: UsageCloser,
        intake: Intake,
        idempotency: Idempotency,
        limits: PortLimits,
        rules: RequestRules,
        terms: ServiceTerms,
        outbox: Outbox,
        accepts_work: Callable[[], bool],
        ladder: Ladder | None,
        metrics: Metrics,
        log: Log,
        clock: Clock,
        chance: Chance,
    ) -> None:
        self.auth = auth
        self.dispatch = dispatch
        self.reservations = reservations
        self.upstream = upstream
        self.usage = usage
        self.clock = clock
        self.outbox = outbox
        self.intake = intake
        self.idempotency = idempotency
        self._accepts_work = accepts_work
        self.keys_are_stale = False  # set by who watches them
        self._ladder = ladder
        # What the ladder allows, set by the tick so that a request only looks: requests in progress, and keep-alive.
        self._work_max = self._work_room = sys.maxsize if ladder is None else ladder.work_max
        self.keeps_alive = True
        self._metrics = metrics
        self._log = log
        self._chance = chance
        # As `streams` in the order in which they came: a set's order would be another in each run of the same simulation.
        self._connections: dict[PortConnection, None] = {}
        self._is_draining = False
        self._is_hurried = False
        self._quiet = asyncio.Event()
        self._answer_headers = AnswerHeaders(dispatch, reservations, config_version=rules.version)
        self.mirrors = Mirrors(
            dispatch,
            upstream,
            usage,
            is_calm=lambda: ladder is None or ladder.is_calm,
            new_request_id=self.new_request_id,
            clock=clock,
        )
        self._information = Information(dispatch, usage, terms, is_ready=lambda: self.is_ready, clock=clock)
        self._set_limits(limits, rules)
        self.ticked_s = clock.now_s()
        self.in_progress = 0
        self.uses: dict[KeyId, float] = {}
        self.streams: dict[Delivery, None] = {}

    def _set_limits(self, limits: PortLimits, rules: RequestRules) -> None:
        self._limits = limits
        self.header_timeout_s = limits.header_timeout_s
        self.idle_timeout_s = limits.idle_timeout_s
        self.write_stall_limit_s = limits.write_stall_limit_s
        self.body_bytes_per_s_min = limits.body_bytes_per_s_min
        self._screening = Screening(
            self.auth,
            rules=rules,
            body_bytes_max=limits.body_bytes_max,
            trusted_proxies=limits.trusted_proxies,
            metrics=self._metrics,
        )

    async def handle(self, call: Call) -> None:
        """One request, start to end. Never raises but CancelledError, when the caller leaves."""
        try:
            route = call.route
            if call.principal is not None:
                self.uses[call.principal.key_id] = call.received_s
            if isinstance(route, InferenceRoute):
                await self._infer(call, route.endpoint)
            elif isinstance(route, InfoRoute):
                self._information.answer(call, route)
            else:
                self._open_websocket(call, route)
        except HeadraceError as error:
            self._refuse(call, error)
        except Exception as bug:  # noqa: BLE001 -- the outermost edge of a request: a bug must not take the port down
            self._report(bug, call)
            call.abort()
        finally:
            if self._is_draining and not self.in_progress:
                self._quiet.set()

    async def _infer(self, call: Call, endpoint: Endpoint) -> None:
        """The walk. Authentication came before the body (`screen`); what is raised before the account opens is a refusal."""
        self._require_open()
        caller, rules = call.principal, call.rules
        assert caller is not None, "inference is never anonymous"
        if strict_json.is_heavy(call.body):
            deadline_s = _deadline_s(call)
            parsed = await self._prepare(
                call, self.intake.parse(endpoint, call.body, tenant=caller.tenant, deadline_s=deadline_s)
            )
        else:
            parsed = openai.parse_body(endpoint, call.body)
        if parsed.remote_media:
            openai.check_against(self._target_of(call, caller, parsed), parsed)
            deadline_s = _deadline_s(call)
            parsed = await self._prepare(
                call, self.intake.inline(parsed, rules.media, tenant=caller.tenant, deadline_s=deadline_s)
            )
        deployment = self._target_of(call, caller, parsed)
        request = self._request_of(call, endpoint, parsed, deployment)
        recorded: RecordedCall | None = None
        if request.is_keyed:
            recorded = await self._prepare(call, self.idempotency.enter(call, request))
            if recorded is None:
                return
            call = recorded
        copied = self.mirrors.take(call, request) if self.mirrors.is_on else None
        call = copied or call
        account = Account(request, deployment, self.usage.loads)
        delivery = Delivery(
            call,
            request,
            deployment,
            clock=self.clock,
            heartbeat_s=rules.heartbeat_s - TICK_S,  # the tick that follows must not be too late
            headers=self._answer_headers.lines,
        )
        slot = self.dispatch.slot(request)
        self.in_progress += 1
        if request.is_streaming:
            self.streams[delivery] = None
        try:
            with slot:  # limits, admission, balancing
                if not slot.is_held:
                    await slot.wait()
                await self.upstream.run(request, slot, delivery, call, account)
            if delivery.held is not None:
                await durable.end(account, delivery, slot, self.usage, clock=self.clock)
        except HeadraceError as refusal:
            delivery.fail(refusal)
        except asyncio.CancelledError:
            if not delivery.is_over:  # it may have ended in the same turn of the loop
                self._cut(call, delivery)
            raise
        except Exception as bug:  # noqa: BLE001 -- as in `handle`; here the request has an account, which must be closed
            self._report(bug, call)
            if not delivery.is_over:
                delivery.fail(InternalError("a fault of ours; report it with the request id"))
        finally:
            self.streams.pop(delivery, None)
            self.in_progress -= 1
            account.ended(slot.ticket)
            if slot.ticket.receipt is not None:
                self.dispatch.settle(slot.ticket.receipt, account.usage())
            if recorded is not None:  # first: a key that stayed taken would never be free again
                recorded.close()
            self.usage.close(account, delivery)
            self.reservations.release(request.id)  # where it has no record
            if copied is not None and delivery.is_delivered:
                self.mirrors.offer(copied, request, account)

    def _target_of(self, call: Call, caller: Principal, parsed: openai.ParsedBody) -> Deployment:
        """Which deployment of the model that is asked for is to answer. Raises ModelNotFound; nobody learns of a model that
        their key isn't for."""
        model, routing = parsed.model, self.dispatch.routing
        if not scopes.allows_model(caller.scope, model):
            raise ModelNotFound.of(model)
        deployment = routing.plain.get(model)
        if deployment is None:
            deployment = routing.choose(
                model, tenant=caller.tenant, conversation=parsed.conversation, request_id=call.request_id
            )
            if deployment is None and caller.tenant == SYSTEM_TENANT:
                deployment = routing.find(model)
            if deployment is None:
                raise ModelNotFound.of(model)
        return deployment

    def _request_of(
        self, call: Call, endpoint: Endpoint, parsed: openai.ParsedBody, deployment: Deployment
    ) -> InferenceRequest:
        deadline_s, wall_s = _deadline_s(call), self.clock.wall_s()
        request = request_of(call, endpoint, parsed, deployment, deadline_s=deadline_s, wall_s=wall_s)
        if self.reservations.has_quota(request.principal.tenant):
            return self.reservations.bounded(request, deployment)
        return request

    def _report(self, bug: Exception, call: Call) -> None:
        self._metrics.internal_errors.labels("request").add()
        self._log.internal_error(bug, where="request", request_id=call.request_id)

    def _cut(self, call: Call, delivery: Delivery) -> None:
        """Ends what was cancelled: because the caller left, or by us because the time to drain is over."""
        if call.is_gone:
            delivery.client_gone()
        else:
            delivery.fail(self._stopping(Reason.STOPPING))

    def _require_open(self) -> None:
        if self._is_draining:
            raise self._stopping(Reason.DRAINING)
        if not self._accepts_work():
            raise Saturated(
                "usage can't be recorded at the moment", retry_after_s=5.0, reason=Reason.LEDGER_BEHIND
            )
        if self.keys_are_stale:
            raise Saturated(
                "keys can't be checked at the moment", retry_after_s=5.0, reason=Reason.KEYS_STALE
            )
        if self.in_progress >= self._work_max:  # many bodies may have been on their way when there was room
            raise self._work_refusal()

    async def _prepare(self, call: Call, preparing: Awaitable[Prepared]) -> Prepared:
        """A wait before there is an account: for the parser, for media, for what is known of a key. The request counts as in
        progress, or a drain would not wait for it."""
        self.in_progress += 1
        try:
            return await preparing
        except asyncio.CancelledError:
            if not call.is_gone:
                self._refuse(call, self._stopping(Reason.STOPPING))
            raise
        finally:
            self.in_progress -= 1  # where the walk goes on, it does so at once, and counts it again

    def _stopping(self, reason: Reason) -> NoReadyReplica:
        return NoReadyReplica("this server is stopping", retry_after_s=5.0, reason=reason)

    def _open_websocket(self, call: Call, route: WebSocketRoute) -> None:
        """Completes a handshake; each message has a walk of its own from here on."""
        assert isinstance(call, HttpCall), "no other protocol has handshakes"
        if self._is_draining:
            raise self._stopping(Reason.DRAINING)
        websocket.check_origin(call.head, self._limits.websocket_origins)
        try:
            transport, screened = call.switch(websocket.accept(call.head))
        except InvalidRequest as error:
            self._refuse(call, error, headers=websocket.VERSION_LINE)
        else:
            WebSocketConnection(self, screened, route).take_over(transport)

    def _refuse(self, call: Call, error: HeadraceError, *, headers: bytes = b"") -> None:
        """Answers a request that never got as far as an account."""
        self._count_refusal(error, call.request_id, call.principal)
        call.respond(
            error.status,
            openai.error_body(error, request_id=call.request_id),
            headers=openai.error_headers(error) + headers,
        )

    def _count_refusal(
        self, error: HeadraceError, request_id: RequestId, principal: Principal | None
    ) -> None:
        if isinstance(error, InternalError):
            self._metrics.internal_errors.labels("request").add()
        self._metrics.refusals.labels(error.code, error.reason).add()
        self._log.event(
            "request.refused",
            request_id=request_id,
            tenant=None if principal is None else principal.tenant,
            key_id=None if principal is None else principal.key_id,
            status=error.status,
            code=error.code,
            reason=error.reason,
        )

    # Called by connections.

    def screen(self, head: http1.RequestHead, caller: Caller) -> Screened:
        screened = self._screening.screen(head, caller)
        if self.in_progress >= self._work_max and not isinstance(screened.route, InfoRoute):
            raise self._work_refusal()
        return screened

    def still_holds(self, screened: Screened) -> bool:
        return (
            screened.keys_version == self.auth.version
            and self.in_progress < self._work_max
            and (screened.expires_s == math.inf or self.clock.wall_s() < screened.expires_s)
        )

    def new_request_id(self) -> RequestId:
        return request_id(self._chance, wall_s=self.clock.wall_s())

    def _work_refusal(self) -> Saturated:
        """Under pressure new work is turned away before its body is read; questions about us are answered."""
        if self._ladder is not None and self._ladder.is_refusing:
            return self._ladder.refusal()
        return Saturated(
            "this server has as many requests as it has descriptors for",
            retry_after_s=1.0,
            reason=Reason.PRESSED,
        )

    def opened(self, connection: PortConnection) -> None:
        self._connections[connection] = None

    def closed(self, connection: PortConnection) -> None:
        self._connections.pop(connection, None)

    def refused_early(self, error: HeadraceError, request_id: RequestId) -> None:
        self._count_refusal(error, request_id, error.caller if isinstance(error, Forbidden) else None)

    # Called by the composition root.

    @property
    def is_ready(self) -> bool:
        """Whether a load balancer should send work here: something is ready to answer, and we are not on the way out."""
        if self._is_draining or self.keys_are_stale or not self._accepts_work():
            return False
        return any(True for _ in self.dispatch.loads())

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def websocket_count(self) -> int:
        return sum(isinstance(connection, WebSocketConnection) for connection in self._connections)

    def publish(self, snapshot: FleetSnapshot) -> None:
        """Takes over a new picture of the fleet; running requests stay where they are."""
        self._answer_headers.clear()
        self.usage.loads.publish(snapshot)
        self.upstream.publish(snapshot)
        self.dispatch.publish(snapshot)
        self.mirrors.publish(snapshot)

    def go_by(self, limits: PortLimits, rules: RequestRules, terms: ServiceTerms) -> None:
        """Another version of the configuration is in force for every head that is judged from now on. The key ring is replaced
        in the same turn, so that nothing which was found out before is taken for a later request."""
        self._set_limits(limits, rules)
        if self._ladder is not None and not self._ladder.is_calm:
            self.idle_timeout_s = min(PRESSED_IDLE_S, limits.idle_timeout_s)
        self._information.go_by(terms)
        self._answer_headers.go_by(rules.version)
        self.upstream.go_by(rules.retries)
        self.intake.set_fetches_max(rules.media.fetches_max)
        for connection in self._connections:
            if isinstance(connection, WebSocketConnection):
                connection.set_message_bytes_max(limits.body_bytes_max)

    @property
    def config_version(self) -> int:
        """Of the configuration that new requests go by."""
        return self._screening.rules.version

    async def serve(self, port: Port, *, opened: Callable[[int], None]) -> None:
        """Takes connections from that port until cancelled. `opened` gets its number.

        A tick four times a second watches what is slow.
        """
        async with asyncio.TaskGroup() as tasks:
            self.upstream.open(tasks)
            self.intake.open(tasks)
            try:
                await port.open(lambda: ClientConnection(self), count=lambda: len(self._connections))
                opened(port.number)
                await self._tick(port)
            finally:
                self.mirrors.stop()
                for connection in list(self._connections):
                    connection.cut()
                port.close()
                self.upstream.close()

    async def drain(self, limit_s: float) -> int:
        """Takes no new work and waits for what is in progress; after `limit_s` cuts the rest. Returns how many were cut."""
        self._is_draining = True
        self.keeps_alive = False
        self.mirrors.stop()
        for connection in list(self._connections):
            connection.drain()
        try:
            async with asyncio.timeout(limit_s):
                if self.in_progress:
                    await self._quiet.wait()
                # The end of an answer may still be on its way to a slow reader.
                while not self._is_hurried and any(c.has_unsent for c in self._connections):  # noqa: ASYNC110 -- transports have no event for it
                    await asyncio.sleep(FLUSH_CHECK_S)
        except TimeoutError:
            pass
        return self.in_progress

    def end_drain(self) -> None:
        """Stops waiting: what is still in progress is cut."""
        self._is_hurried = True
        self._quiet.set()

    async def _tick(self, port: Port) -> None:
        check_due_s = 0.0
        while True:
            before_s = self.clock.now_s()
            await asyncio.sleep(TICK_S)
            now_s = self.ticked_s = self.clock.now_s()
            lag_s = max(0.0, now_s - before_s - TICK_S)
            self._metrics.event_loop_lag_seconds.labels().set(lag_s)
            if self._ladder is not None and self._ladder.step(
                lag_s=lag_s, keeps_waiting=port.keeps_waiting, now_s=now_s
            ):
                self._give_up(self._ladder, now_s)
            port.tick(now_s)
            for delivery in list(self.streams):
                delivery.beat(now_s)
            self.upstream.tick(now_s)
            self.dispatch.wake()
            self.mirrors.tick(now_s)
            self.idempotency.tick()
            self._log.tick()
            if now_s >= check_due_s:
                check_due_s = now_s + 1.0
                for connection in list(self._connections):
                    connection.check(now_s)

    def _give_up(self, ladder: Ladder, now_s: float) -> None:
        """The level of pressure has changed: what follows from it for connections, once, so that requests needn't ask."""
        idle_timeout_s = self._limits.idle_timeout_s
        self.keeps_alive = ladder.is_calm and not self._is_draining
        self.idle_timeout_s = idle_timeout_s if ladder.is_calm else min(PRESSED_IDLE_S, idle_timeout_s)
        self._work_max = 0 if ladder.is_refusing else self._work_room
        for connection in [] if ladder.is_calm else list(self._connections):
            connection.hurry(now_s)
            if ladder.is_refusing:
                connection.refuse_body(ladder.refusal())


def _deadline_s(call: Call) -> float:
    return call.rules.deadlines.of(call.head.headers, received_s=call.received_s)

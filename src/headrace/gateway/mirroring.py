"""What would a candidate have answered? Copies of delivered requests run on it when nothing else wants the time.

The caller's request doesn't know: its answer is written down on the way, and what becomes of the copy reaches nobody. A copy
runs as a request of our own, recorded and without a price; of both answers no more leaves memory than how they compare.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError
from headrace.core.fleet import Deployment, FleetSnapshot
from headrace.core.ids import KeyId, RequestId, TargetKey
from headrace.core.load import TargetLoad
from headrace.core.request import Endpoint, InferenceRequest
from headrace.core.tenant import SYSTEM_TENANT, Principal, Priority, TenantLimits, TenantShare, TenantTerms
from headrace.gateway.call import Call, PassedCall, PauseWatcher
from headrace.gateway.delivery import Delivery
from headrace.gateway.dispatch import Dispatch, Slot
from headrace.gateway.loads import Loads
from headrace.gateway.upstream import Upstream
from headrace.gateway.usage import Account, UsageCloser
from headrace.gateway.walk import Walk
from headrace.policies import comparison
from headrace.protocols import answers
from headrace.protocols.assembling import AnswerAssembler

KEY_ID = KeyId("mirror")
WAITING_MAX = 8
RUNNING_MAX = 4
REQUEST_BYTES_MAX = 256 * 1024
ANSWER_BYTES_MAX = 256 * 1024
AGE_MAX_S = 10.0
NEVER_S = 1e9
WORSE = "worse"
_COMPARED = (Endpoint.CHAT_COMPLETIONS, Endpoint.COMPLETIONS)


class AnswerNotes:
    """An answer as it was written: a whole one, or events; only that there was one, where it is too large to be kept."""

    def __init__(self) -> None:
        self._whole: bytes | None = None
        self._events: list[bytes] = []
        self._bytes = 0

    def whole(self, body: bytes) -> None:
        self._bytes += len(body)
        self._whole = body if self.is_kept else None

    def events(self, events: list[bytes]) -> None:
        self._bytes += sum(map(len, events))
        if self.is_kept:
            self._events += events
        else:
            self._events.clear()

    @property
    def is_kept(self) -> bool:
        return self._bytes <= ANSWER_BYTES_MAX

    def body(self, endpoint: Endpoint) -> bytes | None:
        """As a whole answer; None for what can't be read, or was not kept."""
        if not self.is_kept:
            return None
        if self._whole is not None:
            return self._whole
        assembler = AnswerAssembler(is_chat=endpoint is Endpoint.CHAT_COMPLETIONS)
        try:
            for event in self._events:
                assembler.take(event)
        except answers.BadAnswer:
            return None
        return assembler.body()


class CopiedCall(PassedCall):
    """A call whose request will be copied: what is answered is noted on its way."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.notes = AnswerNotes()

    def respond(self, status: int, body: bytes, *, headers: bytes = b"") -> None:
        self.notes.whole(body)
        self._call.respond(status, body, headers=headers)

    def write(self, events: list[bytes]) -> None:
        self.notes.events(events)
        self._call.write(events)

    def finish(self, events: list[bytes]) -> None:
        self.notes.events(events)
        self._call.finish(events)


class _NobodysCall:
    """A call without a caller: the answer is noted, and that is all."""

    is_paused = must_stream = is_gone = False
    paused_since_s = 0.0
    body = b""

    def __init__(self, call: Call, request: InferenceRequest) -> None:
        self.head, self.route, self.rules = call.head, call.route, call.rules
        self.principal: Principal | None = request.principal
        self.request_id = request.id
        self.received_s = request.arrived_s
        self.notes = AnswerNotes()

    def abort(self) -> None:
        """There is no connection."""

    def tell(self, watcher: PauseWatcher) -> None:
        """Nobody stops taking bytes."""

    def respond(self, status: int, body: bytes, *, headers: bytes = b"") -> None:
        self.notes.whole(body)

    def open_stream(self, *, headers: bytes) -> None:
        """Nobody waits for it."""

    def write(self, events: list[bytes]) -> None:
        self.notes.events(events)

    def beat(self) -> None:
        """Nobody waits."""

    def finish(self, events: list[bytes]) -> None:
        self.notes.events(events)

    def break_off(self, status: int, body: bytes) -> None:
        self.notes.whole(body)


class _CopySlot(Slot):
    """Of a request that is tried once: the budget of retries is for callers."""

    __slots__ = ()

    @property
    def has_alternative(self) -> bool:
        return False


@dataclass(slots=True, eq=False)
class _Copy:
    """One request to be run again, and the answer that its caller got; `walk` while it runs."""

    target: TargetKey
    request: InferenceRequest
    call: CopiedCall
    offered_s: float
    walk: Walk | None = None


class Mirrors:
    """State: `_waiting`, copies that wait for a quiet moment, `_running` those under way; `loads`, what is counted of them,
    apart from what callers' requests add up to.

    Attributes:
        is_on: Whether any route has a mirror; set with each snapshot, so that a request only looks.

    Args:
        is_calm: Whether there is nothing better to do.
        new_request_id: For each run.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        upstream: Upstream,
        usage: UsageCloser,
        *,
        is_calm: Callable[[], bool],
        new_request_id: Callable[[], RequestId],
        clock: Clock,
    ) -> None:
        self._dispatch = dispatch
        self._upstream = upstream
        self._usage = usage
        self._is_calm = is_calm
        self._new_request_id = new_request_id
        self._clock = clock
        self._waiting: deque[_Copy] = deque()
        self._running: dict[_Copy, None] = {}
        self._is_stopped = False
        self.is_on = False
        self.loads = Loads()

    def publish(self, snapshot: FleetSnapshot) -> None:
        """Copies go where mirrors are now; those for another target are dropped, also on their way."""
        self.loads.publish(snapshot)
        targets = {route.mirror.target for route in snapshot.routes.values() if route.mirror is not None}
        self.is_on = bool(targets) and not self._is_stopped
        self._end_all_but(targets)

    def take(self, call: Call, request: InferenceRequest) -> CopiedCall | None:
        """The call to answer, if this request is one of those that are copied."""
        if (
            request.endpoint not in _COMPARED
            or request.is_pinned
            or len(request.canonical) > REQUEST_BYTES_MAX
            or self._dispatch.routing.mirror(request.model, request_id=request.id) is None
        ):
            return None
        return CopiedCall(call)

    def offer(self, call: CopiedCall, request: InferenceRequest, account: Account) -> None:
        """The request was delivered, and nothing of it is in progress any more."""
        deployment = self._dispatch.routing.mirror(request.model, request_id=request.id)
        if deployment is None or account.deployment.key == deployment.key:
            return  # it is the candidate's own answer
        copy = _Copy(deployment.key, request, call, self._clock.now_s())
        if len(self._waiting) >= WAITING_MAX:
            self._drop(copy)
            return
        self._waiting.append(copy)
        self._go_on()

    def tick(self, now_s: float) -> None:
        """Called four times a second: the old are dropped, and so is what runs while a caller waits for the same replicas."""
        while self._waiting and now_s - self._waiting[0].offered_s > AGE_MAX_S:
            self._drop(self._waiting.popleft())
        for copy in list(self._running):
            if copy.walk is not None and (
                not self._is_calm() or self._dispatch.queue_length(copy.target) > 0
            ):
                copy.walk.cancel()
        self._go_on()

    def stop(self) -> None:
        """Nothing more is run, and what runs ends."""
        self._is_stopped = True
        self.is_on = False
        self._end_all_but(set())

    def _end_all_but(self, targets: set[TargetKey]) -> None:
        kept = [copy for copy in self._waiting if copy.target in targets]
        for copy in self._waiting:
            if copy not in kept:
                self._drop(copy)
        self._waiting = deque(kept)
        for copy in list(self._running):
            if copy.target not in targets and copy.walk is not None:
                copy.walk.cancel()

    def _go_on(self) -> None:
        while self._waiting and len(self._running) < RUNNING_MAX and self._is_calm():
            copy = self._waiting[0]
            deployment = self._dispatch.routing.find(copy.target)
            if deployment is None:
                self._drop(self._waiting.popleft())
                continue
            request = self._request_of(copy, deployment)
            slot = _CopySlot(self._dispatch, request)
            if not self._dispatch.enter_if_idle(slot.ticket, request):
                return
            self._waiting.popleft()
            self._begin(copy, request, deployment, slot)

    def _begin(self, copy: _Copy, request: InferenceRequest, deployment: Deployment, slot: Slot) -> None:
        self._running[copy] = None
        copy.walk = Walk(self._run(copy, request, deployment, slot), on_end=lambda: self._ended(copy))
        copy.walk.start()

    def _ended(self, copy: _Copy) -> None:
        del self._running[copy]
        copy.walk = None

    async def _run(self, copy: _Copy, request: InferenceRequest, deployment: Deployment, slot: Slot) -> None:
        call = _NobodysCall(copy.call, request)
        account = Account(request, deployment, self.loads)
        account.load.mirrored += 1
        delivery = Delivery(
            call, request, deployment, clock=self._clock, heartbeat_s=NEVER_S, headers=_no_headers
        )
        try:
            await self._upstream.run(request, slot, delivery, call, account)
        except HeadraceError as refusal:
            delivery.fail(refusal)
        finally:
            if not delivery.is_over:  # cut, because somebody else wants the time
                delivery.client_gone()
                account.load.mirror_dropped += 1
            self._dispatch.leave(slot.ticket)
            self._usage.close(account, delivery)
        if delivery.is_delivered:
            self._compare(copy, call.notes, account.load)

    def _compare(self, copy: _Copy, candidate: AnswerNotes, load: TargetLoad) -> None:
        endpoint = copy.request.endpoint
        accepted, other = copy.call.notes.body(endpoint), candidate.body(endpoint)
        if accepted is None or other is None:
            return
        wants_json = b'"response_format"' in copy.request.canonical
        found = comparison.compare(accepted, other, wants_json=wants_json)
        if found is not None:
            verdict = WORSE if found.is_worse else found.likeness.value
            load.verdicts[verdict] = load.verdicts.get(verdict, 0) + 1

    def _request_of(self, copy: _Copy, deployment: Deployment) -> InferenceRequest:
        """The same work for us: with the caller's prompt cache and where it may run, and with as much time."""
        request, now_s = copy.request, self._clock.now_s()
        return msgspec.structs.replace(
            request,
            id=self._new_request_id(),
            principal=_on_behalf_of(request.principal),
            arrived_s=now_s,
            arrived_wall_s=self._clock.wall_s(),
            deadline_s=now_s + request.deadline_s - request.arrived_s,
            is_keyed=False,
            priority=Priority.LOW,
            target=deployment.key,
            is_pinned=True,
        )

    def _drop(self, copy: _Copy) -> None:
        deployment = self._dispatch.routing.find(copy.target)
        if deployment is not None:
            self.loads.of(deployment, copy.target).mirror_dropped += 1


def _on_behalf_of(caller: Principal) -> Principal:
    return replace(
        caller,
        tenant=SYSTEM_TENANT,
        key_id=KEY_ID,
        limits=TenantLimits(),
        share=TenantShare(Priority.LOW),
        terms=TenantTerms(locations=caller.terms.locations),
        user="",
        key_limits=None,
        key_quotas=(),
        cache_partition=caller.cache_partition,
    )


def _no_headers(request: InferenceRequest, deployment: Deployment) -> bytes:
    return b""

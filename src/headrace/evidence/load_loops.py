"""When is each request sent? An open loop sends what is due whatever became of what was sent before; in a closed one each caller waits.

Times are absolute: a generator that is behind sends what it has missed at once, and what is due next is not put off for that.
"""

import asyncio
import math
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import chain, takewhile
from random import Random
from typing import NamedTuple, Protocol

from headrace.core.clock import Clock
from headrace.core.load_records import LoadRecord, Outcome
from headrace.evidence.load_pacer import Alarm
from headrace.evidence.load_sender import Sender
from headrace.policies.workload_plan import Planned

# How much is made ready before it is due.
READY_MAX = 20_000
READY_BYTES_MAX = 32 * 1024 * 1024
# In one turn of the event loop, so that answers are read in between.
SENDS_MAX = 32
# A caller of a closed loop who was refused or got nothing comes back after that at the earliest.
PAUSE_S = 0.1
# A conversation goes on after these.
_GOES_ON = frozenset({Outcome.OK, Outcome.LATE, Outcome.CANCELLED})


class Loop(Protocol):
    """What drives a run.

    Attributes:
        finished: Done when nothing more will be sent and nothing is open.
    """

    finished: "asyncio.Future[None]"

    def begin(self, began_s: float) -> None: ...

    def stop(self, why: str) -> None:
        """Nothing more is sent; what is due already and isn't sent is recorded with that reason."""
        ...

    @property
    def is_sending(self) -> bool:
        """Whether more may be sent."""
        ...


class _Ready(NamedTuple):
    planned: Planned
    is_cold: bool
    payload: bytes | None  # None for a later turn, which depends on the answer before it


class _Conversation:
    """One that goes on.

    Attributes:
        waiting: Turns that were due while the one before them was open.
    """

    __slots__ = ("is_open", "waiting")

    def __init__(self) -> None:
        self.is_open = False
        self.waiting: deque[_Ready] = deque()


class OpenLoop:
    """Sends each request when the plan says.

    State: `_ready` are the next ones, in the order in which they are due, `_ready_bytes` what they take; `_conversations` those
    that go on, `_failed` those that can't.
    """

    def __init__(
        self, sender: Sender, plan: Iterator[tuple[Planned, bool]], *, duration_s: float, clock: Clock
    ) -> None:
        loop = asyncio.get_running_loop()
        self.finished: asyncio.Future[None] = loop.create_future()
        self.is_sending = True
        self._sender = sender
        sender.told = self._over
        self._plan = plan
        self._duration_s = duration_s
        self._now_s = clock.now_s
        self._began_s = 0.0
        self._alarm = Alarm(self._advance, loop)
        self._ready: deque[_Ready] = deque()
        self._ready_bytes = 0
        self._conversations: dict[int, _Conversation] = {}
        self._failed: set[int] = set()
        self._prepare(READY_MAX)

    def begin(self, began_s: float) -> None:
        self._began_s = began_s
        self._advance()

    def stop(self, why: str) -> None:
        if self.is_sending:
            self.is_sending = False
            self._alarm.close()
            self._drop_due(why)
            self._drop_waiting(why)
        self._finish_if_idle()

    def _advance(self) -> None:
        """Sends all that is due."""
        sends = 0
        while self._ready and self.is_sending:
            ready = self._ready[0]
            due_s = self._began_s + (ready.planned.due_s or 0.0)
            wait_s = due_s - self._now_s()
            if wait_s > 0.0 or sends == SENDS_MAX:
                self._prepare(sends + 1)
                self._alarm.set(max(0.0, due_s - self._now_s()))
                return
            sends += 1
            self._ready.popleft()
            self._send(ready, due_s)
            if not self._ready:
                self._prepare(SENDS_MAX)
        if self.is_sending:  # the plan is at its end
            self.is_sending = False
            self._alarm.close()
        self._finish_if_idle()

    def _prepare(self, count: int) -> None:
        while count and len(self._ready) < READY_MAX and self._ready_bytes < READY_BYTES_MAX:
            item = next(self._plan, None)
            if item is None:
                return
            planned, is_cold = item
            payload = self._sender.payload(planned) if planned.turn == 1 else None
            self._ready.append(_Ready(planned, is_cold, payload))
            self._ready_bytes += len(payload or b"")
            count -= 1

    def _send(self, ready: _Ready, due_s: float) -> None:
        planned, payload = ready.planned, ready.payload
        conversation = None
        if payload is not None:
            self._ready_bytes -= len(payload)
        if planned.turns != 1:
            conversation = self._conversations.setdefault(planned.conversation, _Conversation())
            if conversation.is_open:
                conversation.waiting.append(ready)
                return
            if planned.conversation in self._failed:
                self._sender.unsent(planned, "turn_before_failed", due_s=due_s, outcome=Outcome.FAILED)
                return
            conversation.is_open = True
        payload = payload or self._sender.payload(planned)
        if not self._sender.send(planned, payload, due_s=due_s, is_cold=ready.is_cold) and conversation:
            conversation.is_open = False
            self._failed.add(planned.conversation)

    def _over(self, planned: Planned, record: LoadRecord) -> None:
        if planned.turns != 1 and (conversation := self._conversations.get(planned.conversation)) is not None:
            self._go_on(planned, record, conversation)
        self._finish_if_idle()

    def _go_on(self, planned: Planned, record: LoadRecord, conversation: _Conversation) -> None:
        """The next turn, if it was due already. It is due now: its caller couldn't have sent it before."""
        conversation.is_open = False
        if record.outcome not in _GOES_ON:
            self._failed.add(planned.conversation)
        while conversation.waiting and not conversation.is_open:
            ready = conversation.waiting.popleft()
            due_s = self._began_s + max(ready.planned.due_s or 0.0, record.ended_s)
            if due_s < self._began_s + self._duration_s:  # else it isn't due within the run
                self._send(ready, due_s)
        if not conversation.is_open and planned.turn == planned.turns:
            del self._conversations[planned.conversation]

    def _drop_due(self, why: str) -> None:
        """What should have been sent by now; what would be due later isn't any more."""
        until_s = self._now_s() - self._began_s
        planned_rest = chain((ready.planned for ready in self._ready), (planned for planned, _ in self._plan))
        for planned in takewhile(lambda planned: (planned.due_s or 0.0) <= until_s, planned_rest):
            self._sender.unsent(planned, why, due_s=self._began_s + (planned.due_s or 0.0))
        self._ready.clear()

    def _drop_waiting(self, why: str) -> None:
        for conversation in list(self._conversations.values()):
            while conversation.waiting:
                planned = conversation.waiting.popleft().planned
                self._sender.unsent(planned, why, due_s=self._began_s + (planned.due_s or 0.0))

    def _finish_if_idle(self) -> None:
        if not self.is_sending and not self._sender.open_count and not self.finished.done():
            self.finished.set_result(None)


class _Caller:
    """One caller of a closed loop, with the turns of its conversation that it hasn't come to."""

    __slots__ = ("chance", "turns")

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.turns: deque[tuple[Planned, bool]] = deque()


class ClosedLoop:
    """Each caller asks again when it was answered and has thought about it.

    State: `_thinking` are those whose next request is due at a time, the next one first; `_asking`, by the number of its request,
    who waits for an answer.
    """

    def __init__(
        self,
        sender: Sender,
        plan: Iterator[tuple[Planned, bool]],
        *,
        callers: int,
        think_s: float,
        duration_s: float,
        seed: str,
        clock: Clock,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.finished: asyncio.Future[None] = loop.create_future()
        self.is_sending = True
        self._sender = sender
        sender.told = self._over
        self._plan = plan
        self._next: tuple[Planned, bool] | None = next(plan, None)
        self._think_s = think_s
        self._duration_s = duration_s
        self._now_s = clock.now_s
        self._began_s = 0.0
        self._alarm = Alarm(self._advance, loop)
        self._callers = [_Caller(Random(f"{seed} {number}")) for number in range(callers)]
        self._thinking: list[tuple[float, int, _Caller]] = []
        self._asking: dict[int, _Caller] = {}
        self._order = 0

    def begin(self, began_s: float) -> None:
        self._began_s = began_s
        for caller in self._callers:
            self._think(caller, began_s)
        self._advance()

    def stop(self, why: str) -> None:
        self._stop_sending()
        self._finish_if_idle()

    def _advance(self) -> None:
        sends = 0
        while self._thinking and self.is_sending:
            due_s, _, caller = self._thinking[0]
            if due_s > self._now_s() or sends == SENDS_MAX:
                self._alarm.set(max(0.0, due_s - self._now_s()))
                return
            heappop(self._thinking)
            sends += 1
            self._ask(caller, due_s)
        self._finish_if_idle()

    def _think(self, caller: _Caller, due_s: float) -> None:
        self._order += 1
        heappush(self._thinking, (due_s, self._order, caller))

    def _ask(self, caller: _Caller, due_s: float) -> None:
        if not caller.turns:
            self._begin_conversation(caller)
        if not caller.turns:  # the plan is at its end, or the time is over
            return
        planned, is_cold = caller.turns.popleft()
        self._asking[planned.number] = caller
        self._sender.send(planned, self._sender.payload(planned), due_s=due_s, is_cold=is_cold)

    def _begin_conversation(self, caller: _Caller) -> None:
        if self._next is None:
            return
        conversation = self._next[0].conversation
        while self._next is not None and self._next[0].conversation == conversation:
            caller.turns.append(self._next)
            self._next = next(self._plan, None)

    def _over(self, planned: Planned, record: LoadRecord) -> None:
        caller = self._asking.pop(planned.number)
        wait_s = 0.0
        if self._think_s:
            wait_s = -self._think_s * math.log(1.0 - caller.chance.random())
        if record.outcome not in _GOES_ON:
            caller.turns.clear()
            wait_s = max(wait_s, PAUSE_S)
        due_s = self._began_s + record.ended_s + wait_s
        if self.is_sending and due_s < self._began_s + self._duration_s:
            if wait_s:
                self._think(caller, due_s)
                if self._thinking[0][2] is caller:
                    self._alarm.set(wait_s)
            else:
                self._ask(caller, due_s)
        self._finish_if_idle()

    def _finish_if_idle(self) -> None:
        if not self._asking and (not self.is_sending or not self._thinking) and not self.finished.done():
            self._stop_sending()
            self.finished.set_result(None)

    def _stop_sending(self) -> None:
        if self.is_sending:
            self.is_sending = False
            self._alarm.close()
            self._thinking.clear()

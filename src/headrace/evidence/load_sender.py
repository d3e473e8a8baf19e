"""What is under way, and what has come of it? Sends requests, ends those that have waited or talked long enough, and keeps records."""

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush

import msgspec

from headrace.core.clock import Clock
from headrace.core.load_records import LoadRecord, Outcome
from headrace.evidence import load_call
from headrace.evidence.load_call import Asking, Call
from headrace.evidence.load_exchange import Pool
from headrace.evidence.load_pacer import Alarm
from headrace.evidence.prompts import Prompts
from headrace.evidence.target import Target
from headrace.policies.workload_plan import Planned

# What a server says at its deadline is heard, if it says it soon.
GRACE_S = 1.0
CONNECT_S = 10.0
_LOOK_EVERY_S = 0.1

Told = Callable[[Planned, LoadRecord], None]


class Sender:
    """Sends, and knows what is open.

    State: `_calls` are open; `records` grow; `_leaving` are those whose callers leave at a time, the next one first.

    Attributes:
        told: Called with each request that was sent and is over, at that moment.
        late_by_s: How late requests were sent, at most; who reads it sets it back.
    """

    told: Told

    def __init__(
        self,
        target: Target,
        prompts: Prompts,
        *,
        clock: Clock,
        tasks: asyncio.TaskGroup,
        open_max: int,
        deadline_s: float,
        process: int,
    ) -> None:
        address = target.address()
        self._asking: Asking = load_call.asking(
            path=address.path, authority=address.authority, key=target.key, model=target.model
        )
        self._prompts = prompts
        self._now_s = clock.now_s
        self._pool = Pool(
            self,
            host=address.host,
            port=address.port,
            trust=target.trust(),
            clock=clock,
            tasks=tasks,
            connect_s=CONNECT_S,
        )
        self._open_max = open_max
        self._deadline_s = deadline_s
        self._process = process
        self._calls: set[Call] = set()
        self._leaving: list[tuple[float, int, Call]] = []
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self._hang_up, self._loop)
        self._look: asyncio.TimerHandle | None = None
        self._encode = msgspec.json.Encoder().encode
        self.began_s = 0.0
        self.records: list[LoadRecord] = []
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.sent = 0
        self.late_by_s = 0.0

    @property
    def open_count(self) -> int:
        return len(self._calls)

    @property
    def complaint(self) -> str:
        return self._pool.complaint

    def begin(self, began_s: float) -> None:
        """From that moment on times are told."""
        self.began_s = began_s
        self._look = self._loop.call_later(_LOOK_EVERY_S, self._look_around)

    def payload(self, planned: Planned) -> bytes:
        """What will be sent; to be asked for once, in the order of the plan, and the turns of a conversation in theirs."""
        return self._asking.payload(
            self._encode(self._prompts.messages(planned)),
            output_tokens_max=planned.output_tokens,
            is_streamed=planned.is_streamed,
            deadline_s=planned.deadline_s or self._deadline_s,
        )

    def send(self, planned: Planned, payload: bytes, *, due_s: float, is_cold: bool) -> bool:
        """Now; `due_s` is by the clock. Where too many are open it is recorded as unsent, and False is returned."""
        now_s = self._now_s()
        if len(self._calls) >= self._open_max:
            self.unsent(planned, "open_max", due_s=due_s)
            return False
        call = Call(
            planned,
            due_s=due_s,
            sent_s=now_s,
            deadline_s=planned.deadline_s or self._deadline_s,
            is_cold=is_cold,
            keeps_text=planned.turn != planned.turns,
        )
        self._calls.add(call)
        self.sent += 1
        if now_s - due_s > self.late_by_s:
            self.late_by_s = now_s - due_s
        if planned.cancel_after_s is not None:
            heappush(self._leaving, (now_s + planned.cancel_after_s, planned.number, call))
            if self._leaving[0][2] is call:
                self._alarm.set(planned.cancel_after_s)
        exchange = self._pool.take(now_s)
        if exchange is not None:
            exchange.send(payload, call)
        else:
            self._pool.open(payload, call)
        return True

    def unsent(
        self, planned: Planned, reason: str, *, due_s: float, outcome: Outcome = Outcome.UNSENT
    ) -> None:
        """Records one that was due, and nothing else. It has FAILED where its caller could not even ask."""
        self._keep(
            load_call.unsent(
                planned,
                reason,
                due_s=due_s - self.began_s,
                now_s=self._now_s() - self.began_s,
                process=self._process,
                outcome=outcome,
            ),
        )

    def taken(self) -> list[LoadRecord]:
        """The records since it was last asked, for whoever keeps them elsewhere."""
        records, self.records = self.records, []
        return records

    def over(self, call: Call, now_s: float) -> None:
        """Called by whatever carried it."""
        assert not call.is_over
        call.is_over = True
        self._calls.remove(call)
        record = call.record(began_s=self.began_s, ended_s=now_s, process=self._process)
        if call.text and call.planned.turn != call.planned.turns:
            self._prompts.heard(call.planned, call.text)
        self._keep(record)
        self.told(call.planned, record)

    def hang_up_all(self, why: str) -> None:
        """Every caller leaves now."""
        now_s = self._now_s()
        for call in list(self._calls):
            call.left = why
            self._abandon(call, now_s)

    def close(self) -> None:
        """Closes all connections; nothing may be open any more."""
        self._alarm.close()
        if self._look is not None:
            self._look.cancel()
        self._pool.close()

    def _keep(self, record: LoadRecord) -> None:
        self.records.append(record)
        self.outcomes[record.outcome] += 1

    def _hang_up(self) -> None:
        """Those callers leave whose time has come."""
        now_s = self._now_s()
        while self._leaving:
            at_s, _, call = self._leaving[0]
            if not call.is_over:
                if at_s > now_s:
                    self._alarm.set(at_s - now_s)
                    return
                call.left = "after_s"
                self._abandon(call, now_s)
            heappop(self._leaving)

    def _look_around(self) -> None:
        now_s = self._now_s()
        for call in [call for call in self._calls if call.sent_s + call.deadline_s + GRACE_S <= now_s]:
            call.gave_up = True
            self._abandon(call, now_s)
        self._pool.tidy(now_s)
        self._look = self._loop.call_later(_LOOK_EVERY_S, self._look_around)

    def _abandon(self, call: Call, now_s: float) -> None:
        if call.exchange is not None:
            call.exchange.leave(now_s)
        else:
            self.over(call, now_s)

"""What became of one request? Everything that its caller saw, gathered while it comes, and the record that is made of it at its end."""

from typing import Protocol

import msgspec

from headrace.core.load_records import Gaps, LoadRecord, Outcome
from headrace.policies.workload_plan import Planned
from headrace.protocols import http1, scanning
from headrace.protocols.scanning import UNCOUNTED, StreamScan

# Of an answer that says why there is none, as much is read as such a body ever has.
COMPLAINT_BYTES_MAX = 64 * 1024
ANSWER_BYTES_MAX = 64 * 1024 * 1024

# Reasons of our own for being too late: whole but after the deadline, not begun, not ended.
LATE, NO_ANSWER, NO_END = "late", "no_answer", "no_end"
WORDLESS = frozenset({NO_ANSWER, NO_END})


class Carrier(Protocol):
    """The connection that a call is on."""

    def leave(self, now_s: float) -> None:
        """Its caller hangs up."""
        ...


class Call:
    """One request that was sent. Owner: the engine, until it is over; its connection adds to it what it hears.

    Attributes:
        due_s, sent_s: By the clock, not from the start of the run.
        exchange: None until there is a connection for it.
        trouble: What went wrong below HTTP, in a word.
        left: Why its caller left before the end; "" as long as they haven't.
        gave_up: The deadline and the grace after it have passed.
        is_at_end: The stream has had its proper end; its HTTP message may follow.
        is_whole: The HTTP message has had its end.
        is_over: Set by the owner; nothing is added any more.
        headers: Names in lower case.
    """

    __slots__ = (
        "_body", "_body_bytes", "_gaps", "_scan", "deadline_s", "due_s", "events", "exchange", "first_s", "gave_up", "headers",
        "is_at_end", "is_cold", "is_over", "is_streamed", "is_whole", "last_s", "leaves_after", "left", "planned", "sent_s", "status", "text", "trouble",
    )  # fmt: skip

    def __init__(
        self,
        planned: Planned,
        *,
        due_s: float,
        sent_s: float,
        deadline_s: float,
        is_cold: bool,
        keeps_text: bool,
    ) -> None:
        self.planned = planned
        self.due_s = due_s
        self.sent_s = sent_s
        self.deadline_s = deadline_s
        self.is_cold = is_cold
        self.is_streamed = planned.is_streamed
        self.leaves_after = planned.cancel_after_tokens or 0
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.exchange: Carrier | None = None
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.events = 0
        self.trouble = ""
        self.left = ""
        self.text = ""
        self.gave_up = False
        self.is_at_end = self.is_whole = self.is_over = False
        self._gaps = Gaps()
        self._scan = StreamScan(keeps_text=keeps_text) if self.is_streamed else None
        self._body: list[bytes] = []
        self._body_bytes = 0

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self.status = status
        self.headers = headers
        if (
            status == 200
            and self.is_streamed
            and not headers.get(b"content-type", b"").startswith(b"text/event-stream")
        ):
            self.trouble = "not_a_stream"

    def heard(self, data: bytes, now_s: float) -> bool:
        """A piece of the body, and when it was read; whether its caller wants more of it."""
        self._body_bytes += len(data)
        if self._body_bytes > (ANSWER_BYTES_MAX if self.status == 200 else COMPLAINT_BYTES_MAX):
            self.trouble = "too_large"
            return False
        if self._scan is None or self.status != 200:
            self._body.append(data)
            return True
        try:
            found = self._scan.feed(data)
        except scanning.EventTooLarge:
            self.trouble = "too_large"
            return False
        if found:
            if self.last_s is None:
                self.first_s = now_s
            else:
                self._gaps.observe(now_s - self.last_s)
            if found > 1:
                self._gaps.observe_together(found - 1)
            self.last_s = now_s
            self.events += found
            if 0 < self.leaves_after <= self.events and not self._scan.is_done:
                self.left = "after_tokens"
                return False
        self.is_at_end = self._scan.is_done
        return True

    def record(self, *, began_s: float, ended_s: float, process: int) -> LoadRecord:
        """The record of it, which is over."""
        planned, headers = self.planned, self.headers
        outcome, reason, counts = self._judged(ended_s)
        return LoadRecord(
            planned.number,
            self.due_s - began_s,
            self.sent_s - began_s,
            None if self.first_s is None else self.first_s - began_s,
            None if self.last_s is None else self.last_s - began_s,
            ended_s - began_s,
            outcome,
            reason,
            self.status,
            _text(headers.get(b"x-request-id", b"")),
            _text(headers.get(b"x-headrace-model-revision", b"")),
            http1.retry_after_s(headers.get(b"retry-after")) is not None,
            counts.input_tokens,
            counts.cached_tokens,
            counts.output_tokens,
            self.events,
            self._gaps,
            self.is_streamed,
            planned.turn,
            planned.prefix_group,
            self.is_cold,
            process,
            planned.input_tokens,
            planned.output_tokens,
            planned.conversation,
        )

    def _judged(self, ended_s: float) -> tuple[Outcome, str, scanning.Counts]:
        """What it is to its caller, why, and what the service counted. Sets `text`, and the times of a whole answer."""
        if self.status != 200 and not self.left:
            return *self._without_answer(), UNCOUNTED
        outcome, reason, counts = (
            self._of_whole(ended_s) if self._scan is None else self._of_stream(self._scan)
        )
        if self.left:
            return Outcome.CANCELLED, self.left, counts
        if reason in _TOO_LATE:
            return Outcome.LATE, reason, counts
        if outcome is Outcome.OK and ended_s - self.sent_s > self.deadline_s:
            return Outcome.LATE, LATE, counts
        return outcome, reason, counts

    def _without_answer(self) -> tuple[Outcome, str]:
        if not self.status:
            return (Outcome.LATE, NO_ANSWER) if self.gave_up else (Outcome.FAILED, self.trouble or "closed")
        reason = _text(self.headers.get(b"x-headrace-reason", b""))
        reason = reason or scanning.code_of(b"".join(self._body)) or f"status_{self.status}"
        if self.status in (429, 503):
            return Outcome.REFUSED, reason
        return (Outcome.LATE if self.status == 504 else Outcome.FAILED), reason

    def _of_stream(self, scan: StreamScan) -> tuple[Outcome, str, scanning.Counts]:
        counts = scanning.counts(scan.usage)
        if scan.error is not None:
            return Outcome.BROKEN, scanning.code_of(scan.error) or "error", counts
        if self.trouble in ("not_a_stream", "too_large"):
            return Outcome.FAILED if self.first_s is None else Outcome.BROKEN, self.trouble, counts
        if not scan.is_done:
            return Outcome.BROKEN, NO_END if self.gave_up else self.trouble or "cut", counts
        self.text = scan.text()
        return (Outcome.OK, "", counts) if self.events else (Outcome.FAILED, "no_output", counts)

    def _of_whole(self, ended_s: float) -> tuple[Outcome, str, scanning.Counts]:
        if not self.is_whole:
            return Outcome.BROKEN, NO_END if self.gave_up else self.trouble or "cut", UNCOUNTED
        answer = scanning.whole(b"".join(self._body))
        if answer is None:
            return Outcome.FAILED, "not_an_answer", UNCOUNTED
        if answer.error:
            return Outcome.FAILED, answer.error, UNCOUNTED
        if not answer.has_output:
            return Outcome.FAILED, "no_output", answer.counts
        self.first_s = self.last_s = ended_s
        self.text = answer.text
        return Outcome.OK, "", answer.counts


# Ends that mean that no answer came in time, whoever said so.
_TOO_LATE = frozenset({NO_END, "deadline_exceeded"})


def unsent(
    planned: Planned,
    reason: str,
    *,
    due_s: float,
    now_s: float,
    process: int,
    outcome: Outcome = Outcome.UNSENT,
) -> LoadRecord:
    """The record of a request that was due and isn't sent; times from the start of the run."""
    return LoadRecord(
        planned.number,
        due_s,
        None,
        None,
        None,
        now_s,
        outcome,
        reason,
        is_streamed=planned.is_streamed,
        turn=planned.turn,
        prefix_group=planned.prefix_group,
        process=process,
        planned_input_tokens=planned.input_tokens,
        planned_output_tokens=planned.output_tokens,
        conversation=planned.conversation,
    )


def _text(value: bytes) -> str:
    """A header's value, cut to what an id or a word ever has."""
    return value[:128].decode("latin-1")


class Asking(msgspec.Struct, frozen=True):
    """What all requests to one target have in common, as bytes.

    Attributes:
        head: Up to the length of the body.
        model: As JSON.
    """

    head: bytes
    model: bytes

    def payload(
        self, messages: bytes, *, output_tokens_max: int, is_streamed: bool, deadline_s: float
    ) -> bytes:
        """A whole request; `messages` is JSON."""
        stream = b',"stream":true,"stream_options":{"include_usage":true}}' if is_streamed else b"}"
        body = b'{"model":%b,"messages":%b,"temperature":0,"max_tokens":%d%b' % (
            self.model, messages, output_tokens_max, stream,
        )  # fmt: skip
        return b"%bx-headrace-deadline-ms: %d\r\ncontent-length: %d\r\n\r\n%b" % (
            self.head, max(1, round(deadline_s * 1000)), len(body), body,
        )  # fmt: skip


def asking(*, path: str, authority: str, key: str, model: str) -> Asking:
    lines = [f"POST {path} HTTP/1.1", f"host: {authority}", "content-type: application/json"]
    if key:
        lines.append(f"authorization: Bearer {key}")
    assert not any("\r" in line or "\n" in line for line in lines), "a header line holds a line break"
    return Asking("".join(f"{line}\r\n" for line in lines).encode("latin-1"), msgspec.json.encode(model))

"""What has to be true after a request has ended as a row of core/endings.py says: seen by its caller, and in the books."""

import json
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.core.endings import ENDINGS, Ending, Stage
from headrace.core.errors import OverloadError, Unauthenticated
from headrace.core.outcome import AttemptOutcome, Outcome, Reason
from headrace.core.tenant import RateUnit
from headrace.core.usage import UsageRecord
from headrace.stores.opening import open_database
from headrace.stores.usage_report import UsageReport
from tests.gateway.rig import Rig, assert_broken, error_of, read_answer, request_id, words
from tests.support.provider import wait_until
from tests.support.wire import Exchange

TOKENS = 20
TEXT = words(TOKENS)
Row = tuple[Reason, Stage]


class Way(NamedTuple):
    """How the caller asks."""

    stream: bool
    keeps: bool

    @property
    def headers(self) -> str:
        return "" if self.keeps else "connection: close\r\n"

    def __str__(self) -> str:
        return f"{'streamed' if self.stream else 'whole'}-{'kept' if self.keeps else 'closed'}"


WAYS = [Way(stream, keeps) for stream in (True, False) for keeps in (True, False)]
STREAMED = [way for way in WAYS if way.stream]


def ways_of(row: Row) -> list[Way]:
    """A whole answer is sent when all of it is there, so it never breaks and nobody can be slow to take it."""
    reason, stage = row
    return STREAMED if stage is Stage.ANSWERING and reason is not Reason.OK else WAYS


def cases(rows: Iterable[Row]) -> list[tuple[Row, Way]]:
    return [(row, way) for row in rows for way in ways_of(row)]


def case_name(value: Any) -> str:
    return str(value) if isinstance(value, Way) else f"{value[0]}-{value[1]}"


@dataclass(frozen=True)
class Seen:
    """What came of a request.

    Attributes:
        answer: None for a caller that left and looked at nothing.
        events: How many events of the answer came, of a broken one.
    """

    answer: Exchange | None = None
    events: int = 0


@dataclass
class Books:
    """The counters and records before a request."""

    row: Ending
    rig: Rig
    has_account: bool
    records: list[UsageRecord] = field(default_factory=list)
    requests: float = 0.0
    refusals: float = 0.0
    attempts: float = 0.0

    def open(self) -> None:
        self.records = self.rig.records()
        self.requests, self.refusals, self.attempts = self._counts()

    def _counts(self) -> tuple[float, float, float]:
        row, provider = self.row, self.rig.provider
        code = row.error.code if row.error is not None else ""
        return (
            provider.metric("headrace_requests_total", outcome=row.outcome, reason=row.reason),
            provider.metric("headrace_refusals_total", code=code),
            provider.metric("headrace_attempts_total", outcome=row.attempt or "none"),
        )

    def check_metrics(self) -> None:
        """One request more of this kind; one refusal or one attempt more, if it was one or had one."""
        is_refused = self.row.outcome is Outcome.REFUSED
        expected = (
            self.requests + self.has_account,
            self.refusals + is_refused,
            self.attempts + (self.row.attempt is not None),
        )
        wait_until(lambda: self._counts() == expected, what=f"{expected}, not {self._counts()}")

    def check_records(self, seen: Seen) -> str:
        """One record and its attempts as the row has them, or none; returns the request's id."""
        row, rig = self.row, self.rig
        if row.outcome is Outcome.REFUSED:
            assert seen.answer is not None
            wanted = request_id(seen.answer)
            wait_until(
                lambda: rig.provider.metric("headrace_ledger_backlog") == 0,
                what="every record to be on disk",
            )
            assert wanted not in {record.request_id for record in rig.records()}
            return wanted
        (record,) = rig.new_records(self.records, 1)
        if seen.answer is not None and seen.answer.data:
            assert record.request_id == request_id(seen.answer)
        check_record(row, record, attempts_of(rig, record), events=seen.events)
        return record.request_id


def attempts_of(rig: Rig, record: UsageRecord) -> list[str]:
    report = UsageReport(open_database(rig.provider.data, must_exist=True))
    try:
        return [execution.outcome for execution in report.executions(record.request_id)]
    finally:
        report.close()


def check_record(row: Ending, record: UsageRecord, attempts: list[str], *, events: int) -> None:
    assert (record.outcome, record.reason) == (row.outcome, row.reason)
    assert record.status == (row.error.status if row.error is not None else 200)
    assert record.charge_rule is row.charge
    assert record.attempts == len(attempts)
    assert attempts[-1:] == ([row.attempt.value] if row.attempt is not None else [])
    assert (record.ttft_s is not None) == (row.stage is Stage.ANSWERING)
    if row.stage is Stage.UNSTARTED:
        assert (record.completion_tokens, record.usage_source) == (0, "none")
    elif row.outcome is Outcome.BROKEN and row.attempt not in (AttemptOutcome.REJECTED, AttemptOutcome.BUSY):
        assert record.completion_tokens == events


def check_log(rig: Rig, row: Ending, wanted: str) -> None:
    """Its line, unless there was a flood of them; none for an answer that was delivered."""

    def lines() -> list[dict[str, Any]]:
        return [line for line in rig.provider.log_lines() if line.get("request_id") == wanted]

    if row.event is None:
        assert [line for line in lines() if line["event"].startswith("request.")] == []
        return

    def found() -> list[dict[str, Any]]:
        own = [line for line in lines() if line["event"] == row.event]
        floods = [
            line for line in rig.provider.log_lines() if line["event"] == row.event and "suppressed" in line
        ]
        return own or floods

    (line, *_) = wait_until(found, what=f"the line {row.event} of {wanted}")
    if "suppressed" not in line:
        assert row.error is not None
        assert (line["reason"], line["status"], line["code"]) == (
            row.reason,
            row.error.status,
            row.error.code,
        )


def read_to_end(connection: socket.socket, way: Way, *, closes: bool = False) -> Exchange:
    """All of an answer, and what becomes of its connection: the next request is answered on one that is kept, and one that
    isn't ends with the answer."""
    answer = read_answer(connection)
    if answer.end != "open":
        return answer
    if closes or not way.keeps:
        assert connection.recv(1) == b"", "nothing follows the last answer"
    else:
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: test\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
    return answer


def check_answer(
    row: Ending, way: Way, seen: Seen, *, has_account: bool = True, closes: bool = False
) -> None:
    """Status, headers, body and end, byte by byte where they are fixed."""
    answer = seen.answer
    if row.outcome is Outcome.CANCELLED:
        assert answer is None or b"0\r\n\r\n" not in answer.data[-5:]
        return
    assert answer is not None
    names = header_names(answer)
    expected = {"content-type", "x-request-id"}
    if has_account:
        expected |= {"x-headrace-model-revision", "x-headrace-config-version"}
    if closes or not way.keeps:
        expected.add("connection")
        assert b"\r\nconnection: close\r\n" in answer.head + b"\r\n"
    if row.stage is Stage.ANSWERING and way.stream:
        expected |= {"cache-control", "x-accel-buffering", "transfer-encoding"}
        assert answer.data.startswith(b"HTTP/1.1 200 OK\r\n")
        if row.error is None:
            assert (answer.text, answer.payloads[-1], answer.is_complete) == (TEXT, "[DONE]", True)
        else:
            assert_broken(answer, text=words(seen.events))
            check_error(row, answer.events[-1]["error"], answer)
    elif row.error is None:
        expected.add("content-length")
        assert json.loads(answer.body)["choices"][0]["message"]["content"] == TEXT
    else:
        expected |= {"content-length", "x-headrace-reason"} | hint_names(row)
        assert answer.status == row.error.status
        check_error(row, error_of(answer), answer)
    assert names - LEFT_HEADERS == expected


# What is left of limits and quotas, where there are some.
LEFT_HEADERS = {
    "x-headrace-quota",
    *(f"x-ratelimit-{what}-{unit}" for what in ("limit", "remaining", "reset") for unit in RateUnit),
}


def header_names(answer: Exchange) -> set[str]:
    lines = answer.head.decode("latin-1").split("\r\n")[1:]
    names = [line.partition(":")[0] for line in lines]
    assert len(names) == len(set(names)), "no header comes twice"
    return set(names)


def hint_names(row: Ending) -> set[str]:
    """The headers that tell a client what to do."""
    assert row.error is not None
    names = set()
    if row.error.should_retry is not None:
        names.add("x-should-retry")
    if issubclass(row.error, OverloadError):
        names.add("retry-after")
    if row.error is Unauthenticated:
        names.add("www-authenticate")
    return names


def check_error(row: Ending, error: dict[str, Any], answer: Exchange) -> None:
    assert row.error is not None
    assert (error["code"], error["type"]) == (row.error.code, row.error.type)
    assert error["request_id"] == request_id(answer)
    if row.message and row.reason is not Reason.REJECTED:
        assert error["message"] == row.message


@contextmanager
def books(rig: Rig, row: Row, *, has_account: bool = True) -> Iterator[Books]:
    """Opens the books before a request."""
    opened = Books(ENDINGS[row], rig, has_account)
    opened.open()
    yield opened


def check(
    opened: Books, row: Row, way: Way, seen: Seen, *, has_account: bool = True, closes: bool = False
) -> None:
    """The whole contract of one row."""
    ending = ENDINGS[row]
    check_answer(ending, way, seen, has_account=has_account, closes=closes)
    wanted = opened.check_records(seen)
    opened.check_metrics()
    check_log(opened.rig, ending, wanted)

"""A provider in front of scripted engines, asked over raw sockets, with its ledger at hand."""

import json
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import openai

from headrace.core.prices import Item, rates_of
from headrace.core.request import Endpoint
from headrace.core.usage import ExecutionRecord, UsageRecord
from headrace.policies import charging
from headrace.stores.opening import open_database
from headrace.stores.usage_report import UsageReport
from tests.support import wire
from tests.support.provider import HEADRACE, Provider, provider, wait_until
from tests.support.scripted import ScriptedEngine, scripted_engine
from tests.support.wire import Exchange

CHAT = "/v1/chat/completions"
NO_LIMITS = "[tenant_defaults]\nrequests_per_minute = 0\nconcurrency_max = 0\n"
ANSWER_LIMIT_S = 60.0
# What everything costs on a rig that was priced: no two items alike, so that a token that counts as another shows.
PRICES = {
    Item.INPUT: "3",
    Item.CACHED_INPUT: "0.5",
    Item.OUTPUT: "11",
    Item.REASONING_OUTPUT: "7",
    Item.REQUEST: "0.0000013",
    Item.VECTOR: "0.017",
}
RATES = rates_of(PRICES)


def words(count: int, *, start: int = 0) -> str:
    """The text of the scripted engine's tokens."""
    return "".join(f"{number:03d} " for number in range(start, start + count))


class Rig:
    """One provider, its engines and a key without limits. Made by `rig`."""

    def __init__(self, running: Provider, engines: Sequence[ScriptedEngine]) -> None:
        self.provider = running
        self.engines = list(engines)
        self.key = running.key()

    def set_prices(self) -> None:
        """PRICES for every model and tenant, from the beginning of time: nothing was used yet."""
        lines = ["[[price]]", 'currency = "EUR"', "valid_from = 2020-01-01"]
        lines += [f'{item} = "{text}"' for item, text in PRICES.items()]
        file = self.provider.data / "prices.toml"
        file.write_text("\n".join(lines))
        self.provider.cli("prices", "import", str(file))

    @property
    def engine(self) -> ScriptedEngine:
        """The only one."""
        (engine,) = self.engines
        return engine

    def set_faults(self, script: str) -> None:
        """The same script for every engine."""
        for engine in self.engines:
            engine.set_faults(script)

    def open(
        self,
        *,
        key: str = "",
        headers: str = "",
        path: str = CHAT,
        connection: socket.socket | None = None,
        **fields: Any,
    ) -> socket.socket:
        """Sends a request on a connection of its own, or on that one, which would be kept alive, and reads nothing yet."""
        question: dict[str, Any] = {"model": "scripted", "stream": True, **fields}
        if path == CHAT:
            question.setdefault("messages", [{"role": "user", "content": "hello"}])
        head = f"authorization: Bearer {key or self.key}\r\n{headers}"
        connection = connection or self.provider.connect(timeout_s=ANSWER_LIMIT_S)
        connection.sendall(wire.post(path, json.dumps(question).encode(), headers=head))
        return connection

    def ask(self, **fields: Any) -> Exchange:
        """One request and all of its answer; `stream` unless told otherwise."""
        with self.open(**fields) as connection:
            return read_answer(connection)

    def client(self, **options: Any) -> openai.OpenAI:
        """The official client; it retries nothing unless told to."""
        options = {"max_retries": 0, "timeout": ANSWER_LIMIT_S, **options}
        return openai.OpenAI(base_url=self.provider.url, api_key=self.key, **options)

    def records(self, *, limit: int = 10_000) -> list[UsageRecord]:
        """What the ledger holds, the newest first."""
        report = UsageReport(open_database(self.provider.data, must_exist=True))
        try:
            return report.requests(limit=limit)
        finally:
            report.close()

    def record(self, answer: Exchange | str) -> UsageRecord:
        """The one record of a recent request, by its answer or its id."""
        wanted = answer if isinstance(answer, str) else request_id(answer)
        found: list[UsageRecord] = wait_until(
            lambda: [record for record in self.records(limit=500) if record.request_id == wanted],
            what=f"the record of {wanted}",
        )
        (record,) = found
        check_charge(record)
        return record

    def executions(self, answer: Exchange | str) -> list[ExecutionRecord]:
        """The attempts behind an answer, by itself or by its id."""
        wanted = self.record(answer).request_id
        report = UsageReport(open_database(self.provider.data, must_exist=True))
        try:
            return report.executions(wanted)
        finally:
            report.close()

    def new_records(self, before: Sequence[UsageRecord], count: int) -> list[UsageRecord]:
        """The records since `before`, once there are that many; more would fail the caller's comparison."""
        known = {record.request_id for record in before}

        def fresh() -> list[UsageRecord]:
            found = [record for record in self.records() if record.request_id not in known]
            return found if len(found) >= count else []

        records: list[UsageRecord] = wait_until(fresh, what=f"{count} records")
        for record in records:
            check_charge(record)
        return records

    def is_idle(self) -> bool:
        """Whether nothing runs, nothing waits and no stream is open, as the provider itself says."""
        gauges = ("headrace_in_flight", "headrace_queue_length", "headrace_streams_open")
        metrics = self.provider.metrics()
        return not any(value for name, value in metrics.items() if name.partition("{")[0] in gauges)

    def wait_until_idle(self) -> None:
        """The law behind every test: what was taken is given back, by the provider and by the engines, and no bug showed."""
        wait_until(self.is_idle, what="in-flight, queue and streams to be 0")
        for engine in self.engines:
            if engine.process.poll() is None:
                engine.wait_for_stats(lambda stats: stats["running"] == stats["waiting"] == 0)
        wait_until(
            lambda: self.provider.metric("headrace_ledger_backlog") == 0, what="every record to be on disk"
        )
        bugs = self.bugs()
        assert not bugs, bugs
        assert self.provider.metric("headrace_internal_errors_total") == 0

    def bugs(self) -> list[dict[str, Any]]:
        """What the log says of errors that are ours."""
        events = ("internal.error", "library.warned")
        return [line for line in self.provider.log_lines() if line["event"] in events]


def check_charge(record: UsageRecord) -> None:
    """The law behind every record on a rig that was priced: its charge is what its ending, its counts and its price make."""
    if record.price_version:
        unit = Endpoint(record.endpoint).unit
        assert record.charge_pico == charging.charge(record.charge_rule, record.usage, RATES, unit=unit)
    else:
        assert record.charge_pico == 0


@contextmanager
def rig(
    *engines: dict[str, Any],
    config: str = "",
    upstream_slots: int | None = None,
    limits: str = NO_LIMITS,
    upstreams: Sequence[str] = (),
    program: Sequence[str] = HEADRACE,
) -> Iterator[Rig]:
    """A rig whose engines are started with these options of `scripted_engine`; `upstreams` are other servers behind it, and
    `program` runs instead of `headrace`."""
    with ExitStack() as stack:
        started = [stack.enter_context(scripted_engine(**options)) for options in engines]
        running = stack.enter_context(
            provider(
                upstreams=[*(engine.url for engine in started), *upstreams],
                config=config + limits,
                upstream_slots=upstream_slots,
                program=program,
            )
        )
        all_ready = len(started) + len(upstreams)
        wait_until(
            lambda: running.metric("headrace_replica_ready") == all_ready, what="every replica to be ready"
        )
        yield Rig(running, started)


def read_answer(connection: socket.socket, *, data: bytes = b"") -> Exchange:
    """All of an answer: until it is complete by its own framing ("open"), or the connection ends."""
    received = bytearray(data)
    connection.settimeout(ANSWER_LIMIT_S)
    while not is_whole(received):
        try:
            piece = connection.recv(1 << 20)
        except ConnectionResetError:
            return Exchange(bytes(received), "reset")
        if not piece:
            return Exchange(bytes(received), "fin")
        received += piece
    return Exchange(bytes(received), "open")


def is_whole(data: bytes | bytearray) -> bool:
    """Whether the answer is complete by its own framing."""
    head, end, body = bytes(data).partition(b"\r\n\r\n")
    if not end:
        return False
    if b"transfer-encoding: chunked" in head:
        return body.endswith(b"0\r\n\r\n") and Exchange(bytes(data), "open").is_complete
    return len(body) >= int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])


def read_events(connection: socket.socket, count: int) -> bytes:
    """Reads until at least that many events have come, and returns every byte so far."""
    data = b""
    connection.settimeout(ANSWER_LIMIT_S)
    while data.count(b"data: ") < count:
        piece = connection.recv(1 << 16)
        assert piece, f"the answer ended early: {data[-300:]!r}"
        data += piece
    return data


def header(answer: Exchange, name: str) -> str | None:
    """The value of a response header, or None."""
    for line in answer.head.decode().split("\r\n")[1:]:
        key, _, value = line.partition(": ")
        if key.lower() == name:
            return value
    return None


def request_id(answer: Exchange) -> str:
    found = header(answer, "x-request-id")
    assert found is not None, "every answer has an id"
    return found


def error_of(answer: Exchange) -> dict[str, Any]:
    """The error object of a whole error answer."""
    found: dict[str, Any] = json.loads(answer.body)["error"]
    return found


def assert_broken(answer: Exchange, *, text: str) -> None:
    """The promise of a stream that broke: what came came once, then one error event, no [DONE], and no end of the body."""
    assert answer.status == 200
    assert answer.text == text
    assert [("error" in event) for event in answer.events].count(True) == 1
    assert "error" in answer.events[-1]
    assert answer.events[-1]["error"]["request_id"] == request_id(answer)
    assert "[DONE]" not in answer.payloads
    assert answer.end == "fin"
    assert not answer.is_complete


def assert_delivered(answer: Exchange, *, text: str) -> None:
    """A whole stream: its text, one [DONE] at the end, a complete body, and the connection kept."""
    assert answer.status == 200
    assert answer.text == text
    assert answer.payloads.count("[DONE]") == 1
    assert answer.payloads[-1] == "[DONE]"
    assert answer.end == "open"


def elapsed_s(since_s: float) -> float:
    return time.monotonic() - since_s

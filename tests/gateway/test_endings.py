"""Every row of core/endings.py that one running service can show: what its caller sees byte by byte, the record, the attempts,
the metrics and the log line; streamed and whole, on a connection that is kept and on one that is closed."""

import socket
from collections.abc import Callable, Iterator

import pytest

from headrace.core.endings import Stage
from headrace.core.outcome import Reason
from tests.gateway.endings import (
    TOKENS,
    Row,
    Seen,
    Way,
    books,
    case_name,
    cases,
    check,
    read_to_end,
)
from tests.gateway.rig import CHAT, Rig, read_events, rig
from tests.support.provider import wait_until

UNSTARTED, WORKING, ANSWERING = Stage.UNSTARTED, Stage.WORKING, Stage.ANSWERING
LIMIT_S = 1.5
BURST_MAX = 100
CONFIG = f"""
[request]
first_event_limit_s = {LIMIT_S}
stall_limit_s = {LIMIT_S}

[server]
header_timeout_s = {LIMIT_S}
body_bytes_max = 65536

[health]
failures_to_eject = 1000000
rest_s = 0
"""


@pytest.fixture(scope="module")
def module_rig() -> Iterator[Rig]:
    with rig({"slots": 64}, config=CONFIG) as running:
        yield running


@pytest.fixture
def one(module_rig: Rig) -> Iterator[Rig]:
    """One engine with short limits; idle before and after each test."""
    module_rig.set_faults("")
    yield module_rig
    module_rig.wait_until_idle()


@pytest.fixture(scope="module")
def assembling() -> Iterator[Rig]:
    """An engine from which we stream whatever the caller asked for."""
    with rig({"slots": 64, "owned_by": "llamacpp"}, config=CONFIG) as running:
        yield running


# --- the replica, the deadline, and an answer that is whole ---

DEADLINE = "x-headrace-deadline-ms: 900\r\n"
# By row and whether it is streamed: the fault, how many events come before it, and further headers of the request.
FAULTS: dict[tuple[Row, bool], tuple[str, int, str]] = {
    ((Reason.OK, ANSWERING), True): ("", TOKENS, ""),
    ((Reason.OK, ANSWERING), False): ("", TOKENS, ""),
    ((Reason.DEADLINE, WORKING), True): ("ttft:20000", 0, DEADLINE),
    ((Reason.DEADLINE, WORKING), False): ("ttft:20000", 0, DEADLINE),
    ((Reason.DEADLINE, ANSWERING), True): ("stall:4", 4, DEADLINE),
    ((Reason.REJECTED, WORKING), True): ("error:400", 0, ""),
    ((Reason.REJECTED, WORKING), False): ("error:422", 0, ""),
    ((Reason.REJECTED, ANSWERING), True): ("error_event:4:400", 4, ""),
    ((Reason.BUSY, WORKING), True): ("error:429:0", 0, ""),
    ((Reason.BUSY, WORKING), False): ("error:503", 0, ""),
    ((Reason.BUSY, ANSWERING), True): ("error_event:4:503", 4, ""),
    ((Reason.UNREACHABLE, WORKING), True): ("refuse", 0, ""),
    ((Reason.UNREACHABLE, WORKING), False): ("cut:0", 0, ""),
    ((Reason.LOST, WORKING), True): ("head_only", 0, ""),
    ((Reason.LOST, WORKING), False): ("cut:1", 0, ""),
    ((Reason.LOST, ANSWERING), True): ("cut:4", 4, ""),
    ((Reason.TRUNCATED, WORKING), True): ("close:0", 0, ""),
    ((Reason.TRUNCATED, ANSWERING), True): ("close:4", 4, ""),
    ((Reason.STALLED, WORKING), True): ("stall:0", 0, ""),
    ((Reason.STALLED, WORKING), False): ("stall:1", 0, ""),
    ((Reason.STALLED, ANSWERING), True): ("stall:4", 4, ""),
    ((Reason.ERRED, WORKING), True): ("error_first:500", 0, ""),
    ((Reason.ERRED, WORKING), False): ("error:500", 0, ""),
    ((Reason.ERRED, ANSWERING), True): ("error_event:4", 4, ""),
    ((Reason.GARBAGE, WORKING), True): ("html", 0, ""),
    ((Reason.GARBAGE, WORKING), False): ("garbage", 0, ""),
    ((Reason.GARBAGE, ANSWERING), True): ("bad_event:4", 4, ""),
    ((Reason.OVERSIZED, WORKING), True): ("big:9000000, delta:1000", 0, ""),
    ((Reason.OVERSIZED, WORKING), False): ("json_huge:40000000", 0, ""),
    ((Reason.OVERSIZED, ANSWERING), True): ("big:9000000", TOKENS // 2, ""),
}
FAULT_CASES = [
    case for case in cases(dict.fromkeys(row for row, _ in FAULTS)) if (case[0], case[1].stream) in FAULTS
]


@pytest.mark.parametrize(("row", "way"), FAULT_CASES, ids=case_name)
def test_what_a_replica_does_ends_as_the_table_says(one: Rig, row: Row, way: Way) -> None:
    """T3, T36, REPORTS 3, 7, 34, 48."""
    faults, events, headers = FAULTS[row, way.stream]
    one.set_faults(faults)
    with (
        books(one, row) as before,
        one.open(stream=way.stream, headers=way.headers + headers) as connection,
    ):
        answer = read_to_end(connection, way)
        check(before, row, way, Seen(answer, events))


# --- the caller leaves ---

LEAVING = [(Reason.CLIENT_GONE, WORKING), (Reason.CLIENT_GONE, ANSWERING)]


@pytest.mark.parametrize(("row", "way"), cases(LEAVING), ids=case_name)
def test_a_caller_that_leaves_ends_as_the_table_says(one: Rig, row: Row, way: Way) -> None:
    """T5, REPORTS 21, 32."""
    is_answering = row[1] is ANSWERING
    one.set_faults("slow:100" if is_answering else "ttft:400")
    running = one.engine.stats()["running"]
    with books(one, row) as before:
        with one.open(stream=way.stream, headers=way.headers) as connection:
            if is_answering:
                read_events(connection, 2)
            else:
                one.engine.wait_for_stats(lambda stats: stats["running"] == running + 1)
        check(before, row, way, Seen())


# --- refused on arrival ---


def post(rig: Rig, way: Way, headers: str, body: bytes = b"{}", *, path: str = CHAT, key: str = "") -> bytes:
    stream = b',"stream":true}' if way.stream else b"}"
    body = body[:-1] + stream if body.endswith(b"}") and body != b"{}" else body
    if "content-length" not in headers:
        headers += f"content-length: {len(body)}\r\n"
    head = f"POST {path} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {key or rig.key}\r\n"
    return f"{head}{way.headers}{headers}\r\n".encode() + body


BODY = b'{"model":"scripted","messages":[{"role":"user","content":"hello"}]}'
# What to send, and whether the connection ends with the refusal because the message was not read to its end.
ARRIVALS: dict[Row, tuple[Callable[[Rig, Way], bytes], bool]] = {
    (Reason.INVALID_REQUEST, UNSTARTED): (lambda r, w: post(r, w, "", b'{"model":7}'), False),
    (Reason.UNAUTHENTICATED, UNSTARTED): (lambda r, w: post(r, w, "", BODY, key="hr_none"), True),
    (Reason.MODEL_NOT_FOUND, UNSTARTED): (
        lambda r, w: post(r, w, "", BODY.replace(b"scripted", b"other")),
        False,
    ),
    (Reason.NOT_FOUND, UNSTARTED): (lambda r, w: post(r, w, "", BODY, path="/v1/elsewhere"), True),
    (Reason.BODY_TOO_SLOW, UNSTARTED): (lambda r, w: post(r, w, "content-length: 1000\r\n", b"{"), True),
    (Reason.PAYLOAD_TOO_LARGE, UNSTARTED): (
        lambda r, w: post(r, w, "content-length: 100000\r\n", b"{"),
        True,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("row", "way"), cases(ARRIVALS), ids=case_name)
def test_what_is_refused_on_arrival_ends_as_the_table_says(one: Rig, row: Row, way: Way) -> None:
    message, closes = ARRIVALS[row]
    with books(one, row, has_account=False) as before, one.provider.connect() as connection:
        connection.sendall(message(one, way))
        answer = read_to_end(connection, way, closes=closes)
        check(before, row, way, Seen(answer), has_account=False, closes=closes)


# --- a tenant's limits ---


@pytest.fixture(scope="module")
def rare_key(module_rig: Rig) -> str:
    return module_rig.provider.key("rare", requests_per_minute=1)


@pytest.fixture(scope="module")
def single_key(module_rig: Rig) -> str:
    return module_rig.provider.key("single", concurrency=1, requests_per_minute=0)


@pytest.mark.slow
@pytest.mark.parametrize(("row", "way"), cases([(Reason.RATE_LIMITED, UNSTARTED)]), ids=case_name)
def test_a_spent_rate_ends_as_the_table_says(one: Rig, rare_key: str, row: Row, way: Way) -> None:
    key = rare_key
    assert any(one.ask(key=key).status == 429 for _ in range(BURST_MAX))
    with (
        books(one, row) as before,
        one.open(stream=way.stream, headers=way.headers, key=key) as connection,
    ):
        check(before, row, way, Seen(read_to_end(connection, way)))


@pytest.mark.slow
@pytest.mark.parametrize(("row", "way"), cases([(Reason.CONCURRENCY_LIMITED, UNSTARTED)]), ids=case_name)
def test_a_tenant_with_enough_in_progress_ends_as_the_table_says(
    one: Rig, single_key: str, row: Row, way: Way
) -> None:
    key = single_key
    one.set_faults("ttft:400@1")
    held: socket.socket = one.open(key=key)
    one.engine.wait_for_stats(lambda stats: stats["running"] == 1)
    with (
        held,
        books(one, row) as before,
        one.open(stream=way.stream, headers=way.headers, key=key) as connection,
    ):
        check(before, row, way, Seen(read_to_end(connection, way)))
    wait_until(one.is_idle, what="the one in progress to be over")


# --- an answer that is put together here ---


ASSEMBLED_CASES = [case for case in cases([(Reason.TRUNCATED, WORKING)]) if not case[1].stream]


@pytest.mark.parametrize(("row", "way"), ASSEMBLED_CASES, ids=case_name)
def test_an_assembled_answer_that_lacks_its_end_is_truncated(assembling: Rig, row: Row, way: Way) -> None:
    """T3: cut out of one piece, a whole answer is garbage; put together from a stream, it can end too early."""
    assembling.set_faults("close:4")
    with (
        books(assembling, row) as before,
        assembling.open(stream=False, headers=way.headers) as connection,
    ):
        check(before, row, way, Seen(read_to_end(connection, way)))


COVERED = {
    *FAULT_CASES,
    *cases(LEAVING),
    *cases(ARRIVALS),
    *cases([(Reason.RATE_LIMITED, UNSTARTED), (Reason.CONCURRENCY_LIMITED, UNSTARTED)]),
    *ASSEMBLED_CASES,
}

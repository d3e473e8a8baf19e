"""Every error that a caller can meet: one shape, one request id, and the headers that say what to do."""

import json
import socket
from collections.abc import Callable, Iterator

import pytest

from headrace.core import errors
from tests.edge.conftest import Edge, running_edge
from tests.support.http_answers import Answer, answers
from tests.support.wire import read

CONFIG = """
[server]
header_timeout_s = 0.5
[admission]
queue_length_max = 0
[request]
attempts_max = 1
[health]
failures_to_eject = 1000
"""
# What no caller provokes: `no_ready_replica` is in test_shutdown.py, `quota_unavailable` in
# app/test_shared_budgets.py, `client_gone` is only in logs and records, and
# the others are bugs or rights that no key lacks yet.
ELSEWHERE = {"no_ready_replica", "client_gone", "internal_error", "forbidden", "quota_unavailable"}
CHAT = "/v1/chat/completions"
BODY: dict[str, object] = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def small() -> Iterator[Edge]:
    """One slot, no queue, short patience."""
    with running_edge(config=CONFIG, upstream_slots=1) as running:
        yield running


def with_key(edge: Edge, key: str, body: object = BODY) -> Answer:
    return Edge(edge.engine, edge.service, key).post(CHAT, body)


def too_slow(edge: Edge) -> Answer:
    with edge.service.connect() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: test\r\n")
        (answer,) = answers(read(connection, silence_s=20).data)
    return answer


def rate_limited(edge: Edge) -> Answer:
    key = edge.service.key("slow", requests_per_minute=1, requests_burst=1)
    with_key(edge, key)
    return with_key(edge, key)


class Held:
    """A request of that key that holds the only slot until it is released."""

    def __init__(self, edge: Edge, key: str) -> None:
        self.edge = edge
        edge.engine.set_faults("ttft:60000@1")
        self.connection: socket.socket = edge.service.connect()
        body = json.dumps(BODY).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {key}\r\n"
        self.connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        edge.engine.wait_for_stats(lambda stats: stats["running"] == 1)

    def release(self) -> None:
        self.connection.close()
        self.edge.engine.set_faults("")
        self.edge.engine.wait_for_stats(lambda stats: stats["running"] == 0)


def concurrency_limited(edge: Edge) -> Answer:
    key = edge.service.key("narrow", requests_per_minute=0, concurrency=1)
    held = Held(edge, key)
    try:
        return with_key(edge, key)
    finally:
        held.release()


def quota_exhausted(edge: Edge) -> Answer:
    edge.service.cli("tenants", "create", "spent", "--quota", "requests/day=0", check=False)
    return with_key(edge, edge.service.key("spent"))


def saturated(edge: Edge) -> Answer:
    held = Held(edge, edge.key)
    try:
        return edge.post(CHAT, BODY)
    finally:
        held.release()


def with_fault(script: str, **headers: str) -> Callable[[Edge], Answer]:
    def provoke(edge: Edge) -> Answer:
        edge.engine.set_faults(script)
        try:
            return edge.post(CHAT, BODY, **headers)
        finally:
            edge.engine.set_faults("")

    return provoke


PROVOKED: dict[str, Callable[[Edge], Answer]] = {
    "invalid_request": lambda edge: edge.post(CHAT, {**BODY, "n": 0}),
    "unauthenticated": lambda edge: with_key(edge, "wrong"),
    "model_not_found": lambda edge: edge.post(CHAT, {**BODY, "model": "nothing"}),
    "not_found": lambda edge: edge.ask("GET", "/nothing"),
    "body_too_slow": too_slow,
    "payload_too_large": lambda edge: edge.post(CHAT, b"a" * 4_200_000),
    "rate_limited": rate_limited,
    "concurrency_limited": concurrency_limited,
    "quota_exhausted": quota_exhausted,
    "saturated": saturated,
    "deadline_exceeded": with_fault("ttft:60000", **{"x-headrace-deadline-ms": "50"}),
    "replica_failed": with_fault("error:500"),
}
CATALOGUE = {
    error.code: error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, errors.HeadraceError) and "code" in vars(error)
}


def test_every_code_is_provoked_here_or_named_as_an_exception() -> None:
    assert set(PROVOKED) | ELSEWHERE == set(CATALOGUE)


@pytest.mark.slow
@pytest.mark.parametrize("code", PROVOKED)
def test_an_error_has_the_promised_shape(small: Edge, code: str) -> None:
    expected = CATALOGUE[code]
    answer = PROVOKED[code](small)
    assert answer.status == expected.status
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json) == {"error"}
    assert set(answer.error) == {"message", "type", "param", "code", "request_id"}
    assert (answer.error["code"], answer.error["type"]) == (code, expected.type)
    assert answer.error["message"]
    assert answer.headers["x-request-id"] == answer.error["request_id"]
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.headers["x-headrace-reason"] == code
    assert (
        answer.headers.get("x-should-retry")
        == {True: "true", False: "false", None: None}[expected.should_retry]
    )
    assert ("retry-after" in answer.headers) == (expected.status in (429, 503))
    if "retry-after" in answer.headers:
        assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("code", ["saturated", "deadline_exceeded", "replica_failed", "invalid_request"])
def test_an_error_before_the_first_event_of_a_stream_has_its_real_status(small: Edge, code: str) -> None:
    provoke = {
        "quota_exhausted": quota_exhausted,
        "saturated": saturated,
        "deadline_exceeded": PROVOKED["deadline_exceeded"],
        "replica_failed": with_fault("error_first:500"),
        "invalid_request": with_fault("error_first:400"),
    }[code]
    BODY["stream"] = True
    try:
        answer = provoke(small)
    finally:
        del BODY["stream"]
    assert (answer.status, answer.error["code"]) == (CATALOGUE[code].status, code)


def test_every_answer_has_a_request_id_of_its_own(edge: Edge) -> None:
    """A caller's own is never taken over: two tenants may send the same."""
    theirs = {"x-request-id": "req_mine"}
    found = [
        edge.ask("GET", "/livez", **theirs), edge.ask("GET", "/readyz", **theirs), edge.ask("GET", "/v1/models", **theirs),
        edge.ask("GET", "/v1/models/scripted", **theirs), edge.ask("GET", "/nothing", **theirs), edge.post(CHAT, BODY, **theirs),
        edge.post(CHAT, {**BODY, "stream": True}, **theirs), edge.post("/v1/embeddings", {"model": "scripted", "input": "a"}, **theirs),
    ]  # fmt: skip
    ids = [answer.headers["x-request-id"] for answer in found]
    assert len(set(ids)) == len(found)
    assert "req_mine" not in ids


def test_an_answer_names_the_revision_of_its_model(edge: Edge) -> None:
    for fields in ({}, {"stream": True}):
        assert edge.post(CHAT, {**BODY, **fields}).headers["x-headrace-model-revision"] == "unpinned"


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "soon", "", "1e3", "9999999999", "٣"])
def test_a_deadline_must_be_a_number_of_milliseconds(edge: Edge, value: str) -> None:
    answer = edge.post(CHAT, BODY, **{"x-headrace-deadline-ms": value.encode().decode("latin-1")})
    assert (answer.status, answer.error["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("value", ["1000", "999999999"])
def test_a_deadline_is_accepted_and_clamped(edge: Edge, value: str) -> None:
    assert edge.post(CHAT, BODY, **{"x-headrace-deadline-ms": value}).status == 200

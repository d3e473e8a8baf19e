"""A key opens what it's for, from where it may be used, and nothing else; when it was last used is known."""

import http.client
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from headrace.stores import sqlite as stores_sqlite
from tests.edge.conftest import Edge, running_edge
from tests.support.provider import wait_until
from tests.support.websocket import ask, dial, handshake, refused

# A proxy of ours, and somebody else's machine: all of 127.0.0.0/8 is this host on Linux.
PROXY, ELSEWHERE = "127.0.0.3", "127.0.0.2"
CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
HELLO = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def scoped() -> Iterator[Edge]:
    with running_edge(
        config=f'[server]\ntrusted_proxies = ["{PROXY}/32", "127.0.0.4/31"]\n',
        models=("scripted", "org/model"),
    ) as running:
        yield running


def key(edge: Edge, *options: str) -> str:
    """A new key, in force when this returns."""
    return edge.service.cli("keys", "create", "--tenant", "unlimited", *options).stdout.strip()


def post(
    edge: Edge,
    key: str,
    path: str = CHAT,
    *,
    source: str = "127.0.0.1",
    forwarded: tuple[str, ...] = (),
    **fields: Any,
) -> tuple[int, dict[str, Any]]:
    """One request from that source address, with these lines of X-Forwarded-For."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", edge.service.port, timeout=60, source_address=(source, 0)
    )
    body = json.dumps({**HELLO, **fields}).encode()
    try:
        connection.putrequest("POST", path)
        connection.putheader("authorization", f"Bearer {key}")
        connection.putheader("content-length", str(len(body)))
        for line in forwarded:
            connection.putheader("X-Forwarded-For", line)
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def code(answer: tuple[int, dict[str, Any]]) -> tuple[int, str]:
    return answer[0], answer[1].get("error", {}).get("code", "")


# Networks


def test_a_key_for_a_network_works_there_and_nowhere_else(scoped: Edge) -> None:
    narrow = key(scoped, "--network", f"{ELSEWHERE}/32")
    assert code(post(scoped, narrow, source=ELSEWHERE)) == (200, "")
    assert code(post(scoped, narrow, source="127.0.0.1")) == (403, "forbidden")
    assert scoped.service.metric("headrace_refusals_total", code="forbidden", reason="network") >= 1


def test_a_caller_can_not_say_that_it_is_elsewhere(scoped: Edge) -> None:
    narrow = key(scoped, "--network", f"{ELSEWHERE}/32")
    for line in (ELSEWHERE, f"{ELSEWHERE}, {ELSEWHERE}", f"{PROXY}, {ELSEWHERE}"):
        assert code(post(scoped, narrow, forwarded=(line,))) == (403, "forbidden")


def test_behind_a_trusted_proxy_the_address_is_the_last_one_that_it_heard(scoped: Edge) -> None:
    """In however many lines: a second line of the header is what the nearest proxy added."""
    narrow = key(scoped, "--network", f"{ELSEWHERE}/32")
    for good in ((ELSEWHERE,), ("8.8.8.8, " + ELSEWHERE,), ("8.8.8.8", ELSEWHERE), (ELSEWHERE, "127.0.0.4")):
        assert code(post(scoped, narrow, source=PROXY, forwarded=good)) == (200, ""), good
    for bad in ((), ("8.8.8.8",), (ELSEWHERE, "8.8.8.8"), (f"{ELSEWHERE}, 8.8.8.8",), ("unknown",)):
        assert code(post(scoped, narrow, source=PROXY, forwarded=bad)) == (403, "forbidden"), bad


def test_who_uses_a_stolen_key_from_elsewhere_learns_nothing_and_is_in_the_log(scoped: Edge) -> None:
    """Not even whether a path exists; the key's id is in the log, so that somebody can look into it."""
    narrow = key(scoped, "--network", f"{ELSEWHERE}/32")
    assert code(post(scoped, narrow, "/no/such/path")) == (403, "forbidden")
    line = wait_until(
        lambda: [
            line
            for line in scoped.service.log_lines()
            if line["event"] == "request.refused" and line.get("key_id") == narrow[8:16]
        ],
        what="the refusal in the log",
    )[-1]
    assert (line["reason"], line["tenant"], line["status"]) == ("network", "unlimited", 403)


def test_a_connection_that_stays_open_is_judged_by_each_key_that_comes_on_it(scoped: Edge) -> None:
    """T39: also where the head is the same but for the key, and where it is the same altogether."""
    narrow, wide = key(scoped, "--network", f"{ELSEWHERE}/32"), key(scoped)
    connection = http.client.HTTPConnection("127.0.0.1", scoped.service.port, timeout=60)
    seen = []
    try:
        for each in (wide, wide, wide):
            connection.request("POST", CHAT, json.dumps(HELLO), {"authorization": f"Bearer {each}"})
            answer = connection.getresponse()
            answer.read()
            seen.append(answer.status)
        connection.request("POST", CHAT, json.dumps(HELLO), {"authorization": f"Bearer {narrow}"})
        seen.append(connection.getresponse().status)
    finally:
        connection.close()
    assert seen == [200, 200, 200, 403]


# Endpoints and models


def test_a_key_for_an_endpoint_is_for_no_other(scoped: Edge) -> None:
    narrow = key(scoped, "--endpoint", CHAT)
    assert code(post(scoped, narrow)) == (200, "")
    before = scoped.requests()
    status, body = post(scoped, narrow, EMBEDDINGS, input="hello")
    assert (status, body["error"]["code"], EMBEDDINGS in body["error"]["message"]) == (403, "forbidden", True)
    assert scoped.requests() == before
    assert scoped.service.get("/v1/models", key=narrow)[0] == 200


def test_a_model_that_a_key_is_not_for_does_not_exist(scoped: Edge) -> None:
    narrow = key(scoped, "--model", "scripted", "--model", "not-yet")
    assert code(post(scoped, narrow)) == (200, "")
    hidden, unknown = post(scoped, narrow, model="org/model"), post(scoped, narrow, model="org/nodel")
    assert code(hidden) == code(unknown) == (404, "model_not_found")
    assert hidden[1]["error"]["message"].replace("org/model", "org/nodel") == unknown[1]["error"]["message"]
    listed = json.loads(scoped.service.get("/v1/models", key=narrow)[2])
    assert [model["id"] for model in listed["data"]] == ["scripted"]
    assert scoped.service.get("/v1/models/scripted", key=narrow)[0] == 200
    assert scoped.service.get("/v1/models/org%2Fmodel", key=narrow)[0] == 404
    assert scoped.service.get("/v1/models/org%2Fmodel", key=scoped.key)[0] == 200


def test_a_large_body_is_judged_like_a_small_one(scoped: Edge) -> None:
    """It's parsed in another process."""
    narrow = key(scoped, "--model", "scripted")
    messages = [{"role": "user", "content": "x" * 300_000}]
    assert code(post(scoped, narrow, model="org/model", messages=messages)) == (404, "model_not_found")
    assert code(post(scoped, narrow, messages=messages)) == (200, "")


def test_a_websocket_is_judged_by_network_endpoint_and_model(scoped: Edge) -> None:
    port = scoped.service.port
    for narrow in (
        key(scoped, "--network", f"{ELSEWHERE}/32"),
        key(scoped, "--endpoint", "/v1/completions"),
    ):
        assert refused(port, handshake(key=narrow)).status == 403
    with dial(port, key=key(scoped, "--model", "scripted", "--endpoint", CHAT)) as connection:
        assert ask(connection).end["object"] == "headrace.done"
        assert ask(connection, model="org/model").end["error"]["code"] == "model_not_found"
        assert ask(connection).end["object"] == "headrace.done"


# Uses


def test_whom_a_key_is_for_stands_in_the_records_of_its_requests(scoped: Edge) -> None:
    labelled = key(scoped, "--user", "search-team")
    post(scoped, labelled)
    rows = wait_until(
        lambda: [row for row in scoped.service.usage() if row["key_id"] == labelled[8:16]],
        what="the record of the request",
    )
    assert [row["user"] for row in rows] == ["search-team"]


def test_a_key_that_the_running_version_can_not_read_opens_nothing_and_is_told_of(scoped: Edge) -> None:
    """T39: and it doesn't keep the service from hearing that another was revoked."""
    unreadable, other = key(scoped), key(scoped)
    with closing(sqlite3.connect(scoped.service.data / stores_sqlite.DATABASE_NAME)) as by_hand, by_hand:
        by_hand.execute(
            """UPDATE api_key SET terms = '{"moons": ["full"]}' WHERE id = ?""", (unreadable[8:16],)
        )
    try:
        wait_until(lambda: post(scoped, unreadable)[0] == 401, what="the key to be left out")
        assert post(scoped, other)[0] == 200
        scoped.service.cli("keys", "revoke", other[8:16], check=False)
        wait_until(lambda: post(scoped, other)[0] == 401, what="the other to be revoked")
        wait_until(
            lambda: [
                line
                for line in scoped.service.log_lines()
                if line["event"] == "keys.failing" and unreadable[8:16] in line["error"]
            ],
            what="the line in the log",
        )
    finally:
        with closing(sqlite3.connect(scoped.service.data / stores_sqlite.DATABASE_NAME)) as by_hand, by_hand:
            by_hand.execute("UPDATE api_key SET terms = '{}' WHERE id = ?", (unreadable[8:16],))


@pytest.mark.slow
def test_when_a_key_was_last_used_is_known_within_seconds_and_survives_the_service() -> None:
    with running_edge() as edge:
        service = edge.service
        used, listed, unused = (key(edge) for _ in range(3))
        post(edge, used)
        service.get("/v1/models", key=listed)

        def uses() -> dict[str, str | None]:
            rows = json.loads(service.cli("keys", "list", "--json").stdout)
            return {row["id"]: row["used"] for row in rows}

        first = wait_until(lambda: uses()[used[8:16]], what="the use to be written down")
        assert uses()[listed[8:16]]
        assert uses()[unused[8:16]] is None
        post(edge, used)
        service.stop()  # what hasn't been written down yet is written at the end
        assert str(uses()[used[8:16]]) > first

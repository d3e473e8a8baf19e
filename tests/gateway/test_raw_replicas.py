"""Replicas that misbehave below HTTP: each costs its own request at most, never an answer of another or a bug of ours."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.gateway.rig import CHAT, NO_LIMITS, error_of, rig
from tests.support import wire
from tests.support.http_answers import read_answers
from tests.support.raw_replica import RawReplica, raw_replica

pytestmark = pytest.mark.slow

NEVER_EJECTS = "[health]\nfailures_to_eject = 1000000\n"
IDLE_MAX_S = 4.0  # engines.http: after it the next request opens a connection of its own


def question(key: str, text: str, *, headers: str = "") -> bytes:
    body: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": text}]}
    return wire.post(CHAT, json.dumps(body).encode(), headers=f"authorization: Bearer {key}\r\n{headers}")


def rig_before(replica: RawReplica) -> Any:
    return rig(config=NEVER_EJECTS, limits=NO_LIMITS, upstreams=[replica.url])


def test_a_second_answer_in_one_read_is_nobodys() -> None:
    """Not the next caller's, whose request may already wait to be sent, and no reason to lend the connection twice."""
    with raw_replica() as replica, rig_before(replica) as running:
        replica.answers_twice = True
        asked = [f"question {number}" for number in range(4)]
        pipelined = b"".join(question(running.key, text) for text in asked)
        with running.provider.connect() as connection:
            connection.sendall(pipelined)
            data = read_answers(connection, count=len(asked), silence_s=1.0).data
        for text in asked:
            assert data.count(text.encode()) == 1
        assert b"nobody asked" not in data
        with ThreadPoolExecutor(8) as callers:
            answers = list(callers.map(lambda _: running.provider.chat(running.key), range(40)))
        assert {status for status, _, _ in answers} == {200}
        assert not any(b"nobody asked" in body for _, _, body in answers)
        running.wait_until_idle()


def test_a_connection_reset_as_it_is_accepted_is_an_unreachable_replica() -> None:
    """T17: between the moment that it is open and the moment that the request is sent, it may be gone."""
    with raw_replica() as replica, rig_before(replica) as running:
        time.sleep(IDLE_MAX_S)  # the stimulus: no kept connection is used any more
        replica.resets = True
        with ThreadPoolExecutor(8) as callers:
            answers = list(callers.map(lambda _: running.provider.chat(running.key), range(160)))
        assert {status for status, _, _ in answers} == {502}
        running.wait_until_idle()


def test_a_deadline_holds_while_a_connection_is_opened() -> None:
    """T27: nobody answers, not even with a refusal; the connect timeout is ten times as long."""
    with raw_replica(backlog=0) as replica, rig_before(replica) as running:
        time.sleep(IDLE_MAX_S)
        replica.stop_accepting(8)
        started_s = time.monotonic()
        with running.provider.connect() as connection:
            connection.sendall(question(running.key, "hello", headers="x-headrace-deadline-ms: 500\r\n"))
            answer = wire.read(connection, until=b"}}")
        assert (answer.status, error_of(answer)["code"]) == (504, "deadline_exceeded")
        assert 0.4 < time.monotonic() - started_s < 4.5
        assert running.record(answer).reason == "deadline_exceeded"

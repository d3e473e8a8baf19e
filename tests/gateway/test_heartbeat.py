"""Silence before the first token: comment lines keep the connection alive, and promise nothing."""

import re
from collections.abc import Iterator

import pytest

from tests.gateway.rig import Rig, assert_delivered, error_of, read_answer, rig, words
from tests.support.wire import Exchange

TEXT = words(20)
HEARTBEAT_S = 0.2
TTFT_S = 0.9
CONFIG = f"[request]\nheartbeat_s = {HEARTBEAT_S}\nretry_floor_per_s = 1000\n[health]\nfailures_to_eject = 1000000\n"
SLOW = f"ttft:{int(TTFT_S * 1000)}"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def slow_rig() -> Iterator[Rig]:
    with rig({"slots": 64}, {"slots": 64}, config=CONFIG) as running:
        yield running


@pytest.fixture
def slow(slow_rig: Rig) -> Iterator[Rig]:
    """Two replicas that take their time."""
    slow_rig.set_faults(SLOW)
    yield slow_rig
    slow_rig.wait_until_idle()


def comments(answer: Exchange) -> int:
    return len(re.findall(rb"^: ", answer.body, re.MULTILINE))


def test_comment_lines_come_until_the_answer_does_and_are_no_first_token(slow: Rig) -> None:
    """T6b, REPORTS 9: and the time to the first token in the ledger is that of the answer."""
    answer = slow.ask()
    assert_delivered(answer, text=TEXT)
    assert comments(answer) >= 1
    assert answer.body.startswith(b": ")
    record = slow.record(answer)
    assert record.ttft_s is not None
    assert record.ttft_s >= TTFT_S - 0.05


def test_the_official_client_does_not_notice_comment_lines(slow: Rig) -> None:
    with slow.client() as client:
        stream = client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "hello"}], stream=True
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == TEXT


def test_after_a_comment_line_a_failure_is_still_tried_elsewhere(slow: Rig) -> None:
    """A comment is nothing of the answer: the promise to retry holds, and no text comes twice."""
    slow.engines[0].set_faults(f"{SLOW}, error_first:503")
    connections = [slow.open() for _ in range(12)]
    answers = [read_answer(connection) for connection in connections]
    for connection, answer in zip(connections, answers, strict=True):
        connection.close()
        assert_delivered(answer, text=TEXT)
        assert comments(answer) >= 1
    assert 2 in {len(slow.executions(answer)) for answer in answers}


@pytest.mark.parametrize(("code", "expected"), [(400, "invalid_request"), (500, "replica_failed")])
def test_an_error_after_comment_lines_is_an_error_event(slow: Rig, code: int, expected: str) -> None:
    """The status is gone, so the error comes as in a broken stream; but nothing of an answer was delivered."""
    slow.set_faults(f"{SLOW}, error_first:{code}")
    answer = slow.ask()
    assert answer.status == 200
    assert [event["error"]["code"] for event in answer.events] == [expected]
    assert "[DONE]" not in answer.payloads
    assert (answer.end, answer.is_complete) == ("fin", False)
    record = slow.record(answer)
    assert (record.outcome, record.ttft_s) == ("failed", None)


def test_a_deadline_after_comment_lines_is_an_error_event(slow: Rig) -> None:
    slow.set_faults("ttft:30000")
    answer = slow.ask(headers="x-headrace-deadline-ms: 700\r\n")
    assert [event["error"]["code"] for event in answer.events] == ["deadline_exceeded"]


def test_a_whole_answer_has_no_room_for_comment_lines(slow: Rig) -> None:
    slow.set_faults(f"{SLOW}, error_first:400")
    answer = slow.ask(stream=False)
    assert answer.status == 400
    assert error_of(answer)["code"] == "invalid_request"

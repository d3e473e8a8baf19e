"""An Idempotency-Key: the work is done once, and who asks again gets the same answer, which costs nothing."""

from typing import Any

import pytest

from tests.gateway.rig import Rig, error_of, header, read_answer, request_id, rig
from tests.support.wire import Exchange

SMALL = "[idempotency]\nanswer_bytes_max = 200\n"


def ask(running: Rig, name: str, **fields: Any) -> Exchange:
    return running.ask(headers=f"idempotency-key: {name}\r\n", **fields)


def worked(running: Rig) -> int:
    return running.engine.stats()["requests"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_second_request_gets_the_first_one_s_answer_byte_for_byte(solo: Rig, stream: bool) -> None:
    """Not billed, not counted as an attempt, and told apart by a header that names the request that did the work."""
    before, known = worked(solo), solo.records()
    first = ask(solo, f"twice-{stream}", stream=stream)
    again = [ask(solo, f"twice-{stream}", stream=stream) for _ in range(3)]
    assert first.status == 200
    assert header(first, "x-headrace-idempotent-replay") is None
    for answer in again:
        assert (answer.status, answer.body) == (200, first.body)
        assert header(answer, "content-type") == header(first, "content-type")
        assert header(answer, "x-headrace-idempotent-replay") == "true"
        assert header(answer, "x-headrace-original-request-id") == request_id(first)
        assert request_id(answer) != request_id(first)
        assert header(answer, "x-headrace-model-revision") == header(first, "x-headrace-model-revision")
    assert worked(solo) == before + 1
    assert [record.request_id for record in solo.new_records(known, 1)] == [request_id(first)]


def test_a_key_that_was_used_for_another_request_is_refused(solo: Rig) -> None:
    """Whatever differs: a field, the model's endpoint, or whether it is streamed."""
    assert ask(solo, "other").status == 200
    for fields in ({"max_tokens": 3}, {"stream": False}, {"stream_options": {"include_usage": True}}):
        answer = ask(solo, "other", **fields)
        assert (answer.status, error_of(answer)["param"]) == (400, "Idempotency-Key")
        assert header(answer, "x-should-retry") == "false"


def test_another_tenant_s_keys_are_another_s(solo: Rig) -> None:
    """T41."""
    theirs = solo.provider.key("idempotent-neighbour")
    before = worked(solo)
    answers = [ask(solo, "shared", key=key) for key in (solo.key, theirs)]
    assert [header(answer, "x-headrace-idempotent-replay") for answer in answers] == [None, None]
    assert worked(solo) == before + 2


def test_while_the_first_runs_a_second_is_told_to_come_back_and_then_gets_its_answer(solo: Rig) -> None:
    """429 with Retry-After, which clients of OpenAI follow by themselves."""
    solo.set_faults("slow:20")
    with solo.open(headers="idempotency-key: running\r\n") as connection:
        data = connection.recv(1 << 16)
        second = ask(solo, "running")
        assert (second.status, error_of(second)["code"]) == (429, "concurrency_limited")
        assert (header(second, "retry-after"), header(second, "x-should-retry")) == ("1", "true")
        first = read_answer(connection, data=data)
    assert ask(solo, "running").body == first.body


@pytest.mark.parametrize("fault", ["error:500", "cut:3", "error:400"])
def test_who_got_no_answer_may_ask_again_with_the_same_key(solo: Rig, fault: str) -> None:
    solo.set_faults(f"{fault}@1")
    first, second = ask(solo, f"failed-{fault}"), ask(solo, f"failed-{fault}")
    assert "[DONE]" not in first.payloads if first.status == 200 else first.status >= 400
    assert (second.status, second.payloads[-1]) == (200, "[DONE]")
    assert header(second, "x-headrace-idempotent-replay") is None


def test_a_caller_that_left_may_ask_again_with_the_same_key(solo: Rig) -> None:
    solo.set_faults("stall:2@1")
    with solo.open(headers="idempotency-key: left\r\n") as connection:
        assert connection.recv(1 << 16)
    solo.wait_until_idle()
    assert ask(solo, "left").payloads[-1] == "[DONE]"


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_too_large_to_be_kept_is_delivered_and_then_said_to_be(stream: bool) -> None:
    with rig({"slots": 4}, config=SMALL) as running:
        assert ask(running, "large", stream=stream).status == 200
        again = ask(running, "large", stream=stream)
        assert (again.status, error_of(again)["param"]) == (400, "Idempotency-Key")
        assert "200 bytes was not kept" in error_of(again)["message"]
        assert worked(running) == 1
        running.wait_until_idle()


@pytest.mark.parametrize("key", ["", "x" * 256, "caf\u00e9"])
def test_what_is_no_key_is_refused(solo: Rig, key: str) -> None:
    answer = ask(solo, key)
    assert (answer.status, error_of(answer)["param"]) == (400, "Idempotency-Key")

"""Streams that are many, or long: what fits is served to its end, what doesn't is told so, and the process stays."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.gateway.rig import Rig, assert_delivered, error_of, read_answer, rig, words
from tests.support.wire import Exchange

SLOTS, QUEUE_MAX = 50, 20
CONFIG = f"[admission]\nqueue_length_max = {QUEUE_MAX}\n"
STREAM_BYTES_MAX = 60 * 1024


def resident_bytes(running: Rig) -> int:
    status = Path(f"/proc/{running.provider.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [300, pytest.param(1200, marks=pytest.mark.long)])
def test_more_streams_than_fit_are_shed_by_the_limit_and_the_process_stays(count: int) -> None:
    """REPORTS 92, T11: slots and queue are full, the rest is refused at once; nothing is left of any of them."""
    with rig({"slots": SLOTS, "itl_ms": 20}, config=CONFIG, upstream_slots=SLOTS) as running:
        assert running.ask().status == 200
        before = resident_bytes(running)
        with ExitStack() as stack:
            streams = [stack.enter_context(running.open()) for _ in range(count)]
            answers: list[Exchange] = [read_answer(stream) for stream in streams]
            assert resident_bytes(running) - before <= count * STREAM_BYTES_MAX + 16 * 1024 * 1024
        served = [answer for answer in answers if answer.status == 200]
        refused = [answer for answer in answers if answer.status != 200]
        assert len(served) >= SLOTS + QUEUE_MAX
        for answer in served:
            assert_delivered(answer, text=words(20))
        assert {(answer.status, error_of(answer)["code"]) for answer in refused} == {(503, "saturated")}
        assert running.ask().status == 200
        running.wait_until_idle()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("itl_ms", [1, pytest.param(30, marks=pytest.mark.long)])
@pytest.mark.parametrize("stream", [True, False])
def test_a_stream_of_two_thousand_events_ends_with_its_reason_and_done(stream: bool, itl_ms: int) -> None:
    """REPORTS 11: in full over 60 seconds; also where we assemble a whole answer from the stream."""
    with rig({"itl_ms": itl_ms, "tokens": 2000, "owned_by": "llamacpp"}) as running:
        text = 2 * words(1000)  # the engine's words begin again after a thousand
        answer = running.ask(stream=stream)
        assert answer.status == 200
        if stream:
            assert_delivered(answer, text=text)
            assert [event["choices"][0]["finish_reason"] for event in answer.events if event["choices"]][
                -1
            ] in ("stop", "length")
        else:
            assert text.rstrip() in answer.body.decode()
        running.wait_until_idle()

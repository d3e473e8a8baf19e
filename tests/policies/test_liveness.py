"""What counts as a sign of life, and what doesn't."""

import pytest

from headrace.policies.liveness import Liveness

BUSY = {"requests_processing": 1.0, "n_decode_total": 5.0}


def test_an_idle_engine_that_answers_is_alive_without_any_progress() -> None:
    liveness = Liveness(now_s=0.0)
    for now_s in (10.0, 20.0):
        liveness.scraped({"requests_processing": 0.0, "n_decode_total": 5.0}, now_s=now_s)
    assert liveness.silent_for_s(now_s=25.0) == 5.0


def test_a_busy_engine_is_alive_while_a_counter_moves() -> None:
    liveness = Liveness(now_s=0.0)
    liveness.scraped(BUSY, now_s=10.0)
    liveness.scraped(BUSY | {"n_decode_total": 6.0}, now_s=20.0)
    assert liveness.silent_for_s(now_s=20.0) == 0.0


@pytest.mark.parametrize("waiting", ["requests_processing", "requests_deferred"])
def test_work_that_waits_while_nothing_moves_is_silence(waiting: str) -> None:
    """T20: the metrics page answers, the engine doesn't work. A gauge that changes is no progress."""
    liveness = Liveness(now_s=0.0)
    for now_s in (10.0, 20.0, 30.0):
        liveness.scraped({waiting: now_s, "n_decode_total": 5.0}, now_s=now_s)
    assert liveness.silent_for_s(now_s=30.0) == 20.0


def test_an_answered_canary_is_a_sign_of_life() -> None:
    liveness = Liveness(now_s=0.0)
    liveness.answered(now_s=50.0)
    assert liveness.silent_for_s(now_s=60.0) == 10.0

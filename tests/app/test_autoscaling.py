"""Replicas follow the load of a real service, and nobody loses a request by it."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.fleet import NAME, Fleet, deployment, fleet
from tests.support.models import shared_root, shared_store
from tests.support.provider import wait_until

pytestmark = pytest.mark.slow

# Everything within seconds: half a second is what a test of ours may take to see its callers.
QUICK: dict[str, Any] = {
    "min": 1, "max": 2, "window_s": 3, "target": {"inflight": 2}, "panic": {"window_s": 2, "ratio": 50},
    "down": {"delay_s": 4, "max_step": 1, "margin": 0.9},
}  # fmt: skip


def sized(running: Fleet, replicas: int) -> None:
    running.until_ready(*["chat@v1"] * replicas)


def decided(running: Fleet, reason: str) -> list[dict[str, Any]]:
    """Log lines of decisions with that reason."""
    lines = running.service.log_lines()
    return [line for line in lines if line["event"] == "scale.decided" and line["reason"] == reason]


def test_two_replicas_come_with_the_load_and_one_goes_with_it_and_no_request_is_lost() -> None:
    """T57. One, two, one; the callers of the second part go on while one of the two is drained."""
    with fleet() as running:
        running.apply(slots=4, ttft_ms=150, itl_ms=20, tokens=8, sections={"scale": QUICK})
        sized(running, 1)
        with running.callers(6) as busy:
            sized(running, 2)
        with running.callers(1, pause_s=0.2) as calm:
            sized(running, 1)
        assert busy.statuses == calm.statuses == {"200"}, (busy.outcomes, calm.outcomes)
        assert calm.count > 10
        assert len(running.engines()) == 1
        assert running.service.metric("headrace_scale_replicas_wanted", target="chat@v1") == 1
        assert [line["replicas"] for line in decided(running, "load_down")] == [1]
        assert [line["replicas"] for line in decided(running, "load_up")] == [2]


def test_a_first_request_starts_a_replica_and_what_it_has_no_slot_for_is_told_how_long_that_takes() -> None:
    """T58, REPORTS 81. Of twelve that come while there is none, the four that it has slots for are held and answered by one
    start; the others hear when to come back, which is what a start was measured to take."""
    scale = {
        "min": 0,
        "max": 1,
        "window_s": 2,
        "idle_to_zero_s": 1,
        "panic": {"window_s": 1},
        "down": {"delay_s": 2},
    }
    with fleet() as running:
        running.apply(answer="one", slots=4, load_s=3, ttft_ms=100, sections={"scale": scale})
        running.until_answered("one", limit_s=60)
        wait_until(lambda: not running.replicas(), what="zero replicas")
        answers: list[tuple[int, dict[str, str]]] = []

        def ask() -> None:
            status, headers, _ = running.service.chat(running.key, model=NAME)
            answers.append((status, headers))

        callers = [threading.Thread(target=ask) for _ in range(12)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(60)
        assert Counter(status for status, _ in answers) == {200: 4, 503: 8}
        waits = [int(headers["retry-after"]) for status, headers in answers if status == 503]
        assert all(2 <= wait_s <= 30 for wait_s in waits), waits
        assert [line["replicas"] for line in decided(running, "from_zero")] == [1], (
            "one start for all of them"
        )


def test_where_the_day_could_not_be_paid_nothing_more_is_started_and_the_reason_is_told() -> None:
    """Whoever is added stays for a minute at least: the day pays that for one replica, and not for two."""
    scale = QUICK | {"min": 0, "idle_to_zero_s": 600, "down": {"delay_s": 60}}
    budget = {"replica_hour": "1000.00", "per_day": "33.50"}
    with fleet() as running:
        running.apply(answer="one", slots=4, ttft_ms=300, sections={"scale": scale, "budget": budget})
        running.until_answered("one")
        with running.callers(6) as busy:
            wait_until(lambda: decided(running, "budget"), what="a decision about money")
        assert busy.statuses == {"200"}, busy.outcomes
        assert running.ready() == ["chat@v1"]
        assert len(running.engines()) == 1


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_real_engines_come_and_go_with_the_load_and_no_answer_is_lost(tmp_path: Path) -> None:
    """The embedded engine and a real model: one, two, one, under load all the time."""
    shared_store()
    (tmp_path / "models").symlink_to(shared_root())
    config = '[engine]\nchat_model = ""\nembedding_model = ""\n'
    text = deployment(
        args={"slots": 2, "context_tokens": 512, "threads": 1}, scale=QUICK | {"target": {"inflight": 1}}
    ).replace('"scripted"', '"embedded"').replace(
        "[revision.args]", '[revision]\nweights = { uri = "smollm2-135m-instruct" }\n[revision.args]'
    )  # fmt: skip
    with fleet(config=config, data=tmp_path) as running:
        running.apply_file(text)
        wait_until(lambda: running.ready() == ["chat@v1"], limit_s=180, what="a first replica")
        with asking(running, 4) as busy:
            wait_until(lambda: running.ready() == ["chat@v1"] * 2, limit_s=180, what="a second replica")
        with asking(running, 1, pause_s=0.5) as calm:
            wait_until(lambda: len(running.replicas()) == 1, limit_s=180, what="one replica")
        assert set(busy) == set(calm) == {200}, (busy, calm)
        assert len(running.engines()) == 1


@contextmanager
def asking(running: Fleet, count: int, *, pause_s: float = 0.0) -> Iterator[Counter[int]]:
    """So many callers that ask for short answers all the time; how they ended."""
    ended: Counter[int] = Counter()
    stop, lock = threading.Event(), threading.Lock()

    def ask() -> None:
        while not stop.wait(pause_s):
            status, _ = running.ask(max_tokens=24)
            with lock:
                ended[status] += 1

    callers = [threading.Thread(target=ask) for _ in range(count)]
    for caller in callers:
        caller.start()
    try:
        yield ended
    finally:
        stop.set()
        for caller in callers:
            caller.join(120)

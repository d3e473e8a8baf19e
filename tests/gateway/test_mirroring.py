"""Copies of delivered requests run on a candidate: compared, recorded, unpaid, and never in anybody's way."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from headrace.core.fleet import PPM
from headrace.core.load import TargetLoad
from headrace.core.usage import UsageRecord
from tests.gateway.rig import assert_delivered, read_answer, read_events, words
from tests.gateway.test_routes import ask, version
from tests.support.provider import wait_until
from tests.support.routes import NAME, RoutedRig, routed_rig

ALL = {"mirror": {"target": f"{NAME}@v2", "share_ppm": PPM}}


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two workers"])
def shared(request: pytest.FixtureRequest) -> Iterator[RoutedRig]:
    with routed_rig(
        {"slots": 4, "tokens": 3},
        {"slots": 4, "tokens": 3},
        config=f"[server]\nworkers = {request.param}\n",
        slots=4,
    ) as made:
        yield made


@pytest.fixture
def rig(shared: RoutedRig) -> Iterator[RoutedRig]:
    shared.route(1.0, **ALL)
    yield shared
    shared.set_faults("")
    shared.begin(shared.file)
    shared.route(1.0)
    shared.wait_until_idle()
    shared.target(2, lambda load: load.arrived == load.ended)


def copies(rig: RoutedRig, count: int, since: TargetLoad) -> TargetLoad:
    """What is reported of the candidate once so many copies have ended."""
    load = rig.target(2, lambda load: load.since(since).mirrored >= count and load.arrived == load.ended)
    return load.since(since)


def own_records(rig: RoutedRig) -> list[UsageRecord]:
    return [record for record in rig.records() if record.tenant == "headrace-system"]


@pytest.mark.parametrize("is_streaming", [True, False], ids=["streamed", "whole"])
def test_a_delivered_request_runs_again_on_the_candidate_and_both_answers_are_compared(
    rig: RoutedRig, is_streaming: bool
) -> None:
    before, known = rig.target(2), len(own_records(rig))
    answer = ask(rig, stream=is_streaming)
    assert (answer.status, version(answer)) == (200, 1)
    seen = copies(rig, 1, before)
    assert (seen.arrived, seen.delivered, seen.mirrored) == (1, 1, 1)
    assert seen.verdicts == {"same": 1}
    (record,) = wait_until(lambda: own_records(rig)[: -known or None], what="the record of the copy")
    assert (record.key_id, record.model, record.revision) == ("mirror", NAME, "sha256:2")
    assert (record.outcome, record.charge_pico, record.completion_tokens) == ("delivered", 0, 3)
    assert [each.upstream_status for each in rig.executions(record.request_id)] == [200]


def test_a_candidate_that_fails_or_answers_otherwise_is_counted_and_no_caller_notices(rig: RoutedRig) -> None:
    """T56: wrong answers with a status of 200 are found before anybody gets one."""
    before = rig.target(2)
    rig.engines[1].set_faults("error:500@1,empty@2")
    assert_delivered(ask(rig), text=words(3))
    copies(rig, 1, before)
    assert_delivered(ask(rig), text=words(3))
    seen = copies(rig, 2, before)
    assert (seen.failed, seen.delivered, seen.mirrored) == (1, 1, 2)
    assert seen.verdicts == {"worse": 1}
    assert rig.target(1).faults == 0


def test_only_what_was_delivered_by_another_is_copied(rig: RoutedRig) -> None:
    before = rig.target(2)
    rig.engines[0].set_faults("error:400")
    assert ask(rig).status == 400
    rig.engines[0].set_faults("")
    rig.route(0.0, 1.0, **ALL)
    assert version(ask(rig)) == 2, "the candidate's own answer"
    rig.route(1.0, **ALL)
    ask(rig)
    assert copies(rig, 1, before).mirrored == 1


def test_a_slow_candidate_delays_nobody_and_copies_without_room_are_dropped(rig: RoutedRig) -> None:
    """At most so many run, so many wait, and none for long."""
    before = rig.target(2)
    rig.engines[1].set_faults("ttft:3000")
    began_s = time.monotonic()
    for _ in range(40):
        assert_delivered(ask(rig), text=words(3))
    rig.engines[1].set_faults("")
    assert time.monotonic() - began_s < 30
    assert rig.target(2).in_flight <= 8
    seen = rig.target(2, lambda load: load.since(before).mirror_dropped > 0 and not load.in_flight)
    assert seen.since(before).mirrored < 40
    assert rig.engines[1].stats()["running_max"] <= 4


def test_who_asks_for_the_candidate_goes_before_copies(rig: RoutedRig) -> None:
    """They leave half of its slots free, and end where even that is not enough."""
    rig.route(1.0, 0.0, **ALL)
    before = rig.target(2)
    rig.engines[1].set_faults("stall:1")
    for _ in range(6):
        ask(rig)
    rig.target(2, lambda load: load.in_flight >= 2)
    rig.engines[1].set_faults("")
    key = (rig.provider.data / "run" / "system.key").read_text()
    with ExitStack() as stack:
        callers = [stack.enter_context(rig.open(model=f"{NAME}@v2", key=key)) for _ in range(8)]
        for caller in callers:
            assert_delivered(read_answer(caller), text=words(3))
    rig.route(1.0)
    seen = rig.target(2, lambda load: load.arrived == load.ended).since(before)
    assert (seen.delivered, seen.faults) == (8, 0)
    assert seen.cancelled >= 2, "copies for what is no mirror any more"


def test_a_drain_does_not_wait_for_copies() -> None:
    """T61."""
    with routed_rig({"slots": 4, "tokens": 3}, {"slots": 4}, slots=4) as rig:
        rig.route(1.0, **ALL)
        rig.engines[1].set_faults("stall:1")
        ask(rig)
        rig.target(2, lambda load: load.in_flight == 1)
        began_s = time.monotonic()
        assert rig.provider.stop() == 0
        assert time.monotonic() - began_s < 15


def test_limits_and_metrics_of_callers_know_nothing_of_copies(rig: RoutedRig) -> None:
    before = rig.target(2)
    key = rig.provider.key("limited", requests_per_minute=1, requests_burst=3)
    counted = rig.provider.metric("headrace_requests_total", model=NAME, outcome="delivered")
    for _ in range(3):
        assert ask(rig, key=key).status == 200
    assert ask(rig, key=key).status == 429
    copies(rig, 3, before)
    assert rig.provider.metric("headrace_requests_total", model=NAME, outcome="delivered") == counted + 3
    with rig.open(model=NAME) as connection:
        read_events(connection, 1)

"""Several revisions serve one name: shares, conversations, falling back, rollback, and what each answer says of itself."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from headrace.core.load import TargetLoad
from tests.gateway.rig import (
    CHAT,
    assert_delivered,
    error_of,
    header,
    read_answer,
    read_events,
    request_id,
    words,
)
from tests.support.provider import wait_until
from tests.support.routes import NAME, RoutedRig, routed_rig
from tests.support.wire import Exchange

REVISION = "x-headrace-model-revision"


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two workers"])
def shared(request: pytest.FixtureRequest) -> Iterator[RoutedRig]:
    with routed_rig(
        {"slots": 8, "tokens": 3},
        {"slots": 8, "tokens": 3},
        config=f"[server]\nworkers = {request.param}\n",
        slots=8,
    ) as made:
        made.set_prices()
        yield made


@pytest.fixture
def rig(shared: RoutedRig) -> Iterator[RoutedRig]:
    """Everything is as at the start, but for what was counted."""
    yield shared
    shared.set_faults("")
    shared.begin(shared.file)
    shared.route(1.0, 0.0)
    shared.wait_until_idle()


def ask(rig: RoutedRig, conversation: str = "", **fields: Any) -> Exchange:
    return rig.ask(model=NAME, messages=[{"role": "user", "content": conversation or "hello"}], **fields)


def version(answer: Exchange) -> int:
    """Which revision said that it answers."""
    revision = header(answer, REVISION)
    assert revision is not None, "every answer says what made it"
    return int(revision.removeprefix("sha256:"))


def test_conversations_are_shared_out_by_weight_and_each_stays_where_it_is(rig: RoutedRig) -> None:
    """Whichever worker it meets."""
    rig.route(0.5, 0.5)
    first = {f"c{number}": version(ask(rig, f"c{number}")) for number in range(40)}
    assert 8 <= Counter(first.values())[2] <= 32
    rig.route(0.3, 0.7)
    second = {name: version(ask(rig, name)) for name in first}
    assert {name for name, was in first.items() if was == 2} <= {
        name for name, now in second.items() if now == 2
    }
    assert second == {name: version(ask(rig, name)) for name in first}


def test_every_answer_and_record_says_which_revision_it_was(rig: RoutedRig) -> None:
    for weights, expected in (((1.0, 0.0), 1), ((0.0, 1.0), 2)):
        rig.route(*weights)
        for is_streaming in (True, False):
            answer = ask(rig, stream=is_streaming)
            assert version(answer) == expected
            record = rig.record(answer)
            assert (record.model, record.revision) == (NAME, f"sha256:{expected}")
            assert [each.revision for each in rig.executions(answer)] == [""], "the record's own"


@pytest.mark.parametrize("fault", ["error:500", "refuse", "error:400", "error:503", "garbage", "error_first"])
@pytest.mark.parametrize("is_streaming", [True, False], ids=["streamed", "whole"])
def test_what_a_canary_fails_before_the_first_byte_is_answered_by_the_accepted_revision(
    rig: RoutedRig, fault: str, is_streaming: bool
) -> None:
    """T56; also with 400: its revision may be what is wrong. Each says which revision answered, and which failed."""
    rig.route(0.0, 1.0)
    before = rig.target(2)
    rig.engines[1].set_faults(fault)
    answer = ask(rig, stream=is_streaming)
    assert (answer.status, version(answer)) == (200, 1)
    assert rig.record(answer).revision == "sha256:1"
    assert [each.revision for each in rig.executions(answer)] == ["sha256:2", ""]
    after = rig.target(2, lambda load: load.failed_over == before.failed_over + 1).since(before)
    assert (after.arrived, after.faults, after.failed, after.delivered) == (1, 1, 0, 0)
    assert sum(after.causes.values()) == 1


@pytest.mark.parametrize("is_streaming", [True, False], ids=["streamed", "whole"])
def test_what_every_revision_rejects_speaks_against_none_of_them(rig: RoutedRig, is_streaming: bool) -> None:
    """Else callers' mistakes would have each canary rolled back: the accepted revision, asked last, is not blamed either."""
    rig.route(0.0, 1.0)
    before = (rig.target(1), rig.target(2))
    rig.set_faults("error:400")
    answer = ask(rig, stream=is_streaming)
    assert answer.status == 400
    accepted = rig.target(1, lambda load: load.since(before[0]).ended).since(before[0])
    canary = rig.target(2, lambda load: load.since(before[1]).ended).since(before[1])
    for load in (accepted, canary):
        assert (load.arrived, load.rejected, load.faults) == (1, 1, 0)
        assert load.causes == {"upstream_rejected": 1}


def test_a_canary_that_fails_everything_is_not_noticed_whatever_the_budget_of_retries(rig: RoutedRig) -> None:
    """The accepted revision has no more to do than without it. Its failures are counted, all of them."""
    rig.route(0.5, 0.5)
    before = (rig.target(1), rig.target(2))
    rig.engines[1].set_faults("error:500")
    answers = [ask(rig, f"c{number}") for number in range(40)]
    assert {version(answer) for answer in answers} == {1}
    for answer in answers:
        assert_delivered(answer, text=words(3))
    served = rig.target(1, lambda load: load.since(before[0]).delivered == 40).since(before[0])
    tried = sum(len(rig.executions(answer)) == 2 for answer in answers)
    failed = rig.target(2, lambda load: load.since(before[1]).failed_over == tried).since(before[1])
    assert 8 <= failed.failed_over == failed.arrived <= 32
    assert (failed.delivered, served.arrived, served.faults) == (0, 40, 0)


def test_who_has_no_place_at_a_canary_has_one_at_the_accepted_revision(rig: RoutedRig) -> None:
    """A canary that asks to be left alone for a while refuses nobody whom the accepted revision has room for."""
    rig.route(0.0, 1.0)
    before = rig.target(2)
    rig.engines[1].set_faults("error:503:3")
    answers = [ask(rig, f"c{number}") for number in range(8)]
    assert [(answer.status, version(answer)) for answer in answers] == [(200, 1)] * 8
    after = rig.target(2, lambda load: load.since(before).ended == 8).since(before)
    assert (after.refused, after.delivered) == (0, 0)
    assert after.handed_over > 0
    rig.set_faults("")
    wait_until(lambda: version(ask(rig)) == 2, what="the canary to be asked again")


def test_what_a_canary_breaks_after_the_first_byte_is_broken(rig: RoutedRig) -> None:
    rig.route(0.0, 1.0)
    before = rig.target(2)
    rig.engines[1].set_faults("close:2")
    answer = ask(rig)
    assert (version(answer), answer.end) == (2, "fin")
    assert rig.record(answer).revision == "sha256:2"
    after = rig.target(2, lambda load: load.broken > before.broken).since(before)
    assert (after.broken, after.failed_over) == (1, 0)


def test_who_waits_for_a_withdrawn_revision_is_served_by_the_accepted_one_and_what_runs_there_runs_on(
    rig: RoutedRig,
) -> None:
    """T56, T57: a rollback is noticed by nobody."""
    rig.route(0.0, 1.0)
    rig.engines[1].set_faults("stall:1")
    with ExitStack() as stack:
        running = [stack.enter_context(rig.open(model=NAME)) for _ in range(8)]
        for connection in running:
            read_events(connection, 1)
        waiting = [stack.enter_context(rig.open(model=NAME)) for _ in range(3)]
        rig.target(2, lambda load: (load.in_flight, load.queued) == (8, 3))
        rig.withdraw(2)
        rig.route(1.0, 0.0)
        for connection in waiting:
            answer = read_answer(connection)
            assert_delivered(answer, text=words(3))
            assert rig.record(answer).revision == "sha256:1"
        rig.target(2, lambda load: load.in_flight == 8)
    after = rig.target(2, lambda load: not load.in_flight)
    assert after.arrived == after.ended


def test_a_canary_without_a_replica_gets_nothing(rig: RoutedRig) -> None:
    """REPORTS 75."""
    rig.change(2, has_replicas=False)
    rig.route(0.0, 1.0)
    before = rig.target(2)
    assert {version(ask(rig, f"c{number}")) for number in range(5)} == {1}
    assert rig.target(2).since(before).arrived == 0


def test_callers_know_names_and_no_targets(rig: RoutedRig) -> None:
    rig.route(0.5, 0.5)
    answer = rig.ask(model=f"{NAME}@v2")
    assert (answer.status, error_of(answer)["code"]) == (404, "model_not_found")
    status, _, body = rig.provider.get("/v1/models", key=rig.key)
    assert status == 200
    assert body.count(b'"id"') == 1
    assert b"@v" not in body


def test_what_has_failed_or_was_cut_short_is_logged_with_its_revision(rig: RoutedRig) -> None:
    rig.route(0.0, 1.0)
    rig.engines[1].set_faults("error:500@1/4")  # never enough to be ejected for it
    asked: set[str] = set()

    def told() -> set[tuple[str, str]]:
        """Of many failures in a short time the log tells some."""
        asked.add(request_id(ask(rig)))
        lines = rig.provider.log_lines()
        return {(line["event"], line["revision"]) for line in lines if line.get("request_id") in asked}

    assert wait_until(told, what="the line of a failure") == {("attempt.failed", "sha256:2")}


def wait_for_more(answers: list[Exchange], count: int) -> None:
    wanted = len(answers) + count
    wait_until(lambda: len(answers) >= wanted, what=f"{count} more answers")


def test_under_load_and_changing_weights_no_request_is_lost(rig: RoutedRig) -> None:
    """T56: up, down, and away, while the canary fails a third of what it gets."""
    rig.engines[1].set_faults("error:500@1/3")
    answers: list[Exchange] = []
    stop = threading.Event()

    def call(number: int) -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            answers.append(ask(rig, f"{number}.{turn}"))

    callers = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for caller in callers:
        caller.start()
    for weight in (0.1, 0.5, 1.0, 0.0, 0.5):
        rig.route(1.0 - weight, weight)
        wait_for_more(answers, 20)
    rig.withdraw(2)
    rig.route(1.0, 0.0)
    stop.set()
    for caller in callers:
        caller.join(60)
    assert {answer.status for answer in answers} == {200}
    assert {version(answer) for answer in answers} == {1, 2}
    for answer in answers:
        assert_delivered(answer, text=words(3))


def test_the_counts_of_all_planes_and_of_metrics_are_those_of_the_callers(rig: RoutedRig) -> None:
    before = [rig.target(1), rig.target(2)]
    ended = rig.provider.metric("headrace_requests_total", model=NAME)
    seen = rig.provider.metric("headrace_ttft_seconds_count", model=NAME)
    rig.route(0.5, 0.5)
    for number in range(20):
        ask(rig, f"c{number}")
    rig.provider.post(CHAT, {"model": NAME, "messages": []}, key=rig.key)  # refused before it is anybody's

    def counted() -> list[TargetLoad]:
        loads = [rig.target(number).since(before[number - 1]) for number in (1, 2)]
        return loads if sum(load.ended for load in loads) == 20 else []

    loads = wait_until(counted, what="all of them to be reported")
    assert sum(load.arrived for load in loads) == sum(load.delivered for load in loads) == 20
    assert sum(load.output_tokens for load in loads) == 60
    for load in loads:
        assert load.ttft.count == load.total.count == load.queue_wait.count == load.delivered
    assert rig.provider.metric("headrace_requests_total", model=NAME) == ended + 20
    assert rig.provider.metric("headrace_ttft_seconds_count", model=NAME) == seen + 20


def test_we_ourselves_may_ask_for_a_revision_that_callers_can_not(rig: RoutedRig) -> None:
    """Before a canary gets anybody's requests, and one that is kept warm. It costs nothing, and is recorded all the same."""
    key = (rig.provider.data / "run" / "system.key").read_text()
    wait_until(lambda: rig.record(ask(rig)).price_version, what="the prices to be in force")
    answer = ask(rig, key=key)
    assert version(answer) == 1, "by the name, as callers"
    answer = rig.ask(model=f"{NAME}@v2", key=key)
    assert_delivered(answer, text=words(3))
    assert version(answer) == 2
    record = rig.record(answer)
    assert (record.tenant, record.model, record.revision) == ("headrace-system", NAME, "sha256:2")
    assert (record.price_version, record.charge_pico, record.completion_tokens) == ("", 0, 3)
    rig.engines[1].set_faults("error:500")
    failed = rig.ask(model=f"{NAME}@v2", key=key)
    assert failed.status == 502, "what is asked of one revision is not answered by another"
    gone = rig.ask(model=f"{NAME}@v7", key=key)
    assert error_of(gone)["code"] == "model_not_found"


def test_the_key_of_the_service_is_nobodys_but_its_owners(rig: RoutedRig) -> None:
    file = rig.provider.data / "run" / "system.key"
    assert file.stat().st_mode & 0o777 == 0o600
    assert "headrace-system" not in rig.provider.cli("tenants", "list").stdout
    refused = rig.provider.cli("tenants", "create", "headrace-system", check=False)
    assert (refused.returncode, "reserved" in refused.stderr) == (2, True)
    assert rig.provider.status()["keys"]["count"] == 1


def test_two_accepted_revisions_are_compared_apart_and_each_stands_in_for_the_other(rig: RoutedRig) -> None:
    """An experiment: no arm is on trial, and neither's results are mixed with the other's."""
    rig.route(0.5, 0.5, is_experiment=True)
    before = [rig.target(1), rig.target(2)]
    counts = Counter(version(ask(rig, f"c{number}")) for number in range(30))
    assert counts[1] > 0
    assert counts[2] > 0
    rig.target(1, lambda load: load.since(before[0]).delivered == counts[1])
    rig.target(2, lambda load: load.since(before[1]).delivered == counts[2])
    rig.change(1, has_replicas=False)
    rig.publish()
    assert {version(ask(rig, f"c{number}")) for number in range(10)} == {2}

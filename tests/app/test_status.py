"""Does the status tell who is woken at night what happened? What was refused and why, who is silent, what waits."""

import signal
from contextlib import ExitStack

import pytest

from headrace.app.status import ended_requests, service_status
from headrace.control.status import ReplicaState, ReplicaStatus
from headrace.core.ids import ReplicaId
from headrace.telemetry.merging import Series, state_of
from headrace.telemetry.metrics import Metrics
from tests.gateway.rig import error_of, rig
from tests.support.provider import wait_until


def test_requests_are_counted_by_how_and_why_they_ended_over_all_processes() -> None:
    """What was refused before anyone knew which model it was for is there too, and once."""
    one = Metrics()
    for outcome, reason, count in (
        ("delivered", "ok", 40),
        ("refused", "queue_full", 3),
        ("refused", "pressed", 1),
    ):
        one.requests.labels("/v1/chat/completions", "m", outcome, reason).value += count
    for code, reason, count in (
        ("saturated", "queue_full", 3),
        ("saturated", "pressed", 1 + 2),
        ("unauthenticated", "unauthenticated", 5),
    ):
        one.refusals.labels(code, reason).value += count
    other = {"headrace_requests_total": [Series(("/v1/completions", "m", "delivered", "ok"), 2.0)]}
    assert ended_requests([state_of(one), other]) == {
        "delivered": {"ok": 42},
        "refused": {"unauthenticated": 5, "queue_full": 3, "pressed": 3},
    }  # fmt: skip
    assert ended_requests([]) == {}


def test_a_server_that_has_never_answered_is_shown_although_nobody_knows_its_models() -> None:
    silent = ReplicaStatus("http://127.0.0.1:1", ReplicaId("127.0.0.1:1"), 0, ReplicaState.STARTING)
    status = service_status([], {}, [silent], uptime_s=1.0, ledger={}, requests={})
    (unknown,) = status["deployments"]
    assert (unknown["model"], unknown["ready"]) == (None, 0)
    assert [replica["id"] for replica in unknown["replicas"]] == ["127.0.0.1:1"]


def test_status_says_what_was_refused_and_log_lines_say_where_a_request_failed() -> None:
    with rig({"slots": 1}, upstream_slots=1, config="[admission]\nqueue_length_max = 0\n") as running:
        running.set_faults("stall:2@1, error:500@2")
        with running.open() as held:
            assert held.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
            assert error_of(running.ask())["code"] == "saturated"
            assert running.ask(max_tokens=0).status == 400
        running.wait_until_idle()
        failed = running.ask()
        assert failed.status == 502
        requests = running.provider.status()["requests"]
        assert requests["refused"] == {"queue_full": 1, "invalid_request": 1}
        assert requests["failed"] == {"upstream_error": 1}
        assert requests["cancelled"] == {"client_gone": 1}
        shown = running.provider.cli("status").stdout
        assert "2 refused (1 queue_full, 1 invalid_request)" in shown
        lines = {line["event"]: line for line in running.provider.log_lines()}
        replica = f"127.0.0.1:{running.engine.port}"
        assert (lines["request.failed"]["replica"], lines["request.failed"]["attempts"]) == (replica, 1)
        cancelled = lines["request.cancelled"]
        assert cancelled["ttft_s"] <= cancelled["total_s"]
        assert cancelled["completion_tokens"] == running.records()[-1].completion_tokens


@pytest.mark.slow
def test_a_replica_that_has_work_and_says_nothing_is_shown_as_silent_and_what_waits_is_shown() -> None:
    """T2: long before its silence ejects it."""
    config = "[health]\nquiet_s = 0.3\n"
    with rig({"slots": 1}, upstream_slots=1, config=config) as running, ExitStack() as stack:
        engine = running.engine
        engine.kill(signal.SIGSTOP)
        stack.callback(engine.kill, signal.SIGCONT)
        for _ in range(2):
            stack.enter_context(running.open())
        (row,) = wait_until(
            lambda: [
                deployment
                for deployment in running.provider.status()["deployments"]
                if deployment["replicas"][0]["silent_s"] > 1 and deployment["queued"] == 1
            ],
            what="the silence to be seen",
        )
        (replica,) = row["replicas"]
        assert (replica["circuit"], replica["state"], replica["in_flight"]) == ("closed", "ready", 1)
        assert "(silent " in running.provider.cli("status").stdout

"""Rollouts of running deployments under a steady load: good versions take over, bad ones go, and no caller notices either.

Engines are scripted, and everything else is real: processes, ports, controller, gateway, callers.
"""

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.acceptance_sets import words
from tests.support.certificates import self_signed
from tests.support.fleet import AT_ONCE, Callers, Fleet, fleet
from tests.support.provider import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROLLOUT: dict[str, Any] = {
    "steps": [{"weight": 20, "min_requests": 40}, {"weight": 50, "min_requests": 60}],
    "interval_s": 0.5,
    "keep_previous_s": 0,
    "sticky": "none",
    "gate": [{"metric": "failure_rate", "max_delta": 0.02}, {"metric": "ttft_p95", "max_ratio": 3.0}],
}
# What never gets ready is given up soon; what does has time for it also on a machine that is busy with other things.
QUICK = {"ready": {"timeout_s": 2}, "start_timeout_s": 3, "start_stall_s": 2, "restarts_max": 1}
SECTIONS: dict[str, dict[str, Any]] = {"rollout": ROLLOUT, "lifecycle": {"restarts_max": 1}}


@contextmanager
def serving() -> Iterator[tuple[Fleet, Callers]]:
    """Version 1 answers "good" to callers that ask all the time."""
    with fleet() as running:
        running.apply(answer="good", sections=SECTIONS)
        running.until_answered("good")
        with running.callers() as callers:
            yield running, callers


def rollout(running: Fleet) -> dict[str, Any]:
    """How the rollouts of the deployment stand."""
    row = running.rollout()
    return {**row["rollout"], "accepted": row["accepted"]}


def until_over(running: Fleet, *, candidate: int = 2) -> dict[str, Any]:
    """Until the rollout of that version has ended; returns how."""

    def last() -> dict[str, Any] | None:
        told: dict[str, Any] | None = rollout(running).get("last")
        return told if told is not None and told["candidate"] == candidate else None

    found: dict[str, Any] = wait_until(
        last, limit_s=180.0, what=lambda: f"the end of the rollout: {rollout(running)}"
    )
    return found


def test_a_good_version_takes_over_under_load_and_no_request_fails() -> None:
    with serving() as (running, callers):
        running.apply(answer="better", sections=SECTIONS)
        assert until_over(running)["result"] == "promoted"
        running.until_ready("chat@v2")
    assert callers.statuses == {"200"}, callers.outcomes
    assert set(callers.texts) == {"good", "better"}


@pytest.mark.parametrize(
    ("kind", "args", "reasons"),
    [
        ("failing", {"fault": "error:500@1/2"}, {"gate_failed"}),
        ("slow", {"ttft_ms": 400}, {"gate_failed"}),
        ("never ready", {"load_s": 600}, {"replicas_failed"}),
        ("crash loop", {"fault": "die:0"}, {"replicas_failed"}),
        ("dying of requests", {"fault": "die:0@3+"}, {"replicas_failed", "gate_failed"}),
    ],
)
def test_a_bad_version_is_rolled_back_and_nobody_gets_an_error(
    kind: str, args: dict[str, Any], reasons: set[str]
) -> None:
    """T56: no request fails, not even of the canary's own share: the accepted version answers what the candidate can't."""
    with serving() as (running, callers):
        lifecycle = QUICK if kind == "never ready" else SECTIONS["lifecycle"]
        running.apply(answer="bad", sections={**SECTIONS, "lifecycle": lifecycle}, **args)
        ended = until_over(running)
        assert ended["result"] == "rolled_back", ended
        assert ended["reason"] in reasons, ended
        running.until_ready("chat@v1")
        assert rollout(running)["weights"] == {"chat@v1": 1.0}
    assert callers.statuses == {"200"}, callers.outcomes


def test_wrong_answers_with_status_200_are_found_before_a_customer_gets_one() -> None:
    """By the acceptance set, which the service puts to it through its own port, with a key of its own."""
    gates = [*ROLLOUT["gate"], {"metric": "quality:words", "min_delta": -0.15}]
    sections = {**SECTIONS, "rollout": {**ROLLOUT, "gate": gates}}
    with serving() as (running, callers):
        words(running.service, right=["good", "better"])
        running.apply(answer="wrong", sections=sections)
        ended = until_over(running)
        assert (ended["result"], ended["reason"]) == ("rolled_back", "gate_failed"), ended
        assert "quality:words" in ended["detail"]
        running.apply(answer="better", sections=sections)
        assert until_over(running, candidate=3)["result"] == "promoted"
    assert callers.statuses == {"200"}, callers.outcomes
    assert set(callers.texts) == {"good", "better"}


def test_the_gate_asks_a_service_with_tls_whose_certificate_nobody_has_signed(tmp_path: Path) -> None:
    """By its own certificate, which is for another name than 127.0.0.1, and by the next one after that was renewed."""
    own = self_signed(tmp_path, hosts=["models.example"])
    gate = [{"metric": "quality:words", "compare": "absolute", "min": 0.5}]
    sections = {"rollout": {**AT_ONCE, "error_limit": 3, "gate": gate}}
    # The certificate is not what callers are here to check.
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    flags = ["--tls-certificate", str(own.certificate), "--tls-key", str(own.key)]
    with fleet(arguments=flags, trust=trust) as running:
        words(running.service, right=["good", "better"])
        running.apply(answer="good", sections=sections)
        running.until_answered("good")
        running.apply(answer="wrong", sections=sections)
        ended = until_over(running)
        assert (ended["result"], ended["reason"]) == ("rolled_back", "gate_failed"), ended
        self_signed(tmp_path, hosts=["models.example"])
        wait_until(
            lambda: any(line["event"] == "tls.reloaded" for line in running.service.log_lines()),
            what="the new certificate in force",
        )
        running.apply(answer="better", sections=sections)
        ended = until_over(running, candidate=3)
        assert ended["result"] == "promoted", ended


def test_a_shadow_whose_answers_differ_never_meets_a_customer() -> None:
    """Copies of requests go to it, which nobody waits for; the accepted version's answers are the measure."""
    gates = [*ROLLOUT["gate"], {"metric": "agreement", "min": 0.9}]
    mirror = {"percent": 50, "min_requests": 20}
    sections = {**SECTIONS, "rollout": {**ROLLOUT, "gate": gates, "mirror": mirror}}
    with serving() as (running, callers):
        running.apply(answer="something else", sections=sections)
        ended = until_over(running)
        assert (ended["result"], ended["stage"]) == ("rolled_back", "mirroring"), ended
        assert "agreement" in ended["detail"]
    assert callers.statuses == {"200"}, callers.outcomes
    assert set(callers.texts) == {"good"}


def test_what_an_operator_says_is_done_within_a_moment() -> None:
    steps = [{"weight": 20, "min_requests": 1_000_000}]
    sections = {**SECTIONS, "rollout": {**ROLLOUT, "steps": steps, "keep_previous_s": 600}}
    with serving() as (running, callers):
        cli = running.service.cli
        assert "nothing has changed" in cli("rollout", "abort", "chat").stderr
        running.apply(answer="better", sections=sections)
        wait_until(lambda: rollout(running)["weights"].get("chat@v2"), what="its share")
        told = cli("rollout", "status", "chat").stdout
        assert "chat@v2 by canary: step 1 of 1" in told
        assert "of 1000000 have ended" in told
        cli("rollout", "hold", "chat")
        wait_until(lambda: rollout(running)["is_held"], limit_s=10.0, what="the hold")
        cli("rollout", "abort", "chat")
        wait_until(lambda: rollout(running)["weights"] == {"chat@v1": 1.0}, limit_s=10.0, what="the way back")
        running.until_ready("chat@v1")
        cli("rollout", "retry", "chat")
        wait_until(lambda: rollout(running).get("stage"), what="the rollout again")
        cli("rollout", "promote", "chat", "--full")
        wait_until(lambda: rollout(running)["accepted"] == 2, what="the promotion")
        # It is kept ready, and started once more all the same.
        found = json.loads(cli("rollout", "rehearse", "chat", "--json").stdout)
        assert (found["version"], found["verdict"]) == (1, "pass")
        assert "rehearsed: chat@v1 pass" in cli("rollout", "status").stdout
        cli("rollback", "chat")
        running.until_answered("good")
    assert callers.statuses == {"200"}, callers.outcomes

"""The controller is a process that may end, hang or be stopped at any moment: callers don't notice, and another one goes on."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.control.rig import is_running
from tests.support.provider import Provider, provider, wait_until
from tests.support.scripted import scripted_engine

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def served(**options: Any) -> Iterator[tuple[Provider, str]]:
    """A provider before one scripted engine, and a key."""
    with scripted_engine() as engine, provider(upstreams=[engine.url], **options) as service:
        yield service, service.key()


def controller(service: Provider) -> dict[str, Any]:
    row: dict[str, Any] = service.status()["controller"]
    return row


def another(service: Provider, pid: int) -> dict[str, Any]:
    """The controller in the place of that one, once it works."""

    def works() -> dict[str, Any] | None:
        row = controller(service)
        return row if row["pid"] not in (pid, None) and not row["is_behind"] else None

    found: dict[str, Any] = wait_until(works, what="another controller")
    return found


@pytest.mark.parametrize("workers", ["1", "2"])
def test_callers_dont_notice_that_the_controller_was_killed(workers: str) -> None:
    """What it published stays in force, and the next one goes on from it: its first snapshot offers no less."""
    with served(arguments=["--workers", workers]) as (service, key):
        before = controller(service)
        os.kill(before["pid"], signal.SIGKILL)
        statuses = [service.chat(key)[0] for _ in range(20)]
        after = another(service, before["pid"])
        statuses += [service.chat(key)[0] for _ in range(20)]
        assert set(statuses) == {200}
        assert after["restarts"] == 1
        assert after["snapshot_version"] >= before["snapshot_version"]
        assert service.metric("headrace_controller_restarts_total") == 1
        assert service.metric("headrace_controller_up") == 1
        assert service.metric("headrace_replica_ready") == 1
        (lost,) = [line for line in service.log_lines() if line["event"] == "controller.lost"]
        assert lost["reason"] == "killed by SIGKILL"
        readies = [line["event"] for line in service.log_lines()].count("service.ready")
        assert readies == 1, "the service has been ready all the time"


def test_the_gateway_serves_on_while_the_controller_is_stopped() -> None:
    """It is shown as behind, and what it has to say it says once it goes on."""
    with served() as (service, key):
        pid = controller(service)["pid"]
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: controller(service)["is_behind"], what="the controller to be behind")
        assert {service.chat(key)[0] for _ in range(10)} == {200}
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: not controller(service)["is_behind"], what="the controller to catch up")
        assert controller(service)["pid"] == pid


def test_a_service_does_not_wait_for_a_controller_that_hangs_to_end() -> None:
    """T61: asked to stop it stops, and nothing stays behind."""
    with served() as (service, _):
        pid = controller(service)["pid"]
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: controller(service)["is_behind"], what="the controller to be behind")
        began_s = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - began_s < 15, "the grace of one that works is 20 s"
        assert not is_running(pid)


@pytest.mark.long
def test_a_controller_that_hangs_is_replaced() -> None:
    with served() as (service, key):
        pid = controller(service)["pid"]
        os.kill(pid, signal.SIGSTOP)
        after = another(service, pid)
        assert not is_running(pid)
        assert after["restarts"] == 1
        assert service.chat(key)[0] == 200
        (lost,) = [line for line in service.log_lines() if line["event"] == "controller.lost"]
        assert lost["reason"].startswith("stuck for ")


def test_a_server_that_ends_while_no_controller_is_there_is_noticed_by_the_next_one() -> None:
    with scripted_engine() as engine, provider(upstreams=[engine.url]) as service:
        pid = controller(service)["pid"]
        os.kill(pid, signal.SIGSTOP)
        engine.kill()
        os.kill(pid, signal.SIGKILL)
        another(service, pid)
        wait_until(
            lambda: not any(row["ready"] for row in service.status()["deployments"]), what="its absence"
        )


def test_the_controller_ends_with_the_service(tmp_path: Path) -> None:
    """T61: in order when asked to, and at once when the service was killed."""
    with provider(upstreams=["http://127.0.0.1:9"], data=tmp_path / "asked", ready=False) as service:
        pid = controller(service)["pid"]
        assert service.stop() == 0
        assert not is_running(pid)
    with provider(upstreams=["http://127.0.0.1:9"], data=tmp_path / "killed", ready=False) as service:
        pid = controller(service)["pid"]
        service.stop(signal.SIGKILL)
        wait_until(lambda: not is_running(pid), what="the controller's end")

"""Applied deployments run as they should, whatever becomes of the controller: no request notices, and no engine is doubled."""

import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.control.rig import is_running
from tests.support.fleet import fleet
from tests.support.provider import wait_until
from tests.support.scripted import scripted_engine
from tests.support.small_disk import fill, small_disk

pytestmark = pytest.mark.slow


def test_a_deployment_is_served_from_its_application_to_its_removal() -> None:
    """And what was promised of it: a name is known at once, another version takes over without a gap, and nothing is left."""
    with fleet() as running:
        assert running.ask()[0] == 404
        running.apply(answer="one")
        running.until_answered("one")
        engines = running.engines()
        running.apply(answer="one")
        assert running.engines() == engines, "what is applied already changes nothing"
        with running.callers() as callers:
            running.apply(answer="two")
            running.until_answered("two")
            running.until_ready("chat@v2")
            running.service.cli("rollback", "chat")
            running.until_answered("one")
            running.until_ready("chat@v1")
        assert callers.statuses == {"200"}, callers.outcomes
        assert callers.count > 50
        running.remove()
        wait_until(lambda: running.ask()[0] == 404, what="the name to be forgotten")
        wait_until(lambda: not running.engines(), what="the end of its engine")


@pytest.mark.parametrize("workers", [1, 2])
def test_nobody_notices_that_the_controller_was_killed(workers: int) -> None:
    """The engines run on, and the next controller goes on with the very same processes."""
    with fleet(workers=workers) as running:
        running.apply(answer="one", sections={"scale": {"min": 2, "max": 2}})
        running.until_ready("chat@v1", "chat@v1")
        engines = running.engines()
        before = running.replicas()
        with running.callers() as callers:
            killed = running.kill_controller()
            after = running.until_kept(not_by=killed)
        assert callers.statuses == {"200"}, callers.outcomes
        assert running.engines() == engines
        assert [(each["id"], each["pid"]) for each in running.replicas()] == [
            (each["id"], each["pid"]) for each in before
        ]
        assert (after["epoch"], after["restarts"]) == (2, 1)
        assert running.service.metric("headrace_replica_ready", model="chat") == 2
        # It does not only look: what dies now is replaced.
        os.kill(engines[0], signal.SIGKILL)
        wait_until(
            lambda: running.ready() == ["chat@v1", "chat@v1"] and running.engines() != engines, what="another"
        )
        wait_until(lambda: len(running.engines()) == 2, what="two engines")


def test_what_the_controller_was_killed_in_the_middle_of_is_done_by_the_next() -> None:
    """An engine that was just being launched is adopted or ended, and there is one in its place."""
    with fleet() as running:
        running.apply(answer="one")
        running.until_answered("one")
        running.apply(answer="two", load_s=0.5)
        wait_until(lambda: len(running.engines()) == 2, what="the launch")
        killed = running.kill_controller()
        running.until_kept(not_by=killed)
        running.until_answered("two")
        running.until_ready("chat@v2")
        assert len(running.engines()) == 1


def test_an_engine_that_nobody_knows_is_ended(tmp_path: Path) -> None:
    """A partition, or a row that was lost, must not leave an engine that holds memory for a month."""
    with fleet(data=tmp_path) as running:
        running.apply(answer="one")
        running.until_answered("one")
        (engine,) = running.engines()
        controller = running.controller()["pid"]
        os.kill(controller, signal.SIGSTOP)
        _forget_replicas(tmp_path)
        os.kill(controller, signal.SIGKILL)
        running.until_kept(not_by=controller)
        running.until_ready("chat@v1")
        assert not is_running(engine)
        assert len(running.engines()) == 1
        # What is new has another id, or its start would be ended with what is nobody's.
        assert [(each["id"], each["restarts"]) for each in running.replicas()] == [("chat-1", 0)]


def test_a_replica_is_ended_only_when_its_last_request_is(tmp_path: Path) -> None:
    """T57: streams go on while their replica drains; only what outlasts `lifecycle.drain_s` is cut."""
    slow: dict[str, Any] = {"answer": "one two three", "ttft_ms": 50, "itl_ms": 400}
    with fleet(data=tmp_path) as running:
        running.apply(**slow)
        running.until_ready("chat@v1")
        with running.callers(count=4) as callers:
            wait_until(
                lambda: sum(each["in_flight"] for each in running.replicas()) == 4,
                what="requests in progress",
            )
            running.apply(**{**slow, "answer": "four five six"})
            wait_until(lambda: running.ready() == ["chat@v2"], what="the new one alone")
            assert [each["state"] for each in running.replicas() if each["target"] == "chat@v1"] in (
                ["draining"],
                [],
            )
            running.until_ready("chat@v2")
        assert callers.statuses == {"200"}, callers.outcomes
        assert {"one two three", "four five six"} <= set(callers.texts)


def _forget_replicas(data: Path) -> None:
    with sqlite3.connect(data / "headrace.db") as database:
        database.execute("DELETE FROM replica")
    database.close()


def test_the_engines_end_with_the_service(tmp_path: Path) -> None:
    """T61: in order when it is asked to end, and soon after it was killed."""
    with fleet(data=tmp_path / "asked") as running:
        running.apply(answer="one")
        running.until_answered("one")
        assert running.service.stop() == 0
        assert running.engines() == []
    with fleet(data=tmp_path / "killed") as running:
        running.apply(answer="one")
        running.until_answered("one")
        running.service.stop(signal.SIGKILL)
        wait_until(lambda: not running.engines(), what="the end of every engine")


def test_on_a_full_disk_what_is_in_force_stays_and_nothing_follows_from_what_could_not_be_stored(
    tmp_path: Path,
) -> None:
    """T29: and once there is room again, what was wanted meanwhile is done."""
    lenient = '[ledger]\nmode = "lenient"\n'
    with small_disk(tmp_path / "disk") as disk, fleet(data=disk / "data", config=lenient) as running:
        running.apply(answer="one")
        running.until_answered("one")
        (engine,) = running.engines()
        # Until its rollout is stored, and before its replica is ready.
        running.apply(answer="two", load_s=2.0)
        wait_until(lambda: len(running.engines()) == 2, what="the second engine")
        filler = fill(disk)
        with running.callers(count=2) as callers:
            wait_until(lambda: running.controller()["problem"], what="the controller to say what is wrong")
            os.kill(engine, signal.SIGKILL)
            wait_until(lambda: not is_running(engine), what="its end")
            filler.unlink()
            running.until_answered("two")
            assert running.controller()["problem"] == ""
        running.until_ready("chat@v2")
        assert {*callers.statuses} <= {"200", "503"}, callers.outcomes


def test_a_deployment_without_work_ends_and_its_next_request_waits_for_one_start() -> None:
    """T58: nobody hears that it isn't there, and as many engines start as one request would have started."""
    scale = {
        "min": 0,
        "max": 1,
        "idle_to_zero_s": 1.0,
        "window_s": 2.0,
        "panic": {"window_s": 1.0, "ratio": 2.0},
        "down": {"delay_s": 2.0},
    }
    with fleet() as running:
        running.apply(answer="one", load_s=0.3, sections={"scale": scale})
        running.until_answered("one")
        wait_until(lambda: not running.engines(), what="its end")
        before = running.service.metric("headrace_replica_restarts_total")
        with running.callers(count=4, pause_s=0.05) as callers:
            wait_until(lambda: callers.texts["one"] >= 8, what="answers")
        assert callers.statuses == {"200"}, callers.outcomes
        assert len(running.engines()) == 1
        assert running.service.metric("headrace_replica_restarts_total") == before


REMOTE = """api = "v1"
[deployment]
name = "far"
engine = "remote"
[revision]
urls = [{urls}]
[rollout]
strategy = "recreate"
gate = [{{ metric = "failure_rate", max = 1.0, dry_run = true }}]
"""


def test_servers_that_others_run_are_a_deployment_too() -> None:
    """One replica for each of them, also after the controller was killed; a server that goes is taken out and comes back."""
    with (
        scripted_engine(models=("theirs",)) as one,
        scripted_engine(models=("theirs",)) as two,
        fleet() as running,
    ):
        running.apply_file(REMOTE.format(urls=f'"{one.url}", "{two.url}"'))
        running.until_ready("far@v1", "far@v1", name="far")
        with running.callers(model="far") as callers:
            killed = running.kill_controller()
            running.until_kept(not_by=killed)
            assert running.ready("far") == ["far@v1", "far@v1"]
            two.kill()
            wait_until(lambda: running.ready("far") == ["far@v1"], what="its absence")
        assert callers.statuses == {"200"}, callers.outcomes
        running.remove("far")
        wait_until(lambda: running.ask("far")[0] == 404, what="the name to be forgotten")
        assert is_running(one.pid)


def test_a_key_that_has_gone_is_a_problem_of_its_replica_and_not_of_the_controller(tmp_path: Path) -> None:
    """E1: what was right when it was applied may be wrong when it is wanted again."""
    key = tmp_path / "key"
    key.write_text("theirs")
    with scripted_engine(models=("theirs",)) as one, fleet() as running:
        running.apply_file(
            REMOTE.format(urls=f'"{one.url}"').replace("[rollout]", f'api_key = "file:{key}"\n[rollout]')
        )
        running.until_ready("far@v1", name="far")
        controller = running.controller()["pid"]
        running.remove("far")
        wait_until(lambda: running.ask("far")[0] == 404, what="the name to be forgotten")
        key.unlink()
        running.service.cli("rollback", "far", "--to", "1")
        wait_until(
            lambda: any("revision.api_key" in each["reason"] for each in running.replicas("far")),
            what="the reason",
        )
        key.write_text("theirs")
        running.until_ready("far@v1", name="far")
        assert running.controller()["pid"] == controller

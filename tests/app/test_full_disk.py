"""T29: a disk that is full to the last byte. Nothing that was answered is lost, even if the service is killed meanwhile."""

import os
import signal
from pathlib import Path

import pytest

from tests.support.provider import Provider, provider, wait_until
from tests.support.scripted import scripted_engine
from tests.support.small_disk import fill, small_disk

UNLIMITED = "[tenant_defaults]\nrequests_per_minute = 0\nconcurrency_max = 0\n"

pytestmark = pytest.mark.slow


def is_failing(running: Provider) -> bool:
    return running.metric("headrace_ledger_failing") == 1


def ask(running: Provider, key: str) -> tuple[int, str]:
    """Status and request id."""
    status, headers, _ = running.chat(key)
    return status, headers["x-request-id"]


@pytest.mark.parametrize(("mode", "workers"), [("strict", 1), ("lenient", 1), ("lenient", 2)])
def test_answers_given_while_the_disk_is_full_are_in_the_ledger_of_the_next_start(
    tmp_path: Path, mode: str, workers: int
) -> None:
    config = f'{UNLIMITED}\n[ledger]\nmode = "{mode}"\n'
    with small_disk(tmp_path / "disk") as disk, scripted_engine(slots=8, tokens=5) as engine:
        data, upstreams, arguments = disk / "data", [engine.url], ["--workers", str(workers)]
        with provider(upstreams=upstreams, data=data, config=config, arguments=arguments) as running:
            key = running.key()
            assert ask(running, key)[0] == 200
            wait_until(lambda: running.metric("headrace_ledger_backlog") == 0, what="the first record")
            filler = fill(disk)
            answered = []
            # The log of the database has some room of its own left: it takes a few records to fill.
            while not is_failing(running):
                status, name = ask(running, key)
                assert status in (200, 503)
                if status == 200:
                    answered.append(name)
            if mode == "lenient":
                later = [ask(running, key) for _ in range(50)]
                assert {status for status, _ in later} == {200}
                answered += [name for _, name in later]
            else:
                wait_until(lambda: ask(running, key)[0] == 503, what="new work to be refused")
            assert running.metric("headrace_ledger_backlog") > 0
            assert answered
            os.kill(running.pid, signal.SIGKILL)
            running.process.wait(60)
            filler.unlink()
        with provider(upstreams=upstreams, data=data, config=config, arguments=arguments) as running:
            recorded = {row["request_id"] for row in running.usage("--limit", "100000")}
            assert set(answered) <= recorded
            (adopted,) = [line for line in running.log_lines() if line["event"] == "ledger.adopted"][-1:]
            assert adopted["records"] > 0
            assert adopted["torn"] == 0


def test_a_disk_that_has_room_again_gets_all_that_waited(tmp_path: Path) -> None:
    """And work is taken again."""
    with small_disk(tmp_path / "disk") as disk, scripted_engine(slots=8, tokens=5) as engine:
        with provider(upstreams=[engine.url], data=disk / "data", config=UNLIMITED) as running:
            key = running.key()
            filler = fill(disk)
            answered = []
            while not is_failing(running):
                status, name = ask(running, key)
                answered += [name] if status == 200 else []
            filler.unlink()
            wait_until(lambda: not is_failing(running), what="the ledger to be well again")
            assert ask(running, key)[0] == 200
            wait_until(lambda: running.metric("headrace_ledger_backlog") == 0, what="all records")
            assert set(answered) <= {row["request_id"] for row in running.usage("--limit", "100000")}
            assert running.status()["ledger"]["duplicates"] == 0
            assert running.stop() == 0

"""Claims about several workers: one limit for all of them, and nothing lost or leaked when one of them dies at any moment."""

import http.client
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.models import shared_root, shared_store
from tests.support.provider import Provider, provider, wait_until
from tests.support.scripted import ScriptedEngine, scripted_engine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

UNLIMITED = "[tenant_defaults]\nrequests_per_minute = 0\nconcurrency_max = 0\n"
WORKERS = 4


@contextmanager
def service(
    *, workers: int = WORKERS, slots: int = 4, config: str = UNLIMITED, **engine: Any
) -> Iterator[tuple[Provider, ScriptedEngine]]:
    with scripted_engine(slots=slots, **engine) as served:
        with provider(
            upstreams=[served.url], upstream_slots=slots, arguments=["--workers", str(workers)], config=config
        ) as running:
            yield running, served


def workers_of(running: Provider) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = running.status()["workers"]
    return rows


def all_ready(running: Provider) -> bool:
    return [row["state"] for row in workers_of(running)] == ["ready"] * WORKERS


def ask(running: Provider, key: str, **fields: Any) -> int:
    """One request on a connection of its own; 0 where a worker died under it."""
    try:
        return running.chat(key, **fields)[0]
    except (OSError, http.client.HTTPException):
        return 0


def ask_often(running: Provider, key: str, *, times: int, at_once: int = 16, **fields: Any) -> "Counter[int]":
    with ThreadPoolExecutor(at_once) as pool:
        return Counter(pool.map(lambda _: ask(running, key, **fields), range(times)))


def at_rest(running: Provider) -> dict[str, Any]:
    """The status once nothing is in flight, queued or unaccounted for."""

    def quiet() -> dict[str, Any] | None:
        status = running.status()
        is_quiet = not status["in_flight"] and not status["queued"] and not status["ledger"]["backlog"]
        return status if is_quiet else None

    found: dict[str, Any] = wait_until(quiet, what="rest")
    return found


def test_every_worker_gets_connections_and_the_slots_are_never_exceeded() -> None:
    """The engine itself counts: never more than its slots, over all workers, and never less while requests wait."""
    with service(slots=3, ttft_ms=5, itl_ms=1, tokens=10) as (running, engine):
        key = running.key()
        answers = ask_often(running, key, times=300, at_once=24)
        assert answers == {200: 300}
        stats = engine.stats()
        assert stats["running_max"] == 3
        assert (stats["done"], stats["rejected"]) == (300, 0)
        at_rest(running)
        assert running.metric("headrace_requests_total", outcome="delivered") == 300
        # A worker sends its records a few milliseconds' worth at a time.
        wait_until(lambda: len(running.usage("--limit", "1000")) == 300, what="all records")
        assert [row["restarts"] for row in workers_of(running)] == [0] * WORKERS


def test_no_slot_stays_idle_while_another_worker_has_a_queue() -> None:
    """All connections of one moment may be with one worker: it gets the slots that the others don't use."""
    with service(slots=8, ttft_ms=300, tokens=1) as (running, engine):
        key = running.key()
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(ask, running, key) for _ in range(8)]
            engine.wait_for_stats(lambda stats: stats["running"] == 8, within_s=60)
            assert [each.result() for each in waiting] == [200] * 8


def test_status_shows_the_slots_of_a_replica_whoever_has_leased_them() -> None:
    with service(slots=5) as (running, _):
        key = running.key()
        assert ask_often(running, key, times=20) == {200: 20}
        (deployment,) = at_rest(running)["deployments"]
        (replica,) = deployment["replicas"]
        assert (replica["slots"], replica["slots_max"]) == (5, 5)


def test_a_tenants_concurrency_is_one_number_for_all_workers() -> None:
    """Exact: as many as allowed whichever workers they come to, and not one more."""
    config = "[tenant_defaults]\nrequests_per_minute = 0\nconcurrency_max = 5\n"
    with service(slots=64, config=config, ttft_ms=5000, tokens=1) as (running, engine):
        key = running.key()
        with ThreadPoolExecutor(30) as pool:
            answers = Counter(pool.map(lambda _: ask(running, key), range(30)))
        assert answers[200] == 5
        assert answers[429] == 25
        assert engine.stats()["running_max"] == 5
        at_rest(running)
        engine.set_faults("ttft:1000")
        with ThreadPoolExecutor(5) as pool:
            assert list(pool.map(lambda _: ask(running, key), range(5))) == [200] * 5


def test_the_queue_has_one_bound_for_all_workers() -> None:
    config = UNLIMITED + "[admission]\nqueue_length_max = 6\n"
    with service(slots=2, config=config, ttft_ms=60_000, tokens=1) as (running, engine):
        key = running.key()
        with ThreadPoolExecutor(30) as pool:
            # First the slots: while one is on its way to another worker, who will have it takes a place in the queue.
            asked = [pool.submit(ask, running, key) for _ in range(2)]
            engine.wait_for_stats(lambda stats: stats["running"] == 2, within_s=60)
            asked += [pool.submit(ask, running, key) for _ in range(28)]
            wait_until(lambda: sum(each.done() for each in asked) == 30 - 2 - 6, what="the refusals")
            assert {each.result() for each in asked if each.done()} == {503}
            wait_until(lambda: running.status()["queued"] == 6, what="the queue to be full")
            assert engine.stats()["running"] == 2
            engine.kill()


@pytest.mark.parametrize(
    ("callers", "time_s"),
    [(12, 6.0), pytest.param(100, 600.0, marks=[pytest.mark.long, pytest.mark.timeout(1200)])],
)
def test_a_rate_is_one_limit_for_all_workers(callers: int, time_s: float) -> None:
    """T51: no more than the limit, the burst and a lease for each worker; no less than 0.97 of what is allowed, of requests and
    of the tokens that they use."""
    rate, burst = 1200, 20
    config = (
        f"[tenant_defaults]\nrequests_per_minute = {rate}\nrequests_burst = {burst}\nconcurrency_max = 0\n"
    )
    with service(slots=256, config=config, ttft_ms=0, tokens=20) as (running, _):
        by_requests = running.key("steady")
        by_tokens = running.key("wordy", requests_per_minute=0, tokens_per_minute=30_000, tokens_burst=2000)
        running.cli("tenants", "set", "wordy", "--shadow", "concurrency_max=1")
        used = json.loads(running.chat(by_tokens, max_tokens=200)[2])["usage"]["total_tokens"]
        started_s = time.monotonic()
        stop = threading.Event()
        answers: Counter[tuple[str, int]] = Counter()

        def keep_asking(number: int) -> None:
            key = (by_requests, by_tokens)[number % 2]
            while not stop.is_set():
                status = ask(running, key, max_tokens=200)
                answers[key, status] += 1
                if status == 429:
                    stop.wait(callers / 400)  # enough ask at any moment, and the machine has time to answer

        with ThreadPoolExecutor(callers) as pool:
            for number in range(callers):
                pool.submit(keep_asking, number)
            time.sleep(time_s)  # the stimulus itself
            stop.set()
        elapsed_s = time.monotonic() - started_s
        assert {status for _, status in answers} == {200, 429}
        for key, per_minute, at_once in (
            (by_requests, rate, burst),
            (by_tokens, 30_000 / used, 2000 / used),
        ):
            admitted, come = answers[key, 200], elapsed_s * per_minute / 60
            print(f"{admitted} admitted, {admitted / come:.3f} of the limit, {answers[key, 429]} refused")
            assert admitted <= at_once + come + per_minute / 20
            assert admitted >= 0.97 * come - at_once

        def use_at_rest() -> dict[str, Any] | None:
            use: dict[str, Any] = json.loads(running.admin("/admin/v1/tenants/wordy/use")[1])
            judged_all = use["shadow"]["requests_last_hour"] == answers[by_tokens, 200] + 1
            return use if judged_all and not use["levels"][0]["in_progress"] else None

        # Whichever worker had them: what is left is the authority's, what is in progress the workers', and one judge has seen all.
        use = wait_until(use_at_rest, what="rest")
        assert use["levels"][0]["tokens"]["limit"] == 2000
        assert 0 < use["shadow"]["refused_last_hour"]["concurrency_limited"] < answers[by_tokens, 200]


def test_a_killed_worker_gives_back_all_that_it_held_and_is_replaced() -> None:
    """T53: concurrency and slots that it held are free at once; status, log and metrics say what happened."""
    config = "[tenant_defaults]\nrequests_per_minute = 0\nconcurrency_max = 4\n"
    with service(slots=4, config=config, ttft_ms=60_000, tokens=1) as (running, engine):
        key = running.key()
        with ThreadPoolExecutor(4) as pool:
            held = [pool.submit(ask, running, key) for _ in range(4)]
            engine.wait_for_stats(lambda stats: stats["running"] == 4, within_s=60)
            assert ask(running, key) == 429
            wait_until(lambda: sum(row["in_flight"] for row in workers_of(running)) == 4, what="the counts")
            victims = {row["pid"] for row in workers_of(running) if row["in_flight"]}
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
            assert [each.result() for each in held] == [0] * 4
        engine.wait_for_stats(lambda stats: stats["running"] == 0, within_s=60)
        engine.set_faults("")
        wait_until(lambda: all_ready(running), limit_s=60, what="new workers")
        with ThreadPoolExecutor(4) as pool:
            again = [pool.submit(ask, running, key) for _ in range(4)]
            engine.wait_for_stats(lambda stats: stats["running"] == 4, within_s=60)
            rows = {row["pid"]: row for row in workers_of(running)}
            assert not victims & rows.keys()
            assert sum(row["restarts"] for row in rows.values()) == len(victims)
            lost = [line for line in running.log_lines() if line["event"] == "worker.lost"]
            assert {line["pid"] for line in lost} == victims
            assert all(line["reason"] == "killed by SIGKILL" for line in lost)
            assert running.metric("headrace_worker_restarts_total") == len(victims)
            engine.kill()
            assert all(each.result() in (502, 503) for each in again)


@pytest.mark.alone
def test_workers_killed_in_a_loop_under_load_leak_nothing() -> None:
    """T53: after twelve kills every gauge is zero, every slot and place is there, and no counter went down."""
    config = "[tenant_defaults]\nrequests_per_minute = 0\nconcurrency_max = 12\n"
    with service(slots=6, config=config, ttft_ms=5, itl_ms=1, tokens=10) as (running, engine):
        key = running.key()
        stop = threading.Event()
        answers: Counter[int] = Counter()

        def keep_asking(_: int) -> None:
            while not stop.is_set():
                answers[ask(running, key)] += 1

        def has_come(count: int) -> bool:
            return answers[200] >= count

        killed: set[int] = set()

        def ready_worker(first: int) -> int | None:
            ready = [row["pid"] for row in workers_of(running)[first:] if row["state"] == "ready"]
            return next((pid for pid in ready if pid not in killed), None)

        with ThreadPoolExecutor(12) as pool:
            for number in range(12):
                pool.submit(keep_asking, number)
            try:
                counted = 0.0
                for kill in range(12):
                    before = answers[200]
                    wait_until(partial(has_come, before + 21), what="answers")
                    victim = wait_until(partial(ready_worker, kill % WORKERS), what="a worker to kill")
                    os.kill(victim, signal.SIGKILL)
                    killed.add(victim)
                    now = running.metric("headrace_requests_total", outcome="delivered")
                    assert now >= counted, "a counter went down"
                    counted = now
            finally:
                stop.set()
        assert set(answers) <= {200, 0, 429, 503}
        wait_until(lambda: all_ready(running), limit_s=60, what="all workers")
        status = at_rest(running)
        assert engine.stats()["running"] == 0
        assert running.metric("headrace_in_flight") == running.metric("headrace_queue_length") == 0
        assert sum(row["restarts"] for row in status["workers"]) == 12
        # Each slot and each place is to be had, as many at once as before: what leaked would never come back.
        wait_until(
            lambda: ask_often(running, key, times=60, at_once=6) == {200: 60},
            what="sixty answers without a refusal",
        )
        assert engine.stats()["running_max"] <= 6


def test_a_silent_authority_holds_up_nobody_and_multiplies_no_limit() -> None:
    """T54: while the control process is stopped, answers go on within what is held and a part of the rate."""
    config = "[tenant_defaults]\nrequests_per_minute = 1200\nrequests_burst = 40\nconcurrency_max = 0\n"
    with service(slots=64, config=config, ttft_ms=0, tokens=1) as (running, _):
        key = running.key()
        # Every worker has its lease; one that had to wait too long for it may have refused a request.
        assert ask_often(running, key, times=20, at_once=8)[200] > 10
        os.kill(running.pid, signal.SIGSTOP)
        try:
            slowest_s, admitted, stopped_s = 0.0, 0, time.monotonic()
            while time.monotonic() - stopped_s < 2.0:
                began_s = time.monotonic()
                admitted += ask(running, key) == 200
                slowest_s = max(slowest_s, time.monotonic() - began_s)
            elapsed_s = time.monotonic() - stopped_s
        finally:
            os.kill(running.pid, signal.SIGCONT)
        assert slowest_s < 10.0  # 50 ms for the authority, and a machine that others use
        assert admitted <= 40 + elapsed_s * 1200 / 60 + WORKERS
        assert admitted >= 1
        wait_until(lambda: ask(running, key) == 200, what="leases again")
        assert all_ready(running), "a pause of the service is not the workers' silence"


def test_a_stuck_worker_is_ended_and_what_it_held_is_free_again() -> None:
    """T53: the backstop where no end of a socket tells."""
    with service(slots=4, ttft_ms=0, tokens=1) as (running, _):
        key = running.key()
        victim = workers_of(running)[2]["pid"]
        os.kill(victim, signal.SIGSTOP)
        try:
            wait_until(
                lambda: workers_of(running)[2]["pid"] not in (victim, None), limit_s=60, what="a new worker"
            )
        finally:
            if any(row["pid"] == victim for row in workers_of(running)):
                os.kill(victim, signal.SIGCONT)
        [line] = [line for line in running.log_lines() if line["event"] == "worker.lost"]
        assert line["reason"].startswith("stuck for")
        wait_until(lambda: all_ready(running), limit_s=60, what="all workers")
        assert ask_often(running, key, times=40, at_once=4) == {200: 40}


def test_keys_are_in_force_on_every_worker_when_the_command_returns() -> None:
    """T39: created, revoked and limited, whichever worker is asked."""
    with service(slots=64, tokens=1) as (running, _):
        key = running.cli("keys", "create", "--tenant", "acme").stdout.strip()
        assert {ask(running, key) for _ in range(24)} == {200}
        running.cli("tenants", "set", "acme", "--concurrency", "1")
        running.cli("keys", "revoke", key.split("_")[2])
        assert {ask(running, key) for _ in range(24)} == {401}


def test_sigterm_drains_every_worker_and_ends_with_status_zero() -> None:
    """T61: what is in progress ends well, the port is closed, and no process is left."""
    with service(slots=8, ttft_ms=1500, tokens=1) as (running, engine):
        key = running.key()
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(ask, running, key) for _ in range(8)]
            engine.wait_for_stats(lambda stats: stats["running"] == 8, within_s=60)
            pids = [row["pid"] for row in workers_of(running)]
            assert running.stop() == 0
            assert [each.result() for each in waiting] == [200] * 8
        assert not any(is_alive(pid) for pid in pids)
        stopped = [line for line in running.log_lines() if line["event"] == "service.stopped"]
        assert [line["cut"] for line in stopped] == [0]


def test_a_second_signal_cuts_what_is_in_progress() -> None:
    with service(slots=4, ttft_ms=60_000, tokens=1) as (running, engine):
        key = running.key()
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(ask, running, key) for _ in range(2)]
            engine.wait_for_stats(lambda stats: stats["running"] == 2, within_s=60)
            os.kill(running.pid, signal.SIGTERM)
            wait_until(
                lambda: any(line["event"] == "service.draining" for line in running.log_lines()),
                what="the drain",
            )
            assert running.stop() == 0
            assert all(each.result() in (0, 503) for each in waiting)
        assert running.log_lines()[-1]["cut"] == 2


def test_workers_end_with_the_service_however_it_ends() -> None:
    with service(tokens=1) as (running, _):
        pids = [row["pid"] for row in workers_of(running)]
        running.stop(signal.SIGKILL)
        wait_until(lambda: not any(is_alive(pid) for pid in pids), what="the end of the workers")


def test_log_lines_say_which_worker_and_are_never_mixed() -> None:
    with service(slots=1, config=UNLIMITED + "[admission]\nqueue_length_max = 0\n", ttft_ms=30, tokens=1) as (
        running,
        _,
    ):
        key = running.key()
        ask_often(running, key, times=100, at_once=16)
        refused = [line for line in running.log_lines() if line["event"] == "request.refused"]
        assert {line["worker"] for line in refused} <= set(range(WORKERS))
        assert len({line["worker"] for line in refused}) > 1
        assert all(
            "worker" not in line for line in running.log_lines() if line["event"].startswith("service.")
        )


def test_a_port_that_another_service_shares_among_its_workers_is_refused() -> None:
    with service(workers=2, tokens=1) as (running, engine):
        with pytest.raises(AssertionError, match="can't be opened"):
            with provider(upstreams=[engine.url], arguments=["--workers", "2", "--port", str(running.port)]):
                pass


def test_one_worker_is_one_process_without_rows() -> None:
    with service(workers=1, tokens=1) as (running, _):
        assert workers_of(running) == []
        assert json.dumps(running.status())


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.engine
def test_prompts_that_one_tenant_left_in_an_engine_are_no_other_tenants_on_any_worker(tmp_path: Path) -> None:
    """The engine's slots go from worker to worker; whose prompts they hold goes with them (decision 0004)."""
    shared_store()
    (tmp_path / "models").symlink_to(shared_root())
    prompt: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Count the stars. " * 60}],
        "max_tokens": 2,
    }
    with provider(data=tmp_path, arguments=["--workers", "3"]) as running:
        wait_until(
            lambda: all(offer["ready"] for offer in running.status()["deployments"]),
            limit_s=120,
            what="engines",
        )
        model = next(m["model"] for m in running.status()["deployments"] if m["tasks"] == ["chat"])
        tenants = [f"tenant-{number}" for number in range(6)]
        keys = {tenant: running.key(tenant) for tenant in tenants}
        for tenant in tenants:
            assert running.chat(keys[tenant], model=model, **prompt)[0] == 200
        for _ in range(12):
            assert running.chat(keys[tenants[0]], model=model, **prompt)[0] == 200
        wait_until(lambda: not running.status()["ledger"]["backlog"], what="the records")
        records = running.usage("--limit", "100")
        once = [record for record in records if record["tenant"] != tenants[0]]
        assert [record["cached_tokens"] for record in once] == [0] * 5
        assert any(record["cached_tokens"] for record in records), "its own prompts are reused"

"""Claims about quotas that several workers serve: never overspent, whoever is asked, whoever dies, and while nobody answers."""

import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.gateway.rig import NO_LIMITS, Rig, error_of
from tests.support.provider import Provider, provider, wait_until
from tests.support.scripted import scripted_engine
from tests.support.wire import Exchange

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WORKERS = 4
TOKENS = 20


@pytest.fixture(scope="module")
def shared() -> Iterator[Rig]:
    """One engine with room for everything, four workers."""
    with scripted_engine(slots=512, tokens=TOKENS) as engine:
        with provider(
            upstreams=[engine.url],
            upstream_slots=512,
            arguments=["--workers", str(WORKERS)],
            config="[budgets]\ntemplate_tokens_max_assumed = 0\n" + NO_LIMITS,
        ) as running:
            yield Rig(running, [engine])


def tenant(running: Provider, name: str, *quotas: str) -> str:
    running.cli("tenants", "create", name, *quotas)
    return running.key(name)


def budget(running: Provider, name: str, quota: str) -> tuple[Any, Any]:
    for row in running.status()["budgets"]:
        if (row["tenant"], row["quota"]) == (name, quota):
            return row["spent"], row["reserved"]
    return None, None


def ask(made: Rig, **fields: Any) -> Exchange:
    """One request and its answer. On a busy machine the authority may be silent for half a second: then it is asked again, as
    callers do who are told 503."""
    while (answer := made.ask(**fields)).status == 503:
        assert error_of(answer)["code"] == "quota_unavailable"
    return answer


def hold(made: Rig, **fields: Any) -> socket.socket:
    """A request whose answer has begun, and goes on."""
    while True:
        connection = made.open(**fields)
        head = connection.recv(1 << 16)
        if head.startswith(b"HTTP/1.1 200"):
            return connection
        assert b"quota_unavailable" in head, head
        connection.close()


def pids(running: Provider) -> list[int]:
    return [row["pid"] for row in running.status()["workers"] if row["state"] == "ready"]


def test_200_at_once_against_a_quota_for_10(shared: Rig) -> None:
    """T52 over four workers: exactly 10 are admitted, whichever workers they come to, and nothing is overspent."""
    key = tenant(shared.provider, "ten", "--quota", "requests/day=10")
    before = shared.engine.stats()["requests"]
    shared.set_faults("ttft:500")
    with ThreadPoolExecutor(200) as pool:
        answers = Counter(pool.map(lambda _: ask(shared, key=key).status, range(200)))
    shared.set_faults("")
    assert answers == {200: 10, 429: 190}
    assert shared.engine.stats()["requests"] - before == 10
    wait_until(lambda: budget(shared.provider, "ten", "requests/day") == (10, 0), what="all to be settled")


def test_what_one_worker_has_no_use_for_another_gets(shared: Rig) -> None:
    """One after the other, with most of each reservation given back: as many as the tokens that they do use are worth."""
    used = 2 + TOKENS
    key = tenant(shared.provider, "thrifty", "--quota", f"tokens/day={30 * used + 400}")
    answers: Counter[int] = Counter()
    for _ in range(30):
        answers[ask(shared, key=key, max_tokens=200).status] += 1
    assert answers == {200: 30}
    wait_until(
        lambda: budget(shared.provider, "thrifty", "tokens/day") == (30 * used, 0), what="all to be settled"
    )


def test_a_budget_for_one_and_50_at_once(shared: Rig) -> None:
    """REPORTS 37 over four workers, with two quotas that must both have room."""
    key = tenant(shared.provider, "single", "--quota", "requests/month=1", "--quota", "tokens/month=100000")
    shared.set_faults("ttft:300")
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: ask(shared, key=key, max_tokens=5), range(50)))
    shared.set_faults("")
    assert Counter(answer.status for answer in answers) == {200: 1, 429: 49}
    assert {error_of(answer)["type"] for answer in answers if answer.status == 429} == {"insufficient_quota"}
    wait_until(lambda: budget(shared.provider, "single", "tokens/month")[1] == 0, what="the rest to be free")


def test_what_a_killed_worker_held_is_free_at_once(shared: Rig) -> None:
    """T53, REPORTS 39: its requests are nobody's any more, and their reservations with them."""
    key = tenant(shared.provider, "killed", "--quota", "requests/day=6", "--quota", "tokens/day=1000000")
    shared.set_faults("stall:1")
    connections = [hold(shared, key=key, max_tokens=100) for _ in range(6)]
    assert budget(shared.provider, "killed", "requests/day") == (0, 6)
    assert ask(shared, key=key, max_tokens=100).status == 429
    before = pids(shared.provider)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: len(pids(shared.provider)) == WORKERS and not set(pids(shared.provider)) & set(before),
        what="new workers",
        limit_s=60,
    )
    shared.set_faults("")
    for connection in connections:
        connection.close()
    wait_until(
        lambda: budget(shared.provider, "killed", "requests/day") == (0, 0), what="their journals to be read"
    )
    answers = Counter(ask(shared, key=key, max_tokens=100).status for _ in range(8))
    assert answers == {200: 6, 429: 2}


def test_while_the_authority_is_silent_only_what_is_held_is_spent(shared: Rig) -> None:
    """T54: then 503 `quota_unavailable`, which nobody waits for; never more than the budget, and all as before when it speaks."""
    running = shared.provider
    key = tenant(running, "patient", "--quota", "requests/day=1000")
    assert ask(shared, key=key).status == 200
    os.kill(running.pid, signal.SIGSTOP)
    try:
        answers = [shared.ask(key=key) for _ in range(60)]
        free = shared.ask()
    finally:
        os.kill(running.pid, signal.SIGCONT)
    statuses = Counter(answer.status for answer in answers)
    assert statuses.keys() <= {200, 503}
    assert statuses[503] >= 30
    refused = [error_of(answer) for answer in answers if answer.status == 503]
    assert {error["code"] for error in refused} == {"quota_unavailable"}
    assert free.status == 200, "who has no quota needs nobody's word"
    assert ask(shared, key=key).status == 200, "when it speaks again all is as before"


def test_a_new_quota_refuses_nobody_while_it_is_read(shared: Rig) -> None:
    """It is in force once what was spent is known, on every worker, while requests come."""
    key = tenant(shared.provider, "growing")
    answers: Counter[int] = Counter()
    stop = threading.Event()

    def ask_on() -> None:
        while not stop.is_set():
            answers[ask(shared, key=key, max_tokens=1).status] += 1

    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(ask_on)
        wait_until(lambda: answers[200] > 20, what="some requests")
        shared.provider.cli("tenants", "set", "growing", "--quota", "requests/day=1000000")
        in_force_s = time.monotonic() + 1.5
        wait_until(
            lambda: (
                time.monotonic() > in_force_s
                and (budget(shared.provider, "growing", "requests/day")[0] or 0) > 20
            ),
            what="the quota to be in force",
        )
        stop.set()
    assert answers.keys() == {200}
    wait_until(
        lambda: budget(shared.provider, "growing", "requests/day") == (answers[200], 0),
        what="every request to be counted once",
    )

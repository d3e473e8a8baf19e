"""T28: whatever process of the service is killed, at whatever moment, the books close afterwards.

Callers write down what they saw; the engine has a log of its own; the ledger must agree with both.
"""

import http.client
import json
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.provider import Provider, provider, wait_until
from tests.support.scripted import ScriptedEngine, scripted_engine

UNLIMITED = "[tenant_defaults]\nrequests_per_minute = 0\nconcurrency_max = 0\n"
CALLERS = 8


@dataclass
class History:
    """What the callers saw: the ids of the answers that began, and of those that they saw end."""

    begun: set[str] = field(default_factory=set)
    ended: list[str] = field(default_factory=list)

    def ask(self, port: int, key: str, *, stream: bool) -> None:
        """One request, which the service may not live to answer."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        question = {
            "model": "scripted",
            "messages": [{"role": "user", "content": "hello"}],
            "stream": stream,
        }
        try:
            connection.request(
                "POST",
                "/v1/chat/completions",
                json.dumps(question),
                {"authorization": f"Bearer {key}", "content-type": "application/json"},
            )
            answer = connection.getresponse()
            name = answer.headers["x-request-id"]
            self.begun.add(name)
            content = answer.read()
            if answer.status == 200 and (not stream or b"data: [DONE]" in content):
                self.ended.append(name)
        except (OSError, http.client.HTTPException):
            pass  # cut off: what it had seen until then is written down
        finally:
            connection.close()

    @contextmanager
    def load(self, port: int, keys: list[str]) -> Iterator[None]:
        """Callers who ask again and again, whole answers and streams in turns, until the end of the block."""
        stop = threading.Event()

        def keep_asking(number: int) -> None:
            count = number
            while not stop.is_set():
                self.ask(port, keys[number % len(keys)], stream=bool(count % 2))
                count += 1

        with ThreadPoolExecutor(CALLERS) as pool:
            asking = [pool.submit(keep_asking, number) for number in range(CALLERS)]
            try:
                yield
            finally:
                stop.set()
            for each in asking:
                each.result()


def durable_key(running: Provider) -> str:
    running.cli("tenants", "create", "bank", "--durable", "on")
    return running.key("bank")


@dataclass(frozen=True)
class Books:
    """What the service has written down, by request, and how often the engine has worked for each."""

    records: dict[str, dict[str, Any]]
    orphans: dict[str, dict[str, Any]]
    executed: Counter[str]

    @classmethod
    def read(cls, running: Provider, engine: ScriptedEngine) -> Self:
        records = running.usage("--limit", "1000000")
        orphans = json.loads(running.cli("usage", "--orphans", "--json", "--limit", "1000000").stdout)
        return cls(
            {row["request_id"]: row for row in records},
            {row["request_id"]: row for row in orphans},
            Counter(line["id"] for line in engine.executions()),
        )

    def lack(self, history: History) -> set[str]:
        """What began or was done and stands nowhere; a record may take a moment from the process that made it to the disk."""
        return (set(history.ended) | self.executed.keys()) - self.records.keys() - self.orphans.keys()


def check_books(running: Provider, engine: ScriptedEngine, history: History) -> Counter[str]:
    """The history, the ledger and the engine's log, joined."""
    engine.wait_for_stats(lambda stats: stats["running"] == 0)
    # Every execution of the engine is accounted for, and whatever a caller saw the end of.
    wait_until(lambda: not Books.read(running, engine).lack(history), what="all records")
    books = Books.read(running, engine)
    records, orphans, executed = books.records, books.orphans, books.executed
    assert len(history.ended) == len(set(history.ended))
    # Every request whose end a caller saw is recorded, as delivered, with what the engine made.
    for name in history.ended:
        assert records[name]["outcome"] == "delivered", name
        assert executed[name] == 1
    # Nothing has two: one record each by the table's key, and no orphan is a record.
    assert not orphans.keys() & records.keys()
    for name, count in executed.items():
        if name in records:
            assert len(records[name]["executions"]) >= count
    for row in orphans.values():
        assert row["model"] == "scripted"
        assert row["tenant"] in ("demo", "bank")
        assert row["found"] >= row["started"]
    status = running.status()["ledger"]
    assert (status["duplicates"], status["rejected"], status["failed"]) == (0, 0, 0)
    assert not list((running.data / "run" / "journal").glob("*.torn"))
    return Counter(records=len(records), orphans=len(orphans), ended=len(history.ended))


def kill_often(data: Path, *, kills: int, workers: int, seed: int) -> Counter[str]:
    """Kills the whole service that often while it works, starts it again each time, and checks the books at the end."""
    chance = random.Random(seed)
    history = History()
    arguments = ["--workers", str(workers)]
    with scripted_engine(slots=CALLERS, ttft_ms=2, itl_ms=0.5, tokens=8, log=True) as engine:
        keys: list[str] = []
        for _ in range(kills):
            with provider(
                upstreams=[engine.url],
                upstream_slots=CALLERS,
                data=data,
                arguments=arguments,
                config=UNLIMITED,
            ) as running:
                keys = keys or [running.key(), durable_key(running)]
                before = len(history.ended)
                moment = before + chance.randrange(1, 120)
                with history.load(running.port, keys):
                    wait_until(lambda: len(history.ended) >= moment, what="answers")  # noqa: B023
                    os.kill(running.pid, signal.SIGKILL)
                    running.process.wait(60)
        with provider(
            upstreams=[engine.url], upstream_slots=CALLERS, data=data, arguments=arguments, config=UNLIMITED
        ) as running:
            return check_books(running, engine, history)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "kills"), [(1, 5), (2, 2)])
def test_the_books_close_however_often_the_service_is_killed(
    tmp_path: Path, workers: int, kills: int
) -> None:
    """T28 in short."""
    counted = kill_often(tmp_path / "data", kills=kills, workers=workers, seed=28)
    assert counted["ended"] >= kills
    assert counted["orphans"] > 0


@pytest.mark.slow
def test_the_books_close_when_workers_are_killed(tmp_path: Path) -> None:
    """T28: the service goes on, takes over what each of them left, and nothing waits for another start."""
    history = History()
    with (
        scripted_engine(slots=CALLERS, ttft_ms=2, itl_ms=0.5, tokens=8, log=True) as engine,
        provider(
            upstreams=[engine.url], upstream_slots=CALLERS, arguments=["--workers", "2"], config=UNLIMITED
        ) as running,
    ):
        keys = [running.key(), durable_key(running)]

        killed: set[int] = set()

        def working() -> list[int]:
            """The two workers, once there are two that live."""
            ready = {row["pid"] for row in running.status()["workers"] if row["state"] == "ready"} - killed
            return sorted(ready) if len(ready) == 2 else []

        with history.load(running.port, keys):
            for victim in range(4):
                moment = len(history.ended) + 40
                wait_until(lambda: len(history.ended) >= moment, what="answers")  # noqa: B023
                pid = wait_until(working, what="both workers")[victim % 2]
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        left = [str(pid) for pid in wait_until(working, what="both workers")]
        journals = running.data / "run" / "journal"
        wait_until(
            lambda: sorted(file.stem for file in journals.iterdir()) == sorted(left),
            what="the journals of the dead to be adopted",
        )
        counted = check_books(running, engine, history)
        wait_until(
            lambda: running.metric("headrace_ledger_orphans_total") == counted["orphans"],
            what="what was cut off to be counted",
        )


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("workers", "kills"), [(1, 160), (2, 40)])
def test_the_books_close_after_two_hundred_kills(tmp_path: Path, workers: int, kills: int) -> None:
    """T28."""
    counted = kill_often(tmp_path / "data", kills=kills, workers=workers, seed=200)
    print(dict(counted))
    assert counted["orphans"] > 0

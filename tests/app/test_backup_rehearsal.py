"""The way back from a lost machine, walked: a backup of a service at work, the service killed, the copy started elsewhere."""

import json
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from headrace.cli.main import main
from headrace.stores import shipping, sqlite
from tests.support.postgres import PostgresServer
from tests.support.provider import Provider, provider, wait_until
from tests.support.scripted import scripted_engine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

UNLIMITED = "[tenant_defaults]\nrequests_per_minute = 0\nconcurrency_max = 0\n"


def test_a_service_under_load_is_backed_up_killed_and_restored_elsewhere(tmp_path: Path) -> None:
    """Every record of before the backup is there, the old key works, and the books of the copy agree."""
    archive = tmp_path / "archive"
    with scripted_engine(slots=64, tokens=3) as engine:
        with provider(
            upstreams=[engine.url], upstream_slots=64, config=UNLIMITED, data=tmp_path / "data"
        ) as running:
            key = running.key("acme")
            stop = threading.Event()
            callers = [threading.Thread(target=_ask_until, args=(running, key, stop)) for _ in range(4)]
            for caller in callers:
                caller.start()
            try:
                wait_until(lambda: running.status()["ledger"]["committed"] > 100, what="some records")
                before = {record["request_id"] for record in running.usage("--limit", "100000")}
                told = running.cli("db", "backup", str(archive), "--json")
                wait_until(
                    lambda: running.status()["ledger"]["committed"] > len(before) + 100, what="more records"
                )
                running.stop(signal.SIGKILL)
            finally:
                stop.set()
                for caller in callers:
                    caller.join()
        assert json.loads(told.stdout)["records"] >= len(before) > 100
        restored = tmp_path / "elsewhere"
        assert main(["db", "restore", str(archive), "--data", str(restored)]) == 0
        with provider(upstreams=[engine.url], upstream_slots=64, config=UNLIMITED, data=restored) as running:
            assert running.chat(key)[0] == 200
            wait_until(lambda: running.status()["ledger"]["backlog"] == 0, what="the record")
            after = [record["request_id"] for record in running.usage("--limit", "100000")]
            assert before < set(after)
            assert len(after) == len(set(after))
            running.cli("audit", "verify")


def _ask_until(running: Provider, key: str, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            running.chat(key)
        except OSError:
            return


def test_a_central_database_comes_back_from_its_dump_and_gets_what_it_lacks(
    tmp_path: Path,
    postgres: PostgresServer,
    new_postgres_url: Callable[[], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The commands of docs/operate/backup.md: what was shipped after the dump is shipped again."""
    url, restored_url = new_postgres_url(), new_postgres_url()
    (tmp_path / "url").write_text(url)
    data = tmp_path / "data"

    def run(*arguments: str) -> str:
        assert main([*arguments, "--data", str(data)]) == 0
        return capsys.readouterr().out

    run("keys", "create", "--tenant", "acme")
    run("db", "move", "--to", f"file:{tmp_path / 'url'}")
    _record(data, "req_1")
    assert "1 records" in run("db", "ship")
    _postgres(postgres, "pg_dump", "--format=custom", f"--file={tmp_path / 'dump'}", url)
    _record(data, "req_2")
    assert "1 records" in run("db", "ship")
    _postgres(postgres, "pg_restore", "--no-owner", f"--dbname={restored_url}", str(tmp_path / "dump"))
    (tmp_path / "url").write_text(restored_url)
    assert "2 records shipped" in run("db", "ship", "--again")
    with psycopg.connect(restored_url) as connection:
        found = connection.execute("SELECT request_id FROM usage ORDER BY request_id").fetchall()
    assert found == [("req_1",), ("req_2",)]
    assert [row["tenant"] for row in json.loads(run("keys", "list", "--json"))] == ["acme"]
    run("audit", "verify")


def _record(data: Path, request_id: str) -> None:
    connection = sqlite.connect(data / sqlite.DATABASE_NAME)
    with sqlite.transaction(connection):
        connection.execute(
            "INSERT INTO usage (request_id, tenant, key_id, model, revision, endpoint, is_streaming, started_s, outcome,"
            " reason, status, prompt_tokens, completion_tokens, cached_tokens, usage_source, queue_wait_s, total_s, attempts)"
            " VALUES (?, 'acme', 'k', 'm', 'r', 'e', 1, 1.5, 'delivered', 'ok', 200, 3, 2, 1, 'final', 0.0, 1.0, 1)",
            (request_id,),
        )
        shipping.note(connection, [request_id], at_s=1.5)
    connection.close()


def _postgres(server: PostgresServer, program: str, *arguments: str) -> None:
    path = server.programs / program
    assert path.exists() or shutil.which(program)
    subprocess.run([path if path.exists() else program, *arguments], check=True, timeout=120)

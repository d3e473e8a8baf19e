"""The books of a running service close against what its engines counted, and whatever doesn't is named: `headrace reconcile`."""

import json
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.rig import Rig, read_events, request_id, rig
from tests.support.provider import wait_until

CONFIG = "\n[ledger]\ncounters_every_s = 0.2\nreconcile_every_s = 4\n"
# Attempts that end this near to a reading may be on either side of it; see policies.engine_counts.
EDGE_S = 1.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def books() -> Iterator[Rig]:
    with rig({"slots": 8, "tokens": 20}, config=CONFIG) as running:
        running.set_prices()
        yield running


def reconcile(books: Rig, *flags: str) -> tuple[int, dict[str, Any]]:
    done = books.provider.cli("reconcile", "--json", *flags, check=False)
    return done.returncode, json.loads(done.stdout)


def mixed_work(books: Rig) -> None:
    """Whole and streamed answers, estimates, cuts, failures, a caller that leaves."""
    for faults in ("", "usage:cumulative", "usage:none", "cut:7", "error:500", "usage:after_finish"):
        books.set_faults(faults)
        for stream in (True, False):
            books.ask(stream=stream)
    books.set_faults("stall:12")
    known = books.records()
    with books.open() as connection:
        read_events(connection, 5)
    books.new_records(known, 1)
    books.set_faults("")


def settle(books: Rig) -> None:
    """Until a reading of the engine's counters is so late that all work before it is surely in."""
    done_s = time.time()
    path = books.provider.data / "headrace.db"

    def is_read() -> bool:
        connection = sqlite3.connect(path)
        try:
            (newest_s,) = connection.execute("SELECT max(until_s) FROM engine_count").fetchone()
        finally:
            connection.close()
        return newest_s is not None and newest_s > done_s + EDGE_S

    wait_until(is_read, what="a later reading of the counters")


def wait_for_first_reading(books: Rig) -> None:
    settle(books)


def test_the_ledger_closes_against_attempts_rules_prices_and_the_engines_own_counters(books: Rig) -> None:
    wait_for_first_reading(books)
    mixed_work(books)
    settle(books)
    status, told = reconcile(books)
    assert (status, told["faults"]) == (0, 0), told
    assert told["requests"] == len(books.records())
    assert told["engine_stretches"] >= 1
    assert set(told["counts"]) <= {"usage_estimated", "usage_unknown"}, (
        "estimates are stated, nothing else differs"
    )
    assert told["counts"]["usage_estimated"] >= 1


def test_an_engine_that_works_for_others_is_named_and_the_alert_rises(books: Rig) -> None:
    """The engine counts more than its attempts: somebody passes the gateway by, or work was not recorded."""
    wait_for_first_reading(books)
    books.ask()
    body = {"model": "scripted", "messages": [{"role": "user", "content": "past the gateway"}], "n": 8}
    for _ in range(10):
        assert books.engine.request("POST", "/v1/chat/completions", json.dumps(body).encode())[0] == 200
    settle(books)
    status, told = reconcile(books)
    assert status == 1
    (difference,) = [each for each in told["differences"] if each["unit"] == "completion_tokens"]
    assert difference["cause"] == "engine_counted_more"
    assert difference["found"] - difference["recorded"] >= 10 * 8 * 20 - 20
    wait_until(
        lambda: books.provider.metric("headrace_reconciliation_differences", cause="engine_counted_more"),
        limit_s=300.0,  # it has the lowest priority of all, so that a busy machine leaves it little
        what="the metric of the continuous comparison",
    )
    lines = [line for line in books.provider.log_lines() if line["event"] == "books.differ"]
    assert lines[0]["reason"] == "engine_counted_more"
    assert lines[0]["level"] == "error"
    assert books.provider.metric("headrace_reconciled_timestamp_seconds") > time.time() - 60


def test_what_somebody_changed_in_the_books_is_found_with_its_request(books: Rig, tmp_path: Path) -> None:
    """Every table, its triggers dropped by hand first: a charge, a count, an attempt, a record."""
    books.set_faults("error_first:500")
    answers = [books.ask() for _ in range(4)]
    ids = [request_id(answer) for answer in answers]
    books.set_faults("")
    paid = request_id(books.ask())
    wait_until(lambda: len(books.records()) == 5, what="the records")
    assert reconcile(books)[0] == 0
    connection = sqlite3.connect(books.provider.data / "headrace.db", isolation_level=None)
    for (name,) in connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name IN ('usage', 'attempt')"
    ).fetchall():
        connection.execute(f'DROP TRIGGER "{name}"')
    connection.execute("UPDATE usage SET charge_pico = charge_pico + 1 WHERE request_id = ?", (paid,))
    connection.execute("DELETE FROM attempt WHERE request_id = ?", (ids[0],))
    connection.execute("DELETE FROM usage WHERE request_id = ?", (ids[1],))
    connection.execute("UPDATE usage SET price_version = 'p77' WHERE request_id = ?", (ids[2],))
    connection.execute("UPDATE usage SET completion_tokens = 9 WHERE request_id = ?", (ids[3],))
    connection.close()
    listing = tmp_path / "differences.jsonl"
    status, told = reconcile(books, "--list", str(listing))
    assert status == 1
    found = {(each["cause"], each["subject"]) for each in told["differences"]}
    assert found >= {
        ("charge_differs", paid),
        ("attempt_missing", ids[0]),
        ("attempt_alone", ids[1]),
        ("price_unknown", ids[2]),
        ("delivered_more", ids[3]),
    }
    assert len(listing.read_text().splitlines()) == sum(told["counts"].values())
    table = books.provider.cli("reconcile", check=False)
    assert table.returncode == 1
    assert paid in table.stdout


def test_what_a_caller_kept_is_compared_with_what_was_recorded(books: Rig, tmp_path: Path) -> None:
    whole = books.ask(stream=False)
    usage = json.loads(whole.body)["usage"]
    its_id = request_id(whole)
    wait_until(lambda: len(books.records()) == 1, what="the record")
    saw = {
        "id": its_id,
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
    }
    history = tmp_path / "answers.jsonl"
    history.write_text(json.dumps(saw) + "\n\n")
    assert reconcile(books, "--history", str(history))[0] == 0
    history.write_text(
        json.dumps({**saw, "completion_tokens": 1}) + "\n" + json.dumps({"id": "req_never"}) + "\n"
    )
    status, told = reconcile(books, "--history", str(history))
    assert status == 1
    assert told["counts"] == {"caller_saw_other_usage": 1, "caller_saw_unrecorded_end": 1}
    history.write_text('{"id": 7}')
    refused = books.provider.cli("reconcile", "--history", str(history), check=False)
    assert refused.returncode == 2
    assert "answers.jsonl:1" in refused.stderr


def test_a_window_leaves_out_what_came_before_and_after(books: Rig) -> None:
    books.ask()
    wait_until(lambda: len(books.records()) == 1, what="the record")
    assert reconcile(books, "--since", "1h")[1]["requests"] == 1
    assert reconcile(books, "--until", "1h")[1]["requests"] == 0
    assert reconcile(books, "--since", "2099-01-01")[1]["requests"] == 0


def test_what_a_killed_worker_was_at_is_an_orphan_and_no_work_of_others() -> None:
    """T28: the engine has counted it, no record ever will, and that is no reason for an alert."""
    with rig({"slots": 8, "tokens": 20}, config=CONFIG + "\n[server]\nworkers = 2\n") as running:
        wait_for_first_reading(running)
        running.ask()
        running.set_faults("stall:12")
        before = {row["pid"] for row in running.provider.status()["workers"]}
        with running.open() as connection:
            read_events(connection, 5)
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            running.engine.wait_for_stats(lambda stats: stats["running"] == 0)
        wait_until(
            lambda: not before & {row["pid"] for row in running.provider.status()["workers"]},
            what="new workers",
            limit_s=60,
        )
        settle(running)
        status, told = reconcile(running)
        assert told["counts"] == {"orphan": 1}, told
        assert status == 0

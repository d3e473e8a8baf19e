"""T32: the wall clock is set forward and back by an hour while the service works, and nothing but the time of day notices."""

import json
import sys
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.stores.opening import open_database
from headrace.stores.usage_report import UsageReport
from tests.support import stepped_headrace
from tests.support.provider import Provider, provider, wait_until
from tests.support.scripted import scripted_engine

HOUR_S = 3600.0
CONFIG = "[tenant_defaults]\nrequests_per_minute = 0\nconcurrency_max = 0\n"


def set_clock(file: Path, wrong_by_s: float) -> None:
    """In one step: whoever reads it sees the old time or the new one."""
    draft = file.with_suffix(".draft")
    draft.write_text(str(wrong_by_s))
    draft.replace(file)


def id_s(name: str) -> float:
    """When the id says that it was made."""
    return int(name.removeprefix("req_")[:12], 16) / 1000


def summed(running: Provider, since_s: float, until_s: float) -> int:
    report = UsageReport(open_database(running.data, must_exist=True))
    try:
        return sum(row.requests for row in report.summary(since_s=since_s, until_s=until_s))
    finally:
        report.close()


@pytest.mark.slow
def test_durations_limits_and_reports_do_not_notice_that_the_clock_is_set(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    set_clock(clock, 0.0)
    program = [sys.executable, "-P", stepped_headrace.__file__, str(clock)]
    with (
        scripted_engine(slots=8, ttft_ms=100, itl_ms=2, tokens=20) as engine,
        provider(upstreams=[engine.url], config=CONFIG, program=program) as running,
    ):
        key = running.key()
        # A bucket of two that gets one back in a minute: enough time for this test.
        limited = running.key("limited", requests_per_minute=1, requests_burst=2)
        started_s = time.time()
        taken = [running.chat(limited)[0] for _ in range(3)]
        assert taken == [200, 200, 429]
        count = 2
        for wrong_by_s in (HOUR_S, 0.0, -HOUR_S, HOUR_S, 0.0):
            assert running.chat(key, stream=bool(count % 2))[0] == 200
            # One is under way when the clock is set.
            connection = running.connect()
            with connection:
                body = json.dumps(
                    {"model": "scripted", "messages": [{"role": "user", "content": "x"}], "stream": True}
                )
                connection.sendall(
                    f"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {key}\r\n"
                    f"content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode()
                )
                engine.wait_for_stats(lambda stats: stats["running"] == 1)
                set_clock(clock, wrong_by_s)
                data = b""
                while piece := connection.recv(65536):
                    data += piece
                assert b"[DONE]" in data
            assert running.chat(key)[0] == 200
            count += 3
            status, headers, _ = running.chat(limited)
            assert (status, 0 < float(headers["retry-after"]) <= 60) == (429, True)
        elapsed_s = time.time() - started_s
        wait_until(lambda: len(running.usage()) == count, what="all records")
        records = running.usage()
        check_durations(records, elapsed_s)
        check_reports(running, records, started_s)
        assert running.status()["ledger"]["rejected"] == 0


def check_durations(records: list[dict[str, Any]], elapsed_s: float) -> None:
    for record in records:
        for attempt in [record, *record["executions"]]:
            spans = [
                attempt[name]
                for name in ("queue_wait_s", "ttft_s", "total_s", "duration_s")
                if name in attempt
            ]
            assert all(0 <= span <= elapsed_s for span in spans if span is not None), attempt


def check_reports(running: Provider, records: list[dict[str, Any]], started_s: float) -> None:
    """Every record is in the one hour that its own time says, which is that of its id; and no report loses one."""
    hours = {start: summed(running, start, start + HOUR_S) for start in hour_starts(started_s)}
    assert sum(hours.values()) == len(records)
    expected = Counter(
        start for record in records for start in hours if start <= unix_s(record["started"]) < start + HOUR_S
    )
    assert {start: found for start, found in hours.items() if found} == dict(expected)
    assert len(expected) == 3
    for record in records:
        assert abs(id_s(record["request_id"]) - unix_s(record["started"])) < 60


def hour_starts(started_s: float) -> list[float]:
    """Hours that have the start of the test in the middle of one, so that a step of one hour always leads to another."""
    return [started_s + (hour - 0.5) * HOUR_S for hour in range(-3, 4)]


def unix_s(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()

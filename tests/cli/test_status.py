"""Claims about `headrace status`: it shows what the admin port says, and says clearly when nothing runs."""

import argparse
import io
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import status
from headrace.control.api import AdminServer, admin_token
from headrace.core.clock import ManualClock
from headrace.core.errors import HeadraceError
from headrace.stores import directory
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics

SAID: dict[str, Any] = {
    "version": "0.1.0",
    "uptime_s": 11_531.2,
    "ready": True,
    "connections": 5,
    "in_flight": 2,
    "queued": 1,
    "requests": {
        "failed": {"upstream_lost": 1},
        "refused": {"queue_full": 20, "rate_limited": 6},
        "delivered": {"ok": 40},
    },
    "deployments": [
        {
            "model": "small",
            "tasks": ["chat"],
            "revision": "sha256:4f6c1f1e90ab77aa55",
            "ready": 1,
            "queued": 1,
            "expected_wait_s": 2.34,
            "cache_isolation": "salt",
            "replicas": [
                {
                    "id": "small-0",
                    "state": "ready",
                    "reason": "",
                    "generation": 2,
                    "restarts": 1,
                    "slots": 4,
                    "in_flight": 2,
                    "circuit": "open",
                    "cache_risk": "its salts may be ignored",
                    "pid": 99,
                    "cold_start_s": {"launch": 0.21, "load": 1.14, "warm": None},
                }
            ],
        }
    ],
    "rollouts": [
        {
            "name": "small",
            "wanted": 2,
            "accepted": 1,
            "rollout": {"stage": "stepping", "waits_for": "requests"},
            "scale": {
                "1": {"wanted": 2, "ready": 1, "reason": "load_up"},
                "2": {"wanted": 1, "ready": 1, "reason": "steady"},
            },
        }
    ],
    "controller": {
        "state": "ready",
        "pid": 41,
        "restarts": 2,
        "reason": "killed by SIGKILL",
        "is_behind": True,
        "silent_s": 4.2,
    },
    "ledger": {"backlog": 0, "committed": 1842, "failed": 0},
}


@contextmanager
def service(data: Path, said: dict[str, Any]) -> Iterator[None]:
    """An admin port that says this, described in the data directory as `headrace up` does."""
    server = AdminServer(
        "127.0.0.1",
        0,
        admin_token(data / "run"),
        metrics=Metrics(),
        status=lambda: said,
        heartbeat=lambda: 0.0,
        log=Log(io.StringIO(), ManualClock()),
    )
    describe(data, admin_port=server.start())
    try:
        with directory.sole_user(data):
            yield
    finally:
        server.stop()


def describe(data: Path, **fields: Any) -> None:
    (data / "run").mkdir(exist_ok=True)
    said = {"pid": 4711, "public_port": 8000, "admin_host": "127.0.0.1", "started_s": 1.0, **fields}
    (data / "run" / "service.json").write_text(json.dumps(said))


def run(data: Path, *, as_json: bool = False) -> None:
    status.run(argparse.Namespace(data=str(data), json=as_json, watch=False))


def test_status_shows_the_service_its_models_and_its_replicas(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with service(tmp_path, SAID):
        run(tmp_path)
    shown = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines[0].startswith("headrace 0.1.0, ready, up 3 h 12 min, pid 4711, port 8000, admin 127.0.0.1:")
    assert lines[1:] == [
        "connections 5, in flight 2, queued 1",
        "requests since the start: 40 delivered, 26 refused (20 queue_full, 6 rate_limited), 1 failed (1 upstream_lost)",
        "controller ready, behind: silent for 4 s, pid 41, 2 restarts (killed by SIGKILL)",
        "usage records: 1842 on disk, 0 waiting, 0 failures",
        "prompt cache of small-0: its salts may be ignored",
        "",
        "MODEL TASKS REVISION READY QUEUED WAIT (S) CACHE ISOLATION",
        "small chat 4f6c1f1e90ab 1/1 1 2.3 salt",
        "",
        "REPLICA MODEL STATE REASON GENERATION RESTARTS SLOTS IN FLIGHT COLD START (S)",
        "small-0 small ready (ejected) - 2 1 4 2 launch 0.2 + load 1.1",
        "",
        "DEPLOYMENT WANTED SERVES ROLLOUT WAITS FOR REPLICAS SCALE",
        "small 2 1 stepping requests v1 1/2, v2 1/1 load_up, steady",
    ]


def test_json_is_where_the_service_is_and_what_the_admin_port_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with service(tmp_path, SAID):
        run(tmp_path, as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert shown.pop("admin_port") > 0
    assert shown.pop("slos") == [], "nothing is promised of it"
    assert shown == {"pid": 4711, "public_port": 8000, "admin_host": "127.0.0.1", "started_s": 1.0, **SAID}


@pytest.mark.parametrize("said", [{}, {"deployments": [{"replicas": [{}]}, {"model": "m"}], "ledger": {}}])
def test_a_service_that_says_less_still_has_a_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: dict[str, Any]
) -> None:
    with service(tmp_path, said):
        run(tmp_path)
    assert capsys.readouterr().out.startswith("headrace -, not ready, up -")


def test_control_sequences_in_names_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """T45"""
    with service(tmp_path, {"deployments": [{"model": "\x1b[2Jm\nx", "revision": "\x07", "replicas": []}]}):
        run(tmp_path)
    shown = capsys.readouterr().out
    assert "?[2Jm?x" in shown
    assert all(line.isprintable() for line in shown.splitlines())


def test_a_server_that_says_much_does_not_tear_the_table_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {"deployments": [{"replicas": [{"id": "a", "reason": "answered with status 401: " + "x" * 500}]}]}
    with service(tmp_path, said):
        run(tmp_path)
    shown = capsys.readouterr().out
    assert "answered with status 401: xxx" in shown
    assert max(map(len, shown.splitlines())) < 250


def test_nothing_running_says_how_to_start(tmp_path: Path) -> None:
    with pytest.raises(HeadraceError, match=f"start one with: headrace up --data {tmp_path}"):
        run(tmp_path)


def test_a_description_left_by_a_killed_service_says_how_to_start(tmp_path: Path) -> None:
    admin_token(tmp_path / "run")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free_port = taken.getsockname()[1]
    describe(tmp_path, admin_port=free_port)
    with pytest.raises(HeadraceError, match="headrace up --data"):
        run(tmp_path)


def test_a_port_that_refuses_the_token_is_named(tmp_path: Path) -> None:
    with service(tmp_path, SAID):
        (tmp_path / "run" / "admin.token").write_text("another-token-of-good-length")
        with pytest.raises(HeadraceError, match=r"127\.0\.0\.1:\d+ answered 401"):
            run(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"admin_port": "many"}', '{"admin_port": null}'])
def test_a_damaged_description_is_an_error_that_names_the_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "service.json").write_text(content)
    with directory.sole_user(tmp_path), pytest.raises(HeadraceError, match=r"service\.json"):
        run(tmp_path)


def test_the_token_is_not_sent_to_who_took_the_port_of_a_killed_service(tmp_path: Path) -> None:
    """What a killed service left behind names a port that may be anybody's by now."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.settimeout(0.2)
        describe(tmp_path, admin_port=stranger.getsockname()[1])
        admin_token(tmp_path / "run")
        with pytest.raises(HeadraceError, match="no service is running"):
            run(tmp_path)
        with pytest.raises(TimeoutError):
            stranger.accept()

"""What does the person read who starts a service, and is it true?"""

import shlex
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.control.status import ColdStart, ReplicaStatus, announcement
from headrace.core.fleet import ReplicaState
from headrace.core.ids import ReplicaId
from headrace.stores.sqlite import DATABASE_NAME
from tests.support.provider import HEADRACE, Provider, provider, wait_until
from tests.support.scripted import scripted_engine

NOBODY = "http://127.0.0.1:9"  # the discard port: closed everywhere but in museums


def lines_until(service: Provider, label: str) -> list[str]:
    """All that it printed, up to the line with that label; a server's state may be told before the ports are."""
    assert service.process.stdout is not None
    lines = service.started.splitlines()
    while not any(line.startswith(label) for line in lines):
        line = service.process.stdout.readline()
        assert line, f"it ended without a line `{label}`: {lines}"
        lines.append(line.rstrip("\n"))
    return lines


@pytest.mark.slow
def test_the_command_for_a_first_key_makes_one_as_it_stands(tmp_path: Path) -> None:
    """And a server that doesn't answer is named on the terminal and in the status, though its models are unknown."""
    with provider(upstreams=[NOBODY], data=tmp_path / "data", ready=False) as service:
        command = lines_until(service, "no key yet")[-1].removeprefix("no key yet   make one with: ")
        made = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=60, check=True)
        assert service.get("/v1/models", key=made.stdout.strip())[0] == 200
        wait_until(lambda: service.status()["deployments"], what="the server to be in the status")
        rows = service.status()["deployments"]
        assert [replica["id"] for row in rows for replica in row["replicas"]] == ["127.0.0.1:9"]
        assert "127.0.0.1:9" in service.cli("status").stdout
        assert service.stop() == 0
        assert service.process.stdout is not None
        told = service.started + service.process.stdout.read()
        assert "no answer    127.0.0.1:9: no connection" in told


@pytest.mark.slow
def test_no_key_is_asked_for_where_there_is_one(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with provider(upstreams=[NOBODY], data=data, ready=False) as service:
        service.key()
        service.stop()
    with provider(upstreams=[NOBODY], data=data, ready=False) as service:
        assert service.stop() == 0
        assert service.process.stdout is not None
        assert "no key yet" not in service.started + service.process.stdout.read()


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--port", "--admin-port"])
def test_a_taken_port_is_one_line_and_status_2(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ports = {"--port": "0", "--admin-port": "0", option: port}
        command = [*HEADRACE, "up", "--data", str(tmp_path), "--upstream", NOBODY]
        command += [word for pair in ports.items() for word in pair]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert f"127.0.0.1:{port} can't be opened" in ended.stderr
    assert f"choose another with {option}" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.fixture
def hears_hangups() -> Iterator[None]:
    """Services of the test do; whoever runs the tests under nohup would have them ignore it, as they should."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
@pytest.mark.usefixtures("hears_hangups")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_service_whose_terminal_is_gone_goes_on_and_stops_in_order(
    tmp_path: Path, number: signal.Signals
) -> None:
    with scripted_engine() as engine, provider(upstreams=[engine.url], data=tmp_path, ready=False) as service:
        assert service.process.stdout is not None
        service.process.stdout.close()  # its next line meets a broken pipe: the last ones, and of an engine that is missed
        if number is signal.SIGTERM:  # once: it takes ten seconds
            engine.kill()
            wait_until(
                lambda: service.status()["deployments"][0]["ready"] == 0, what="the engine to be missed"
            )
        assert service.stop(number) == 0
        assert service.log_lines()[-1]["event"] == "service.stopped"


@pytest.mark.slow
def test_keys_that_can_not_be_read_stay_in_force(tmp_path: Path) -> None:
    """And once they can be read again, what was changed meanwhile is in force."""
    with provider(upstreams=[NOBODY], data=tmp_path, ready=False) as service:
        key = service.key()
        with sqlite3.connect(tmp_path / DATABASE_NAME) as database:
            database.execute("ALTER TABLE api_key RENAME TO gone")
            database.execute("UPDATE tenancy SET revision = revision + 1")
        wait_until(
            lambda: "keys.failing" in [line["event"] for line in service.log_lines()], what="the log line"
        )
        assert service.get("/v1/models", key=key)[0] == 200
        with sqlite3.connect(tmp_path / DATABASE_NAME) as database:
            database.execute("ALTER TABLE gone RENAME TO api_key")
            database.execute("UPDATE api_key SET revoked_s = 1")
        database.close()
        wait_until(lambda: service.get("/v1/models", key=key)[0] == 401, what="the revocation")
        assert service.stop() == 0


@pytest.mark.slow
def test_a_service_that_loses_usage_records_at_its_end_says_so(tmp_path: Path) -> None:
    """T29: a ledger that can't be written until the end is no clean exit."""
    with scripted_engine() as engine, provider(upstreams=[engine.url], data=tmp_path) as service:
        key = service.key()
        database = sqlite3.connect(tmp_path / DATABASE_NAME, isolation_level=None)
        database.execute("BEGIN IMMEDIATE")
        assert service.chat(key)[0] == 200
        assert service.stop() == 1
        database.close()
        assert service.process.stdout is not None
        assert "1 usage records were never written" in service.process.stdout.read()


@pytest.mark.parametrize(
    ("state", "model", "reason", "is_ours", "line"),
    [
        (ReplicaState.READY, "chat", "", True, "ready        chat after 0.75 s (launch 0.10, load 0.45, first answer 0.20)"),
        (ReplicaState.READY, "chat", "", False, "ready        chat at host:1"),
        (ReplicaState.PENDING, "chat", "killed by signal 9", True, "lost         chat: killed by signal 9; starting it again"),
        (ReplicaState.PENDING, "", "no connection", False, "no answer    host:1: no connection; asking again"),
        (ReplicaState.FAILED, "chat", "no such file", True, "failed       chat: no such file"),
        (ReplicaState.FAILED, "chat", "no connection", False, "lost         chat at host:1: no connection; asking again"),
        (ReplicaState.FAILED, "", "no connection", False, None),
        (ReplicaState.STARTING, "chat", "", True, None),
    ],
)  # fmt: skip
def test_a_change_is_told_in_one_line_and_only_if_it_matters(
    state: ReplicaState, model: str, reason: str, is_ours: bool, line: str | None
) -> None:
    status = ReplicaStatus(
        deployment=model,
        replica=ReplicaId("host:1"),
        generation=0,
        state=state,
        reason=reason,
        cold_start=ColdStart(0.1, 0.45, 0.2) if is_ours else None,
    )
    assert announcement(status, is_ours=is_ours) == line

"""Servers behind TLS: their answers are relayed like any other's, and one that can't prove who it is gets no request."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.rig import Rig, assert_delivered, words
from tests.support.certificates import Authority
from tests.support.provider import Provider, provider, wait_until
from tests.support.scripted import scripted_engine
from tests.support.tls_front import TlsFront, tls_front


def config(front: TlsFront, ca_file: Path | None, *, host: str = "localhost") -> str:
    trusted = "" if ca_file is None else f'ca_file = "{ca_file}"\n'
    return f'[[upstreams]]\nurl = "https://{host}:{front.port}"\n{trusted}'


@contextmanager
def secure_rig(tmp_path: Path) -> Iterator[tuple[Rig, TlsFront]]:
    """One scripted engine, its TLS, and a provider that trusts the authority behind it."""
    authority = Authority(tmp_path)
    with ExitStack() as stack:
        engine = stack.enter_context(scripted_engine(slots=64))
        front = stack.enter_context(tls_front(engine.port, authority.issue()))
        running = stack.enter_context(provider(config=config(front, authority.file)))
        wait_until(lambda: running.metric("headrace_replica_ready") == 1, what="the replica to be ready")
        yield Rig(running, [engine]), front


def test_answers_come_through_tls_whole_and_streamed_on_kept_connections(tmp_path: Path) -> None:
    """The server is called by its name (SNI), and one connection serves request after request."""
    with secure_rig(tmp_path) as (running, front):
        assert_delivered(running.ask(), text=words(20))
        asked = len(front.names)
        for stream in (True, False, True):
            assert running.ask(stream=stream).status == 200
        assert set(front.names) == {"localhost"}
        assert len(front.names) <= asked + 1, "at most a probe has opened another"
        running.wait_until_idle()


def test_a_caller_that_leaves_stops_the_work_behind_tls(tmp_path: Path) -> None:
    """T5."""
    with secure_rig(tmp_path) as (running, _):
        running.set_faults("stall:3")
        with running.open() as connection:
            assert connection.recv(1 << 16)
            running.engine.wait_for_stats(lambda stats: stats["running"] == 1)
        running.engine.wait_for_stats(lambda stats: stats["running"] == 0)
        running.wait_until_idle()


def replicas(running: Provider) -> list[dict[str, Any]]:
    return [each for row in running.status()["deployments"] for each in row["replicas"]]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("expired", "its certificate has expired"),
        ("name", "its certificate is for another name"),
        ("untrusted", "signed by an authority that is not trusted here; name its authority with ca_file"),
        ("system", "signed by an authority that is not trusted here; name its authority with ca_file"),
        ("plain", "it does not speak TLS there; try http://"),
    ],
)
def test_a_server_that_does_not_prove_who_it_is_gets_nothing_and_status_says_why(
    tmp_path: Path, fault: str, reason: str
) -> None:
    for folder in ("ours", "theirs"):
        (tmp_path / folder).mkdir()
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    issued = (
        theirs.issue()
        if fault == "untrusted"
        else ours.issue(
            hosts=["elsewhere.example"] if fault == "name" else ["localhost"],
            valid_for=timedelta(days=-1) if fault == "expired" else timedelta(days=1),
        )
    )
    with scripted_engine() as engine, tls_front(engine.port, issued) as front:
        target = TlsFront(engine.port, []) if fault == "plain" else front
        trusted = None if fault == "system" else ours.file
        with provider(config=config(target, trusted), ready=False) as running:
            (replica,) = wait_until(
                lambda: [each for each in replicas(running) if each["reason"]], what="a reason in the status"
            )
            assert reason in replica["reason"]
            assert replica["state"] != "ready"
            status, _, body = running.chat(running.key())
            assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")
        assert engine.stats()["requests"] == 0

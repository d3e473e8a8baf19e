"""The scripted engine as a child of ours: it reports as the embedded one does, and fails to load on request."""

import http.client
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headrace.engines.kinds import SCRIPTED_ENGINE

KEY = "engine-key"


@contextmanager
def child(**settings: Any) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(SCRIPTED_ENGINE, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps({"model_name": "chat", "api_key": KEY, **settings}).encode() + b"\n")
        process.stdin.flush()
        try:
            yield process
        finally:
            process.kill()


def report(process: "subprocess.Popen[bytes]") -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def ask(port: int, method: str, path: str, *, key: str = KEY, **fields: Any) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        body = json.dumps(fields) if fields else None
        connection.request(method, path, body, {"Authorization": f"Bearer {key}"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


PING: dict[str, Any] = {
    "model": "chat",
    "messages": [{"role": "user", "content": "what is the capital of France?"}],
}


def test_it_reports_listens_asks_for_its_key_and_ends_with_its_input() -> None:
    with child(answers={"France": "Paris", "": "no idea"}) as process:
        assert report(process)["state"] == "loading"
        listening = report(process)
        assert listening["state"] == "listening"
        port = listening["port"]
        status, said = ask(port, "POST", "/v1/chat/completions", **PING)
        assert (status, said["choices"][0]["message"]["content"]) == (200, "Paris")
        assert ask(port, "POST", "/v1/chat/completions", key="guess", **PING)[0] == 401
        assert ask(port, "GET", "/v1/models", key="guess")[0] == 401
        assert ask(port, "GET", "/health", key="")[0] == 200
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def test_its_port_may_be_open_long_before_it_is_ready() -> None:
    """REPORTS 81: the port answers 503 until then."""
    with child(ready_after_s=600.0) as process:
        report(process)
        port = report(process)["port"]
        assert ask(port, "POST", "/v1/chat/completions", **PING)[0] == 503
        assert ask(port, "GET", "/v1/models")[0] == 503


@pytest.mark.parametrize(
    ("fault", "reason"), [("failed", "can't be loaded"), ("out_of_memory", "out of memory"), ("crash", None)]
)
def test_it_fails_to_load_on_request(fault: str, reason: str | None) -> None:
    with child(load_fault=fault) as process:
        assert report(process)["state"] == "loading"
        if reason is None:
            assert process.stdout is not None
            assert process.stdout.readline() == b""
        else:
            failed = report(process)
            assert failed["state"] == "failed"
            assert reason in failed["reason"]
        assert process.wait(60) == 1


def test_one_that_hangs_while_loading_still_ends_with_its_input() -> None:
    with child(load_fault="hang") as process:
        assert report(process)["state"] == "loading"
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def test_it_dies_in_service_on_request() -> None:
    with child(lives_s=0.05) as process:
        assert report(process)["state"] == "loading"
        assert report(process)["state"] == "listening"
        assert process.wait(60) == 1


def test_a_bad_script_of_faults_is_a_reported_failure() -> None:
    with child(fault="explode") as process:
        assert report(process)["state"] == "loading"
        assert report(process)["state"] == "failed"


def test_another_seed_gives_another_text() -> None:
    texts = set()
    for seed in (0, 7):
        with child(seed=seed, tokens=3) as process:
            report(process)
            _, said = ask(report(process)["port"], "POST", "/v1/chat/completions", **PING)
            texts.add(said["choices"][0]["message"]["content"])
    assert texts == {"000 001 002 ", "007 008 009 "}

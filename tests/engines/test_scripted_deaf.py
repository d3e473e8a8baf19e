"""REPORTS 18: an engine that doesn't notice that its caller has left; no gateway can cure that, and a certification finds it."""

import json
import socket

import pytest

from tests.support.scripted import scripted_engine

ASKED = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(("faults", "outcome"), [("deaf", "done"), ("", "aborted")])
def test_a_deaf_engine_works_to_the_end_for_a_caller_that_has_left(
    is_stream: bool, faults: str, outcome: str
) -> None:
    body = json.dumps({**ASKED, "stream": is_stream}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    with scripted_engine(ttft_ms=50, itl_ms=20, faults=faults) as engine:
        with socket.create_connection(("127.0.0.1", engine.port)) as client:
            client.sendall(head + body)
            engine.wait_for_stats(lambda stats: stats["running"] == 1)
        stats = engine.wait_for_stats(lambda stats: stats["running"] == 0)
        assert stats[outcome] == 1

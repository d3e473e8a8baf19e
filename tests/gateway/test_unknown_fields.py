"""We need to understand little of a request or an answer: whatever else is in them goes through as it is."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateway.plain_server import BIG_NUMBER, MODEL, UNKNOWN, PlainServer, plain_server
from tests.support.provider import Provider, provider

ASKED: dict[str, Any] = {
    "guided_choice": ["yes", "no"],
    "chat_template_kwargs": {"enable_thinking": False, "depth": [1, 2.5, None]},
    "repetition_penalty": 1.1,
    "seed": 7,
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    "messages": [
        {"role": "system", "content": "be brief", "x_weight": 0.5},
        {"role": "user", "content": [{"type": "text", "text": "hello", "cache_control": {"type": "x"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ],
}


@pytest.fixture(scope="module")
def server() -> Iterator[PlainServer]:
    with plain_server() as running:
        yield running


@pytest.fixture(scope="module")
def running(server: PlainServer) -> Iterator[Provider]:
    with provider(upstreams=[server.url]) as started:
        yield started


@pytest.fixture(scope="module")
def key(running: Provider) -> str:
    return running.key()


@pytest.mark.parametrize("stream", [True, False])
def test_unknown_fields_of_a_request_reach_the_engine(
    running: Provider, server: PlainServer, key: str, stream: bool
) -> None:
    status, _, _ = running.chat(key, model=MODEL, stream=stream, **ASKED)
    assert status == 200
    asked = server.bodies[-1]
    assert {name: asked[name] for name in ASKED} == ASKED


@pytest.mark.parametrize("stream", [True, False])
def test_unknown_fields_of_an_answer_reach_the_caller(running: Provider, key: str, stream: bool) -> None:
    _, _, body = running.chat(key, model=MODEL, stream=stream)
    lines = [line.removeprefix(b"data: ") for line in body.split(b"\n\n") if line.startswith(b"data: ")]
    answers = [json.loads(line) for line in (lines[:-1] if stream else [body])]
    assert len(answers) == (2 if stream else 1)
    for answer in answers:
        assert {name: answer[name] for name in UNKNOWN} == UNKNOWN
        (choice,) = answer["choices"]
        assert (choice["token_ids"], choice["seed"]) == ([1, 2], BIG_NUMBER)
        assert choice["delta" if stream else "message"]["annotations"] == [{"kind": "unknown"}]


def test_a_caller_s_own_headers_and_key_stay_with_us(
    running: Provider, server: PlainServer, key: str
) -> None:
    headers = {"x-secret": "canary", "cookie": "a=b", "openai-organization": "org", "x-request-id": "forged"}
    _, answered, _ = running.chat(key, model=MODEL, headers=headers)
    got = server.headers[-1]
    assert set(got) == {"host", "content-type", "content-length", "x-request-id"}
    assert got["x-request-id"] == answered["x-request-id"] != "forged"
    assert key not in json.dumps([got, server.bodies[-1]])


def test_usage_is_always_asked_for_and_the_caller_s_other_options_are_kept(
    running: Provider, server: PlainServer, key: str
) -> None:
    """T31: the ledger needs it, whatever the caller said."""
    options = {"include_usage": False, "continuous_usage_stats": True}
    running.chat(key, model=MODEL, stream=True, stream_options=options)
    assert server.bodies[-1]["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}

"""T35, REPORTS 64 and 66 on the real embedded engine: what would hurt it is refused, and its other streams go on."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.provider import Provider, embedded_provider

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(300)]

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
MODEL, EMBEDDING_MODEL = "smollm2-135m-instruct", "all-minilm-l6-v2"
MESSAGES = [{"role": "user", "content": "hi"}]
STREAMS = 3  # of the four slots


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    data: Path = tmp_path_factory.mktemp("hostile")
    with embedded_provider(data) as service:
        yield service


@pytest.fixture(scope="module")
def key(running: Provider) -> str:
    return running.key("hostile", requests_per_minute=0, concurrency=0)


def formatted(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}


def properties(count: int, *, required: bool = False) -> dict[str, Any]:
    names = [f"p{index}" for index in range(count)]
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    return {**schema, "required": names} if required else schema


LOOP = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
AT = "response_format.json_schema.schema"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, formatted({"type": "objet"}), f"{AT}.type"),
    (CHAT, formatted(LOOP), AT),
    (CHAT, formatted({"$ref": "http://127.0.0.1:1/x"}), f"{AT}.$ref"),
    (CHAT, formatted(properties(10_000)), AT),
    (CHAT, formatted(properties(1000)), "response_format"),
    (CHAT, formatted({"enum": [f"v{index}" for index in range(1000)]}), "response_format"),
    (CHAT, formatted({"type": "string", "pattern": "^(a+)+$"}), f"{AT}.pattern"),
    (CHAT, formatted({"type": "string", "pattern": "^" + "(a?" * 15 + ")*" * 15 + "$"}), f"{AT}.pattern"),
    (CHAT, {"grammar": 'root ::= "' + "a" * 1_000_000 + '"'}, "grammar"),
    (CHAT, {"grammar": "".join(f"r{i} ::= r{i + 1}\n" for i in range(2000))}, "response_format"),
    (CHAT, {"grammar": 'root ::= "a"', "json_schema": {"type": "object"}}, "grammar"),
    (CHAT, {"logit_bias": {"999999": 5}}, "logit_bias"),
    (CHAT, {"logit_bias": {"49152": 5}}, "logit_bias"),
    (CHAT, {"logit_bias": {"-5": 5}}, "logit_bias"),
    (COMPLETIONS, {"prompt": [1, 49152]}, "prompt"),
    (COMPLETIONS, {"prompt": [1, -7]}, "prompt"),
    (EMBEDDINGS, {"input": [[1, 2], [30522]]}, "input"),
    (CHAT, {"tools": [{}]}, "tools[0].type"),
    (CHAT, {"tools": [{"type": "function", "function": {}}]}, "tools[0].function"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": "x"}, *MESSAGES]}, "messages[0].tool_calls"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    (
        CHAT,
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/"}}],
                }
            ]
        },
        "messages[0].content[0].image_url.url",
    ),
    (CHAT, {"n_cmpl": 2}, "n"),
    (CHAT, {"n_predict": 10**9}, "max_tokens"),
    (CHAT, {"n_probs": 10_000}, "n_probs"),
]


class Streams:
    """Streams that run from before to after a test, one after the other on each of a few connections."""

    def __init__(self, running: Provider, key: str) -> None:
        self._running, self._key = running, key
        self._is_over = threading.Event()
        self.ends: list[tuple[int, bool]] = []
        self._threads = [threading.Thread(target=self._run) for _ in range(STREAMS)]

    def _run(self) -> None:
        while not self._is_over.is_set():
            status, _, body = self._running.chat(self._key, model=MODEL, stream=True, max_tokens=40)
            self.ends.append((status, body.endswith(b"data: [DONE]\n\n")))

    def __enter__(self) -> "Streams":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()


def test_what_would_hurt_the_engine_is_a_400_and_its_streams_run_on(running: Provider, key: str) -> None:
    """REPORTS 64, 66: no other stream is cut, nothing is restarted, nothing is retried or counted as the engine's fault."""
    pids = [deployment["replicas"][0]["pid"] for deployment in running.status()["deployments"]]
    with Streams(running, key) as streams:
        for path, fields, param in REFUSED:
            common: dict[str, Any] = {"model": EMBEDDING_MODEL if path == EMBEDDINGS else MODEL}
            if path == CHAT:
                common |= {"messages": MESSAGES, "max_tokens": 2}
            status, _, body = running.post(path, {**common, **fields}, key=key)
            error = json.loads(body)["error"]
            assert (status, error["code"]) == (400, "invalid_request"), (fields, error)
            assert error["param"] == param or error["param"].startswith(f"{param}."), (fields, error)
    assert len(streams.ends) >= STREAMS
    assert set(streams.ends) == {(200, True)}
    assert [d["replicas"][0]["pid"] for d in running.status()["deployments"]] == pids
    assert running.metric("headrace_retries_total") == 0
    assert running.metric("headrace_attempts_total", outcome="upstream_error") == 0


HONEST: list[dict[str, Any]] = [
    formatted(properties(300)),
    formatted(properties(900, required=True)),
    formatted({"enum": [f"v{index}" for index in range(200)]}),
    formatted({"type": "string", "pattern": "^[a-z0-9]+(?:-[a-z0-9]+)*$"}),
    formatted({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}}}),
    {"grammar": "root ::= " + " | ".join(f'"{index}"' for index in range(500))},
    {"tools": [TOOL] * 20, "tool_choice": "auto"},
    {"logit_bias": {"49151": -100}},
]  # fmt: skip


@pytest.mark.parametrize("fields", HONEST, ids=range(len(HONEST)))
def test_the_largest_constraints_that_we_let_through_are_answered(
    running: Provider, key: str, fields: dict[str, Any]
) -> None:
    status, _, body = running.chat(key, model=MODEL, max_tokens=3, **fields)
    assert status == 200, body

"""T47, T45, T59: what a caller sends is in no log, metric, record or file, and in nobody else's answer."""

import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.core import keys
from tests.edge.conftest import Edge, running_edge

CANARY = "canary-7f3a"
CONFIG = """
[server]
header_timeout_s = 0.5
[request]
attempts_max = 1
stall_limit_s = 0.5
[health]
failures_to_eject = 1000
rest_s = 0
"""
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
HEADERS = {
    "x-request-id": f"{CANARY}-id", "user-agent": f"{CANARY}-agent", "cookie": f"a={CANARY}-cookie", "referer": f"http://{CANARY}/",
    "x-forwarded-for": f"{CANARY}-for", f"x-{CANARY}": "name", "openai-organization": f"{CANARY}-org",
}  # fmt: skip
TOOL = {"type": "function", "function": {"name": f"{CANARY}_tool", "description": CANARY, "parameters": {}}}
PROMPT = {
    "model": "scripted", "user": f"{CANARY}-user", "messages": [{"role": "user", "content": f"{CANARY}-prompt", "name": CANARY}],
    "tools": [TOOL], "metadata": {CANARY: CANARY}, f"{CANARY}_field": CANARY, "stop": [f"{CANARY}-stop"],
}  # fmt: skip
# After each of them one request ends in another way: delivered, failed, broken, too late.
FAULTS = (
    "", "error:500", "error:400", "error:404", "error:429", "error:503", "error_first:400", "error_first:500", "error_event:3", "error_hostile",
    "garbage", "html", "content_type", "length_lie:longer", "header_injection", "refuse", "close:3", "close:0", "cut:3", "cut:0", "close_raw:3",
    "no_done", "empty", "stall:2", "ttft:60000", "usage:negative", "tools:parallel",
)  # fmt: skip


def provoke(edge: Edge) -> None:
    """Canaries through every door, and every way out that can be forced."""
    for fault in FAULTS:
        edge.engine.set_faults(fault)
        deadline = {"x-headrace-deadline-ms": "400"} if fault.startswith("ttft") else {}
        for stream in (False, True):
            asked = {**PROMPT, "stream": stream}
            # One for each, as the same key again gets the first one's answer again.
            once = {"idempotency-key": f"{CANARY}-{fault}-{stream}"}
            edge.service.post(CHAT, asked, key=edge.key, headers={**HEADERS, **deadline, **once})
    edge.engine.set_faults("")
    edge.post(COMPLETIONS, {"model": "scripted", "prompt": f"{CANARY}-text", "user": CANARY}, **HEADERS)
    edge.post(EMBEDDINGS, {"model": "scripted", "input": [f"{CANARY}-input"], "user": CANARY}, **HEADERS)
    for body in (
        {**PROMPT, "model": f"{CANARY}-model"}, {**PROMPT, "n": CANARY}, {**PROMPT, "temperature": CANARY}, {**PROMPT, "messages": CANARY},
        {**PROMPT, "messages": [{"role": CANARY * 20, "content": CANARY}]}, {**PROMPT, "stop": {CANARY: CANARY}}, {**PROMPT, "max_tokens": 10**9},
        {**PROMPT, "logit_bias": {CANARY: CANARY}}, {**PROMPT, "stream_options": {"include_usage": CANARY}}, {**PROMPT, CANARY: 2**70}, [CANARY],
    ):  # fmt: skip
        edge.post(CHAT, body, **HEADERS)
    for raw in (f'{{"{CANARY}', f'"{CANARY}"', f'{{"model":NaN,"{CANARY}":1}}', f'{{"{CANARY}":"\\ud800"}}'):
        edge.post(CHAT, raw.encode(), **HEADERS)
    edge.post(CHAT, CANARY.encode() * 500_000, **HEADERS)
    edge.post(CHAT, PROMPT, **HEADERS, **{"content-encoding": CANARY})
    edge.post(CHAT, PROMPT, **HEADERS, **{"x-headrace-deadline-ms": CANARY})
    for path in (
        f"/{CANARY}",
        f"/v1/models/{CANARY}",
        f"/v1/models?{CANARY}",
        f"/v1/models/%0d%0a{CANARY}",
        f"/livez?{CANARY}",
    ):
        edge.ask("GET", path, **HEADERS)
        edge.service.get(path)
        edge.service.get(path, key=f"hr_live_{CANARY}")
        edge.service.admin(path)
    for request in (
        f"{CANARY}\r\n\r\n", f"GET /{CANARY} HTTP/9.9\r\n\r\n", f"GET / HTTP/1.1\r\nHost: {CANARY}?\r\n\r\n", f"GET /livez HTTP/1.1\r\n{CANARY}\r\n\r\n",
        f"GET /livez HTTP/1.1\r\nHost: test\r\n{CANARY}: \0\r\n\r\n", f"{CANARY} / HTTP/1.1\r\nHost: test\r\n\r\n",
        f"GET /livez HTTP/1.1\r\nHost: test\r\nx-a: {CANARY}",
    ):  # fmt: skip
        edge.send(request.encode())
    refused = edge.service.key("spent", requests_per_minute=1, requests_burst=1)
    for _ in range(2):
        Edge(edge.engine, edge.service, refused).post(CHAT, PROMPT, **HEADERS)


def dump(database: Path) -> str:
    connection = sqlite3.connect(database)
    try:
        return "\n".join(connection.iterdump())
    finally:
        connection.close()


@pytest.mark.slow
def test_canaries_are_found_nowhere() -> None:
    """T47: logs, standard output, metrics, status, ledger, every file of the data directory, and later answers."""
    with running_edge(config=CONFIG) as edge:
        provoke(edge)
        unknown = keys.make("live", id_random=os.urandom(16), secret_random=os.urandom(32))
        assert edge.service.get("/v1/models", key=unknown)[0] == 401
        later = [
            edge.post(CHAT, {"model": "scripted"}),
            edge.ask("GET", "/nothing"),
            edge.ask("GET", "/v1/models"),
        ]
        seen = {
            "metrics": edge.service.admin("/metrics")[1],
            "status": edge.service.admin("/admin/v1/status")[1],
            "later answers": b"".join(answer.body + str(answer.headers).encode() for answer in later),
            "usage": json.dumps(edge.service.usage()).encode(),
            "keys": edge.service.cli("keys", "list", "--json").stdout.encode(),
        }
        metric = edge.service.metric
        assert metric("headrace_internal_errors_total") == 0
        for outcome in ("delivered", "failed", "broken", "refused"):
            assert metric("headrace_requests_total", outcome=outcome) > 0, outcome
        assert edge.service.stop() == 0
        assert edge.service.process.stdout is not None
        seen["standard output"] = (edge.service.started + edge.service.process.stdout.read()).encode()
        seen["ledger"] = dump(edge.service.data / "headrace.db").encode()
        for path in edge.service.data.rglob("*"):
            if path.is_file():
                seen[str(path.relative_to(edge.service.data))] = path.read_bytes()
        assert {"logs/headrace.log", "headrace.db"} <= set(seen)
        secrets = {
            "canary": CANARY.encode(),
            "key": edge.key[17:60].encode(),
            "unknown key": unknown[17:60].encode(),
        }
        found = [
            (where, what)
            for where, text in seen.items()
            for what, secret in secrets.items()
            if secret in text
        ]
        assert found == []
        assert edge.key[8:16].encode() in seen["keys"]  # the public part is how people name a key


NEVER_OFFERED = ["a\r\nx-evil: 1", "\x1b[31mred\x1b[0m", "a" * 256]
HOSTILE = [
    *NEVER_OFFERED,
    '{"level":"error"}',
    'quote"\\',
    "\u2028\u2029\x85",
    "\u202eabc",
]


@pytest.fixture(scope="module")
def hostile() -> Iterator[Edge]:
    """An upstream that offers models with names that want to be something else."""
    with running_edge(models=("scripted", *HOSTILE)) as running:
        yield running


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_model_name_stays_a_name(hostile: Edge, name: str) -> None:
    """T45: in headers, log lines and metrics; the model is served unless no label or terminal should hold its name."""
    answer = hostile.post(CHAT, {"model": name, "messages": [{"role": "user", "content": "hi"}]})
    assert answer.status == (404 if name in NEVER_OFFERED else 200)
    assert "x-evil" not in answer.headers
    hostile.engine.set_faults("error:500@1,error:500@2")
    hostile.post(CHAT, {"model": name, "messages": [{"role": "user", "content": "hi"}]})
    hostile.engine.set_faults("")
    text = (hostile.service.data / "logs" / "headrace.log").read_text(encoding="ascii")
    assert all(json.loads(line)["event"] for line in text.split("\n") if line)
    exposition = hostile.service.admin("/metrics")[1].decode()
    assert all(
        line.startswith(("#", "headrace_", "process_", "python_")) for line in exposition.split("\n") if line
    )


def test_what_callers_invent_makes_no_series(edge: Edge) -> None:
    """T59, T45: models, paths, methods, users and keys that don't exist; the log stays readable line by line."""
    body = {"messages": [{"role": "user", "content": "hi"}]}

    def invent(index: int) -> None:
        edge.post(CHAT, {**body, "model": f"m\r\n\x1b[31m{index}"})
        edge.post(CHAT, {**body, "model": "scripted", "user": f"u{index}"}, **{"x-request-id": f"r{index}"})
        edge.ask("GET", f"/v1/p{index}")
        edge.ask("GET", f"/v1/models/m{index}")
        edge.service.get("/v1/models", key=f"k{index}")
        edge.send(f"GET /{index} HTTP/7.{index % 10}\r\n\r\n".encode())

    invent(0)
    before = set(edge.service.metrics())
    for index in range(1, 40):
        invent(index)
    assert set(edge.service.metrics()) == before
    for line in edge.service.log_lines():
        assert not any("\x1b" in str(value) or "m\r" in str(value) for value in line.values())

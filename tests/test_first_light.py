"""The whole service with its own engines: a real model, a real document question, the official client, the real ledger."""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.cache_probe import Caller, Probed, is_told, probe, tells
from tests.support.models import shared_root
from tests.support.provider import Provider, embedded_provider, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(300)]

CHAT, EMBEDDING = "smollm2-135m-instruct", "all-minilm-l6-v2"
EXCERPT = "The ferry to Norra leaves at 21:40 from pier 7. It carries cars and passengers. Tickets are sold on board."
QUESTION = f"{EXCERPT}\n\nWhen does the ferry leave?"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    with embedded_provider(tmp_path_factory.mktemp("first-light")) as running:
        yield running


@pytest.fixture
def client(service: Provider) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=service.url, api_key=service.key("reader"), max_retries=0, timeout=120
    ) as made:
        yield made


def test_a_document_question_is_answered_streamed_and_whole(client: openai.OpenAI) -> None:
    """The same answer both ways, with the time that the document states, and the same usage.

    Short on purpose: a prompt from the cache and a fresh one differ in the last bits, which a long answer may show."""
    whole = client.chat.completions.create(model=CHAT, messages=_ask(), temperature=0, max_tokens=14)
    chunks = list(
        client.chat.completions.create(
            model=CHAT,
            messages=_ask(),
            temperature=0,
            max_tokens=14,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "21:40" in text
    assert whole.choices[0].message.content == text
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert whole.usage.completion_tokens == chunks[-1].usage.completion_tokens > 0
    assert whole.usage.prompt_tokens == chunks[-1].usage.prompt_tokens > 0


def test_the_ledger_agrees_with_the_engine(service: Provider) -> None:
    """Tokens in `headrace usage` grow by exactly what the engine's own counters grow by."""
    before, key = _settled_engine_tokens(service), service.key("bookkeeper")
    for stream in (False, True):
        fields: dict[str, Any] = {"messages": _ask("Count the piers."), "temperature": 0, "max_tokens": 12}
        assert service.chat(key, model=CHAT, stream=stream, **fields)[0] == 200
    rows = wait_until(lambda: _newest(service, 2, tenant="bookkeeper"), what="both records")
    prompt = sum(row["prompt_tokens"] - row["cached_tokens"] for row in rows)
    completion = sum(row["completion_tokens"] for row in rows)
    assert all(row["usage_source"] == "final" for row in rows)
    wait_until(
        lambda: _difference(_engine_tokens(service), before) == (prompt, completion),
        what="the engine's counters to agree",
    )


def test_embeddings_place_like_with_like(client: openai.OpenAI) -> None:
    """A cat is nearer to a kitten than to a tax return."""
    texts = ["a small cat", "a kitten", "an income tax return"]
    vectors = [item.embedding for item in client.embeddings.create(model=EMBEDDING, input=texts).data]
    assert _cosine(vectors[0], vectors[1]) > _cosine(vectors[0], vectors[2]) + 0.2


def test_a_tenant_never_reuses_or_sees_another_tenants_prompt(service: Provider) -> None:
    """T42 in part: the second tenant's first look at the same long text costs a whole prefill and shows no cached tokens."""
    text = "Minutes of the harbour board, item twelve: the crane is painted blue. " * 12
    seen = {}
    for tenant in ("writer", "guesser"):
        key = service.key(tenant)
        answers = [_chat(service, key, text, max_tokens=1) for _ in range(2)]
        seen[tenant] = [_cached(answer) for answer in answers]
    assert seen["writer"][0] == seen["guesser"][0] == 0
    assert seen["writer"][1] > 100, "the cache still serves its own tenant"
    assert seen["guesser"][1] > 100


@pytest.mark.parametrize(
    ("pairs", "tokens"),
    [
        pytest.param(5, 80),
        # Tens of minutes: a prompt of 2,000 tokens takes seconds here.
        pytest.param(30, 2000, marks=[pytest.mark.long, pytest.mark.timeout(7200)]),
    ],
)
def test_the_time_to_a_first_token_tells_no_tenant_what_another_has_asked(
    service: Provider, pairs: int, tokens: int
) -> None:
    """T42, REPORTS 106: the same test finds what a tenant has asked itself."""
    chance = random.Random(42)
    with ExitStack() as stack:
        owner, guesser = (
            stack.enter_context(closing(Caller(service.port, service.key(tenant), CHAT)))
            for tenant in ("owner-of-prompts", "guesser-of-prompts")
        )
        probed: list[Probed] = []

        def run(asks: Caller) -> Probed:
            probed.append(probe(owner, asks, pairs=pairs, tokens=tokens, chance=chance))
            return probed[-1]

        assert not tells(lambda: run(guesser))
        # Of its own last prompt a guesser may find the words of the template, as it does with prompts that nobody has asked.
        assert max(each.cached_tokens for each in probed[0].primed) < tokens / 2
        probed.clear()
        assert is_told(lambda: run(owner))
        assert min(each.cached_tokens for each in probed[0].primed) >= tokens


def test_a_caller_can_not_choose_an_engine_slot(service: Provider) -> None:
    """`id_slot` and `cache_prompt` of a caller are overwritten: they would open another tenant's cache."""
    text = "The secret of the lighthouse keeper is a red notebook. " * 12
    _chat(service, service.key("owner"), text, max_tokens=1)
    for slot in range(4):
        answer = _chat(
            service, service.key(f"thief-{slot}"), text, id_slot=slot, cache_prompt=True, max_tokens=1
        )
        assert _cached(answer) == 0


def test_more_answers_than_a_slot_can_give_are_refused(service: Provider, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=CHAT, messages=_ask(), n=2)
    assert refused.value.param == "n"


def test_a_prompt_over_the_context_is_the_callers_error(client: openai.OpenAI) -> None:
    """T25: 400 with the engine's reason, and the engine stays in balancing."""
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=CHAT, messages=_ask("word " * 6000))
    assert client.chat.completions.create(model=CHAT, messages=_ask(), max_tokens=1).choices


@pytest.mark.parametrize("stream", [True, False])
def test_a_caller_that_leaves_stops_the_engine(service: Provider, stream: bool) -> None:
    """T5, and for whole answers REPORTS 21: the engine's slot is free long before 2,000 tokens could be made."""
    key = service.key("leaver")
    wait_until(lambda: _engine_busy(service) == 0, what="work of earlier tests to be over")
    with service.connect() as connection:
        _send_chat(connection, key, max_tokens=2000, stream=stream)
        wait_until(lambda: _engine_busy(service) == 1, what="the engine to begin")
        if stream:
            assert connection.recv(100)
    wait_until(lambda: _engine_busy(service) == 0, what="the engine to stop")
    (row,) = wait_until(lambda: _newest(service, 1, tenant="leaver", outcome="cancelled"), what="the record")
    # None where it left during the prefill: what was never counted is not written as zero.
    assert row["completion_tokens"] is None or row["completion_tokens"] < 2000


def test_a_caller_that_leaves_the_queue_never_reaches_the_engine(service: Provider) -> None:
    """T6: five slots' worth of work on four slots; the fifth leaves and the engine never hears of it."""
    key = service.key("queuer")
    busy = [service.connect() for _ in range(4)]
    for connection in busy:
        _send_chat(connection, key, max_tokens=400, stream=True)
    wait_until(lambda: service.status()["in_flight"] == 4, what="four in flight")
    waiting = service.connect()
    _send_chat(waiting, key, max_tokens=400, stream=True)
    wait_until(lambda: service.status()["queued"] == 1, what="one in the queue")
    assert _engine_busy(service) <= 4
    waiting.close()
    wait_until(lambda: service.status()["queued"] == 0, what="an empty queue")
    for connection in busy:
        connection.close()
    wait_until(lambda: service.status()["in_flight"] == 0, what="an idle service")
    rows = wait_until(lambda: _newest(service, 5, tenant="queuer"), what="five records")
    assert sorted(row["attempts"] for row in rows) == [0, 1, 1, 1, 1]


def test_killing_the_engine_breaks_its_streams_and_it_comes_back(service: Provider) -> None:
    """T1 on the embedded engine: explicit error events, records, and service again after readiness, after one restart."""
    key = service.key("survivor")
    before = _replica(service)
    streams = [service.connect() for _ in range(3)]
    for connection in streams:
        _send_chat(connection, key, max_tokens=3000, stream=True)
    received = [_until_it_answers(connection) for connection in streams]
    readers = [threading.Thread(target=_drain, args=(c, received, i)) for i, c in enumerate(streams)]
    for reader in readers:
        reader.start()
    os.kill(before["pid"], signal.SIGKILL)
    for reader, connection in zip(readers, streams, strict=True):
        reader.join(20)
        connection.close()
    for data in received:
        assert data.count(b'"error"') == 1
        assert b"replica_failed" in data
        assert b"[DONE]" not in data
        assert not data.endswith(b"0\r\n\r\n"), "a broken stream never has a clean end"
    rows = wait_until(lambda: _newest(service, 3, tenant="survivor", outcome="broken"), what="three records")
    assert {row["reason"] for row in rows} == {"upstream_lost"}
    status, _, body = service.chat(key, model=CHAT, max_tokens=1)
    assert status in (200, 503), body

    def is_back() -> dict[str, Any] | None:
        row = _replica(service)
        return row if row["state"] == "ready" and row["pid"] != before["pid"] else None

    back = wait_until(is_back, what="the engine to be back")
    # Launches of all replicas are counted as one: the other engine may have had the number between.
    assert back["generation"] > before["generation"]
    assert back["restarts"] == before["restarts"] + 1
    (lost,) = [
        line
        for line in service.log_lines()
        if line["event"] == "replica.lost" and line["generation"] == before["generation"]
    ]
    assert (lost["replica"], lost["reason"]) == (f"{CHAT}-0", "killed by SIGKILL")
    assert service.chat(key, model=CHAT, max_tokens=1)[0] == 200


def test_who_has_seen_nothing_of_an_answer_outlives_the_engine(service: Provider) -> None:
    """Killed under four streams, a whole answer in the queue and one behind it: the streams break, the others are answered
    by the next generation, and nobody is sent to the dead one."""
    key = service.key("patient")
    streams = [service.connect() for _ in range(4)]
    for connection in streams:
        _send_chat(connection, key, max_tokens=3000, stream=True)
    for connection in streams:
        _until_it_answers(
            connection
        )  # one that had seen nothing yet would be answered again, and hold a slot
    answers: list[tuple[int, bytes]] = []

    def ask() -> None:
        status, _, body = service.chat(key, model=CHAT, max_tokens=2)
        answers.append((status, body))

    askers = [threading.Thread(target=ask) for _ in range(2)]
    for asker in askers:
        asker.start()
    wait_until(lambda: service.status()["queued"] == 2, what="two in the queue")
    os.kill(_replica(service)["pid"], signal.SIGKILL)
    for asker in askers:
        asker.join(60)
    for connection in streams:
        connection.close()
    assert [status for status, _ in answers] == [200, 200], answers


def test_a_model_that_is_being_served_is_not_removed(service: Provider) -> None:
    """Its engine would find no weights at the next restart."""
    refused = service.cli("models", "rm", CHAT, check=False)
    assert refused.returncode == 2
    assert "being served" in refused.stderr
    assert service.chat(service.key("keeper"), model=CHAT, max_tokens=1)[0] == 200


def _ask(text: str = QUESTION) -> list[Any]:
    return [{"role": "user", "content": text}]


def _replica(service: Provider) -> dict[str, Any]:
    found = next(d for d in service.status()["deployments"] if d["model"] == CHAT)
    replica: dict[str, Any] = found["replicas"][0]
    return replica


def _engine_tokens(service: Provider) -> tuple[float, float]:
    """The engine's own counters as last scraped: prompt tokens without cached ones, generated tokens."""
    gauges = _replica(service)["gauges"]
    return gauges.get("prompt_tokens_total", 0.0), gauges.get("tokens_predicted_total", 0.0)


def _settled_engine_tokens(service: Provider) -> tuple[float, float]:
    """The counters once they have stood still for longer than the two seconds between scrapes."""
    seen = _engine_tokens(service), time.monotonic()

    def stands_still() -> bool:
        nonlocal seen
        if _engine_tokens(service) != seen[0]:
            seen = _engine_tokens(service), time.monotonic()
        return time.monotonic() - seen[1] > 5

    wait_until(stands_still, what="the engine's counters to stand still")
    return seen[0]


def _difference(now: tuple[float, float], before: tuple[float, float]) -> tuple[int, int]:
    return int(now[0] - before[0]), int(now[1] - before[1])


def _engine_busy(service: Provider) -> int:
    return int(_replica(service)["gauges"].get("requests_processing", 0))


def _newest(service: Provider, count: int, **wanted: str) -> list[dict[str, Any]]:
    """The newest `count` records that match, or an empty list while there are fewer."""
    rows = [row for row in service.usage() if all(row[name] == value for name, value in wanted.items())]
    return rows[:count] if len(rows) >= count else []


def _chat(service: Provider, key: str, text: str, **fields: Any) -> dict[str, Any]:
    status, _, body = service.post(
        "/v1/chat/completions", {"model": CHAT, "messages": _ask(text), "temperature": 0, **fields}, key=key
    )
    assert status == 200, body
    answer: dict[str, Any] = json.loads(body)
    return answer


def _cached(answer: dict[str, Any]) -> int:
    details = answer["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens", 0))


def _send_chat(connection: Any, key: str, *, max_tokens: int, stream: bool) -> None:
    """Asks for exactly that many tokens: an answer that may end early could be over before anyone looks at the engine."""
    story = _ask("Write a very long story about the sea, without an end.")
    body = {"model": CHAT, "messages": story, "max_tokens": max_tokens, "stream": stream, "ignore_eos": True}
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)


def _until_it_answers(connection: Any) -> bytes:
    """What came until the first part of the answer."""
    received = b""
    while b"delta" not in received:
        piece: bytes = connection.recv(4096)
        assert piece, f"the stream ended before it began: {received!r}"
        received += piece
    return received


def _drain(connection: Any, received: list[bytes], index: int) -> None:
    until_s = time.monotonic() + 15
    while time.monotonic() < until_s:
        data = connection.recv(65536)
        if not data:
            return
        received[index] += data


def _cosine(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return float(dot / (sum(x * x for x in a) ** 0.5 * sum(y * y for y in b) ** 0.5))


def test_the_shared_models_are_where_the_service_looks(service: Provider) -> None:
    """Guards the fixture: the service used the shared store and pulled nothing."""
    assert Path(service.data / "models").resolve() == shared_root().resolve()
    assert "pulling" not in service.started

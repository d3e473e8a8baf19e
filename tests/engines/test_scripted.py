"""Does the scripted engine behave as an OpenAI-compatible server of fixed text, pace and capacity?"""

import base64
import json
import math
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.core.usage import estimate_tokens
from tests.support.scripted import ScriptedEngine, scripted_engine
from tests.support.wire import Exchange, exchange, post, read

CHAT = "/v1/chat/completions"
DONE = b"data: [DONE]\n\n\r\n0\r\n\r\n"
TOOLS = [
    {"type": "function", "function": {"name": "look_up"}},
    {"type": "function", "function": {"name": "b"}},
]


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    """An engine without delays and faults, shared: tests that need anything else start their own."""
    with scripted_engine() as running:
        yield running


def chat(**fields: Any) -> bytes:
    return json.dumps(
        {"model": "scripted", "messages": [{"role": "user", "content": "hello"}], **fields}
    ).encode()


def ask(engine: ScriptedEngine, path: str = CHAT, body: bytes | None = None) -> dict[str, Any]:
    status, answer = engine.request("POST", path, chat() if body is None else body)
    assert status == 200, answer
    parsed: dict[str, Any] = json.loads(answer)
    return parsed


def stream(engine: ScriptedEngine, **fields: Any) -> Exchange:
    return exchange(engine.port, post(CHAT, chat(stream=True, **fields)), until=DONE)


# Answers


def test_it_says_what_its_table_has_for_the_first_key_that_stands_in_the_prompt() -> None:
    table = {"how long": "Fourteen days [1] 十四天", "may I": "I can't share that."}
    with scripted_engine(answers=table) as engine:

        def said(question: str, **fields: Any) -> dict[str, Any]:
            messages = [{"role": "system", "content": "Answer."}, {"role": "user", "content": question}]
            answer = ask(engine, body=chat(messages=messages, **fields))
            return {
                "text": answer["choices"][0]["message"]["content"],
                **answer["choices"][0],
                **answer["usage"],
            }

        right = said("may I ask how long it is?")
        assert right["text"] == table["how long"]
        assert right["finish_reason"] == "stop"
        assert right["completion_tokens"] == 6  # of four bytes each, and a character is never cut
        assert said("may I?")["text"] == table["may I"]
        assert said("hello")["text"].startswith("000 001 ")
        cut = said("how long", max_tokens=2)
        assert (cut["text"], cut["finish_reason"]) == ("Fourteen", "length")
        assert stream(engine, messages=[{"role": "user", "content": "how long"}]).text == table["how long"]


def test_it_says_one_text_to_every_prompt() -> None:
    with scripted_engine(answers={"": "Yes."}) as engine:
        assert ask(engine)["choices"][0]["message"]["content"] == "Yes."


def test_a_table_of_answers_that_is_none_is_named() -> None:
    command = [sys.executable, "-m", "headrace", "engine", "scripted", "--port", "0", "--answers", __file__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--answers" in done.stderr


def test_a_stream_and_a_whole_answer_have_the_same_text(engine: ScriptedEngine) -> None:
    whole = ask(engine)["choices"][0]["message"]["content"]
    assert stream(engine).text == whole
    assert whole.startswith("000 001 002 ")


def test_the_same_request_gets_the_same_bytes(engine: ScriptedEngine) -> None:
    for body in (chat(stream=True, n=2), chat(logprobs=True, top_logprobs=2), chat(max_tokens=3)):
        request = post(CHAT, body, headers="connection: close\r\n")
        answers = {exchange(engine.port, request, until=b"never").data for _ in range(3)}
        assert len(answers) == 1


@pytest.mark.parametrize("words", ["", "unicode", "u2028", "u0085"])
def test_a_token_is_four_bytes_so_that_our_estimate_is_exact(words: str) -> None:
    with scripted_engine(tokens=23, faults=words) as engine:
        answer = ask(engine)
        text = answer["choices"][0]["message"]["content"]
        assert estimate_tokens(len(text.encode())) == answer["usage"]["completion_tokens"] == 23


def test_prompt_tokens_count_the_bytes_of_all_contents(engine: ScriptedEngine) -> None:
    parts = [{"type": "text", "text": "é" * 5}, {"type": "text", "text": "abc"}]
    messages = [{"role": "system", "content": "x" * 8}, {"role": "user", "content": parts}]
    assert ask(engine, body=chat(messages=messages))["usage"]["prompt_tokens"] == 6


def test_max_tokens_cuts_and_says_so(engine: ScriptedEngine) -> None:
    for field in ("max_tokens", "max_completion_tokens"):
        cut = ask(engine, body=chat(**{field: 5}))
        assert cut["choices"][0]["finish_reason"] == "length"
        assert cut["usage"]["completion_tokens"] == 5
    longer = ask(engine, body=chat(max_tokens=500))
    assert longer["choices"][0]["finish_reason"] == "stop"
    assert longer["usage"]["completion_tokens"] == 20


def test_usage_is_streamed_only_when_asked_for(engine: ScriptedEngine) -> None:
    assert not any("usage" in event for event in stream(engine).events)
    last = stream(engine, stream_options={"include_usage": True}).events[-1]
    assert last["choices"] == []
    assert last["usage"] == ask(engine)["usage"]


def test_choices_are_told_apart_by_their_index(engine: ScriptedEngine) -> None:
    seen = stream(engine, n=3, max_tokens=2).events
    indexes = [event["choices"][0]["index"] for event in seen]
    assert indexes == [0, 1, 2] * 3
    assert [c["index"] for c in ask(engine, body=chat(n=3))["choices"]] == [0, 1, 2]
    assert ask(engine, body=chat(n=3))["usage"]["completion_tokens"] == 60


def test_logprobs_cover_every_token(engine: ScriptedEngine) -> None:
    content = ask(engine, body=chat(logprobs=True, top_logprobs=3))["choices"][0]["logprobs"]["content"]
    assert len(content) == 20
    for entry in content:
        assert entry["logprob"] <= 0
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert len(entry["top_logprobs"]) == 3
    plain = ask(engine, "/v1/completions", b'{"model":"scripted","prompt":"a","logprobs":2}')
    assert len(plain["choices"][0]["logprobs"]["token_logprobs"]) == 20


def test_a_required_tool_is_called_with_arguments_in_pieces(engine: ScriptedEngine) -> None:
    events = stream(engine, tools=TOOLS, tool_choice="required").events
    deltas = [e["choices"][0]["delta"]["tool_calls"][0] for e in events if e["choices"][0]["delta"]]
    assert deltas[0]["function"]["name"] == "look_up"
    assert len(deltas) == 20
    arguments = "".join(delta["function"]["arguments"] for delta in deltas)
    assert json.loads(arguments)["w"].startswith("000 001 ")
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    whole = ask(engine, body=chat(tools=TOOLS, tool_choice="required"))["choices"][0]["message"]
    assert whole["content"] is None
    assert whole["tool_calls"][0]["function"] == {"name": "look_up", "arguments": arguments}


def test_a_tool_call_can_be_cut_by_max_tokens(engine: ScriptedEngine) -> None:
    """T38: `length` inside a call."""
    choice = ask(engine, body=chat(tools=TOOLS, tool_choice="required", max_tokens=5))["choices"][0]
    assert choice["finish_reason"] == "length"
    assert len(choice["message"]["tool_calls"][0]["function"]["arguments"]) == 20


def test_tools_are_called_by_name_or_not_at_all(engine: ScriptedEngine) -> None:
    named = ask(engine, body=chat(tools=TOOLS, tool_choice=TOOLS[1]))["choices"][0]["message"]
    assert named["tool_calls"][0]["function"]["name"] == "b"
    for choice in ("auto", "none"):
        free = ask(engine, body=chat(tools=TOOLS, tool_choice=choice))["choices"][0]["message"]
        assert "tool_calls" not in free


def test_plain_completions_stream_text(engine: ScriptedEngine) -> None:
    body = b'{"model":"scripted","prompt":["ab","cd"],"max_tokens":2,"stream":true}'
    events = exchange(engine.port, post("/v1/completions", body), until=DONE).events
    assert "".join(event["choices"][0]["text"] for event in events) == "000 001 "
    assert events[-1]["choices"][0]["finish_reason"] == "length"


def test_running_counts_are_given_on_request(engine: ScriptedEngine) -> None:
    events = stream(engine, timings_per_token=True, max_tokens=3).events
    assert [event["timings"]["predicted_n"] for event in events] == [1, 2, 3, 3]


def test_an_embedding_depends_on_its_text_alone_and_has_length_one(engine: ScriptedEngine) -> None:
    body = b'{"model":"scripted","input":["one","two","one"]}'
    vectors = [item["embedding"] for item in ask(engine, "/v1/embeddings", body)["data"]]
    assert vectors[0] == vectors[2] != vectors[1]
    assert math.isclose(sum(number**2 for number in vectors[1]), 1, rel_tol=1e-5)


def test_base64_embeddings_are_the_same_numbers(engine: ScriptedEngine) -> None:
    fields = {"model": "scripted", "input": "one", "dimensions": 7}
    plain, packed = (
        ask(engine, "/v1/embeddings", json.dumps({**fields, "encoding_format": form}).encode())
        for form in ("float", "base64")
    )
    numbers = struct.unpack("<7f", base64.b64decode(packed["data"][0]["embedding"]))
    assert list(numbers) == plain["data"][0]["embedding"]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (CHAT, b"{", 400, None),
        (CHAT, b'"text"', 400, None),
        (CHAT, b'{"model":"scripted"}', 400, None),
        (CHAT, b"\xff\xfe", 400, None),
        (CHAT, b"[" * 100_000, 400, None),
        (CHAT, chat(messages=[]), 400, "messages"),
        (CHAT, chat(messages=[{"content": "no role"}]), 400, None),
        (CHAT, chat(max_tokens=0), 400, "max_tokens"),
        (CHAT, chat(n=100_000), 400, "n"),
        (CHAT, chat(stream="yes"), 400, None),
        (CHAT, chat(tools=TOOLS, tool_choice="always"), 400, "tool_choice"),
        (CHAT, chat(model="other"), 404, None),
        ("/v1/completions", b'{"model":"scripted","prompt":[1,"a"]}', 400, "prompt"),
        ("/v1/embeddings", b'{"model":"scripted","input":[]}', 400, "input"),
        ("/v1/embeddings", b'{"model":"scripted","input":"a","dimensions":0}', 400, "dimensions"),
        ("/v1/elsewhere", b"{}", 404, None),
    ],
)
def test_a_wrong_request_gets_an_error_in_openai_shape(
    engine: ScriptedEngine, path: str, body: bytes, status: int, param: str | None
) -> None:
    got, answer = engine.request("POST", path, body)
    assert got == status
    error = json.loads(answer)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param


# Capacity and pace


def test_no_more_than_slots_run_at_once_and_the_rest_wait() -> None:
    with scripted_engine(slots=3, itl_ms=5, tokens=10) as engine:
        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda _: stream(engine), range(12)))
        assert all(answer.is_complete for answer in answers)
        stats = engine.stats()
        assert stats["running_max"] == 3
        assert (stats["done"], stats["running"], stats["waiting"]) == (12, 0, 0)


def test_pace_is_never_faster_than_asked_for() -> None:
    with scripted_engine(ttft_ms=50, itl_ms=10, tokens=10) as engine:
        for body in (chat(stream=True), chat()):
            started_s = time.monotonic()
            engine.request("POST", CHAT, body)
            assert time.monotonic() - started_s >= 0.13


def test_each_event_is_a_write_of_its_own() -> None:
    """A client that reads at once sees an event before the next one is due."""
    with scripted_engine(itl_ms=2000, tokens=3) as engine:
        with socket.create_connection(("127.0.0.1", engine.port)) as client:
            client.sendall(post(CHAT, chat(stream=True)))
            assert len(read(client, until=b"\n\n").events) == 1


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_leaves_aborts_the_work_at_once(is_stream: bool) -> None:
    """T5, as seen by the engine: streamed or whole, long before the answer's 200 s are over."""
    with scripted_engine(ttft_ms=1, itl_ms=20, tokens=10_000, log=True) as engine:
        with socket.create_connection(("127.0.0.1", engine.port)) as client:
            client.sendall(post(CHAT, chat(stream=is_stream), headers="x-request-id: r1\r\n"))
            if is_stream:
                read(client, until=b"002 ")
            else:
                engine.wait_for_stats(lambda stats: stats["running"] == 1)
        stats = engine.wait_for_stats(lambda stats: stats["aborted"] == 1)
        assert stats["running"] == 0
        (entry,) = engine.executions()
        assert (entry["id"], entry["outcome"]) == ("r1", "aborted")
        assert (3 if is_stream else 0) <= entry["completion_tokens"] < 1000


def test_a_client_that_leaves_the_queue_is_never_run() -> None:
    with scripted_engine(slots=1, itl_ms=20, tokens=10_000, log=True) as engine:
        with socket.create_connection(("127.0.0.1", engine.port)) as first:
            first.sendall(post(CHAT, chat(stream=True)))
            engine.wait_for_stats(lambda stats: stats["running"] == 1)
            with socket.create_connection(("127.0.0.1", engine.port)) as second:
                second.sendall(post(CHAT, chat(), headers="x-request-id: waits\r\n"))
                engine.wait_for_stats(lambda stats: stats["waiting"] == 1)
            stats = engine.wait_for_stats(lambda stats: stats["waiting"] == 0)
            assert (stats["running"], stats["running_max"], stats["aborted"]) == (1, 1, 1)
            assert engine.executions()[0]["completion_tokens"] == 0


def test_every_request_is_counted_in_exactly_one_place() -> None:
    with scripted_engine(slots=2, itl_ms=200, faults="error:500@1") as engine:
        engine.request("POST", CHAT, chat())
        engine.request("POST", CHAT, b"{")
        ask(engine, body=chat(max_tokens=1))
        waiting = [socket.create_connection(("127.0.0.1", engine.port)) for _ in range(3)]
        for client in waiting:
            client.sendall(post(CHAT, chat(stream=True)))
        stats = engine.wait_for_stats(lambda stats: stats["waiting"] == 1)
        waiting.pop().close()
        stats = engine.wait_for_stats(lambda stats: stats["aborted"] == 1)
        parts = ("rejected", "running", "waiting", "done", "aborted", "faulted")
        assert stats["requests"] == sum(stats[part] for part in parts) == 6
        for client in waiting:
            client.close()


def test_a_slow_reader_holds_back_only_itself() -> None:
    """T12, as seen by the engine: it stops generating when the client's buffers are full."""
    body = chat(stream=True, max_tokens=200_000)
    with scripted_engine(tokens=200_000) as busy:
        with socket.create_connection(("127.0.0.1", busy.port)) as client:
            client.sendall(post(CHAT, body))
            read(client, until=b"000 ")
            assert ask(busy, body=chat(max_tokens=1))["usage"]["completion_tokens"] == 1
            assert busy.stats()["running"] == 1


# HTTP


def test_calls_on_one_connection_are_answered_in_order(engine: ScriptedEngine) -> None:
    calls = b"".join(post(CHAT, chat(max_tokens=length)) for length in (1, 2, 3))
    answers = exchange(engine.port, calls, until=b'"000 001 002 "').data
    assert [answers.count(word) for word in (b'"000 "', b'"000 001 "', b'"000 001 002 "')] == [1, 1, 1]
    assert answers.index(b'"000 "') < answers.index(b'"000 001 "') < answers.index(b'"000 001 002 "')


def test_a_request_may_arrive_byte_by_byte(engine: ScriptedEngine) -> None:
    with socket.create_connection(("127.0.0.1", engine.port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in post(CHAT, chat(max_tokens=1)):
            client.sendall(bytes([byte]))
        assert read(client, until=b"}}}").status == 200


def test_connection_close_is_honoured(engine: ScriptedEngine) -> None:
    request = post(CHAT, chat(), headers="connection: close\r\n")
    assert exchange(engine.port, request, until=b"never").end == "fin"


def test_a_client_that_expects_a_go_ahead_gets_one(engine: ScriptedEngine) -> None:
    request = post(CHAT, chat(), headers="expect: 100-continue\r\n")
    head, _, body = request.partition(b"\r\n\r\n")
    with socket.create_connection(("127.0.0.1", engine.port)) as client:
        client.sendall(head + b"\r\n\r\n")
        assert read(client, until=b"\r\n\r\n").status == 100
        client.sendall(body)
        assert read(client, until=b"\r\n\r\n").status == 200


def test_what_is_not_http_is_refused_and_closed(engine: ScriptedEngine) -> None:
    answer = exchange(engine.port, b"NOT HTTP AT ALL\r\n\r\n", until=b"never")
    assert (answer.status, answer.end) == (400, "fin")


# Around the answers


def test_the_models_are_those_of_the_command_line() -> None:
    with scripted_engine(models=("a", "b")) as engine:
        _, body = engine.request("GET", "/v1/models")
        entries = json.loads(body)["data"]
        assert [(entry["id"], entry["owned_by"]) for entry in entries] == [
            ("a", "headrace-scripted"),
            ("b", "headrace-scripted"),
        ]


def test_metrics_show_work_and_totals(engine: ScriptedEngine) -> None:
    ask(engine)
    _, body = engine.request("GET", "/metrics")
    values = dict(line.rsplit(" ", 1) for line in body.decode().splitlines() if not line.startswith("#"))
    assert values["scripted_requests_running"] == values["scripted_requests_waiting"] == "0"
    assert int(values["scripted_generated_tokens_total"]) >= 20
    assert int(values["scripted_prompt_tokens_total"]) >= 2
    assert engine.request("GET", "/health")[0] == 200


def test_the_log_tells_what_was_sent_to_steer_caches_and_never_what_was_said() -> None:
    with scripted_engine(log=True) as engine:
        fields = {"id_slot": 3, "cache_prompt": False, "user": "u1", "cache_salt": "s"}
        said = [{"role": "user", "content": "CANARY-PROMPT"}]
        request = post(CHAT, chat(messages=said, **fields), headers="authorization: Bearer CANARY-KEY\r\n")
        exchange(engine.port, request, until=b"}}}")
        (entry,) = engine.executions()
        assert entry.items() >= fields.items()
        assert set(entry) - set(fields) == {
            *("id", "endpoint", "model", "stream", "outcome"),
            *("prompt_tokens", "completion_tokens", "seconds"),
        }
        assert "CANARY" not in json.dumps(entry)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_cleanly_when_told_to_and_logs_what_it_cut(number: signal.Signals) -> None:
    with scripted_engine(itl_ms=100, tokens=10_000, log=True) as engine:
        with socket.create_connection(("127.0.0.1", engine.port)) as client:
            client.sendall(post(CHAT, chat(stream=True)))
            read(client, until=b"000 ")
            engine.kill(number)
            assert engine.process.wait(60) == 0
        assert [entry["outcome"] for entry in engine.executions()] == ["aborted"]


def test_a_taken_port_is_the_operators_to_change(engine: ScriptedEngine) -> None:
    command = [sys.executable, "-m", "headrace", "engine", "scripted", "--port", str(engine.port)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert str(engine.port) in ended.stderr


@pytest.mark.slow
def test_the_official_client_reads_streams_tools_and_embeddings(engine: ScriptedEngine) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as client:
        messages = [{"role": "user", "content": "hello"}]
        options = {"include_usage": True}
        chunks = list(
            client.chat.completions.create(
                model="scripted", messages=messages, stream=True, stream_options=options
            )
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert len(text.encode()) == 4 * chunks[-1].usage.completion_tokens
        called = client.chat.completions.create(
            model="scripted", messages=messages, tools=TOOLS, tool_choice="required"
        )
        assert called.choices[0].message.tool_calls[0].function.name == "look_up"
        vectors = client.embeddings.create(model="scripted", input=["a", "b"]).data
        assert [len(item.embedding) for item in vectors] == [64, 64]


@pytest.mark.slow
def test_a_thousand_leavers_leave_nothing_behind() -> None:
    """Report 25, as seen by the engine: cancelled while queued, then ten normal ones succeed."""
    with scripted_engine(slots=2, itl_ms=5, tokens=50) as engine:
        barrier = threading.Barrier(10)

        def leave(_: int) -> None:
            barrier.wait(60)
            for _ in range(100):
                with socket.create_connection(("127.0.0.1", engine.port)) as client:
                    client.sendall(post(CHAT, chat(stream=True)))

        with ThreadPoolExecutor(10) as pool:
            list(pool.map(leave, range(10)))
        engine.wait_for_stats(lambda stats: stats["running"] == stats["waiting"] == 0, within_s=60)
        for _ in range(10):
            assert stream(engine).is_complete

"""More than text: tool calls, log-probabilities, reasoning, several choices, pictures, large events. What clients read is
whole and right, streamed or not."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateway.plain_server import MODEL, PlainServer, plain_server
from tests.gateway.rig import Rig, assert_broken, assert_delivered, rig, words
from tests.support.provider import Provider, provider
from tests.support.wire import Exchange

TOKENS = 20
TOOL: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}],
    "tool_choice": "required",
}


@pytest.fixture(scope="module")
def assembling_rig() -> Iterator[Rig]:
    with rig({"slots": 64, "owned_by": "llamacpp"}) as running:
        yield running


@pytest.fixture
def assembling(assembling_rig: Rig) -> Iterator[Rig]:
    """An engine from which we stream whatever the caller asked for."""
    assembling_rig.set_faults("")
    yield assembling_rig
    assembling_rig.wait_until_idle()


def calls_of(answer: Exchange) -> list[dict[str, Any]]:
    """The tool calls of a stream, joined by index as every client does."""
    joined: dict[int, dict[str, Any]] = {}
    for event in answer.events:
        for choice in event["choices"]:
            for piece in choice["delta"].get("tool_calls") or ():
                call = joined.setdefault(piece["index"], {"arguments": ""})
                call["id"] = piece.get("id") or call.get("id")
                call["arguments"] += piece["function"]["arguments"]
    return [joined[index] for index in sorted(joined)]


def finish_reasons(answer: Exchange) -> list[str]:
    return [c["finish_reason"] for e in answer.events for c in e["choices"] if c["finish_reason"]]


# --- tool calls ---


@pytest.mark.parametrize("cut", ["", ", delta:1", ", delta:3", ", delta:1, slice:1", ", unicode, delta:1"])
@pytest.mark.parametrize("indexes", ["parallel", "same_index"])
def test_parallel_calls_are_kept_apart_however_they_are_numbered_and_cut(
    solo: Rig, indexes: str, cut: str
) -> None:
    """T38, REPORTS 60: arguments split at every byte; two calls under one index; no invalid join."""
    solo.set_faults(f"tools:{indexes}{cut}")
    answer = solo.ask(**TOOL)
    assert answer.payloads[-1] == "[DONE]"
    first, second = calls_of(answer)
    assert (first["id"], second["id"]) == ("call_scripted_0", "call_scripted_1")
    assert all(set(json.loads(call["arguments"])) == {"w"} for call in (first, second))
    assert finish_reasons(answer) == ["tool_calls"]


@pytest.mark.parametrize("indexes", ["parallel", "same_index"])
def test_parallel_calls_of_a_whole_answer_are_kept_apart_too(assembling: Rig, indexes: str) -> None:
    """REPORTS 60: put together here, from the same pieces."""
    assembling.set_faults(f"tools:{indexes}, delta:1")
    (choice,) = json.loads(assembling.ask(stream=False, **TOOL).body)["choices"]
    calls = choice["message"]["tool_calls"]
    assert [call["id"] for call in calls] == ["call_scripted_0", "call_scripted_1"]
    assert all(set(json.loads(call["function"]["arguments"])) == {"w"} for call in calls)
    assert not any("index" in call for call in calls)
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("indexes", ["parallel", "same_index"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_call_that_is_cut_by_its_length_says_so(solo: Rig, stream: bool, indexes: str) -> None:
    """T38, REPORTS 62: no error, and a finish_reason that tells that the arguments are part of some."""
    solo.set_faults(f"tools:{indexes}")
    answer = solo.ask(stream=stream, max_tokens=5, **TOOL)
    assert answer.status == 200
    if stream:
        (call,), reasons = calls_of(answer), finish_reasons(answer)
        arguments = call["arguments"]
    else:
        (choice,) = json.loads(answer.body)["choices"]
        reasons = [choice["finish_reason"]]
        arguments = choice["message"]["tool_calls"][0]["function"]["arguments"]
    assert reasons == ["length"]
    with pytest.raises(json.JSONDecodeError):
        json.loads(arguments)
    assert solo.record(answer).completion_tokens == 5


def test_the_official_client_joins_calls_that_had_one_index(solo: Rig) -> None:
    """REPORTS 60."""
    solo.set_faults("tools:same_index, delta:1")
    with (
        solo.client() as client,
        client.chat.completions.stream(
            model="scripted", messages=[{"role": "user", "content": "hello"}], **TOOL
        ) as stream,
    ):
        calls = stream.get_final_completion().choices[0].message.tool_calls or []
    assert [call.id for call in calls] == ["call_scripted_0", "call_scripted_1"]
    assert all(set(json.loads(call.function.arguments)) == {"w"} for call in calls)


# --- several choices ---


def test_a_stream_that_ends_when_one_of_two_choices_has_is_an_error(solo: Rig) -> None:
    """T3: the end of one choice proves nothing for the others."""
    solo.set_faults("finish:first_only, no_done")
    answer = solo.ask(n=2)
    assert_broken(answer, text=words(TOKENS))
    assert solo.record(answer).reason == "upstream_truncated"


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_the_engine_gave_up_is_no_answer(solo: Rig, stream: bool) -> None:
    """T3: it says `abort` where a finish_reason should be."""
    solo.set_faults("finish:abort")
    answer = solo.ask(stream=stream)
    if stream:
        assert_broken(answer, text=words(TOKENS))
    else:
        assert answer.status == 502
    assert solo.record(answer).reason == "upstream_error"


def test_every_choice_of_several_arrives_whole(solo: Rig) -> None:
    answer = solo.ask(n=3)
    texts: dict[int, str] = {}
    for event in answer.events:
        for choice in event["choices"]:
            text = choice["delta"].get("content") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + text
    assert texts == dict.fromkeys(range(3), words(TOKENS))
    assert finish_reasons(answer) == ["stop"] * 3


# --- other fields ---


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_arrives_under_its_name_and_is_counted(solo: Rig, field: str) -> None:
    solo.set_faults(f"reasoning:{field}, usage:none")
    answer = solo.ask()
    deltas = [choice["delta"] for event in answer.events for choice in event["choices"]]
    assert "".join(delta.get(field, "") for delta in deltas) == words(TOKENS // 2)
    assert answer.text == words(TOKENS // 2, start=TOKENS // 2)
    whole = solo.ask(stream=False)
    message = json.loads(whole.body)["choices"][0]["message"]
    assert (message[field], message["content"]) == (words(10), words(10, start=10))
    assert solo.record(answer).completion_tokens == TOKENS
    assert solo.record(whole).completion_tokens == TOKENS


def test_log_probabilities_arrive_token_by_token(solo: Rig) -> None:
    answer = solo.ask(logprobs=True, top_logprobs=2)
    tokens = [
        token
        for event in answer.events
        for choice in event["choices"]
        for token in (choice["logprobs"] or {}).get("content", ())
    ]
    assert "".join(token["token"] for token in tokens) == words(TOKENS)
    assert {len(token["top_logprobs"]) for token in tokens} == {2}
    (choice,) = json.loads(solo.ask(stream=False, logprobs=True, top_logprobs=2).body)["choices"]
    assert choice["logprobs"]["content"] == tokens


def test_an_empty_finish_reason_in_every_event_is_null_to_the_caller(solo: Rig) -> None:
    solo.set_faults("finish:empty")
    answer = solo.ask()
    assert_delivered(answer, text=words(TOKENS))
    reasons = [choice["finish_reason"] for event in answer.events for choice in event["choices"]]
    assert reasons == [None] * TOKENS + ["stop"]


def test_an_event_just_below_the_limit_is_delivered(solo: Rig) -> None:
    """T6a, REPORTS 3: eight megabytes; what is larger is an explicit error (test_endings)."""
    solo.set_faults("big:8000000")
    answer = solo.ask()
    assert answer.payloads[-1] == "[DONE]"
    assert answer.text.count("x") == 8_000_000


# --- an engine that is nobody's in particular ---


@pytest.fixture(scope="module")
def server() -> Iterator[PlainServer]:
    with plain_server() as running:
        yield running


@pytest.fixture(scope="module")
def plain(server: PlainServer) -> Iterator[Provider]:
    with provider(upstreams=[server.url]) as running:
        yield running


@pytest.fixture(scope="module")
def key(plain: Provider) -> str:
    return plain.key()


def test_a_picture_reaches_the_engine_as_it_came(server: PlainServer, plain: Provider, key: str) -> None:
    dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    picture = {"url": f"data:image/png;base64,{dot}", "detail": "low"}
    content = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": picture}]
    status, _, _ = plain.chat(key, model=MODEL, messages=[{"role": "user", "content": content}])
    assert status == 200
    assert server.bodies[-1]["messages"][0]["content"] == content


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "spelling",
    [
        {"usage": {"prompt_tokens_details": {"cached_tokens": 6}}},
        {"usage": {"prompt_cache_hit_tokens": 6}},
        {"usage": {"cache_read_input_tokens": 6}},
        {"num_cached_tokens": 6},
        {"timings": {"prompt_n": 1, "cache_n": 6}},
    ],
    ids=json.dumps,
)
def test_what_was_cached_is_told_to_nobody_in_any_spelling(
    server: PlainServer, plain: Provider, key: str, spelling: dict[str, Any], stream: bool
) -> None:
    """T42: a cache that all tenants share is nobody's business."""
    server.more = {
        **spelling,
        "usage": {"prompt_tokens": 7, "completion_tokens": 1, **spelling.get("usage", {})},
    }
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    status, _, body = plain.chat(key, model=MODEL, **options)
    server.more = {}
    assert status == 200
    assert b'"prompt_tokens":7' in body.replace(b" ", b"")
    assert b"cache" not in body
    assert b"timings" not in body

"""What a customer of the official `openai` client sees: answers, tool calls, and errors as its exception classes."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.gateway.rig import Rig, words

TEXT = words(20)
MESSAGES: list[Any] = [{"role": "user", "content": "hello"}]
TOOLS: list[Any] = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]


@pytest.fixture
def client(solo: Rig) -> Iterator[openai.OpenAI]:
    with solo.client() as made:
        yield made


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": "scripted", "messages": MESSAGES, **fields})


def listen(stream: Any, heard: list[str]) -> None:
    """A customer's loop over the chunks."""
    for chunk in stream:
        heard.append(chunk.choices[0].delta.content or "")  # noqa: PERF401 -- what came before an exception counts


def test_a_whole_answer_has_text_usage_and_our_request_id(solo: Rig, client: openai.OpenAI) -> None:
    answer = ask(client)
    assert answer.choices[0].message.content == TEXT
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 20)
    assert solo.record(answer._request_id).outcome == "delivered"


def test_a_streamed_answer_has_the_same_text_and_usage_at_its_end(client: openai.OpenAI) -> None:
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
    assert [chunk.usage is not None for chunk in chunks].index(True) == len(chunks) - 1
    assert chunks[-1].usage.completion_tokens == 20


def test_several_choices_with_log_probabilities_are_streamed_and_whole_alike(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"n": 2, "logprobs": True, "top_logprobs": 2, "max_tokens": 3}
    whole = ask(client, **fields)
    chunks = list(ask(client, stream=True, **fields))
    for index in (0, 1):
        parts = [c for chunk in chunks for c in chunk.choices if c.index == index]
        text = "".join(part.delta.content or "" for part in parts)
        assert text == whole.choices[index].message.content == words(3)
        tokens = [entry for part in parts if part.logprobs for entry in part.logprobs.content]
        assert tokens == whole.choices[index].logprobs.content
        assert parts[-1].finish_reason == whole.choices[index].finish_reason == "length"


def test_parallel_tool_calls_are_streamed_and_whole_alike(solo: Rig, client: openai.OpenAI) -> None:
    """T38: the indexes keep the calls apart."""
    solo.set_faults("tools:parallel, delta:1")
    whole = ask(client, tools=TOOLS, tool_choice="required")
    calls = whole.choices[0].message.tool_calls
    joined: dict[int, str] = {}
    for chunk in ask(client, tools=TOOLS, tool_choice="required", stream=True):
        for call in chunk.choices[0].delta.tool_calls or ():
            joined[call.index] = joined.get(call.index, "") + (call.function.arguments or "")
    assert list(joined.values()) == [call.function.arguments for call in calls]
    assert (len(calls), whole.choices[0].finish_reason) == (2, "tool_calls")


def test_embeddings_come_in_both_encodings(client: openai.OpenAI) -> None:
    texts = ["hello", "world"]
    packed = client.embeddings.create(model="scripted", input=texts)  # the client asks for base64 by itself
    plain = client.embeddings.create(model="scripted", input=texts, encoding_format="float")
    for one, other in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding)


def test_a_bad_request_names_its_field(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, max_tokens=0)
    assert (caught.value.param, caught.value.code) == ("max_tokens", "invalid_request")


@pytest.mark.slow
def test_a_spent_limit_is_a_rate_limit_error_that_says_when_to_come_back(solo: Rig) -> None:
    key = solo.provider.key("hasty", requests_per_minute=1, requests_burst=1)
    with openai.OpenAI(base_url=solo.provider.url, api_key=key, max_retries=0) as client:
        ask(client)
        with pytest.raises(openai.RateLimitError) as caught:
            ask(client)
    assert caught.value.code == "rate_limited"
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
    assert caught.value.response.headers["x-headrace-reason"] == "rate_limited"


def test_unknown_keys_and_models_are_their_own_exceptions(solo: Rig, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        ask(client, model="no-such-model")
    assert missing.value.code == "model_not_found"
    with openai.OpenAI(base_url=solo.provider.url, api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            ask(stranger)


def test_an_error_event_in_a_stream_raises_after_the_text_that_came(solo: Rig, client: openai.OpenAI) -> None:
    """REPORTS 7: nobody can mistake it for an end."""
    solo.set_faults("error_event:5")
    heard: list[str] = []
    with pytest.raises(openai.APIError) as caught:
        listen(ask(client, stream=True), heard)
    assert "".join(heard) == words(5)
    assert caught.value.code == "replica_failed"


@pytest.mark.parametrize("fault", ["close:5", "close_raw:5", "cut:5"])
def test_a_stream_that_ends_early_raises_after_the_text_that_came(
    solo: Rig, client: openai.OpenAI, fault: str
) -> None:
    """T3."""
    solo.set_faults(fault)
    heard: list[str] = []
    with pytest.raises(openai.APIError):
        listen(ask(client, stream=True), heard)
    assert "".join(heard) == words(5)


def test_a_replica_s_failure_is_a_server_error_that_the_client_does_not_repeat(solo: Rig) -> None:
    """We have retried already where that was safe: `x-should-retry: false` keeps the client from multiplying it."""
    solo.set_faults("error:500")
    before = solo.engine.stats()
    with solo.client(max_retries=2) as client, pytest.raises(openai.InternalServerError) as caught:
        ask(client)
    assert caught.value.status_code == 502
    assert solo.engine.stats()["requests"] == before["requests"] + 1


def test_a_deadline_is_a_server_error_that_the_client_does_not_repeat(solo: Rig) -> None:
    solo.set_faults("ttft:30000")
    before = solo.engine.stats()
    with solo.client(max_retries=2) as client, pytest.raises(openai.InternalServerError) as caught:
        ask(client, extra_headers={"x-headrace-deadline-ms": "200"})
    assert caught.value.status_code == 504
    assert solo.engine.stats()["requests"] == before["requests"] + 1


def test_a_client_that_closes_its_stream_early_stops_the_engine(solo: Rig, client: openai.OpenAI) -> None:
    solo.set_faults("stall:3")
    before = solo.engine.stats()
    with ask(client, stream=True) as stream:
        for _ in range(3):
            next(stream)
    solo.engine.wait_for_stats(lambda now: now["aborted"] == before["aborted"] + 1)

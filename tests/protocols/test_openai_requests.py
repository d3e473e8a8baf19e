"""T33, T13: is a body read strictly, are its numbers right, and is what was checked what is sent?"""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import errors
from headrace.core.errors import InvalidRequest
from headrace.core.fleet import Deployment, Task
from headrace.core.request import Endpoint
from headrace.protocols import openai

CHAT, COMPLETIONS, EMBEDDINGS = Endpoint.CHAT_COMPLETIONS, Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS
VALID: dict[Endpoint, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"model": "m", "prompt": "hi"},
    EMBEDDINGS: {"model": "m", "input": "hi"},
}
TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=15,
)  # fmt: skip


def parse(endpoint: Endpoint, **fields: Any) -> openai.ParsedBody:
    return openai.parse_body(endpoint, json.dumps({**VALID[endpoint], **fields}).encode())


def sent(parsed: openai.ParsedBody) -> dict[str, Any]:
    """What of a body goes on to a replica, with the model that it was sent for."""
    fields: dict[str, Any] = json.loads(b"{" + parsed.canonical)
    assert not fields.keys() & {"model", *openai.OPERATOR_FIELDS, *openai.WIRE_FIELDS}
    return {"model": parsed.model, **parsed.wire_fields, **fields}


def refused(endpoint: Endpoint, body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refusal:
        openai.parse_body(endpoint, body)
    return refusal.value


@given(endpoint=st.sampled_from(list(VALID)), data=st.binary(max_size=200))
def test_no_bytes_raise_anything_but_invalid_request(endpoint: Endpoint, data: bytes) -> None:
    try:
        openai.parse_body(endpoint, data)
    except InvalidRequest:
        pass


@given(endpoint=st.sampled_from(list(VALID)), body=JSON)
def test_no_json_raises_anything_but_invalid_request(endpoint: Endpoint, body: Any) -> None:
    try:
        openai.parse_body(endpoint, json.dumps(body).encode())
    except InvalidRequest:
        pass


@given(endpoint=st.sampled_from(list(VALID)), extra=JSON)
def test_fields_that_nobody_reads_are_sent_on_as_they_came(endpoint: Endpoint, extra: Any) -> None:
    assert sent(parse(endpoint, extra=extra)) == {**VALID[endpoint], "extra": extra}


@given(text=TEXT)
def test_prompt_bytes_are_those_of_the_text(text: str) -> None:
    expected = len(text.encode())
    assert parse(COMPLETIONS, prompt=text).prompt_bytes == expected
    assert parse(COMPLETIONS, prompt=[text, "a"]).prompt_bytes == expected + 1
    parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": "http://x/"}}]
    messages = [
        {"role": "system", "content": text},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None},
    ]
    assert parse(CHAT, messages=messages).prompt_bytes == 2 * expected


def test_token_ids_count_as_four_bytes() -> None:
    assert parse(COMPLETIONS, prompt=[1, 2, 3]).prompt_bytes == 12
    assert parse(EMBEDDINGS, input=[1, 2, 3]).prompt_bytes == 12
    assert parse(EMBEDDINGS, input=[[1, 2], [3]]).prompt_bytes == 12


def test_choices_are_answers_in_all() -> None:
    assert parse(CHAT).choices == 1
    assert parse(CHAT, n=3).choices == 3
    assert parse(COMPLETIONS, n=2, prompt=["a", "b"]).choices == 4
    assert parse(COMPLETIONS, n=2, best_of=3).choices == 3


def test_streaming_and_usage_are_told() -> None:
    plain, streamed = parse(CHAT), parse(CHAT, stream=True, stream_options={"include_usage": True})
    assert (plain.is_streaming, plain.wants_usage) == (False, False)
    assert (streamed.is_streaming, streamed.wants_usage) == (True, True)
    assert not parse(CHAT, stream=None, stream_options=None).is_streaming


def test_null_means_the_default() -> None:
    optional = (
        "max_tokens",
        "temperature",
        "top_p",
        "n",
        "stream",
        "stop",
        "seed",
        "user",
        "tools",
        "logprobs",
    )
    parsed = parse(CHAT, **dict.fromkeys(optional))
    assert (parsed.output_tokens_max, parsed.choices) == (None, 1)


def test_the_larger_of_two_token_limits_counts() -> None:
    """T13."""
    assert parse(CHAT).output_tokens_max is None
    assert parse(CHAT, max_tokens=5).output_tokens_max == 5
    assert parse(CHAT, max_completion_tokens=6).output_tokens_max == 6
    assert parse(CHAT, max_completion_tokens=6, max_tokens=7).output_tokens_max == 7


def test_of_duplicate_keys_the_last_counts() -> None:
    body = b'{"model":"a","messages":[{"role":"user","content":"hi"}],"model":"b"}'
    parsed = openai.parse_body(CHAT, body)
    assert parsed.model == "b"
    assert b'"model"' not in parsed.canonical


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**100])
@pytest.mark.parametrize("shape", ['{"a":%d}', "[[%d]]", "%d"])
def test_an_integer_beyond_64_bits_is_refused_wherever_it_is(number: int, shape: str) -> None:
    """T33."""
    body = json.dumps(VALID[CHAT])[:-1] + ',"extra":' + shape % number + "}"
    assert refused(CHAT, body.encode()).param == "extra"


@pytest.mark.parametrize("value", [2**64 - 1, -(2**63), 0.1234567890123456789, 1e300, "1" * 50])
def test_what_only_looks_like_a_large_integer_is_accepted(value: Any) -> None:
    assert sent(parse(CHAT, extra=value))["extra"] == value


def test_dense_bodies_are_refused_and_long_texts_are_not() -> None:
    """Table 2c: counted before they are parsed."""
    refused(CHAT, b'{"model":"m","x":[' + b"{}," * 1_000_000 + b"{}]}")
    refused(CHAT, b"{" + b",".join(b'"%d":0' % i for i in range(250_000)) + b"}")
    code = 'if (a["b"]) { c = [1, 2]; }\n' * 120_000
    messages = [{"role": "user", "content": code}]
    assert parse(CHAT, messages=messages).prompt_bytes == len(code)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "user"}, {"content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": 1}]}, "messages[0].role"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"temperature": 3}, "temperature"),
        ({"model": None}, "model"),
    ],
)
def test_the_field_at_fault_is_named_by_its_path(fields: dict[str, Any], param: str) -> None:
    error = refused(CHAT, json.dumps({**VALID[CHAT], **fields}).encode())
    assert error.param == param
    assert error.message.startswith(param)


def deployment(**more: Any) -> Deployment:
    return Deployment("m", "m", frozenset({Task.CHAT}), "unpinned", **more)


def test_a_request_for_more_than_the_deployment_gives_is_refused() -> None:
    """T13: the limit itself is accepted."""
    small = deployment(context_tokens=100, choices_max=2)
    openai.check_against(small, parse(CHAT, max_tokens=100, n=2))
    for fields, param in (({"max_tokens": 101}, "max_tokens"), ({"n": 3}, "n")):
        with pytest.raises(InvalidRequest) as refusal:
            openai.check_against(small, parse(CHAT, **fields))
        assert refusal.value.param == param
    with pytest.raises(InvalidRequest):
        openai.check_against(deployment(), parse(CHAT, max_tokens=10**9))


def test_token_ids_are_refused_where_a_text_is_put_before_each_prompt() -> None:
    """T42: what keeps the caches of that model apart is text."""
    with pytest.raises(InvalidRequest) as refusal:
        openai.check_against(deployment(takes_token_ids=False), parse(COMPLETIONS, prompt=[1, 2]))
    assert refusal.value.param == "prompt"
    openai.check_against(
        deployment(takes_token_ids=False), parse(COMPLETIONS, prompt=["1"], logit_bias={"5": 1})
    )
    openai.check_against(deployment(), parse(COMPLETIONS, prompt=[1, 2]))


def test_error_headers_say_what_to_do() -> None:
    assert openai.error_headers(errors.RateLimited("x", retry_after_s=0.2)) == (
        b"x-headrace-reason: rate_limited\r\nretry-after: 1\r\nx-should-retry: true\r\n"
    )
    assert b"www-authenticate: Bearer\r\n" in openai.error_headers(errors.Unauthenticated("x"))
    assert b"x-should-retry" not in openai.error_headers(errors.InternalError("x"))


@given(seconds=st.floats(0, 1e6))
def test_retry_after_is_never_too_early(seconds: float) -> None:
    assert max(1.0, seconds) <= int(openai.retry_after_header(seconds)) <= seconds + 1


@pytest.mark.parametrize("name", openai.OPERATOR_FIELDS)
@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_orders_to_the_engine_are_not_a_callers_to_give(endpoint: Endpoint, name: str) -> None:
    """Among them are addresses that it would fetch from, and the salt of its prefix cache."""
    questions: dict[Endpoint, dict[str, Any]] = {
        Endpoint.CHAT_COMPLETIONS: {"messages": [{"role": "user", "content": "x"}]},
        Endpoint.COMPLETIONS: {"prompt": "x"},
        Endpoint.EMBEDDINGS: {"input": "x"},
    }
    question = questions[endpoint]
    body = json.dumps({"model": "m", **question, name: {"remote_host": "10.0.0.1"}, "top_k": 5}).encode()
    sent = json.loads(b"{" + openai.parse_body(endpoint, body).canonical)
    assert sent == {**question, "top_k": 5}

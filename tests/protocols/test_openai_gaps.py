"""Refusals of heads and bodies that no other test here reaches, and the bodies that we write ourselves."""

import json
from typing import Any

import pytest

from headrace.core.errors import HeadraceError, InvalidRequest, RateLimited
from headrace.core.fleet import Deployment
from headrace.core.request import Endpoint
from headrace.protocols import openai, strict_json
from headrace.protocols.http1 import RequestHead, RequestReader


class Sink:
    """Accepts everything, or fails as a bug of ours would."""

    def __init__(self, bug: Exception | None = None) -> None:
        self.bug = bug

    def head_received(self, head: RequestHead) -> int:
        if self.bug is not None:
            raise self.bug
        return 1000

    def body_awaited(self) -> None:
        raise AssertionError("nobody waits here")

    def request_received(self, body: bytes) -> None: ...


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", "HTTP/1"),
        (b"GET / HTTP/0.9\r\nHost: x\r\n\r\n", "HTTP/1"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "transfer encoding"),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "transfer encoding"),
        (b"GET http://x/v1 HTTP/1.1\r\nHost: x\r\n\r\n", "absolute path"),
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", "absolute path"),
    ],
)
def test_a_head_that_promises_another_protocol_or_place_is_refused(head: bytes, told: str) -> None:
    """T43, T50."""
    with pytest.raises(InvalidRequest, match=told):
        RequestReader(Sink()).feed(head)


def test_a_bug_in_the_sink_is_not_taken_for_a_bad_request() -> None:
    with pytest.raises(ZeroDivisionError):
        RequestReader(Sink(ZeroDivisionError())).feed(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")


@pytest.mark.parametrize(
    ("endpoint", "fields", "param"),
    [
        (Endpoint.EMBEDDINGS, {"input": ["a", 1]}, "input"),
        (Endpoint.EMBEDDINGS, {"input": [[1], "a"]}, "input"),
        (Endpoint.EMBEDDINGS, {"input": ""}, "input"),
        (Endpoint.EMBEDDINGS, {"input": ["a", ""]}, "input"),
        (Endpoint.EMBEDDINGS, {"input": [[]]}, "input"),
        (Endpoint.EMBEDDINGS, {"input": ["a"] * (openai.INPUTS_MAX + 1)}, "input"),
        (Endpoint.EMBEDDINGS, {"input": [[1]] * (openai.INPUTS_MAX + 1)}, "input"),
        (Endpoint.COMPLETIONS, {"prompt": ["a", 1]}, "prompt"),
    ],
)
def test_inputs_that_can_not_be_meant_are_refused(
    endpoint: Endpoint, fields: dict[str, Any], param: str
) -> None:
    """T33."""
    with pytest.raises(InvalidRequest) as refused:
        openai.parse_body(endpoint, json.dumps({"model": "m", **fields}).encode())
    assert refused.value.param == param


def test_a_body_nested_without_end_is_refused() -> None:
    """T33: a depth of 20,000, in a body small enough to be read at once."""
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        openai.parse_body(Endpoint.CHAT_COMPLETIONS, b'{"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}")


def test_models_are_listed_by_name_and_each_has_its_card() -> None:
    offered = [Deployment(name, name, frozenset(), "unpinned", created_s=5) for name in ("b", "a")]
    listed = json.loads(openai.model_list(offered))
    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == ["a", "b"]
    assert json.loads(openai.model_card(offered[0])) == listed["data"][1]
    card = {"id": "a", "object": "model", "created": 5, "owned_by": "headrace", "cache_isolation": None}
    assert listed["data"][0] == card


@pytest.mark.parametrize(
    "error",
    [InvalidRequest("no", param="n"), RateLimited("later", retry_after_s=2.0)],
    ids=["param", "plain"],
)
def test_an_error_has_the_shape_that_clients_of_openai_read(error: HeadraceError) -> None:
    assert json.loads(openai.error_body(error, request_id="req_1")) == {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
            "request_id": "req_1",
        }
    }


@pytest.mark.parametrize(
    ("body", "heavy"),
    [
        (b"{}" * 10_000, False),
        (b"x" * 200_000, False),
        (b"x" * 300_000, True),
        (b"[{}]" * 20_000, True),
        (b"1,2," * 20_000, True),
        (b'"a":' * 20_000, True),
    ],
)
def test_a_body_is_heavy_by_its_bytes_or_by_its_pieces(body: bytes, heavy: bool) -> None:
    """T14."""
    assert strict_json.is_heavy(body) is heavy


def chat_with(extra: bytes) -> bytes:
    return b'{"model":"m","messages":[{"role":"user","content":"x"}],"extra":' + extra + b"}"


def test_a_body_with_too_many_values_is_refused_before_it_is_parsed() -> None:
    """T33: two million small numbers take a twentieth of a second to parse, and their walk half of one."""
    with pytest.raises(InvalidRequest, match="2500000 commas"):
        openai.parse_body(Endpoint.CHAT_COMPLETIONS, chat_with(b"[" + b"1," * 2_600_000 + b"1]"))
    many = chat_with(b"[" + b"1," * 499_000 + b'"' + b"0" * 40 + b'"]')
    assert openai.parse_body(Endpoint.CHAT_COMPLETIONS, many).model == "m"


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**30])
@pytest.mark.parametrize("where", ["%d", "[1,[%d]]", '{"a":[{"b":%d}]}', '["1234567890123456789012",%d]'])
def test_an_integer_beyond_64_bits_is_found_wherever_it_stands(number: int, where: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        openai.parse_body(Endpoint.CHAT_COMPLETIONS, chat_with((where % number).encode()))
    assert refused.value.param == "extra"


@pytest.mark.parametrize(
    "harmless", ["18446744073709551615", "-9223372036854775808", '"123456789012345678901234"', "1e300"]
)
def test_what_only_looks_like_an_integer_beyond_64_bits_passes(harmless: str) -> None:
    assert openai.parse_body(Endpoint.CHAT_COMPLETIONS, chat_with(harmless.encode())).model == "m"


@pytest.mark.parametrize("mixed", [[1, "a"], ["a", 1], [3, 1, -5, "a"]])
def test_texts_and_token_ids_in_one_list_are_the_callers_mistake(mixed: list[object]) -> None:
    """T37: a list that began with a token id, and held a text, was a fault of ours."""
    for endpoint, field in ((Endpoint.COMPLETIONS, "prompt"), (Endpoint.EMBEDDINGS, "input")):
        with pytest.raises(InvalidRequest) as refused:
            openai.parse_body(endpoint, json.dumps({"model": "m", field: mixed}).encode())
        assert refused.value.param == field

"""T33, T34, T13: no body makes a 500, and none that is refused reaches an engine."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.edge.conftest import Edge
from tests.support.http_answers import answers
from tests.support.wire import read

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
VALID: dict[str, dict[str, Any]] = {
    CHAT: {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"model": "scripted", "prompt": "hi"},
    EMBEDDINGS: {"model": "scripted", "input": "hi"},
}
LIMIT_BYTES = 4 * 1024 * 1024
CATALOGUE = {400, 404, 413}

GENERATION: dict[str, list[Any]] = {
    "model": [1, None, [], {}, True, "", "x" * 257],
    "max_tokens": ["5", 1.5, -1, 0, [], {}, True, 10**9, 2**70, 1e300],
    "temperature": ["1", -0.1, 2.1, [], {}, True, 1e300],
    "top_p": ["1", -0.1, 1.1, [], {}, True],
    "n": ["1", 0, -1, 1.5, [], {}, True, 10**5, 2**70],
    "stream": ["true", 1, 0, [], {}, "yes"],
    "stream_options": [1, "x", [], True, {"include_usage": "yes"}, {"include_usage": 1}],
    "stop": [1, {}, True, [1], [[]], ["x"] * 17],
    "seed": ["1", 1.5, [], {}, True],
    "presence_penalty": ["1", -2.1, 2.1, [], True],
    "frequency_penalty": ["1", -2.1, 2.1, [], True],
    "logit_bias": [1, "x", [], True, {"1": "x"}, {"1": 101}, {"1": None}, {str(i): 1 for i in range(301)}],
    "user": [1, [], {}, True, "u" * 1025],
}
FIELDS: dict[str, dict[str, list[Any]]] = {
    CHAT: {
        **GENERATION,
        "messages": [
            None, "hi", 1, {}, True, [], ["hi"], [1], [None], [[]], [{}], [{"role": "user", "content": 1}], [{"content": "x"}],
            [{"role": 1, "content": "x"}], [{"role": "", "content": "x"}], [{"role": "user", "content": ["x"]}],
            [{"role": "user", "content": {"text": "x"}}], [{"role": "user", "content": "x"}] * 4097,
        ],
        "max_completion_tokens": ["5", 0, -1, 1.5, 10**9],
        "logprobs": ["true", 1, 10**4, [], {}],
        "top_logprobs": ["1", -1, 21, 10**4, True, []],
        "tools": [1, "x", {}, True, [1], ["x"], [{}] * 129],
        "response_format": [1, "json", [], True],
    },
    COMPLETIONS: {
        **GENERATION,
        "prompt": [None, 1, {}, True, [], [None], [{}], ["a", 1], [[1]], [1.5]],
        "best_of": ["1", 0, -1, True, 10**5],
        "logprobs": ["1", -1, 21, 10**4, True, []],
        "echo": ["true", 1, []],
    },
    EMBEDDINGS: {
        "model": GENERATION["model"],
        "input": [None, 1, {}, True, [], "", [""], [[]], [None], [{}], ["a", 1], [["a"]], [[1], "a"], [1.5], ["a"] * 257],
        "encoding_format": [1, [], {}, True],
        "dimensions": ["1", 0, -1, 1.5, True],
        "user": GENERATION["user"],
    },
}  # fmt: skip
WRONG = [
    pytest.param(path, name, value, id=f"{path[4:]} {name} {json.dumps(value)[:24]}")
    for path, fields in FIELDS.items()
    for name, values in fields.items()
    for value in values
]


@pytest.fixture
def untouched(edge: Edge) -> Any:
    """The engine must have received nothing when the test is over."""
    before = edge.requests()
    yield
    assert edge.requests() == before


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(("path", "name", "value"), WRONG)
def test_a_wrong_value_is_a_400_that_names_its_field(edge: Edge, path: str, name: str, value: Any) -> None:
    """T33, T13: and the engine sees nothing of it."""
    answer = edge.post(path, {**VALID[path], name: value})
    assert (answer.status, answer.error["code"]) == (400, "invalid_request")
    param = answer.error["param"]
    assert param is not None
    # `best_of` and `n` are two words for one bound; both are told as the number of answers.
    assert param.startswith(name) or {param, name} <= {"n", "best_of"} or (param, name) == (
        "max_tokens", "max_completion_tokens"
    )  # fmt: skip


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("path", VALID)
def test_a_missing_field_is_named(edge: Edge, path: str) -> None:
    """T33."""
    for name in VALID[path]:
        body = {key: value for key, value in VALID[path].items() if key != name}
        answer = edge.post(path, body)
        assert (answer.status, answer.error["param"]) == (400, name)


@pytest.mark.usefixtures("untouched")
def test_the_smaller_of_two_token_limits_hides_no_larger_one(edge: Edge) -> None:
    """T13: engines differ in which of the two they obey."""
    for one, other in (("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")):
        assert edge.post(CHAT, {**VALID[CHAT], one: 5, other: 10**9}).status == 400


@pytest.mark.usefixtures("untouched")
def test_a_million_stop_strings_are_refused(edge: Edge) -> None:
    """T13."""
    body = b'{"model":"scripted","messages":[{"role":"user","content":"hi"}],"stop":[%b"a"]}' % (
        b'"",' * 10**6
    )
    assert edge.post(CHAT, body).status == 400


def with_field(path: str, text: bytes) -> bytes:
    """The valid body with one more field, as raw text."""
    return json.dumps(VALID[path]).encode()[:-1] + b',"extra":' + text + b"}"


HOSTILE = {
    "NaN": b"NaN", "Infinity": b"Infinity", "-Infinity": b"-Infinity", "1e999": b"1e999", "-1e999": b"-1e999",
    "lone high surrogate": b'"\\ud800"', "lone low surrogate": b'"\\udc00"', "surrogates in the wrong order": b'"\\udc00\\ud800"',
    "invalid UTF-8": b'"\xff"', "cut UTF-8": b'"\xe2\x82"', "overlong UTF-8": b'"\xc0\xaf"', "UTF-8 surrogate": b'"\xed\xa0\x80"',
    "control character": b'"\x01"', "line feed in a string": b'"a\nb"', "depth 100,000": b"[" * 100_000 + b"]" * 100_000,
    "depth 100,000 of objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "unclosed": b"[" * 50_000,
    "500,000 keys": b"{" + b",".join(b'"%d":0' % i for i in range(300_000)) + b"}", "empty objects": b"[" + b"{}," * 1_000_000 + b"{}]",
    "integer of 4,300 digits": b"9" * 4300, "integer of 5,000 digits": b"9" * 5000, "integer of 100,000 digits": b"9" * 100_000,
    "leading zero": b"01", "plus": b"+1", "hexadecimal": b"0x1", "single quotes": b"'a'", "comment": b"/**/1", "trailing comma": b"[1,]",
    "bare word": b"undefined", "nothing": b"",
}  # fmt: skip


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("path", VALID)
@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_not_strict_json_is_a_400(edge: Edge, path: str, name: str) -> None:
    """T33, table 2c: in a field that nobody reads, too."""
    answer = edge.post(path, with_field(path, HOSTILE[name]))
    assert (answer.status, answer.error["code"]) == (400, "invalid_request")


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("path", VALID)
def test_what_is_not_an_object_is_a_400(edge: Edge, path: str) -> None:
    """T33."""
    valid = json.dumps(VALID[path]).encode()
    bodies = [
        b"",
        b" ",
        b"null",
        b"true",
        b"1",
        b'"a"',
        b"[]",
        b"[" + valid + b"]",
        b"{",
        valid[:-1],
        valid + b"x",
        valid + valid,
    ]
    bodies += [b"\xef\xbb\xbf" + valid, valid.decode().encode("utf-16"), b"\0" + valid, valid + b"\0"]
    assert {edge.post(path, body).status for body in bodies} == {400}


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("path", VALID)
def test_an_integer_beyond_64_bits_is_refused_where_nobody_reads_it(edge: Edge, path: str) -> None:
    """T33: it could not be sent on as it came."""
    for number in (2**64, -(2**63) - 1, 2**70, 10**300):
        answer = edge.post(path, with_field(path, b"%d" % number))
        assert (answer.status, answer.error["code"], answer.error["param"]) == (
            400,
            "invalid_request",
            "extra",
        )
    assert edge.post(path, with_field(path, b'{"a":[{"b":[1,%d]}]}' % 2**64)).error["param"] == "extra"


def test_of_duplicate_keys_the_last_counts_and_is_the_only_one_sent_on(edge: Edge) -> None:
    """T33: what was checked is what is executed, proved by the engine's own log."""
    body = (
        b'{"model":"nothing","user":"first","max_tokens":1000000000,"messages":[{"role":"user","content":"hi"}],'
        b'"model":"scripted","user":"last","max_tokens":7}'
    )
    answer = edge.post(CHAT, body)
    assert answer.status == 200
    assert answer.json["usage"]["completion_tokens"] == 7
    assert edge.engine.executions()[-1]["user"] == "last"
    reverse = (
        b'{"model":"scripted","messages":[{"role":"user","content":"hi"}],"max_tokens":7,"max_tokens":0}'
    )
    assert edge.post(CHAT, reverse).status == 400


def test_fields_that_we_do_not_know_are_accepted_on_every_endpoint(edge: Edge) -> None:
    extra = {"top_k": 5, "vendor": {"a": [1, 2.5, None, True, "\u2028", 2**63, -(2**63)]}}
    for path, fields in VALID.items():
        assert edge.post(path, {**fields, **extra}).status == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(sorted(VALID)), data=st.data())
def test_any_object_gets_an_answer_or_an_error_from_the_catalogue(
    edge: Edge, path: str, data: st.DataObject
) -> None:
    """T33, T37: never a 5xx that the engine was not told to make."""
    known = st.dictionaries(st.sampled_from(sorted(FIELDS[path])), JSON, max_size=3)
    body = {
        **VALID[path],
        **data.draw(known),
        **data.draw(st.dictionaries(st.text(max_size=8), JSON, max_size=2)),
    }
    answer = edge.post(path, body)
    assert answer.status in CATALOGUE | {200}
    if answer.status != 200:
        assert answer.error["code"] in ("invalid_request", "model_not_found")


# How large a body may be (T34)


def head(edge: Edge, headers: str) -> bytes:
    return f"POST {CHAT} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {edge.key}\r\n{headers}\r\n".encode()


def push(connection: socket.socket, pieces: Any) -> int:
    """Sends until the other side stops it; how many bytes it took."""
    taken = 0
    try:
        for piece in pieces:
            connection.sendall(piece)
            taken += len(piece)
    except (BrokenPipeError, ConnectionResetError):
        pass
    return taken


def socket_buffers(connection: socket.socket) -> int:
    """What two kernels may hold between the ends: as large as they may grow by themselves."""
    limits = [Path(f"/proc/sys/net/ipv4/{name}").read_text().split()[-1] for name in ("tcp_wmem", "tcp_rmem")]
    return sum(map(int, limits))


@pytest.mark.slow
@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param("Content-Length: 100000000\r\n", 413, id="length"),
        pytest.param("Transfer-Encoding: chunked\r\n", 413, id="chunked"),
        pytest.param("Content-Encoding: gzip\r\nContent-Length: 100000000\r\n", 400, id="gzip"),
        pytest.param("Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", 400, id="gzip chunked"),
    ],
)
def test_a_body_over_the_limit_is_refused_before_it_is_read(edge: Edge, headers: str, status: int) -> None:
    """T34: the sender can read why, although it went on sending; most of its 100 MB is never taken."""
    piece = b"a" * 65_536
    with edge.service.connect() as connection:
        connection.sendall(head(edge, headers))
        pieces = ([b"%x\r\n%b\r\n" % (len(piece), piece)] if "chunked" in headers else [piece]) * 1600
        taken = push(connection, pieces)
        seen = read(connection, silence_s=30)
    (answer,) = answers(seen.data)
    assert (answer.status, answer.headers["connection"]) == (status, "close")
    assert taken < LIMIT_BYTES + 64 * 1024 + socket_buffers(connection)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_that_sends_all_before_it_reads_still_reads_the_413(edge: Edge, chunked: bool) -> None:
    """T34: of a body a little over the limit."""
    answer = edge.ask("POST", CHAT, b"a" * (LIMIT_BYTES + 1)) if not chunked else None
    if answer is None:
        with edge.service.connect() as connection:
            connection.sendall(head(edge, "Transfer-Encoding: chunked\r\n"))
            push(connection, [b"10000\r\n" + b"a" * 65_536 + b"\r\n"] * 65 + [b"0\r\n\r\n"])
            (answer,) = answers(read(connection, silence_s=30).data)
    assert (answer.status, answer.error["code"]) == (413, "payload_too_large")


def test_a_body_at_the_limit_is_accepted(edge: Edge) -> None:
    """T34: one more byte is not."""
    empty = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": ""}]}).encode()
    filler = b"a" * (LIMIT_BYTES - len(empty))
    assert edge.post(CHAT, empty.replace(b'""', b'"' + filler + b'"')).status == 200
    assert edge.post(CHAT, empty.replace(b'""', b'"' + filler + b'a"')).status == 413


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "zstd", "GZIP", "gzip, identity", "x"])
@pytest.mark.usefixtures("untouched")
def test_compressed_bodies_are_refused(edge: Edge, encoding: str) -> None:
    """T34: no bomb is ever unpacked."""
    answer = edge.post(CHAT, VALID[CHAT], **{"content-encoding": encoding})
    assert (answer.status, answer.error["code"]) == (400, "invalid_request")


def test_identity_is_no_compression(edge: Edge) -> None:
    assert edge.post(CHAT, VALID[CHAT], **{"content-encoding": "identity"}).status == 200


def test_livez_is_fast_after_all_this(edge: Edge) -> None:
    assert edge.is_healthy()
    assert edge.service.metric("headrace_internal_errors_total") == 0

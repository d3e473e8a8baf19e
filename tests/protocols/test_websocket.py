"""Does a dialogue read messages the same however they are cut, and close for the reason that there is?"""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import Forbidden, InvalidRequest
from headrace.protocols import websocket
from headrace.protocols.http1 import RequestHead
from tests.support.websocket import BINARY, CLOSE, CONT, PING, PONG, TEXT, frame

BOUND = 1000


def head(**headers: str) -> RequestHead:
    given_headers = {
        "host": "api.example:8000",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    encoded = {name.encode(): value.encode() for name, value in given_headers.items()}
    return RequestHead(b"GET", b"/v1/completions", "1.1", encoded, keeps_alive=False, upgrade=b"websocket")


def close_code(dialogue: websocket.Dialogue) -> int:
    """From the last frame that it has to send."""
    sent = dialogue.to_send()
    at = sent.rindex(b"\x88")
    return int.from_bytes(sent[at + 2 : at + 4], "big")


# The handshake


def test_the_handshake_is_that_of_the_standard() -> None:
    """The example of RFC 6455, section 1.3."""
    lines = websocket.accept(head())
    assert b"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in lines
    assert b"sec-websocket-protocol" not in lines
    assert b"extensions" not in lines


@pytest.mark.parametrize(
    "headers",
    [
        {"sec_websocket_version": "8"},
        {"sec_websocket_key": ""},
        {"sec_websocket_key": "dGhlIHNhbXBsZSBub25jZQ"},
        {"sec_websocket_key": "c2hvcnQ="},
        {"sec_websocket_key": "ü"},
        {"idempotency_key": "a"},
    ],
)
def test_a_handshake_that_is_not_sound_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        websocket.accept(head(**headers))


def test_a_key_among_the_subprotocols_moves_to_where_keys_are() -> None:
    """And twice is as once, since a connection is judged again for each request."""
    offered = head(sec_websocket_protocol="headrace.v1, headrace.key.hr_a ,other")
    for _ in range(2):
        websocket.adopt_key(offered)
        assert offered.headers[b"authorization"] == b"Bearer hr_a"
        assert b"hr_a" not in websocket.accept(offered)
    assert b"sec-websocket-protocol: headrace.v1\r\n" in websocket.accept(offered)


@pytest.mark.parametrize(
    "headers",
    [
        {"sec_websocket_protocol": "headrace.v1, headrace.key.a, headrace.key.b"},
        {"sec_websocket_protocol": "headrace.v1, headrace.key.a", "authorization": "Bearer a"},
        {"sec_websocket_protocol": "headrace.key.a"},
    ],
)
def test_a_key_that_is_ambiguous_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        websocket.adopt_key(head(**headers))


def test_other_subprotocols_are_left_alone() -> None:
    offered = head(sec_websocket_protocol="graphql-ws", authorization="Bearer a")
    websocket.adopt_key(offered)
    assert offered.headers[b"authorization"] == b"Bearer a"
    assert b"sec-websocket-protocol" not in websocket.accept(offered)


@pytest.mark.parametrize(
    ("origin", "allowed", "may"),
    [
        (None, [], True),
        ("https://app.example", [], False),
        ("https://app.example", ["https://app.example"], True),
        ("HTTPS://App.Example", ["https://app.example"], True),
        ("https://app.example:444", ["https://app.example"], False),
        ("https://app.example.evil", ["https://app.example"], False),
        ("https://app.example", ["*"], True),
        ("null", [], False),
        ("null", ["*"], True),
        ("http://api.example:8000", [], True),
        ("http://API.example:8000", [], True),
        ("http://api.example", [], False),
        ("api.example:8000", [], False),
        ("", [], False),
    ],
)
def test_a_page_may_connect_from_its_own_address_and_from_listed_ones(
    origin: str | None, allowed: list[str], may: bool
) -> None:
    from_page = head(**({} if origin is None else {"origin": origin}))
    origins = frozenset(each.encode() for each in allowed)
    if may:
        websocket.check_origin(from_page, origins)
    else:
        with pytest.raises(Forbidden):
            websocket.check_origin(from_page, origins)


# Messages in

WHOLE = "grüße 🫠".encode()
STREAM = (
    frame(TEXT, b"one")
    + frame(TEXT, WHOLE[:3], fin=False)
    + frame(PING, b"p")
    + frame(CONT, b"", fin=False)
    + frame(PONG)
    + frame(CONT, WHOLE[3:])
    + frame(TEXT, b"x" * 200)
    + frame(TEXT)
)
MESSAGES = [b"one", WHOLE, b"x" * 200, b""]


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_cuts_change_nothing(cuts: list[int]) -> None:
    """T6a: a character is cut between two fragments, and a ping comes between them."""
    dialogue = websocket.Dialogue(message_bytes_max=BOUND)
    ends = [*sorted(cuts), len(STREAM)]
    messages = []
    for start, end in zip([0, *ends], ends, strict=False):
        if start != end:
            messages += dialogue.feed(STREAM[start:end])
    assert messages == MESSAGES
    assert dialogue.to_send() == b"\x8a\x01p"
    assert (dialogue.is_open, dialogue.is_receiving) == (True, False)


@pytest.mark.parametrize("length", [0, 125, 126, 65535, 65536, 70_000])
def test_what_is_coming_is_known_to_the_byte(length: int) -> None:
    """However far it has come, a frame that has begun is seen as such until its last byte."""
    dialogue = websocket.Dialogue(message_bytes_max=100_000)
    data = frame(TEXT, b"a" * length, fin=False) + frame(CONT, b"b")
    for at in {1, 2, 5, 7, len(data) // 2, len(data) - 8, len(data) - 1}:
        dialogue = websocket.Dialogue(message_bytes_max=100_000)
        assert not dialogue.is_receiving
        dialogue.feed(data[:at])
        assert dialogue.is_receiving
        assert abs(dialogue.received_bytes - at) <= 14 + 7, "all but the frames' heads"
        assert dialogue.feed(data[at:]) == [b"a" * length + b"b"]
        assert not dialogue.is_receiving


def masked_lie(length: int) -> bytes:
    """The head of a frame that announces that many bytes."""
    return b"\x81\xff" + struct.pack("!Q", length) + bytes(4)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(TEXT, b"a", mask=False), 1002),
        (frame(TEXT, b"a", rsv=4), 1002),
        (frame(0x3, b"a"), 1002),
        (frame(0xB, b"a"), 1002),
        (frame(CONT, b"a"), 1002),
        (frame(TEXT, b"a", fin=False) + frame(TEXT, b"b"), 1002),
        (frame(PING, b"a", fin=False), 1002),
        (frame(PING, b"a" * 126), 1002),
        (frame(CLOSE, b"a"), 1002),
        (frame(CLOSE, (1005).to_bytes(2, "big")), 1002),
        (frame(CLOSE, (1000).to_bytes(2, "big") + b"\xff"), 1007),
        (frame(BINARY, b"{}"), 1003),
        (frame(TEXT, b"\xff"), 1007),
        (frame(TEXT, b"\xed\xa0\x80"), 1007),
        (frame(TEXT, WHOLE[:3], fin=False) + frame(CONT, b"("), 1007),
        (frame(TEXT, b"a" * (BOUND + 1)), 1009),
        (frame(TEXT, b"a" * BOUND, fin=False) + frame(CONT, b"a"), 1009),
        (frame(TEXT, b"a" * BOUND, fin=False) + frame(CONT, b"a" * 300, fin=False), 1009),
        (masked_lie(2**62), 1009),
        (masked_lie(BOUND + 200), 1009),
    ],
)
def test_what_breaks_the_protocol_closes_with_its_code_and_nothing_after_it_counts(
    data: bytes, code: int
) -> None:
    dialogue = websocket.Dialogue(message_bytes_max=BOUND)
    assert dialogue.feed(data) == []
    assert close_code(dialogue) == code
    assert (dialogue.is_open, dialogue.is_closed) == (False, True)
    assert dialogue.feed(frame(TEXT, b"hidden") + frame(PING)) == []
    assert dialogue.to_send() == b""


def test_a_message_of_just_the_bound_is_taken_with_a_ping_in_its_middle() -> None:
    dialogue = websocket.Dialogue(message_bytes_max=BOUND)
    assert dialogue.feed(frame(TEXT, b"a" * BOUND)) == [b"a" * BOUND]
    parts = frame(TEXT, b"a" * (BOUND - 1), fin=False) + frame(PING, b"p" * 125) + frame(CONT, b"a")
    assert dialogue.feed(parts) == [b"a" * BOUND]
    assert dialogue.is_open


def test_another_bound_holds_for_the_message_that_is_coming() -> None:
    dialogue = websocket.Dialogue(message_bytes_max=BOUND)
    dialogue.set_message_bytes_max(2 * BOUND)
    assert dialogue.feed(frame(TEXT, b"a" * 2 * BOUND)) == [b"a" * 2 * BOUND]
    assert dialogue.feed(frame(TEXT, b"a" * 100, fin=False)) == []
    dialogue.set_message_bytes_max(100)
    assert dialogue.feed(frame(CONT, b"a")) == []
    assert close_code(dialogue) == 1009


@pytest.mark.parametrize("payload", [b"", (1000).to_bytes(2, "big"), (3000).to_bytes(2, "big") + b"bye"])
def test_a_close_is_answered_with_its_own_code(payload: bytes) -> None:
    dialogue = websocket.Dialogue(message_bytes_max=BOUND)
    assert dialogue.feed(frame(TEXT, b"last") + frame(CLOSE, payload) + frame(TEXT, b"late")) == [b"last"]
    assert dialogue.to_send() == bytes([0x88, len(payload)]) + payload
    assert dialogue.is_closed


def test_our_close_waits_for_the_answer_and_its_reason_is_cut_to_what_fits() -> None:
    dialogue = websocket.Dialogue(message_bytes_max=BOUND)
    dialogue.close(1001, "ä" * 100)
    assert (dialogue.is_open, dialogue.is_closed) == (False, False)
    sent = dialogue.to_send()
    assert len(sent) <= 2 + 125
    assert sent[4:].decode() == "ä" * 61
    dialogue.close(1000, "again")
    assert dialogue.to_send() == b""
    dialogue.feed(frame(CLOSE, (1001).to_bytes(2, "big")))
    assert dialogue.is_closed


@given(
    data=st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.builds(
                frame,
                st.integers(0, 15),
                st.binary(max_size=200),
                fin=st.booleans(),
                rsv=st.sampled_from([0, 0, 0, 4]),
                mask=st.sampled_from([True, True, True, False]),
            ),
        ),
        max_size=8,
    )
)
def test_no_bytes_raise_anything_and_whole_messages_are_within_their_bound(data: list[bytes]) -> None:
    dialogue = websocket.Dialogue(message_bytes_max=100)
    for piece in data:
        for message in dialogue.feed(piece) if piece else []:
            assert len(message) <= 100
            message.decode()
        dialogue.to_send()
        assert dialogue.received_bytes <= 100 + 125 + 14 + sum(map(len, data))


# What clients say


@pytest.mark.parametrize(
    ("message", "control"),
    [
        (b'{"cancel": true}', websocket.Control(cancel=True)),
        (b'{"headers": {}}', websocket.Control(headers={})),
        (b' {"headers": {"A": "b"}, "cancel": true}', websocket.Control(cancel=True, headers={"A": "b"})),
        (b'{"cancel": false}', None),
        (b'{"cancel": true, "model": "m"}', None),
        (b'{"headers": null}', None),
        (b'{"headers": {"a": 1}}', None),
        (b"{}", None),
        (b"[]", None),
        (b"nonsense", None),
        (b'{"cancel": true' + b" " * 5000 + b"}", None),
        (b'{"a":' * 1000, None),
    ],
)
def test_a_message_is_a_request_unless_it_says_exactly_something_else(
    message: bytes, control: websocket.Control | None
) -> None:
    assert websocket.read_control(message) == control


def test_headers_of_one_request_stand_in_for_those_of_the_handshake() -> None:
    handshake = head(x_headrace_deadline_ms="1", authorization="Bearer a")
    assert websocket.request_head(handshake, None) is handshake
    given_headers = {"X-Headrace-Deadline-Ms": " 2 ", "idempotency-key": "k"}
    of_request = websocket.request_head(handshake, given_headers).headers
    assert of_request[b"x-headrace-deadline-ms"] == b"2"
    assert of_request[b"idempotency-key"] == b"k"
    assert of_request[b"authorization"] == b"Bearer a"
    assert handshake.headers[b"x-headrace-deadline-ms"] == b"1"


@pytest.mark.parametrize(
    "headers",
    [{"authorization": "a"}, {"host": "a"}, {"idempotency-key": "a\r\nb"}, {"idempotency-key": "ü"}],
)
def test_no_other_header_and_no_hidden_line_can_be_given(headers: dict[str, str]) -> None:
    """T45."""
    with pytest.raises(InvalidRequest):
        websocket.request_head(head(), headers)


# What we say


@pytest.mark.parametrize("length", [0, 1, 125, 126, 65535, 65536, 100_000])
def test_a_frame_of_ours_is_one_unmasked_message(length: int) -> None:
    payload = b"a" * length
    framed = websocket.text_frame(payload)
    assert framed == frame(TEXT, payload, mask=False)


def test_what_an_engine_sends_is_made_text_before_it_is_framed() -> None:
    assert websocket.event_frame(WHOLE) == websocket.text_frame(WHOLE)
    assert websocket.event_frame(b"a\xffb") == websocket.text_frame("a\ufffdb".encode())


def test_every_message_of_ours_is_json_with_an_object() -> None:
    error = b'{"error":{"code":"c"}}'
    headers = b"retry-after: 3\r\nx-a: b: c\r\n"
    assert [
        json.loads(message)
        for message in (
            websocket.open_message("req_1", headers),
            websocket.done_message("req_1"),
            websocket.cancelled_message("req_1"),
            websocket.error_message(429, error, headers),
            websocket.busy_message(400, error),
        )
    ] == [
        {"object": "headrace.open", "request_id": "req_1", "headers": {"retry-after": "3", "x-a": "b: c"}},
        {"object": "headrace.done", "request_id": "req_1"},
        {"object": "headrace.cancelled", "request_id": "req_1"},
        {
            "object": "headrace.error",
            "status": 429,
            "headers": {"retry-after": "3", "x-a": "b: c"},
            "error": {"code": "c"},
        },
        {"object": "headrace.busy", "status": 400, "error": {"code": "c"}},
    ]

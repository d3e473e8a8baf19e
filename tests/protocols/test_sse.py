"""The event parser against the standard's own rules, under every way to cut a stream (T6a)."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.protocols import sse
from tests.fuzz.targets import events_by_the_standard


def parse(*pieces: bytes, event_bytes_max: int = sse.EVENT_BYTES_MAX) -> list[bytes]:
    parser = sse.EventParser(event_bytes_max=event_bytes_max)
    return [event for piece in pieces for event in parser.feed(piece)]


def cut(stream: bytes, chance: Random) -> list[bytes]:
    """The stream in up to forty pieces, some of them empty."""
    places = [chance.randrange(len(stream) + 1) for _ in range(chance.randrange(40))]
    bounds = [0, *sorted(places), len(stream)]
    return [stream[begin:end] for begin, end in pairwise(bounds)]


NASTY = (
    "\ufeff: a comment\r\n\r\n"
    'data: {"text":"\U0001f600\u2028\u0085\u00e9"}\n\n'
    "data: two\r\ndata:lines\r\r"
    "event: named\nid: 7\nretry: 10\ndata\n\n"
    "data\ndata\n\n"
    "data:  kept blank\nignored\ndatax: no\n data: no\n\n"
    "\n\r\n\r:\n\n"
    "event: without data\n\n"
    "data: \ufeff not at the start\r\n\r\n"
    "data: [DONE]\n\n"
    "data: never ended"
).encode()

LINE = st.one_of(
    st.sampled_from(
        ["data: a", "data:b", "data", "data:  c", "", "", ": comment", "id: 1", "\ufeffdata: x", "dat"]
    ),
    st.text(alphabet="d: \u2028\u0085\U0001f600\ufeff\0x", max_size=6).map(lambda text: "data:" + text),
)
STREAM = st.lists(st.tuples(LINE, st.sampled_from(["\n", "\r\n", "\r"])), max_size=25).map(
    lambda lines: "".join(line + end for line, end in lines).encode()
)


def test_a_nasty_stream_reads_as_the_standard_says() -> None:
    assert parse(NASTY) == events_by_the_standard(NASTY)
    assert parse(NASTY) == [
        '{"text":"\U0001f600\u2028\u0085\u00e9"}'.encode(),
        b"two\nlines",
        b"",
        b"\n",
        b" kept blank",
        "\ufeff not at the start".encode(),
        b"[DONE]",
    ]


def test_a_cut_at_any_two_offsets_changes_nothing() -> None:
    """T6a: every pair of places, so also inside a character, inside CRLF, and between the two ends of an event."""
    whole = parse(NASTY)
    for first in range(len(NASTY) + 1):
        assert parse(NASTY[:first], NASTY[first:]) == whole
        for second in range(first, min(first + 6, len(NASTY) + 1)):
            assert parse(NASTY[:first], NASTY[first:second], NASTY[second:]) == whole
    assert parse(*(NASTY[i : i + 1] for i in range(len(NASTY)))) == whole


@pytest.mark.slow
@settings(max_examples=1_000)
@given(stream=STREAM, seed=st.integers(0, 2**32))
@example(stream=b"\n\ndata: a\n\n", seed=1)
def test_ten_thousand_cuttings_of_any_streams_read_as_the_standard_says(stream: bytes, seed: int) -> None:
    """T6a: a thousand streams, each in ten cuttings."""
    chance, expected = Random(seed), events_by_the_standard(stream)
    for _ in range(10):
        assert parse(*cut(stream, chance)) == expected


@pytest.mark.slow
def test_ten_thousand_cuttings_of_one_nasty_stream_change_nothing() -> None:
    """T6a: the same stream each time, in pieces of all sizes; the seed makes it the same run each time."""
    chance, whole = Random(6), parse(NASTY)
    for _ in range(10_000):
        assert parse(*cut(NASTY, chance)) == whole


@pytest.mark.parametrize("piece_bytes", [1 << 23, 65_536, 65_537])
def test_an_event_of_eight_megabytes_arrives_whole(piece_bytes: int) -> None:
    """T6a."""
    data = b"x" * (sse.EVENT_BYTES_MAX - len(b"data: "))
    stream = sse.encode(data) + sse.DONE_EVENT
    pieces = [stream[i : i + piece_bytes] for i in range(0, len(stream), piece_bytes)]
    assert parse(*pieces) == [data, sse.DONE]


@pytest.mark.parametrize("ending", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\r\n\n"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("excess", [0, 1])
def test_the_bound_on_an_event_is_the_same_however_it_is_cut(
    ending: bytes, start: bytes, excess: int
) -> None:
    """T36: one byte too many is refused, and the last one allowed is not."""
    stream = start + b"data: 0123456789" + ending
    event_bytes_max = len(start) + 16 - excess
    for place in range(len(stream) + 1):
        if excess:
            with pytest.raises(sse.EventTooLarge):
                parse(stream[:place], stream[place:], event_bytes_max=event_bytes_max)
        else:
            assert parse(stream[:place], stream[place:], event_bytes_max=event_bytes_max) == [b"0123456789"]


def test_bytes_without_an_end_are_refused_at_the_bound() -> None:
    """T36: an endless line is not collected until the memory is full."""
    parser = sse.EventParser(event_bytes_max=1000)
    for _ in range(10):
        assert parser.feed(b"y" * 100) == []
    with pytest.raises(sse.EventTooLarge):
        parser.feed(b"y")


@given(data=st.lists(st.binary().map(lambda raw: raw.replace(b"\r", b"\n")), max_size=5))
def test_what_is_encoded_is_what_is_read(data: list[bytes]) -> None:
    """Data with CR has no encoding; what the parser gives out has none."""
    stream = b"".join(map(sse.encode, data))
    assert parse(stream) == events_by_the_standard(stream) == data


@given(data=st.lists(st.binary(max_size=20).map(lambda raw: raw.replace(b"\r", b"")), min_size=1, max_size=4))
def test_heartbeats_between_events_are_no_events(data: list[bytes]) -> None:
    """T6b."""
    stream = sse.HEARTBEAT + b"".join(sse.encode(each) + sse.HEARTBEAT for each in data)
    assert parse(stream) == data


@pytest.mark.parametrize("left", [b"", b"\n", b"\r\n", b"data: cut", b"data: cut\n", b"data: cut\r", b": x"])
def test_what_is_left_of_an_event_at_the_end_is_no_event(left: bytes) -> None:
    """T3: the standard drops it, and whether the answer was whole is said by its content."""
    assert parse(b"data: whole\n\n" + left) == [b"whole"]


def test_nothing_at_all_is_no_event() -> None:
    assert parse(b"", b"", b"\r", b"", b"\n", b"") == []

"""Claims about frames: every message arrives whole and once, however the bytes were cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols.frames import FRAME_BYTES_MAX, FrameParser, FrameTooLarge, frame


@given(st.lists(st.binary(max_size=50)), st.lists(st.integers(0, 400)))
def test_messages_arrive_as_they_were_sent_however_they_are_cut(
    messages: list[bytes], cuts: list[int]
) -> None:
    sent = b"".join(map(frame, messages))
    parser = FrameParser()
    edges = [0, *sorted(cut for cut in cuts if cut < len(sent)), len(sent)]
    pieces = [sent[start:end] for start, end in itertools.pairwise(edges)]
    assert [message for piece in pieces for message in parser.feed(piece)] == messages


def test_a_length_that_nobody_sends_is_refused_before_its_bytes_are_kept() -> None:
    with pytest.raises(FrameTooLarge):
        FrameParser().feed((FRAME_BYTES_MAX + 1).to_bytes(4, "big"))

"""SafeTensors headers: whatever a true header says is read, and no header that can't be true gets through."""

import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols import safetensors
from headrace.protocols.safetensors import DTYPES

_SHAPES = st.lists(st.integers(0, 4), max_size=3)


@st.composite
def models(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    """A true header, and how many bytes follow it."""
    names = draw(st.lists(st.text(min_size=1, max_size=8), unique=True, max_size=5))
    header: dict[str, Any] = {}
    reached = 0
    for name in names:
        if name == "__metadata__":
            continue
        dtype, shape = draw(st.sampled_from(sorted(DTYPES))), draw(_SHAPES)
        if math.prod(shape) * DTYPES[dtype] % 8:
            shape = [*shape, 8]
        size = math.prod(shape) * DTYPES[dtype] // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [reached, reached + size]}
        reached += size
    return header, reached


def encoded(header: object) -> bytes:
    return json.dumps(header).encode()


@given(models(), st.dictionaries(st.text(), st.text(), max_size=2))
def test_a_true_header_is_read_as_it_was_written(
    model: tuple[dict[str, Any], int], metadata: dict[str, str]
) -> None:
    told, data_bytes = model
    header = safetensors.parse(encoded({**told, "__metadata__": metadata}) + b"   ", data_bytes=data_bytes)
    assert header.metadata == metadata
    assert {name: (facts.dtype, list(facts.shape)) for name, facts in header.tensors.items()} == {
        name: (each["dtype"], each["shape"]) for name, each in told.items()
    }
    assert sum(facts.end - facts.start for facts in header.tensors.values()) == data_bytes


@given(models(), st.integers(1, 100))
def test_a_file_that_is_longer_or_shorter_than_its_header_says_is_refused(
    model: tuple[dict[str, Any], int], by: int
) -> None:
    told, data_bytes = model
    for wrong in (data_bytes + by, data_bytes - by):
        with pytest.raises(ValueError, match="follow the header"):
            safetensors.parse(encoded(told), data_bytes=wrong)


@given(st.binary(max_size=200), st.integers(0, 1000))
def test_any_bytes_are_read_or_refused_and_nothing_else(header: bytes, data_bytes: int) -> None:
    try:
        safetensors.parse(header, data_bytes=data_bytes)
    except ValueError:
        pass


def one(**changes: object) -> dict[str, object]:
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b" {}", "begin with"),
        (b"{", "Expecting"),
        (b"{\xff}", "can't be read"),
        (b'{"a":' * 100_000, "can't be read"),
        (b'{"w": {}, "w": {}}', "twice"),
        (encoded({"__metadata__": {"a": 1}}), "more than text"),
        (encoded({"__metadata__": "a"}), "more than text"),
        (encoded({"w": []}), "must have"),
        (encoded(one(more=1)), "must have"),
        (encoded(one(dtype="F31")), "none of"),
        (encoded(one(dtype=["F32"])), "none of"),
        (encoded(one(shape=[-2])), "shape"),
        (encoded(one(shape=[True])), "shape"),
        (encoded(one(shape=2)), "shape"),
        (encoded(one(shape=[1] * 33)), "shape"),
        (encoded(one(data_offsets=[0])), "data_offsets"),
        (encoded(one(data_offsets=[0, 1 << 63])), "data_offsets"),
        (encoded(one(data_offsets=[8, 0])), "doesn't take"),
        (encoded(one(data_offsets=[0, 4])), "doesn't take"),
        (encoded(one(dtype="F4", shape=[3], data_offsets=[0, 1])), "doesn't take"),
        (encoded(one(data_offsets=[4, 12])), "leaves bytes before it"),
        (encoded({**one(), "v": {"dtype": "U8", "shape": [8], "data_offsets": [4, 12]}}), "overlaps"),
    ],
)
def test_a_header_that_cannot_be_true_is_refused_with_what_is_wrong(header: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        safetensors.parse(header, data_bytes=8)


def test_the_length_of_the_header_is_within_the_file() -> None:
    assert safetensors.header_length(struct.pack("<Q", 10) + b"{", file_bytes=18) == 10
    for length, file_bytes in ((10, 17), (1, 100), (1 << 63, 1 << 40), (100_000_001, 1 << 40)):
        with pytest.raises(ValueError, match="would be"):
            safetensors.header_length(struct.pack("<Q", length), file_bytes=file_bytes)
    with pytest.raises(ValueError, match="too short"):
        safetensors.header_length(b"1234567", file_bytes=7)


@pytest.mark.parametrize("index", [[], {}, {"weight_map": {}}, {"weight_map": []}])
def test_an_index_without_a_map_is_refused(index: object) -> None:
    with pytest.raises(ValueError, match="no weight_map"):
        safetensors.index_parts(index)


def test_an_index_names_files_by_text() -> None:
    assert safetensors.index_parts({"weight_map": {"w": "a"}}) == {"w": "a"}
    with pytest.raises(ValueError, match="something else than text"):
        safetensors.index_parts({"weight_map": {"w": 1}})


def test_an_index_fits_its_files_or_is_refused() -> None:
    parts = {"w": "a", "v": "b"}
    safetensors.check_index(parts, {"a": ["w"], "b": ["v"], "another": ["x"]})
    for tensors, says in (
        ({"a": ["w"]}, "names b, which isn't there"),
        ({"a": [], "b": ["v"]}, "says that w is in a"),
        ({"a": ["w", "x"], "b": ["v"]}, "a has x"),
        ({"a": ["w"], "b": ["v", "w"]}, "b has w"),
    ):
        with pytest.raises(ValueError, match=says):
            safetensors.check_index(parts, tensors)

"""What does the header of a SafeTensors file say, and can it be true? Names, shapes and places of tensors, read strictly.

Whoever loads the file maps it into memory by these numbers, so each is checked against the size of the file first: a header
that points outside it, or twice to the same bytes, is refused before any engine sees it.
Source: https://huggingface.co/docs/safetensors, the format's description, and its list of what is forbidden.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LENGTH_BYTES = 8
HEADER_BYTES_MAX = 100_000_000  # the format's own bound
_DIMENSIONS_MAX = 32
_SIZE_MAX = 1 << 62

# Bits of one element.
DTYPES = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
}


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """One tensor.

    Attributes:
        start, end: Bytes, counted from the end of the header.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """All that a file says before its numbers begin."""

    tensors: Mapping[str, TensorFacts]
    metadata: Mapping[str, str] = field(default_factory=dict)


def header_length(start: bytes, *, file_bytes: int) -> int:
    """How long the header is, by the first eight bytes of the file. Raises ValueError if it can't be."""
    if len(start) < LENGTH_BYTES:
        raise ValueError("it is too short to have a header")
    (length,) = struct.unpack("<Q", start[:LENGTH_BYTES])
    if not 2 <= length <= min(HEADER_BYTES_MAX, file_bytes - LENGTH_BYTES):
        raise ValueError(f"its header would be {length} bytes long, and the file has {file_bytes}")
    return int(length)


def parse(header: bytes, *, data_bytes: int) -> Header:
    """The header, checked against the bytes that follow it. Raises ValueError saying what can't be true.

    Args:
        data_bytes: How many bytes of the file come after the header.
    """
    if not header.startswith(b"{"):
        raise ValueError("its header doesn't begin with {")
    try:
        fields = json.loads(header.decode("utf-8"), object_pairs_hook=_unique)
    except (UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"its header can't be read: {error}") from error
    metadata = fields.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("its __metadata__ holds more than text")
    tensors = {name: _tensor(name, told) for name, told in fields.items()}
    _check_cover(tensors, data_bytes)
    return Header(tensors, metadata)


def index_parts(index: object) -> dict[str, str]:
    """Which file each tensor of a sharded model is in, by `model.safetensors.index.json`. Raises ValueError."""
    parts = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(parts, dict) or not parts:
        raise ValueError("it has no weight_map")
    if not all(isinstance(file, str) for file in parts.values()):
        raise ValueError("its weight_map names files by something else than text")
    return parts


def check_index(parts: Mapping[str, str], tensors: Mapping[str, Sequence[str]]) -> None:
    """Whether an index and the files that it names are of one model. Raises ValueError naming what doesn't fit.

    Args:
        tensors: The names in each file that there is.
    """
    if missing := sorted(set(parts.values()) - tensors.keys()):
        raise ValueError(f"it names {missing[0]}, which isn't there ({len(missing)} of its files aren't)")
    for name, file in parts.items():
        if name not in tensors[file]:
            raise ValueError(f"it says that {name} is in {file}, and it isn't")
    for file in sorted(set(parts.values())):
        if unknown := [name for name in tensors[file] if parts.get(name) != file]:
            raise ValueError(f"{file} has {unknown[0]}, of which it knows nothing")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two entries of one name are read differently by different loaders."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("its header has a name twice")
    return fields


def _tensor(name: str, told: object) -> TensorFacts:
    if not isinstance(told, dict) or told.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{name}: must have dtype, shape and data_offsets, and nothing else")
    dtype, shape, offsets = told["dtype"], told["shape"], told["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"{name}: dtype {dtype!r} is none of {', '.join(DTYPES)}")
    if not _are_sizes(shape) or len(shape) > _DIMENSIONS_MAX:
        raise ValueError(f"{name}: shape {shape!r} is none")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"{name}: data_offsets {offsets!r} are none")
    facts = TensorFacts(dtype, tuple(shape), offsets[0], offsets[1])
    bits = facts.elements * DTYPES[dtype]
    if bits % 8 or bits // 8 != facts.end - facts.start:
        raise ValueError(
            f"{name}: {dtype} of shape {list(shape)} doesn't take the bytes {offsets[0]} to {offsets[1]}"
        )
    return facts


def _are_sizes(numbers: object) -> bool:
    return isinstance(numbers, list) and all(
        type(number) is int and 0 <= number <= _SIZE_MAX for number in numbers
    )


def _check_cover(tensors: Mapping[str, TensorFacts], data_bytes: int) -> None:
    """Every byte belongs to exactly one tensor: no hole to hide something in, no overlap, nothing beyond the end."""
    reached = 0
    for name, facts in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if facts.start != reached:
            what = (
                "overlaps another tensor"
                if facts.start < reached
                else "leaves bytes before it that nothing uses"
            )
            raise ValueError(f"{name}: {what}")
        reached = facts.end
    if reached != data_bytes:
        raise ValueError(f"its tensors take {reached} bytes, and {data_bytes} follow the header")

"""What does a GGUF file say about itself, and how is one written? Metadata only; tensors are opaque bytes.

Written here rather than with the `gguf` package because the digest of a converted model is pinned: the bytes must not
depend on which release of a library wrote them (and NumPy needn't be installed for it).
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, version 3.
"""

import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO

from headrace.core.errors import ConfigError
from headrace.policies.licenses import LicenseClaim

MAGIC = b"GGUF"
VERSION = 3
TEMPLATE = "tokenizer.chat_template"
ALIGNMENT_BYTES = 32
_ENTRIES_MAX = 1 << 16
_STRING_BYTES_MAX = 1 << 24
_ARRAY_ITEMS_MAX = 1 << 24
_DIMENSIONS_MAX = 8
_ALIGNMENT_MAX = 1 << 16

_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
# Elements and bytes of one block, by the kinds of numbers that tensors hold.
_BLOCKS = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    9: (32, 36),  # Q8_1
    10: (256, 84),  # Q2_K
    11: (256, 110),  # Q3_K
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    15: (256, 292),  # Q8_K
    16: (256, 66),  # IQ2_XXS
    17: (256, 74),  # IQ2_XS
    18: (256, 98),  # IQ3_XXS
    19: (256, 50),  # IQ1_S
    20: (32, 18),  # IQ4_NL
    21: (256, 110),  # IQ3_S
    22: (256, 82),  # IQ2_S
    23: (256, 136),  # IQ4_XS
    24: (1, 1),  # I8
    25: (1, 2),  # I16
    26: (1, 4),  # I32
    27: (1, 8),  # I64
    28: (1, 8),  # F64
    29: (256, 56),  # IQ1_M
    30: (1, 2),  # BF16
    34: (256, 54),  # TQ1_0
    35: (256, 66),  # TQ2_0
    39: (32, 17),  # MXFP4
}
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9

Scalar = str | int | float | bool
Value = Scalar | Sequence[str] | Sequence[int]


class TensorType(IntEnum):
    """The two that we write."""

    F32 = 0
    F16 = 1


@dataclass(frozen=True, slots=True)
class Facts:
    """What a file says about itself.

    Attributes:
        parameters: Elements of all tensors.
    """

    metadata: Mapping[str, Scalar]
    tensors: int
    parameters: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor to write.

    Attributes:
        shape: Outermost dimension first, as NumPy and safetensors have it; the file has it the other way round.
        content: Little-endian bytes, row by row.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    content: bytes


def read_metadata(path: Path) -> dict[str, Scalar]:
    """The scalar metadata; arrays (vocabularies) are skipped. Raises ConfigError if it isn't a GGUF file."""
    try:
        with path.open("rb") as file:
            _, metadata = _read_start(file, path)
            return metadata
    except (struct.error, ValueError) as error:
        raise ConfigError(f"{path.name}: the GGUF header is damaged: {error}") from error


def read_facts(path: Path) -> Facts:
    """The metadata and the tensors, each checked to lie inside the file; none is read. Raises ConfigError where one doesn't."""
    try:
        with path.open("rb") as file:
            count, metadata = _read_start(file, path)
            tensors = [_read_tensor(file) for _ in range(count)]
            alignment = int(metadata.get("general.alignment", ALIGNMENT_BYTES))
            if not 1 <= alignment <= _ALIGNMENT_MAX:
                raise ValueError(f"an alignment of {alignment} bytes")
            begin = file.tell() + -file.tell() % alignment
            size_bytes = path.stat().st_size
            for name, elements, kind, offset in tensors:
                # Of a kind that is newer than this table the size is unknown, and its first byte must do.
                per_block, block_bytes = _BLOCKS.get(kind, (elements or 1, 1))
                end = begin + offset + elements // per_block * block_bytes
                if offset % alignment or elements % per_block or end > size_bytes:
                    raise ValueError(f"{name} would end at byte {end}, and the file has {size_bytes}")
            return Facts(metadata, len(tensors), sum(elements for _, elements, _, _ in tensors))
    except (struct.error, ValueError) as error:
        raise ConfigError(f"{path.name}: the GGUF file is damaged: {error}") from error


def license_claim(metadata: Mapping[str, Scalar]) -> LicenseClaim:
    """What the file says about its license."""
    stated = str(metadata.get("general.license", ""))
    if stated.casefold() == "other":
        stated = str(metadata.get("general.license.name", stated))
    return LicenseClaim(stated, "GGUF metadata general.license")


def write(path: Path, *, metadata: Mapping[str, Value], tensors: Sequence[Tensor]) -> None:
    """Writes a GGUF file; the same arguments give the same bytes, everywhere and always."""
    with path.open("wb") as file:
        file.write(MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(metadata)))
        for key, value in metadata.items():
            file.write(_text(key) + _value(value))
        offset = 0
        for tensor in tensors:
            dimensions = tensor.shape[::-1]
            file.write(
                _text(tensor.name) + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
            )
            file.write(struct.pack("<IQ", tensor.type, offset))
            offset += len(tensor.content) + _padding(len(tensor.content))
        file.write(bytes(_padding(file.tell())))
        for tensor in tensors:
            file.write(tensor.content + bytes(_padding(len(tensor.content))))


def _read_start(file: BinaryIO, path: Path) -> tuple[int, dict[str, Scalar]]:
    """How many tensors there are, and the metadata."""
    if file.read(4) != MAGIC:
        raise ConfigError(f"{path.name}: not a GGUF file, the format that the engine reads")
    version, tensors, entries = _unpack(file, "<IQQ")
    if version not in (2, VERSION):
        raise ConfigError(f"{path.name}: GGUF version {version} is not one that the engine reads")
    if entries > _ENTRIES_MAX or tensors > _ENTRIES_MAX:
        raise ValueError(f"{entries} entries and {tensors} tensors")
    return int(tensors), dict(_entries(file, count=int(entries)))


def _read_tensor(file: BinaryIO) -> tuple[str, int, int, int]:
    """Name, number of elements, kind and offset."""
    name = _read_text(file)
    (dimensions,) = _unpack(file, "<I")
    if dimensions > _DIMENSIONS_MAX:
        raise ValueError(f"{name} has {dimensions} dimensions")
    shape = _unpack(file, f"<{int(dimensions)}Q")
    kind, offset = _unpack(file, "<IQ")
    return name, math.prod(int(size) for size in shape), int(kind), int(offset)


def _entries(file: BinaryIO, *, count: int) -> Iterator[tuple[str, Scalar]]:
    for _ in range(count):
        key = _read_text(file)
        (kind,) = _unpack(file, "<I")
        if kind == _ARRAY:
            _skip_array(file)
        elif kind == _STRING:
            yield key, _read_text(file)
        else:
            yield key, _unpack(file, _scalar_format(kind))[0]


def _skip_array(file: BinaryIO) -> None:
    kind, items = _unpack(file, "<IQ")
    if items > _ARRAY_ITEMS_MAX:
        raise ValueError(f"an array of {items} items")
    if kind == _STRING:
        for _ in range(int(items)):
            _read_text(file)
    else:
        file.seek(struct.calcsize(_scalar_format(kind)) * int(items), 1)


def _scalar_format(kind: float) -> str:
    if kind not in _SCALARS:
        raise ValueError(f"value type {kind}")
    return _SCALARS[int(kind)]


def _read_text(file: BinaryIO) -> str:
    (length,) = _unpack(file, "<Q")
    if length > _STRING_BYTES_MAX:
        raise ValueError(f"a string of {length} bytes")
    encoded = file.read(int(length))
    if len(encoded) < length:
        raise ValueError("the file ends inside a string")
    return encoded.decode("utf-8", errors="replace")


def _unpack(file: BinaryIO, layout: str) -> tuple[int | float | bool, ...]:
    return struct.unpack(layout, file.read(struct.calcsize(layout)))


def _value(value: Value) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    return struct.pack("<I", _ARRAY) + _items(value)


def _items(values: Iterable[str] | Iterable[int]) -> bytes:
    items = list(values)
    kind = _STRING if items and isinstance(items[0], str) else _INT32
    packed = b"".join(_text(item) if isinstance(item, str) else struct.pack("<i", item) for item in items)
    return struct.pack("<IQ", kind, len(items)) + packed


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _padding(length: int) -> int:
    return -length % ALIGNMENT_BYTES

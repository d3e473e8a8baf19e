"""What does a GGUF file say about itself, and how is one written? Metadata only; tensors are opaque bytes.

Written here rather than with the `gguf` package because the digest of a converted model is pinned: the bytes must not
depend on which release of a library wrote them (and NumPy needn't be installed for it).
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, version 3.
"""

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
ALIGNMENT_BYTES = 32
_ENTRIES_MAX = 1 << 16
_STRING_BYTES_MAX = 1 << 24
_ARRAY_ITEMS_MAX = 1 << 24

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
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9

Scalar = str | int | float | bool
Value = Scalar | Sequence[str] | Sequence[int]


class TensorType(IntEnum):
    """The two that we write."""

    F32 = 0
    F16 = 1


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
            if file.read(4) != MAGIC:
                raise ConfigError(f"{path.name}: not a GGUF file, the format that the engine reads")
            version, _, entries = _unpack(file, "<IQQ")
            if version not in (2, VERSION) or not isinstance(entries, int) or entries > _ENTRIES_MAX:
                raise ConfigError(f"{path.name}: GGUF version {version} is not one that the engine reads")
            return dict(_entries(file, count=entries))
    except (struct.error, ValueError) as error:
        raise ConfigError(f"{path.name}: the GGUF header is damaged: {error}") from error


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

"""A model file of a few kilobytes that is well-formed, and progress that remembers what it was told."""

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.stores import gguf_file
from headrace.stores.gguf_file import Tensor, TensorType, Value


@dataclass
class Heard:
    """Progress that remembers."""

    lines: list[str] = field(default_factory=list)
    advances: list[tuple[int, int]] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.lines.append(line)

    def advance(self, done_bytes: int, total_bytes: int) -> None:
        self.advances.append((done_bytes, total_bytes))


@dataclass(frozen=True)
class TinyModel:
    content: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


def tiny_model(
    folder: Path, *, license: str = "mit", weight_bytes: int = 4096, more: Mapping[str, Value] | None = None
) -> TinyModel:
    """A well-formed GGUF file; no engine would run it."""
    path = folder / "tiny.gguf"
    metadata: dict[str, Value] = {"general.architecture": "llama", "tokenizer.ggml.tokens": ["a", "b"]}
    metadata |= more or {}
    if license:
        metadata["general.license"] = license
    weights = Tensor("w", (weight_bytes // 4,), TensorType.F32, bytes(range(256)) * (weight_bytes // 256))
    gguf_file.write(path, metadata=metadata, tensors=[weights])
    content = path.read_bytes()
    path.unlink()
    return TinyModel(content)


def tiny_safetensors(numbers: bytes = bytes(range(256)), *, names: tuple[str, ...] = ("w",)) -> bytes:
    """A well-formed SafeTensors file; each of the names has a part of the numbers."""
    each = len(numbers) // len(names)
    header = {
        name: {"dtype": "U8", "shape": [each], "data_offsets": [each * index, each * (index + 1)]}
        for index, name in enumerate(names)
    }
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + numbers[: each * len(names)]

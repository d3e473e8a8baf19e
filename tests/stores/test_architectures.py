"""What a memory plan needs is read from weights of both kinds, and nothing is made up where it isn't there."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.policies.memory_plan import Architecture
from headrace.stores import architectures
from tests.support.tiny_models import tiny_model

GGUF = {
    "llama.block_count": 2,
    "llama.attention.head_count": 4,
    "llama.embedding_length": 64,
}
CONFIG = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, Architecture(2, 4, 16, 64, 256, 0)),
        (
            {
                "llama.attention.head_count_kv": 1,
                "llama.attention.key_length": 32,
                "llama.feed_forward_length": 100,
                "llama.vocab_size": 1000,
                "llama.context_length": 4096,
            },
            Architecture(2, 1, 32, 64, 100, 1000, 4096),
        ),
    ],
)
def test_a_gguf_header_says_it(tmp_path: Path, more: dict[str, int], expected: Architecture) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_model(tmp_path, more={**GGUF, **more}).content)
    assert architectures.read(path) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (CONFIG, Architecture(2, 4, 16, 64, 256, 0)),
        (
            {"text_config": {**CONFIG, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 7, "vocab_size": 9, "max_position_embeddings": 11}},
            Architecture(2, 2, 8, 64, 7, 9, 11),
        ),
    ],
)  # fmt: skip
def test_a_config_beside_safetensors_says_it(
    tmp_path: Path, config: dict[str, Any], expected: Architecture
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert architectures.read(tmp_path) == expected


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF\x00\x00\x00\x00", b"\x80safetensors"])
def test_a_file_that_says_nothing_is_unknown(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model"
    path.write_bytes(content)
    assert architectures.read(path) is None


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"hidden_size": "x"}', '{"hidden_size": 1, "num_attention_heads": 0}']
)
def test_a_folder_that_says_nothing_is_unknown(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    assert architectures.read(tmp_path) is None
    (tmp_path / "config.json").unlink()
    assert architectures.read(tmp_path) is None

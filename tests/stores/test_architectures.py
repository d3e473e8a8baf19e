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
        (
            {
                "llama.attention.kv_lora_rank": 32,
                "llama.rope.dimension_count": 8,
                "llama.attention.value_length": 24,
            },
            Architecture(2, 4, 16, 64, 256, 0, value_size=24, latent_size=32, position_size=8),
        ),
        # Nobody knows which layers of it have the window.
        ({"llama.attention.sliding_window": 512}, Architecture(2, 4, 16, 64, 256, 0)),
    ],
)
def test_a_gguf_header_says_it(tmp_path: Path, more: dict[str, int], expected: Architecture) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_model(tmp_path, more={**GGUF, **more}).content)
    assert architectures.read(path) == expected


def test_a_gguf_header_of_a_known_architecture_says_which_layers_have_a_window(tmp_path: Path) -> None:
    header: dict[str, str | int] = {
        "general.architecture": "gemma3", "gemma3.block_count": 12, "gemma3.attention.head_count": 4,
        "gemma3.embedding_length": 64, "gemma3.attention.sliding_window": 512,
    }  # fmt: skip
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_model(tmp_path, more=header).content)
    assert architectures.read(path) == Architecture(
        12, 4, 16, 64, 256, 0, window_tokens=512, windowed_layers=10
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (CONFIG, Architecture(2, 4, 16, 64, 256, 0)),
        (
            {"text_config": {**CONFIG, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 7, "vocab_size": 9, "max_position_embeddings": 11}},
            Architecture(2, 2, 8, 64, 7, 9, 11),
        ),
        (
            {**CONFIG, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "v_head_dim": 24},
            Architecture(2, 4, 16, 64, 256, 0, latent_size=32, position_size=8),
        ),
        ({**CONFIG, "v_head_dim": 24}, Architecture(2, 4, 16, 64, 256, 0, value_size=24)),
        ({**CONFIG, "sliding_window": 9}, Architecture(2, 4, 16, 64, 256, 0, window_tokens=9, windowed_layers=2)),
        ({**CONFIG, "sliding_window": 9, "use_sliding_window": False}, Architecture(2, 4, 16, 64, 256, 0)),
        ({**CONFIG, "sliding_window": 9, "layer_types": ["full_attention"] * 2}, Architecture(2, 4, 16, 64, 256, 0)),
        (
            {**CONFIG, "num_hidden_layers": 12, "sliding_window": 9, "sliding_window_pattern": 6},
            Architecture(12, 4, 16, 64, 256, 0, window_tokens=9, windowed_layers=10),
        ),
        (
            {**CONFIG, "sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]},
            Architecture(2, 4, 16, 64, 256, 0, window_tokens=9, windowed_layers=1),
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

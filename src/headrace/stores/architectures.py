"""What does the header of weights say about the model? From GGUF metadata, or from the config.json beside SafeTensors."""

from pathlib import Path
from typing import Any

import msgspec

from headrace.core.errors import ConfigError
from headrace.policies.memory_plan import Architecture
from headrace.stores import gguf_file

CONFIG_BYTES_MAX = 4 * 1024 * 1024


def read(path: Path) -> Architecture | None:
    """The architecture of that file or folder; None where it doesn't say what a memory plan needs."""
    try:
        if path.is_dir():
            return _from_config(path / "config.json")
        with path.open("rb") as file:
            is_gguf = file.read(len(gguf_file.MAGIC)) == gguf_file.MAGIC
        return _from_gguf(gguf_file.read_metadata(path)) if is_gguf else None
    except (OSError, ConfigError, msgspec.MsgspecError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return None  # a plan says that it doesn't know; whether the weights can be loaded is found out by loading them


def _from_gguf(facts: dict[str, gguf_file.Scalar]) -> Architecture:
    name = str(facts["general.architecture"])

    def number(key: str, default: int | None = None) -> int:
        value = facts[f"{name}.{key}"] if default is None else facts.get(f"{name}.{key}", default)
        return int(value)

    embedding, heads = number("embedding_length"), number("attention.head_count")
    layers, head_size = number("block_count"), number("attention.key_length", embedding // heads)
    latent_size = number("attention.kv_lora_rank", 0)
    window_tokens = number("attention.sliding_window", 0)
    every = _FULL_EVERY.get(name, 0)
    return Architecture(
        layers=layers,
        kv_heads=number("attention.head_count_kv", heads),
        head_size=head_size,
        embedding=embedding,
        feed_forward=number("feed_forward_length", 4 * embedding),
        vocabulary=number("vocab_size", 0),
        context_tokens_max=number("context_length", 0),
        value_size=_other(number("attention.value_length", head_size), head_size),
        latent_size=latent_size,
        position_size=number("rope.dimension_count", 0) if latent_size else 0,
        # Which layers have the window is known by the architecture; of one that isn't, all of them may keep everything.
        window_tokens=window_tokens if every else 0,
        windowed_layers=layers - layers // every if window_tokens and every else 0,
    )


_FULL_EVERY = {"gemma2": 2, "gemma3": 6, "cohere2": 4, "gpt-oss": 2}
"""Of GGUF architectures with sliding windows: one layer of so many sees everything."""


def _other(value: int, usual: int) -> int:
    """0 where it is the usual one."""
    return 0 if value == usual else value


def _from_config(path: Path) -> Architecture:
    with path.open("rb") as file:
        facts: dict[str, Any] = msgspec.json.decode(file.read(CONFIG_BYTES_MAX), type=dict[str, Any])
    facts = facts.get("text_config", facts)  # models that see have one for each of their parts
    embedding, heads = int(facts["hidden_size"]), int(facts["num_attention_heads"])
    layers, head_size = int(facts["num_hidden_layers"]), int(facts.get("head_dim") or embedding // heads)
    latent_size = int(facts.get("kv_lora_rank") or 0)
    window_tokens, windowed_layers = _window(facts, layers)
    return Architecture(
        layers=layers,
        kv_heads=int(facts.get("num_key_value_heads") or heads),
        head_size=head_size,
        embedding=embedding,
        feed_forward=int(facts.get("intermediate_size") or 4 * embedding),
        vocabulary=int(facts.get("vocab_size") or 0),
        context_tokens_max=int(facts.get("max_position_embeddings") or 0),
        value_size=0 if latent_size else _other(int(facts.get("v_head_dim") or head_size), head_size),
        latent_size=latent_size,
        position_size=int(facts.get("qk_rope_head_dim") or 0) if latent_size else 0,
        window_tokens=window_tokens,
        windowed_layers=windowed_layers,
    )


def _window(facts: dict[str, Any], layers: int) -> tuple[int, int]:
    """How far back layers with a window see, and how many have one; (0, 0) where none has."""
    window_tokens = int(facts.get("sliding_window") or 0)
    if not window_tokens or facts.get("use_sliding_window") is False:
        return 0, 0
    if isinstance(kinds := facts.get("layer_types"), list):
        windowed = sum(kind == "sliding_attention" for kind in kinds[:layers])
    elif every := int(facts.get("sliding_window_pattern") or 0):
        windowed = layers - layers // every
    else:
        windowed = layers
    return (window_tokens, windowed) if windowed else (0, 0)

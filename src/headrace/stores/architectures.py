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
    return Architecture(
        layers=number("block_count"),
        kv_heads=number("attention.head_count_kv", heads),
        head_size=number("attention.key_length", embedding // heads),
        embedding=embedding,
        feed_forward=number("feed_forward_length", 4 * embedding),
        vocabulary=number("vocab_size", 0),
        context_tokens_max=number("context_length", 0),
    )


def _from_config(path: Path) -> Architecture:
    with path.open("rb") as file:
        facts: dict[str, Any] = msgspec.json.decode(file.read(CONFIG_BYTES_MAX), type=dict[str, Any])
    facts = facts.get("text_config", facts)  # models that see have one for each of their parts
    embedding, heads = int(facts["hidden_size"]), int(facts["num_attention_heads"])
    return Architecture(
        layers=int(facts["num_hidden_layers"]),
        kv_heads=int(facts.get("num_key_value_heads") or heads),
        head_size=int(facts.get("head_dim") or embedding // heads),
        embedding=embedding,
        feed_forward=int(facts.get("intermediate_size") or 4 * embedding),
        vocabulary=int(facts.get("vocab_size") or 0),
        context_tokens_max=int(facts.get("max_position_embeddings") or 0),
    )

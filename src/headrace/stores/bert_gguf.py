"""How does a sentence-transformers BERT (safetensors) become the one GGUF file that the engine reads?

For uncased BERT with mean pooling, the shape of all-MiniLM-L6-v2; anything else is refused. Matrices become f16, the rest
stays f32, and the order of everything is fixed, so that the result's digest can be pinned.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.core.errors import ConfigError
from headrace.stores import formats, gguf_file
from headrace.stores.gguf_file import Tensor, TensorType, Value

WEIGHTS, CONFIG, POOLING, VOCABULARY = (
    "model.safetensors",
    "config.json",
    "1_Pooling/config.json",
    "vocab.txt",
)
FILES = (WEIGHTS, CONFIG, POOLING, VOCABULARY)

_MEAN_POOLING = 1
_MOSTLY_F16 = 1
_NORMAL_TOKEN, _CONTROL_TOKEN = 1, 3
_SPECIAL_TOKENS = {
    "[UNK]": "unknown",
    "[SEP]": "seperator",  # spelled so in the format
    "[PAD]": "padding",
    "[CLS]": "cls",
    "[MASK]": "mask",
}
# The halves of a tensor's name, safetensors to GGUF, as the engine's BERT graph knows them.
_OUTER = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
_INNER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
# The engine adds these to f32 activations and wants them as f32.
_KEPT_F32 = frozenset({"position_embd.weight", "token_types.weight"})
_FLOATS_AT_ONCE = 1 << 18


def convert(files: Mapping[str, Path], target: Path, *, name: str, license: str) -> None:
    """Writes `target` from the files named in FILES. Raises ConfigError if they aren't such a model."""
    config = json.loads(files[CONFIG].read_text(encoding="utf-8"))
    pooling = json.loads(files[POOLING].read_text(encoding="utf-8"))
    if config.get("model_type") != "bert" or config.get("position_embedding_type", "absolute") != "absolute":
        raise ConfigError(f"{name}: only BERT with absolute positions can be converted")
    if not pooling.get("pooling_mode_mean_tokens") or pooling.get("pooling_mode_cls_token"):
        raise ConfigError(f"{name}: only mean pooling can be converted")
    tokens = files[VOCABULARY].read_text(encoding="utf-8").split("\n")
    tokens = tokens[: config["vocab_size"]]
    if len(tokens) != config["vocab_size"]:
        raise ConfigError(f"{name}: {len(tokens)} tokens, the weights have {config['vocab_size']}")
    gguf_file.write(
        target,
        metadata=_metadata(config, tokens, name=name, license=license),
        tensors=list(_tensors(files[WEIGHTS], layers=config["num_hidden_layers"])),
    )


def _metadata(config: dict[str, Any], tokens: list[str], *, name: str, license: str) -> dict[str, Value]:
    return {
        "general.architecture": "bert",
        "general.name": name,
        "general.license": license,
        "general.file_type": _MOSTLY_F16,
        "bert.block_count": config["num_hidden_layers"],
        "bert.context_length": config["max_position_embeddings"],
        "bert.embedding_length": config["hidden_size"],
        "bert.feed_forward_length": config["intermediate_size"],
        "bert.attention.head_count": config["num_attention_heads"],
        "bert.attention.layer_norm_epsilon": float(config["layer_norm_eps"]),
        "bert.attention.causal": False,
        "bert.pooling_type": _MEAN_POOLING,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.token_type_count": config["type_vocab_size"],
        "tokenizer.ggml.tokens": [_engine_token(token) for token in tokens],
        "tokenizer.ggml.token_type": [
            _CONTROL_TOKEN if token in _SPECIAL_TOKENS else _NORMAL_TOKEN for token in tokens
        ],
        **{f"tokenizer.ggml.{role}_token_id": tokens.index(token) for token, role in _SPECIAL_TOKENS.items()},
    }


def _engine_token(token: str) -> str:
    """Wordpiece marks what continues a word ("##ing"); the engine marks what begins one."""
    if token.startswith("##"):
        return token[2:]
    if token.startswith("[") and token.endswith("]"):
        return token
    return f"\u2581{token}"


def _tensors(weights: Path, *, layers: int) -> Iterator[Tensor]:
    names = dict(_OUTER)
    for layer in range(layers):
        names |= {f"encoder.layer.{layer}.{old}": f"blk.{layer}.{new}" for old, new in _INNER.items()}
    header, begin = formats.safetensors_header(weights.name, weights)
    with weights.open("rb") as file:
        for old, new in names.items():
            for part in ("weight", "bias"):
                facts = header.tensors.get(f"{old}.{part}")
                if facts is None:
                    continue  # embeddings have no bias; the engine refuses a model that lacks a tensor
                if facts.dtype != "F32":
                    raise ConfigError(f"{weights.name}: {old}.{part} is {facts.dtype}, only F32 is converted")
                file.seek(begin + facts.start)
                yield _tensor(f"{new}.{part}", facts.shape, file.read(facts.end - facts.start))


def _tensor(name: str, shape: tuple[int, ...], content: bytes) -> Tensor:
    if len(shape) < 2 or name in _KEPT_F32:
        return Tensor(name, shape, TensorType.F32, content)
    return Tensor(name, shape, TensorType.F16, _half(content))


def _half(content: bytes) -> bytes:
    """f32 to f16, rounded to nearest even; in pieces, because a Python float takes 24 bytes."""
    halves = bytearray()
    for start in range(0, len(content), 4 * _FLOATS_AT_ONCE):
        floats = memoryview(content)[start : start + 4 * _FLOATS_AT_ONCE].cast("f")
        halves += struct.pack(f"<{len(floats)}e", *floats)
    return bytes(halves)

"""GGUF and its BERT conversion: what is written reads back, the same input gives the same bytes, damage is an error."""

import json
import struct
from pathlib import Path

import pytest

from headrace.core.errors import ConfigError
from headrace.stores import bert_gguf, gguf_file
from tests.support.tiny_models import tiny_model

WIDTH, INNER, POSITIONS = 4, 8, 16
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ferry", "##s"]
LAYER = {
    "attention.self.query": (WIDTH, WIDTH),
    "attention.self.key": (WIDTH, WIDTH),
    "attention.self.value": (WIDTH, WIDTH),
    "attention.output.dense": (WIDTH, WIDTH),
    "attention.output.LayerNorm": (WIDTH,),
    "intermediate.dense": (INNER, WIDTH),
    "output.dense": (WIDTH, INNER),
    "output.LayerNorm": (WIDTH,),
}


def bert(
    folder: Path, *, pooling: str = "pooling_mode_mean_tokens", model_type: str = "bert"
) -> dict[str, Path]:
    """The files of a one-layer BERT."""
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(VOCABULARY), WIDTH),
        "embeddings.position_embeddings.weight": (POSITIONS, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        "embeddings.LayerNorm.weight": (WIDTH,),
        "embeddings.LayerNorm.bias": (WIDTH,),
        "pooler.dense.weight": (WIDTH, WIDTH),
    }
    for name, shape in LAYER.items():
        shapes[f"encoder.layer.0.{name}.weight"] = shape
        shapes[f"encoder.layer.0.{name}.bias"] = shape[:1]
    header, body = {}, b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        start = len(body)
        body += struct.pack(f"<{count}f", *(i / 8 for i in range(count)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, len(body)]}
    encoded = json.dumps(header).encode()
    config = {
        "model_type": model_type,
        "vocab_size": len(VOCABULARY),
        "num_hidden_layers": 1,
        "max_position_embeddings": POSITIONS,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_attention_heads": 2,
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
    }
    contents = {
        bert_gguf.WEIGHTS: struct.pack("<Q", len(encoded)) + encoded + body,
        bert_gguf.CONFIG: json.dumps(config).encode(),
        bert_gguf.POOLING: json.dumps({pooling: True}).encode(),
        bert_gguf.VOCABULARY: "".join(f"{token}\n" for token in VOCABULARY).encode(),
    }
    files = {}
    for number, (name, content) in enumerate(contents.items()):
        files[name] = folder / str(number)
        files[name].write_bytes(content)
    return files


def test_a_conversion_gives_the_same_bytes_every_time(tmp_path: Path) -> None:
    files = bert(tmp_path)
    for target in ("one", "two"):
        bert_gguf.convert(files, tmp_path / target, name="m", license="MIT")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_conversion_says_what_the_engine_must_know(tmp_path: Path) -> None:
    bert_gguf.convert(bert(tmp_path), tmp_path / "m", name="m", license="MIT")
    metadata = gguf_file.read_metadata(tmp_path / "m")
    assert metadata["general.architecture"] == "bert"
    assert metadata["general.license"] == "MIT"
    assert metadata["bert.pooling_type"] == 1
    assert metadata["bert.context_length"] == POSITIONS
    assert metadata["bert.attention.causal"] is False
    assert metadata["tokenizer.ggml.cls_token_id"] == 2


def test_words_are_marked_at_their_beginning_and_matrices_are_halved(tmp_path: Path) -> None:
    bert_gguf.convert(bert(tmp_path), tmp_path / "m", name="m", license="MIT")
    content = (tmp_path / "m").read_bytes()
    for token in ("[CLS]", "\u2581ferry", "s"):
        encoded = token.encode()
        assert struct.pack("<Q", len(encoded)) + encoded in content
    assert b"##s" not in content
    matrix = struct.pack(f"<{WIDTH * INNER}e", *(i / 8 for i in range(WIDTH * INNER)))
    assert matrix in content


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"pooling": "pooling_mode_cls_token"}, "mean pooling"),
        ({"model_type": "mpnet"}, "only BERT"),
    ],
)
def test_another_kind_of_model_is_refused(tmp_path: Path, change: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        bert_gguf.convert(bert(tmp_path, **change), tmp_path / "m", name="m", license="MIT")


def test_a_file_cut_anywhere_in_its_header_is_an_error_and_nothing_worse(tmp_path: Path) -> None:
    content = tiny_model(tmp_path, weight_bytes=256, more={"general.name": "tiny", "llama.eps": 0.5}).content
    tensor_list = content.rindex(struct.pack("<Q", 1) + b"w")
    path = tmp_path / "cut.gguf"
    for length in range(tensor_list):
        path.write_bytes(content[:length])
        with pytest.raises(ConfigError):
            gguf_file.read_metadata(path)
    path.write_bytes(content[:tensor_list])
    assert gguf_file.read_metadata(path)["general.name"] == "tiny"

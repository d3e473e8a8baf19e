"""Formats: what files make a model is read from their headers, damage is found before an engine is, and no pickle gets in."""

import hashlib
import json
from pathlib import Path

import pytest

from headrace.core.errors import ConfigError
from headrace.stores import formats, gguf_file
from headrace.stores.formats import ModelFacts
from headrace.stores.gguf_file import Tensor, TensorType
from headrace.stores.registry import ModelStore
from tests.support.tiny_models import Heard, tiny_model, tiny_safetensors

TEMPLATE = "{{ messages }}"


def written(root: Path, files: dict[str, bytes]) -> dict[str, Path]:
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    return {path: root / path for path in files}


def index(parts: dict[str, str]) -> bytes:
    return json.dumps({"metadata": {"total_size": 1}, "weight_map": parts}).encode()


SHARDS = {
    "model-1.safetensors": tiny_safetensors(bytes(64), names=("a", "b")),
    "model-2.safetensors": tiny_safetensors(bytes(32), names=("c",)),
}
PARTS = {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}


def test_a_sharded_model_is_counted_from_its_headers(tmp_path: Path) -> None:
    files = written(tmp_path, {**SHARDS, "model.safetensors.index.json": index(PARTS)})
    assert formats.read(files) == ModelFacts("safetensors", 96, 3, {"U8": 96})


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"model.safetensors.index.json": index({**PARTS, "d": "model-3.safetensors"})}, "model-3"),
        ({"model.safetensors.index.json": index({**PARTS, "c": "model-1.safetensors"})}, "c is in model-1"),
        ({"model.safetensors.index.json": b"{}"}, "no weight_map"),
        ({"model.safetensors.index.json": b"{"}, "not JSON"),
        ({"model-2.safetensors": SHARDS["model-2.safetensors"][:-1]}, "model-2.safetensors: not a whole"),
        ({"model-2.safetensors": b""}, "too short"),
        ({"model-2.safetensors": b"\xff" * 100}, "its header would be"),
    ],
)
def test_shards_that_do_not_fit_each_other_are_refused(
    tmp_path: Path, changed: dict[str, bytes], says: str
) -> None:
    """A download that was cut, or of which one file is of another revision, is found before an engine loads it."""
    files = written(tmp_path, {**SHARDS, "model.safetensors.index.json": index(PARTS), **changed})
    with pytest.raises(ConfigError, match=says):
        formats.read(files)


def test_an_index_in_a_folder_is_about_the_files_beside_it(tmp_path: Path) -> None:
    inside = {f"text/{path}": content for path, content in SHARDS.items()}
    files = written(
        tmp_path,
        {
            **inside,
            "text/model.safetensors.index.json": index(PARTS),
            "other.safetensors": tiny_safetensors(),
        },
    )
    assert formats.read(files).tensors == 4


def test_a_gguf_file_is_counted_and_its_template_is_known(tmp_path: Path) -> None:
    content = tiny_model(tmp_path, weight_bytes=4096, more={gguf_file.TEMPLATE: TEMPLATE}).content
    facts = formats.read(written(tmp_path, {"m.gguf": content}))
    expected = hashlib.sha256(TEMPLATE.encode()).hexdigest()
    assert (facts.format, facts.parameters, facts.tensors, facts.template_sha256) == (
        "gguf",
        1024,
        1,
        expected,
    )
    assert formats.read(written(tmp_path, {"model": content})).format == "gguf", "whatever it is called"


def test_a_gguf_file_that_was_cut_is_found_by_its_header(tmp_path: Path) -> None:
    content = tiny_model(tmp_path, weight_bytes=4096).content
    with pytest.raises(ConfigError, match="would end at byte"):
        formats.read(written(tmp_path, {"m.gguf": content[:-1]}))
    for cut in range(4, len(content) - 4096, 7):
        with pytest.raises(ConfigError, match="damaged"):
            formats.read(written(tmp_path, {"m.gguf": content[:cut]}))


@pytest.mark.parametrize(
    ("place", "value"), [("shape", 1 << 62), ("offset", 1 << 62), ("offset", 1), ("kind", 2)]
)
def test_a_gguf_tensor_outside_of_its_file_is_refused(tmp_path: Path, place: str, value: int) -> None:
    path = tmp_path / "m.gguf"
    gguf_file.write(path, metadata={}, tensors=[Tensor("w", (3,), TensorType.F32, bytes(12))])
    content = bytearray(path.read_bytes())
    name_at = content.index(b"w")  # then: dimensions (4 bytes), shape (8), kind (4), offset (8)
    start, size = {"shape": (5, 8), "kind": (13, 4), "offset": (17, 8)}[place]
    content[name_at + start : name_at + start + size] = value.to_bytes(size, "little")
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="would end at byte"):
        formats.read({"m.gguf": path})


@pytest.mark.parametrize(
    "files",
    [
        {"chat_template.jinja": TEMPLATE.encode()},
        {"tokenizer_config.json": json.dumps({"chat_template": TEMPLATE}).encode()},
        {
            "chat_template.jinja": TEMPLATE.encode(),
            "tokenizer_config.json": json.dumps({"chat_template": "older"}).encode(),
        },
    ],
)
def test_the_template_beside_a_tokenizer_is_known_by_its_digest(
    tmp_path: Path, files: dict[str, bytes]
) -> None:
    facts = formats.read(written(tmp_path, {**files, "tokenizer.json": b"{}"}))
    assert facts == ModelFacts(template_sha256=hashlib.sha256(TEMPLATE.encode()).hexdigest())


def test_several_templates_are_known_by_one_digest_and_none_by_none(tmp_path: Path) -> None:
    several = {"chat_template": [{"name": "default", "template": TEMPLATE}]}
    first = formats.read(written(tmp_path, {"tokenizer_config.json": json.dumps(several).encode()}))
    assert len(first.template_sha256) == 64
    assert formats.read(written(tmp_path, {"tokenizer_config.json": b"{}"})).template_sha256 == ""
    assert formats.read(written(tmp_path, {"plan.engine": b"opaque"})) == ModelFacts()


def test_what_is_on_record_says_what_the_model_is(store: ModelStore, tmp_path: Path, heard: Heard) -> None:
    written(tmp_path / "m", {"model.safetensors": tiny_safetensors(), "tokenizer.json": b"{}"})
    artifact = store.resolve(str(tmp_path / "m"), progress=heard)
    (record,) = store.artifacts.records()
    assert (record.artifact, record.facts.parameters) == (artifact, 256)


def test_a_damaged_model_is_not_put_on_record(store: ModelStore, tmp_path: Path, heard: Heard) -> None:
    written(tmp_path / "m", {"model.safetensors": tiny_safetensors()[:-1]})
    with pytest.raises(ConfigError, match="not a whole SafeTensors file"):
        store.resolve(str(tmp_path / "m"), progress=heard)
    assert store.artifacts.records() == []


def test_files_that_run_code_when_they_are_loaded_are_left_out(
    store: ModelStore, tmp_path: Path, heard: Heard
) -> None:
    written(
        tmp_path / "m",
        {
            "model.safetensors": tiny_safetensors(),
            "pytorch_model.bin": b"\x80\x02",
            "sub/optimizer.pt": b"\x80\x02",
        },
    )
    artifact = store.resolve(str(tmp_path / "m"), progress=heard)
    assert [file.path for file in artifact.files] == ["model.safetensors"]
    assert "left out, because loading it runs code: pytorch_model.bin, sub/optimizer.pt" in heard.lines


def test_a_model_of_nothing_but_such_files_is_refused(
    store: ModelStore, tmp_path: Path, heard: Heard
) -> None:
    written(tmp_path / "m", {"pytorch_model-00001-of-00002.bin": b"\x80\x02", "config.json": b"{}"})
    with pytest.raises(ConfigError, match="runs code when it is loaded"):
        store.resolve(str(tmp_path / "m"), progress=heard)


def test_a_tokenizer_is_taken_out_of_a_model_without_its_weights(
    store: ModelStore, tmp_path: Path, heard: Heard
) -> None:
    model = {
        "model.safetensors": tiny_safetensors(),
        "config.json": b"{}",
        "tokenizer.json": b'{"version": "1.0"}',
        "tokenizer_config.json": b"{}",
        "sub/tokenizer.json": b"{}",
    }
    written(tmp_path / "m", model)
    artifact = store.resolve(str(tmp_path / "m"), progress=heard, only_tokenizer=True)
    assert [file.path for file in artifact.files] == [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert artifact.sha256 != store.resolve(str(tmp_path / "m"), progress=heard).sha256
    assert (store.fetch(artifact, progress=heard) / "tokenizer.json").read_bytes() == model["tokenizer.json"]
    written(tmp_path / "none", {"config.json": b"{}"})
    with pytest.raises(ConfigError, match="holds no tokenizer"):
        store.resolve(str(tmp_path / "none"), progress=heard, only_tokenizer=True)

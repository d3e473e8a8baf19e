"""What kind of model do these files make, and are they whole? Read from their headers; no weights are loaded."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from headrace.core.errors import ConfigError
from headrace.protocols import safetensors
from headrace.protocols.safetensors import Header
from headrace.stores import gguf_file

GGUF, SAFETENSORS, OTHER = "gguf", "safetensors", "other"
_INDEX = ".safetensors.index.json"
_JSON_BYTES_MAX = 64 << 20
_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
_TOKENIZER_CONFIG = "tokenizer_config.json"
# Formats whose loading runs whatever code the file holds.
_PICKLES = re.compile(
    r".*\.(pt|pth|pkl|pickle|ckpt|joblib)|(pytorch_model|adapter_model|training_args|optimizer|scheduler).*\.bin"
)


class ModelFacts(msgspec.Struct, frozen=True):
    """What the headers say.

    Attributes:
        format: GGUF, SAFETENSORS, or OTHER for what is kept as it is: a tokenizer, a template, an engine's plan.
        parameters, tensors: Of all files together; 0 where the format doesn't say.
        dtypes: How many of the parameters are of each type, where the format says.
        template_sha256: Of the prompt template that is inside; "" where there is none.
    """

    format: str = OTHER
    parameters: int = 0
    tensors: int = 0
    dtypes: dict[str, int] = {}
    template_sha256: str = ""


def runs_code(path: str) -> bool:
    """Whether a file of that name is one that runs code when it is loaded: such files are never stored with a model."""
    return _PICKLES.fullmatch(path.rpartition("/")[2].lower()) is not None


def read(files: Mapping[str, Path]) -> ModelFacts:
    """The facts of the files of one artifact, by their paths in it. Raises ConfigError where a file can't be what it says."""
    headers = {
        path: safetensors_header(path, file)[0]
        for path, file in files.items()
        if path.endswith(".safetensors")
    }
    for path, file in files.items():
        if path.endswith(_INDEX):
            _check_index(path, file, headers)
    if headers:
        tensors = [facts for header in headers.values() for facts in header.tensors.values()]
        dtypes: dict[str, int] = {}
        for facts in tensors:
            dtypes[facts.dtype] = dtypes.get(facts.dtype, 0) + facts.elements
        return ModelFacts(SAFETENSORS, sum(dtypes.values()), len(tensors), dtypes, _template_of(files))
    ggufs = [gguf_file.read_facts(file) for path, file in files.items() if _is_gguf(path, file)]
    if ggufs:
        template = next((t for facts in ggufs if (t := facts.metadata.get(gguf_file.TEMPLATE))), "")
        digest = hashlib.sha256(str(template).encode()).hexdigest() if template else ""
        parameters, count = sum(facts.parameters for facts in ggufs), sum(facts.tensors for facts in ggufs)
        return ModelFacts(GGUF, parameters, count, template_sha256=digest)
    return ModelFacts(template_sha256=_template_of(files))


def _is_gguf(path: str, file: Path) -> bool:
    with file.open("rb") as opened:
        return path.endswith(".gguf") or opened.read(len(gguf_file.MAGIC)) == gguf_file.MAGIC


def safetensors_header(path: str, file: Path) -> tuple[Header, int]:
    """The header, and where the numbers begin. Raises ConfigError unless the file is a whole one."""
    size_bytes = file.stat().st_size
    try:
        with file.open("rb") as opened:
            start = opened.read(safetensors.LENGTH_BYTES)
            length = safetensors.header_length(start, file_bytes=size_bytes)
            begin = safetensors.LENGTH_BYTES + length
            return safetensors.parse(opened.read(length), data_bytes=size_bytes - begin), begin
    except ValueError as error:
        raise ConfigError(f"{path}: not a whole SafeTensors file: {error}") from error


def _check_index(path: str, file: Path, headers: Mapping[str, Header]) -> None:
    """Paths in an index are beside it."""
    beside = path[: path.rfind("/") + 1]
    tensors = {
        name.removeprefix(beside): tuple(header.tensors)
        for name, header in headers.items()
        if name.startswith(beside)
    }
    try:
        safetensors.check_index(safetensors.index_parts(_json(path, file)), tensors)
    except ValueError as error:
        raise ConfigError(f"{path}: doesn't fit its files: {error}") from error


def _template_of(files: Mapping[str, Path]) -> str:
    """Of the template beside the tokenizer, which stands in a file of its own or in the tokenizer's configuration."""
    for path, file in sorted(files.items(), key=lambda item: item[0].count("/")):
        if path.rpartition("/")[2] in _TEMPLATE_FILES:
            return hashlib.sha256(file.read_bytes()).hexdigest()
    for path, file in sorted(files.items(), key=lambda item: item[0].count("/")):
        if path.rpartition("/")[2] == _TOKENIZER_CONFIG:
            told = _json(path, file)
            template = told.get("chat_template") if isinstance(told, dict) else None
            if template is not None:
                text = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
                return hashlib.sha256(text.encode()).hexdigest()
    return ""


def _json(path: str, file: Path) -> Any:
    if file.stat().st_size > _JSON_BYTES_MAX:
        raise ConfigError(f"{path}: larger than {_JSON_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(file.read_bytes())
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error

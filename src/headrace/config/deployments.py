"""What does a file in `deployments/` say? The whole of it as a DeploymentSpec, or an error in the file's own words.

Here is decided what a file may say by itself; whether this machine can do it, `headrace plan` decides.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.config import files, text
from headrace.config.deployment_rules import AMOUNTS, problems, warnings
from headrace.core.deployments import DeploymentSpec
from headrace.core.errors import ConfigError

FOLDER = "deployments"
FILE_BYTES_MAX = 256 * 1024
TEMPLATE_BYTES_MAX = 1024 * 1024

_FORMS = {
    "deployment.name": "1 to 63 of a-z, 0-9 and `._-`, a letter or digit first",
    "deployment.location": "a name of a-z, 0-9 and `-`",
    **{
        f"revision.{part}.rev": "a commit, 40 hexadecimal digits: branches and tags move"
        for part in ("weights", "tokenizer")
    },
    **{f"revision.{part}.sha256": "64 hexadecimal digits" for part in ("weights", "tokenizer", "template")},
    "revision.runtime.package": "`NAME==VERSION`, an exact version",
    "revision.runtime.image": "`REPOSITORY@sha256:DIGEST`: tags move",
}


@dataclass(frozen=True, slots=True)
class DeploymentFile:
    """One file, read and checked.

    Attributes:
        name: What messages call it: its path, as it was given.
        text: As it stands there, with what it says.
        templates: Text of the prompt templates beside it, by the name that it calls them.
        warnings: What is allowed and seldom meant.
    """

    name: str
    text: str
    spec: DeploymentSpec
    templates: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def find(given: Sequence[str]) -> list[Path]:
    """The files that are meant: those given, and all in a folder that is given; without any, all in `deployments/`.

    Raises: ConfigError where there is none.
    """
    return files.find(given, folder=FOLDER, kind="deployment", see="docs/guides/deployments.md")


def load_all(paths: Sequence[Path]) -> list[DeploymentFile]:
    """Every one of them. Raises ConfigError, also where two are the same deployment."""
    files: dict[str, DeploymentFile] = {}
    for path in paths:
        read = load(path)
        if (other := files.get(read.spec.name)) is not None:
            raise ConfigError(
                f"{read.name}: `deployment.name` is {read.spec.name!r}, as in {other.name}; one file per deployment"
            )
        files[read.spec.name] = read
    return list(files.values())


def load(path: Path) -> DeploymentFile:
    """That file, and the prompt template that it names. Raises ConfigError naming file, key and what it takes."""
    content = files.read(path, bytes_max=FILE_BYTES_MAX)
    spec = parse(content, file=str(path))
    templates = {}
    if (template := spec.revision.template) is not None:
        says = f"{path}: `revision.template.file`"
        templates[template.file] = files.read(
            path.parent / template.file, bytes_max=TEMPLATE_BYTES_MAX, says=f"{says}: "
        )
    return DeploymentFile(str(path), content, spec, templates, tuple(_named(path, warnings(spec))))


def given(content: str, templates: Mapping[str, str], *, file: str) -> DeploymentFile:
    """What somebody sent, instead of a file that is here. Raises ConfigError."""
    spec = parse(content, file=file)
    template = spec.revision.template
    if template is not None and template.file not in templates:
        raise ConfigError(f"{file}: `revision.template.file`: {template.file} was not sent with it")
    return DeploymentFile(file, content, spec, templates, tuple(_named(file, warnings(spec))))


def parse(content: str, *, file: str) -> DeploymentSpec:
    """The spec that the TOML says. Raises ConfigError; where several things are wrong with the values, it names all."""
    raw = text.table(content, file=file)
    if isinstance(budget := raw.get("budget"), dict):
        budget.update(_digits(content))
    spec = text.convert(raw, DeploymentSpec, file=file, forms=_FORMS)
    if found := problems(spec):
        raise ConfigError("\n".join(_named(file, found)))
    return spec


def _digits(content: str) -> dict[str, Any]:
    """Amounts that are written as numbers, as their digits: a binary fraction is no amount of money."""
    budget = tomllib.loads(content, parse_float=str)["budget"]
    return {
        name: str(budget[name])
        for name in AMOUNTS
        if isinstance(budget.get(name), str | int) and not isinstance(budget[name], bool)
    }


def _named(file: Path | str, found: Sequence[str]) -> list[str]:
    return [f"{file}: {each}" for each in found]

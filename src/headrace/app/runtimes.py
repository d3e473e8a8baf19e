"""Which software is really here to run a deployment, and is it the one that its file pins? Asked of the installation itself."""

import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import headrace
from headrace.core.deployments import DeploymentSpec, EngineKind
from headrace.core.errors import ConfigError
from headrace.engines import embedded

ANSWER_LIMIT_S = 20.0
# The program that runs it and the Python package that it is part of, where a file names no others.
_PROGRAMS = {
    EngineKind.LLAMACPP: "llama-server",
    EngineKind.VLLM: "vllm",
    EngineKind.SGLANG: sys.executable,
    EngineKind.TGI: "text-generation-launcher",
}
_PACKAGES = {EngineKind.EMBEDDED: embedded.ENGINE, EngineKind.VLLM: "vllm", EngineKind.SGLANG: "sglang"}
_VERSION_OF = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"


def runtime(spec: DeploymentSpec) -> str:
    """Name and version of what runs the deployment; "" for servers that others run. Raises ConfigError, with what to install."""
    kind, terms = spec.deployment.engine, spec.revision.runtime
    name, _, wanted = terms.package.partition("==")
    if kind in (EngineKind.SCRIPTED, EngineKind.REMOTE, EngineKind.TRITON):
        if name:
            raise ConfigError(f"`revision.runtime.package`: the engine {kind.value!r} has none")
        return f"headrace {headrace.__version__}" if kind is EngineKind.SCRIPTED else ""
    if kind is EngineKind.EMBEDDED and name not in ("", embedded.ENGINE):
        raise ConfigError(
            f"`revision.runtime.package`: the engine 'embedded' is {embedded.ENGINE}, got {name}"
        )
    name = name or _PACKAGES.get(kind, "")
    if kind is EngineKind.EMBEDDED:
        return f"{name} {_checked(name, _installed(name), wanted)}"
    program = _program(terms.command or _PROGRAMS[kind])
    if name:
        return f"{name} {_checked(name, _version_beside(program, name), wanted)}"
    return _own_words(program)


def _checked(name: str, found: str, wanted: str) -> str:
    """The version that is there. Raises ConfigError where it isn't, or is another than the file pins."""
    if not found:
        version = f"=={wanted}" if wanted else ""
        raise ConfigError(
            f"`revision.runtime.package`: {name} is not installed here; pip install {name}{version}"
        )
    if wanted and found != wanted:
        raise ConfigError(
            f"`revision.runtime.package`: {name} {found} is installed; pip install {name}=={wanted}, or pin {found}"
        )
    return found


def _installed(name: str) -> str:
    """Its version among our own packages, "" where it is none of them."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _program(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        raise ConfigError(
            f"`revision.runtime.command`: {name} is not found; install it, or name the program with its path"
        )
    return Path(found).absolute()


def _version_beside(program: Path, name: str) -> str:
    """The package's version in the environment that the program is from; a Python beside it knows."""
    python = program.with_name("python")
    if python.exists() and python != Path(sys.executable):
        return _answer([str(python), "-c", _VERSION_OF, name])
    return _installed(name)


def _own_words(program: Path) -> str:
    """What the program says of itself, in one line: `llama-server version: 6500 (abcdef0)`."""
    said = _answer([str(program), "--version"], with_errors=True)
    line = next((line for line in said.splitlines() if "version" in line.lower() or line[:1].isdigit()), "")
    return f"{program.name} {line.strip()[:200]}".strip()


def _answer(command: Sequence[str], *, with_errors: bool = False) -> str:
    """What it prints, "" where it fails."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if with_errors else subprocess.DEVNULL,
            timeout=ANSWER_LIMIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace").strip()

"""The software in a revision is what the installation says of itself; another one than the file pins is refused."""

import os
import sys
from pathlib import Path

import pytest

import headrace
from headrace.app import runtimes
from headrace.core.deployments import DeploymentSpec, EngineKind, Identity, RevisionTerms, RuntimeTerms
from headrace.core.errors import ConfigError


def runtime(kind: EngineKind, *, package: str = "", command: str = "") -> str:
    terms = RuntimeTerms(package=package, command=command)
    return runtimes.runtime(DeploymentSpec(Identity("x", kind), revision=RevisionTerms(runtime=terms)))


def program(folder: Path, name: str, script: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_engines_of_ours_say_their_version() -> None:
    assert runtime(EngineKind.SCRIPTED) == f"headrace {headrace.__version__}"
    assert runtime(EngineKind.EMBEDDED).startswith("xllamacpp 2")
    assert runtime(EngineKind.REMOTE) == ""


@pytest.mark.parametrize("kind", [EngineKind.SCRIPTED, EngineKind.REMOTE])
def test_an_engine_without_a_package_takes_none(kind: EngineKind) -> None:
    with pytest.raises(ConfigError, match="has none"):
        runtime(kind, package="x==1")


def test_a_program_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="llama-server is not found"):
        runtime(EngineKind.LLAMACPP)
    with pytest.raises(ConfigError, match="/opt/vllm is not found"):
        runtime(EngineKind.VLLM, command="/opt/vllm")


def test_a_package_is_asked_for_where_the_program_is_installed(tmp_path: Path) -> None:
    """An engine has an environment of its own; which version we have beside us says nothing."""
    vllm = program(tmp_path, "vllm", "exit 0")
    program(tmp_path, "python", '[ "$3" = vllm ] && echo 0.11.0')
    assert runtime(EngineKind.VLLM, command=vllm) == "vllm 0.11.0"
    assert runtime(EngineKind.VLLM, command=vllm, package="vllm==0.11.0") == "vllm 0.11.0"
    with pytest.raises(
        ConfigError, match=r"vllm 0\.11\.0 is installed; pip install vllm==0\.12\.0, or pin 0\.11\.0"
    ):
        runtime(EngineKind.VLLM, command=vllm, package="vllm==0.12.0")
    with pytest.raises(ConfigError, match=r"other is not installed here; pip install other==1"):
        runtime(EngineKind.VLLM, command=vllm, package="other==1")


def test_a_program_without_a_package_is_asked_itself(tmp_path: Path) -> None:
    said = program(tmp_path, "llama-server", "echo loading >&2; echo 'version: 6500 (abcdef0)' >&2")
    assert runtime(EngineKind.LLAMACPP, command=said) == "llama-server version: 6500 (abcdef0)"
    silent = program(tmp_path, "mute", "exit 3")
    assert runtime(EngineKind.LLAMACPP, command=silent) == "mute"


def test_a_program_is_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "llama-server", "echo version 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert runtime(EngineKind.LLAMACPP) == "llama-server version 1"


def test_what_is_not_among_our_packages_is_refused() -> None:
    assert Path(sys.executable).exists()
    with pytest.raises(ConfigError, match="sglang is not installed here; pip install sglang"):
        runtime(EngineKind.SGLANG)

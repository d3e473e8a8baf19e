"""Engines that are commands, with a stand-in for llama-server: started with their own options, asked by HTTP, and ended."""

import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.control.engine_spec import EngineSpec
from headrace.core.deployment_terms import LifecycleTerms
from tests.control.lives import READY, STARTING, WARMING, living, run, scripted
from tests.control.rig import eventually, is_running
from tests.support import llama_server


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "llama-server"
    path.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{llama_server.__file__}' \"$@\"\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def arguments_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def llamacpp(program: str, model: Path, *flags: str, **terms: Any) -> EngineSpec:
    model.write_bytes(b"weights")
    return replace(
        scripted(flags=flags, threads=1, prefix_cache=False, terms=LifecycleTerms(**terms)),
        engine="llamacpp",
        model_path=model,
        context_tokens=256,
        program=program,
    )


def test_a_command_is_started_asked_and_ended(tmp_path: Path, program: str) -> None:
    """C4, E4: its own options, a port that we chose, a key that only we know, 503 until it is ready, then a real answer."""
    spec = llamacpp(program, tmp_path / "m.gguf", "--loads-s=0.2", "--warms-s=0.3")

    async def scenario() -> None:
        async with living(spec, tmp_path) as life:
            await eventually(lambda: life.offers)
            assert life.states() == [STARTING, WARMING, READY]
            offered = life.replica.deployment()
            (replica,) = offered.replicas
            assert (offered.context_tokens, offered.vocabulary_tokens) == (256, 1000)
            assert replica.traits.name == "llama.cpp"
            assert replica.traits.is_ours
            pid = life.replica.status().pid
            assert pid is not None
            key = replica.authorization.removeprefix("Bearer ")
            assert key.encode() not in arguments_of(pid)
            assert life.took.warm_s > 0
        assert not is_running(pid)

    run(scenario)


@pytest.mark.slow
def test_a_command_that_goes_on_loading_is_waited_for_by_what_it_writes(tmp_path: Path, program: str) -> None:
    """E4: the stall limit is for no progress; the load takes longer than that, and writes a line now and then."""
    spec = llamacpp(program, tmp_path / "m.gguf", "--loads-s=5", "--logs-every-s=0.5", start_stall_s=2.5)

    async def scenario() -> None:
        async with living(spec, tmp_path) as life:
            await eventually(lambda: life.offers)
            assert life.replica.status().failures == 0
            assert life.took.total_s > 5

    run(scenario)


@pytest.mark.slow
def test_a_command_that_loads_in_silence_is_given_up(tmp_path: Path, program: str) -> None:
    spec = llamacpp(program, tmp_path / "m.gguf", "--loads-s=600", start_stall_s=2.0)

    async def scenario() -> None:
        async with living(spec, tmp_path) as life:
            assert (await life.failed()).code == "start_stalled"

    run(scenario)


def test_an_option_that_a_command_doesnt_know_is_the_reason(tmp_path: Path, program: str) -> None:
    spec = llamacpp(program, tmp_path / "m.gguf", "--no-such-option")

    async def scenario() -> None:
        async with living(spec, tmp_path) as life:
            status = await life.failed()
            assert status.code == "crashed"
            assert "--no-such-option" in status.reason

    run(scenario)

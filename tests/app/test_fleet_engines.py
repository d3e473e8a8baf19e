"""Engines as deployments name them, through a whole service: another's server, files that are damaged, replicas that never serve."""

import os
import signal
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.control.rig import is_running
from tests.support import llama_server
from tests.support.fleet import Fleet, fleet
from tests.support.provider import wait_until
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.slow


def command_file(folder: Path, model: Path) -> str:
    """A deployment of a server that others make, with a stand-in in its place."""
    program = folder / "llama-server"
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{llama_server.__file__}' \"$@\"\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return f"""
[deployment]
name = "chat"
engine = "llamacpp"

[revision]
weights = {{ uri = "{model}" }}
runtime = {{ command = "{program}" }}
args = {{ slots = 2, context_tokens = 64, kv_cache_type = "q8_0", flags = ["--warms-s=0.3"] }}
"""


def weights(folder: Path) -> Path:
    path = folder / "mine.gguf"
    path.write_bytes(tiny_model(folder).content)
    return path


def replica(running: Fleet) -> dict[str, Any]:
    """The only one, once there is one."""
    found: dict[str, Any] = wait_until(lambda: next(iter(running.replicas()), None), what="a replica")
    return found


def test_a_server_that_others_make_is_fetched_started_asked_served_and_ended(tmp_path: Path) -> None:
    """C4, E4: from a file with our words to a process with its own options, and back to nothing."""
    model = weights(tmp_path)
    with fleet() as running:
        running.apply_file(command_file(tmp_path, model))
        running.until_answered("pong")
        running.until_ready("chat@v1")
        row = replica(running)
        assert row["cold_start_s"]["warm"] > 0
        arguments = Path(f"/proc/{row['pid']}/cmdline").read_text().split("\0")
        assert arguments[arguments.index("--cache-type-k") + 1] == "q8_0"
        assert arguments[arguments.index("--ctx-size") + 1] == "128"
        running.remove()
        wait_until(lambda: not running.engines(), what="the end of the server")
        wait_until(lambda: not is_running(row["pid"]), what="the end of its process")


def test_a_damaged_file_is_found_put_aside_and_fetched_again(tmp_path: Path) -> None:
    """E8: between two starts a file of the store is damaged; the next start brings it anew, and says nothing false meanwhile."""
    model = weights(tmp_path)
    with fleet() as running:
        running.apply_file(command_file(tmp_path, model))
        running.until_ready("chat@v1")
        (blob,) = (running.service.data / "models" / "blobs" / "sha256").iterdir()
        blob.chmod(0o600)
        damaged = bytes(len(blob.read_bytes()))
        blob.write_bytes(damaged)
        os.kill(replica(running)["pid"], signal.SIGKILL)
        wait_until(lambda: replica(running)["restarts"] == 1, what="its next life")
        running.until_ready("chat@v1")
        assert blob.read_bytes() == model.read_bytes()
        assert (running.service.data / "models" / "quarantine" / blob.name).read_bytes() == damaged


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ({"load_fault": "out_of_memory"}, "out_of_memory"),
        ({"load_fault": "hang"}, "start_stalled"),
        ({"load_fault": "crash"}, "crashed"),
    ],
)
def test_why_a_replica_never_serves_is_told_and_its_callers_are_told_to_come_back(
    args: dict[str, Any], code: str
) -> None:
    with fleet() as running:
        running.apply(**args, sections={"lifecycle": {"start_stall_s": 1.0}})

        def told() -> bool:
            """By the log: the rollout ends in vain a moment later, and the replica with it."""
            lines = [line for line in running.service.log_lines() if line["event"] == "replica.failed"]
            return ("chat-0", code) in [(line["replica"], line["code"]) for line in lines]

        wait_until(told, what=code)
        assert running.ask()[0] == 503

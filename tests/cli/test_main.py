"""What every command does with errors that no command foresees: one line, the right exit status."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEADRACE = [sys.executable, "-m", "headrace"]


def run(arguments: list[str], redirection: str) -> "subprocess.CompletedProcess[str]":
    command = ["bash", "-c", f'"$@" {redirection}; exit "${{PIPESTATUS[0]}}"', "bash", *HEADRACE, *arguments]
    # Buffered as it is for users, whatever this shell asks for: the last flush is what can fail.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
def test_a_reader_that_has_enough_is_no_failure(tmp_path: Path) -> None:
    done = run(["models", "list", "--data", str(tmp_path)], "| true")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_output_that_can_not_be_written_is_a_failure_in_one_line(tmp_path: Path) -> None:
    done = run(["models", "list", "--data", str(tmp_path)], ">/dev/full")
    assert (done.returncode, done.stderr) == (1, "headrace: No space left on device\n")

"""What every command does with errors that no command foresees: one line, the right exit status."""

import argparse
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.main import COMMANDS, main

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


def test_the_name_alone_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    told = capsys.readouterr().err
    assert all(f"    {command} " in told for command in ("up", "status", "keys", "usage"))


def test_the_table_of_commands_is_what_its_modules_add() -> None:
    for module, commands in COMMANDS.items():
        lone = argparse.ArgumentParser()
        added = lone.add_subparsers()
        importlib.import_module(f"headrace.cli.{module}").add(added)
        assert tuple(added.choices) == commands


def test_a_mistyped_command_is_told_all_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["stauts"])
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert all(command in told for commands in COMMANDS.values() for command in commands)


def test_a_command_waits_for_no_import_that_only_others_need() -> None:
    watched = "import sys; from headrace.cli.main import parser; parser('prices'); print('headrace.gateway' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", watched], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("arguments", "variables", "told"),
    [
        (["--workers", "0"], {}, "--workers must be a whole number from 1 to 256, got '0'"),
        ([], {"HEADRACE_WORKERS": "two"}, "HEADRACE_WORKERS must be a whole number from 1 to 256, got 'two'"),
        ([], {"HEADRACE_PORT": "x"}, "HEADRACE_PORT must be a whole number from 0 to 65535, got 'x'"),
        (
            ["--upstream", "http://a", "--upstream-ca", "ca.pem"],
            {},
            "--upstream-ca is for upstreams with https://, and there is none",
        ),
        (
            ["--tls-certificate", "/nowhere.pem", "--tls-key", "/nowhere.key"],
            {},
            "`server.tls_certificate`: /nowhere.pem cannot be read: No such file or directory",
        ),
    ],
)
def test_a_mistake_of_the_operator_is_told_by_its_name_before_any_model_is_fetched(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    variables: dict[str, str],
    told: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["up", "--data", str(tmp_path), *arguments]) == 2
    assert capsys.readouterr().err == f"headrace: {told}\n"

"""Does docs/reference say what the code does? A page that forgets a key, a code or an option fails here."""

import argparse
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_origin

import msgspec
import pytest

from headrace import config
from headrace.cli.main import parser
from headrace.config import capacity, deployment_rules, deployments, slos, workloads
from headrace.config.text import struct_in
from headrace.core import errors
from headrace.core.capacity_plan import CapacityPlan
from headrace.core.deployments import DeploymentSpec, EngineKind
from headrace.core.slo import Metric, Slo
from headrace.core.workload import ArrivalKind, LengthKind, Lengths, Workload
from headrace.evidence import traces
from headrace.policies.reloading import effect_of

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def table_rows(page: str) -> list[list[str]]:
    """The cells of every table row whose first cell is `code`, without the back quotes."""
    lines = (REFERENCE / page).read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [[cell.strip("`") for cell in row] for row in rows if row[0].startswith("`")]


# Configuration


def configuration_keys(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every dotted key below that struct with its default as TOML, `required` where there is none."""
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from configuration_keys(field.type, f"{prefix}{field.name}.")
        elif (where := prefix + field.name) in config.TABLES:
            yield from configuration_keys(config.TABLES[where], f"{where}[].")
        elif field.default_factory is not msgspec.NODEFAULT:
            yield where, json.dumps(field.default_factory())
        else:
            yield where, "required" if field.required else json.dumps(field.default)


def test_configuration_lists_every_key_with_its_default() -> None:
    documented = [(row[0], row[1]) for row in table_rows("configuration.md")]
    assert documented == list(configuration_keys(config.Config))


def test_configuration_says_of_every_key_whether_a_reload_puts_it_in_force() -> None:
    documented = {row[0]: row[2] for row in table_rows("configuration.md")}
    assert documented == {key: effect_of(key).value for key, _ in configuration_keys(config.Config)}


def test_configuration_example_is_accepted_and_is_the_default() -> None:
    page = (REFERENCE / "configuration.md").read_text(encoding="utf-8")
    examples = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert examples
    for example in examples:
        config.parse(tomllib.loads(example), file="configuration.md")


# Deployment files


def deployment_keys(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every dotted key with its default, also below tables that needn't be there, and `[]` for those of a list."""
    for field in msgspec.structs.fields(kind):
        where, inner = prefix + field.name, struct_in(field.type)
        if inner is not None:
            yield from deployment_keys(inner, where + ("[]." if get_origin(field.type) is tuple else "."))
        else:
            default = "required" if field.required else json.dumps(field.default)
            yield where, "none" if default == "null" else default


def test_deployment_file_lists_every_key_with_its_default() -> None:
    documented = [(row[0], row[1]) for row in table_rows("deployment-file.md")]
    assert documented == list(deployment_keys(DeploymentSpec))


def test_deployment_file_names_every_word_that_a_key_takes() -> None:
    """The values of enumerations stand in the meaning of their key."""
    meanings = {row[0]: row[2] for row in table_rows("deployment-file.md")}
    for word in EngineKind:
        assert word.value in re.findall(r"[a-z0-9_]+", meanings["deployment.engine"])
    for metric in deployment_rules.METRICS:
        assert metric in re.findall(r"[a-z0-9_]+", meanings["rollout.gate[].metric"])


def test_deployment_file_examples_are_accepted() -> None:
    page = (REFERENCE / "deployment-file.md").read_text(encoding="utf-8")
    examples = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert examples
    for example in examples:
        assert deployments.given(example, {}, file="deployment-file.md").warnings == ()


# SLO files


def test_slo_file_lists_every_key_with_its_default() -> None:
    documented = [(row[0], row[1]) for row in table_rows("slo-file.md")]
    assert documented == list(deployment_keys(Slo))


def test_slo_file_names_every_metric_and_its_example_is_accepted() -> None:
    meanings = {row[0]: row[2] for row in table_rows("slo-file.md")}
    assert set(re.findall(r"`(\w+)` \(", meanings["objectives[].metric"])) == set(Metric)
    page = (REFERENCE / "slo-file.md").read_text(encoding="utf-8")
    examples = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert examples
    for example in examples:
        slos.parse(example, file="slo-file.md")


# Capacity files


def test_capacity_file_lists_every_key_with_its_default_and_its_example_is_accepted() -> None:
    documented = [(row[0], row[1]) for row in table_rows("capacity-file.md")]
    assert documented == list(deployment_keys(CapacityPlan))
    page = (REFERENCE / "capacity-file.md").read_text(encoding="utf-8")
    examples = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert examples
    for example in examples:
        capacity.parse(example, file="capacity-file.md")


# Workload files


def workload_keys(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every dotted key with its default; of a length only that it is one, as its own keys have a table of their own."""
    for field in msgspec.structs.fields(kind):
        where, inner = prefix + field.name, struct_in(field.type)
        if inner is Lengths:
            default = field.default
            yield where, "none" if default is None else f"{{ {workloads.inline(default)} }}"
        elif inner is not None:
            yield from workload_keys(inner, f"{where}.")
        else:
            default = "required" if field.required else json.dumps(field.default)
            yield where, "none" if default == "null" else default


def test_workload_file_lists_every_key_with_its_default() -> None:
    documented = [(row[0], row[1]) for row in table_rows("workload-file.md")]
    # The file's order is that of its reader, who wants to know first when and how long.
    assert sorted(documented) == sorted([*workload_keys(Workload), *workload_keys(Lengths)])


def test_workload_file_names_every_word_that_a_key_takes() -> None:
    meanings = {row[0]: row[2] for row in table_rows("workload-file.md")}
    for key, words in (("arrivals.kind", ArrivalKind), ("kind", LengthKind)):
        for word in words:
            assert word.value in re.findall(r"[a-z]+", meanings[key])


def test_workload_file_examples_are_accepted_and_its_traces_have_our_columns() -> None:
    page = (REFERENCE / "workload-file.md").read_text(encoding="utf-8")
    examples = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert examples
    for example in examples:
        workloads.parse(example, file="workload-file.md")
    for column in traces.COLUMNS:
        assert f"`{column}`" in page


# Errors


def answered(kind: type[errors.HeadraceError] = errors.HeadraceError) -> list[type[errors.HeadraceError]]:
    """The leaves of the tree, which is what gets raised; without ConfigError, told on the command line alone."""
    below = [inner for inner in kind.__subclasses__() if inner.__module__ == errors.__name__]
    if below:
        return [error for inner in below for error in answered(inner)]
    return [kind] if kind is not errors.ConfigError else []


def test_errors_lists_the_whole_catalogue_and_nothing_else() -> None:
    retry = {True: "true", False: "false", None: "not sent"}
    catalogue = {(str(e.status), e.code, e.type, retry[e.should_retry]) for e in answered()}
    documented = [(row[1], row[0], row[2], row[3]) for row in table_rows("errors.md")]
    assert sorted(documented) == sorted(catalogue)


@pytest.mark.parametrize("error", answered(), ids=lambda error: error.code)
def test_every_error_class_says_its_status_first(error: type[errors.HeadraceError]) -> None:
    """The docstrings in core/errors.py are the catalogue's second copy; this keeps their numbers right."""
    text = error.__doc__ or ""
    assert text.startswith(f"{error.status}") or error is errors.InternalError


# Command line


def commands(node: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Every parser that runs something: a command, or a subcommand where it takes one."""
    inner = [a for a in node._actions if isinstance(a, argparse._SubParsersAction)]
    if not any(action.required for action in inner):
        yield node
    for action in inner:
        for below in dict.fromkeys(action.choices.values()):
            yield from commands(below)


def option_names(command: argparse.ArgumentParser) -> set[str]:
    """Long options without those that the page says once for all; positional arguments by their metavar or name."""
    names: set[str] = set()
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            continue
        if action.option_strings:
            names |= {name for name in action.option_strings if name.startswith("--")}
        else:
            names.add(str(action.metavar or action.dest.upper()))
    return names - {"--help", "--data"}


def cli_sections() -> dict[str, str]:
    """The text below each `headrace ...` heading."""
    page = (REFERENCE / "cli.md").read_text(encoding="utf-8")
    parts = re.split(r"^#{2,3} `(headrace [a-z -]+)`$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_cli_has_a_section_for_every_command_and_no_other() -> None:
    assert sorted(cli_sections()) == sorted(command.prog for command in commands(parser()))


@pytest.mark.parametrize("command", list(commands(parser())), ids=lambda command: command.prog)
def test_cli_lists_every_option_of_the_command_and_no_other(command: argparse.ArgumentParser) -> None:
    section = cli_sections()[command.prog]
    rows = re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)
    documented = {re.split(r"[ =]", name)[0] for row in rows for name in row.split(", ")}
    assert documented == option_names(command)

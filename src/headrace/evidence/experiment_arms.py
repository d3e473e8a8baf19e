"""What is an arm of an experiment, really? The deployment with its changes in a service of its own, or a server that runs."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace import config
from headrace.config import deployments, experiments, text
from headrace.config.deployments import DeploymentFile
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.core.experiments import BASELINE, Arm, Experiment, Server
from headrace.core.workload import Workload
from headrace.evidence import cases as case_files
from headrace.evidence import requests
from headrace.evidence.cases import CaseSet
from headrace.evidence.certify_subject import as_toml, read_toml
from headrace.evidence.drill_instance import instance
from headrace.evidence.drill_watch import Watch, until_ready
from headrace.evidence.target import Target
from headrace.policies import experiments as rules
from headrace.policies.quality import SetKind

START_LIMIT_S = 300.0
TENANT = "experiment"


@dataclass(frozen=True, slots=True)
class Setting:
    """An experiment with all that its file names, read and checked.

    Attributes:
        folder: Of the file; what it names is found from there.
        models: A model store that engines are started from; None for an empty one.
        digest: Of everything that decides what is done: file, deployment, workload, cases. Repetitions of another one
            don't count.
    """

    experiment: Experiment
    folder: Path
    workload: Workload
    base: DeploymentFile | None
    cases: CaseSet | None
    models: Path | None
    digest: str


def setting(path: Path, *, data: Path) -> Setting:
    """Raises ConfigError, also where any level makes a deployment that can't be."""
    experiment = experiments.load(path)
    folder = path.parent
    base = deployments.load(folder / experiment.deployment) if experiment.deployment else None
    for arm in (BASELINE, *rules.singles(experiment)):
        _check(arm, base, experiment, file=f"{path}: {arm.name}")
    named = experiment.load.workload
    workload = requests.load(str(folder / named) if named.endswith(".toml") else named, data=data)
    cases = None
    if experiment.quality is not None:
        found = case_files.find(experiment.quality.cases, SetKind.TUNING, data=data)
        cases = case_files.load(found, expected=SetKind.TUNING)
        if case_files.needs_judge(cases.cases):
            raise ConfigError(
                f"{path}: `quality.cases`: {found} has cases with a rubric; use `headrace eval`"
            )
    models = data / "models"
    parts = (
        msgspec.json.encode(experiment, enc_hook=str),
        base.text.encode() if base is not None else b"",
        *(template.encode() for template in (base.templates.values() if base is not None else ())),
        workload.digest.encode(),
        cases.header.digest.encode() if cases is not None else b"",
    )
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()
    return Setting(
        experiment, folder, workload, base, cases, models if models.is_dir() else None, f"sha256:{digest}"
    )


def _check(arm: Arm, base: DeploymentFile | None, experiment: Experiment, *, file: str) -> None:
    if base is not None:
        changed_file(base, experiment, arm, file=file)
    else:
        assert experiment.target is not None
        changed_server(experiment.target, arm, file=file)


def changed_file(base: DeploymentFile, experiment: Experiment, arm: Arm, *, file: str) -> DeploymentFile:
    """The deployment with what is fixed, and then the arm's changes. Raises ConfigError."""
    content = as_toml(experiments.changed(read_toml(base.text), experiment.fixed, *arm.changes))
    return deployments.given(content, base.templates, file=file)


def changed_server(server: Server, arm: Arm, *, file: str) -> Server:
    """The server with the arm's changes. Raises ConfigError."""
    raw = {name: getattr(server, name) for name in Server.__struct_fields__}
    return text.convert(experiments.changed(raw, *arm.changes), Server, file=file)


@asynccontextmanager
async def served(setting: Setting, arm: Arm, *, clock: Clock) -> AsyncIterator[Target]:
    """The arm, ready to be asked. Raises DrillError where its service can't be had."""
    experiment = setting.experiment
    if setting.base is None:
        assert experiment.target is not None
        server = changed_server(experiment.target, arm, file=arm.name)
        key = config.resolve_secret(server.key, key="target.key") if server.key else ""
        yield Target(server.url, server.model, key)
        return
    file = changed_file(setting.base, experiment, arm, file=arm.name)
    async with instance(clock, models=setting.models) as running:
        for name, template in file.templates.items():
            (running.folder / name).write_text(template)
        await running.command("tenants", "create", TENANT)
        key = (await running.command("keys", "create", "--tenant", TENANT)).strip()
        await running.apply(file.text)
        watch = Watch(running, file.spec.name, clock)
        await until_ready(watch, max(1, file.spec.scale.min), clock=clock, limit_s=START_LIMIT_S)
        yield Target(f"http://127.0.0.1:{running.port}", file.spec.name, key)

"""From a deployment file, or from a URL, to the signed card of what it was shown to do."""

import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import headrace
from headrace.config.deployments import DeploymentFile
from headrace.core.clock import Clock
from headrace.evidence import certify, certify_load, certify_subject, service_card
from headrace.evidence.certify import Step, Terms
from headrace.evidence.certify_caller import Address, Caller
from headrace.evidence.certify_steps import STEPS
from headrace.evidence.certify_subject import OWNER, Subject
from headrace.evidence.drill_instance import HEADRACE, Instance
from headrace.evidence.service_card import Made, ServiceCard
from headrace.evidence.target import Target
from headrace.policies.certification import Asked
from headrace.stores.card_key import CardKey
from headrace.telemetry import hardware

VALID_DAYS = 90.0


async def of_file(
    file: DeploymentFile,
    steps: Sequence[Step],
    terms: Terms,
    *,
    key: CardKey,
    clock: Clock,
    models: Path | None,
    repeat: str,
    valid_days: float = VALID_DAYS,
    program: Sequence[str] = HEADRACE,
    environment: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> ServiceCard:
    """Certifies the deployment in a service of its own. Raises DrillError where that doesn't even start."""
    began_s, began_wall_s = clock.now_s(), clock.wall_s()
    known: dict[str, float] = {}
    progress(f"{file.spec.name}: a service of its own")
    async with certify_subject.deployed(
        file, clock=clock, models=models, program=program, environment=environment
    ) as subject:
        stack = {**await _stack(subject.here.running, file), **_surroundings()}
        reports = await certify.run(subject, steps, terms, known=known, progress=progress)
    made = Made(
        file.spec.name,
        file.spec,
        certify_load.promised(terms, known),
        terms.bounds,
        known,
        stack,
        repeat,
        tuple(STEPS),
        terms.size.is_short,
        began_wall_s,
        clock.now_s() - began_s,
        valid_days,
    )
    return service_card.issue(reports, made, key)


async def of_url(
    target: Target,
    steps: Sequence[Step],
    terms: Terms,
    *,
    key: CardKey,
    clock: Clock,
    repeat: str,
    valid_days: float = VALID_DAYS,
    progress: Callable[[str], None] = lambda _: None,
) -> ServiceCard:
    """Makes the steps that can be made from outside, on a service that others run."""
    began_s, began_wall_s = clock.now_s(), clock.wall_s()
    known: dict[str, float] = {}
    history: list[Asked] = []
    parsed, model = target.address(), target.model
    address = Address(parsed.host, parsed.port, target.trust()(), parsed.prefix)
    owner = Caller(address, model=model, key=target.key, tenant=OWNER, clock=clock, history=history)
    subject = Subject(model, clock, owner, history=history, ca_file=target.ca_file)
    reports = await certify.run(subject, steps, terms, known=known, progress=progress)
    made = Made(
        model,
        None,
        certify_load.promised(terms, known),
        terms.bounds,
        known,
        {"url": address.url, **_surroundings()},
        repeat,
        tuple(STEPS),
        terms.size.is_short,
        began_wall_s,
        clock.now_s() - began_s,
        valid_days,
    )
    return service_card.issue(reports, made, key)


async def _stack(running: Instance, file: DeploymentFile) -> dict[str, str]:
    """What the file was resolved to: everything that makes the answers, by digest."""
    shown = msgspec.json.decode(await running.command("deployments", "show", file.spec.name, "--json"))
    facts = {"revision": str(shown["digest"])}
    facts.update(_flat(shown["revision"] or {}))
    scale = file.spec.scale
    facts["replicas"] = f"{scale.min} to {scale.max}"
    return facts


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """One fact for each leaf, without what is empty; lists of files are in the digest."""
    found: dict[str, str] = {}
    for name, inner in value.items():
        if isinstance(inner, dict):
            found |= _flat(inner, f"{prefix}{name}.")
        elif inner not in (None, "", 0, [], False) and not isinstance(inner, list):
            found[f"{prefix}{name}"] = str(inner)
    return found


def _surroundings() -> dict[str, str]:
    return {
        "hardware": hardware.in_words(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "headrace": headrace.__version__,
        **({"commit": commit} if (commit := _commit()) else {}),
    }


def _commit() -> str:
    """Of a checkout; "" where it is installed from a package."""
    try:
        told = subprocess.run(
            ["git", "-C", str(Path(headrace.__file__).parent), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=10.0,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.stdout.strip()

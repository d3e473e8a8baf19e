"""`headrace certify`: may this deployment be offered? Its acceptance path, and the signed card of what that showed."""

import argparse
import asyncio
import difflib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace import config
from headrace.cli import common, desk, identity, section_text
from headrace.config import deployments, slos
from headrace.config.deployments import DeploymentFile
from headrace.core.clock import SystemClock
from headrace.core.deployment_terms import SloTerms
from headrace.core.errors import ConfigError
from headrace.core.slo import Slo
from headrace.core.verdicts import Verdict
from headrace.core.workload import Workload
from headrace.evidence import certified, certify, requests, service_card, service_card_text
from headrace.evidence.certify import Step, Terms
from headrace.evidence.certify_steps import STEPS
from headrace.evidence.service_card import CARD_BYTES_MAX, ServiceCard
from headrace.evidence.target import Target
from headrace.policies import certification
from headrace.policies.certification import Bounds
from headrace.policies.quality_report import FAILED, NOT_ENOUGH_EVIDENCE, PASSED, STATUS
from headrace.stores import card_key

LIST, VERIFY = "list", "verify"
NAME = "service-card"
_CLOCK = SystemClock()
_STATUS_HELP = """
exit status: 0 it may be offered; 1 a step failed; 2 the operator must change something; 3 not enough evidence, as in a short form or
with steps left out; 4 a step could not be made
"""


def add(commands: Any) -> None:
    """Registers the command."""
    parser = common.command(
        commands,
        "certify",
        _certify,
        help="make the acceptance path of a deployment in a service of its own, and write its signed service card; exit status 1 where"
        " it must not be offered",
        example="headrace certify deployments/chat-small.toml --card docs/evidence\n"
        "         headrace certify list\n"
        "         headrace certify verify service-card.json",
        with_json=True,
    )
    parser.epilog = f"{parser.epilog}\n{_STATUS_HELP}"
    parser.add_argument(
        "what",
        nargs="*",
        metavar="FILE",
        help=f"the deployment file; `{LIST}` shows the steps, and `{VERIFY} CARD` checks a card's signature (default: what"
        " `headrace up` serves without any file, on the embedded engine)",
    )
    parser.add_argument(
        "--deployment",
        metavar="NAME",
        help="the version of that deployment that is wanted in DIR, instead of a file",
    )
    _add_outside(parser)
    _add_how(parser)


def _add_outside(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        metavar="URL",
        help="an OpenAI-compatible service that others run: only the steps that fit it are made",
    )
    parser.add_argument("--model", metavar="M", help="with --url, the model, as the server calls it")
    parser.add_argument("--key", default="", metavar="REF", help="with --url, its key: env:NAME or file:PATH")
    parser.add_argument(
        "--ca",
        default="",
        metavar="FILE",
        help="with --url, PEM file of the authorities that may sign its certificate",
    )
    parser.add_argument(
        "--public-key",
        default="",
        metavar="KEY",
        help=f"with `{VERIFY}`, the key that the card must be signed with (default: that of DIR)",
    )


def _add_how(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--slo", metavar="FILE", help="what is promised of it (default: its own [slo], and the bounds)"
    )
    parser.add_argument(
        "--bound",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"another bound, which the card shows; repeat it for several: {', '.join(Bounds.__struct_fields__)}",
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="STEP", help="only that step; repeat it for several"
    )
    parser.add_argument(
        "--quick", action="store_true", help="the short form: fewer samples, and no certification"
    )
    parser.add_argument(
        "--workload",
        default=requests.SMALL,
        metavar="FILE|NAME",
        help=f"what is asked under load (default: {requests.SMALL})",
    )
    parser.add_argument(
        "--rate",
        type=float,
        default=0.0,
        metavar="R",
        help="requests/s of normal load (default: half of what it does at its best)",
    )
    parser.add_argument(
        "--cases",
        default="document-assistant",
        metavar="FILE|NAME",
        help="the acceptance set (default: document-assistant)",
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="of prompts and arrivals (default: 1)"
    )
    parser.add_argument(
        "--time-limit", type=float, default=900.0, metavar="S", help="for all steps together (default: 900)"
    )
    parser.add_argument(
        "--valid-days",
        type=float,
        default=certified.VALID_DAYS,
        metavar="D",
        help="how long the card holds (default: 90)",
    )
    parser.add_argument(
        "--card", metavar="FOLDER", help=f"write {NAME}.md, {NAME}.html and {NAME}.json there"
    )


def _certify(arguments: argparse.Namespace) -> int:
    match arguments.what:
        case ["list"]:
            _list(as_json=arguments.json)
            return PASSED
        case ["verify", card]:
            return _verify(arguments, Path(card))
        case [] | [_]:
            pass
        case _:
            raise ConfigError("one deployment file at a time; each has a card of its own")
    if arguments.url and (arguments.what or arguments.deployment):
        raise ConfigError("--url is for a service that runs; it takes no deployment")
    card = _of_url(arguments) if arguments.url else _of_file(arguments)
    if arguments.card:
        _write(card, Path(arguments.card))
    if arguments.json:
        print(service_card.as_json(card).decode(), end="")
    else:
        section_text.print_sections(service_card_text.sections(card))
    if card.verdict is Verdict.PASS and not card.is_complete:
        return NOT_ENOUGH_EVIDENCE
    return STATUS[card.verdict]


def _of_file(arguments: argparse.Namespace) -> ServiceCard:
    file = _file(arguments)
    steps = _steps(arguments)
    data = config.data_directory(arguments.data)
    models = data / "models"
    if file.spec.revision.weights is not None and not models.is_dir():
        raise ConfigError(f"{models}: no model store; fill it with `headrace models pull`")
    return asyncio.run(
        certified.of_file(
            file,
            steps,
            _terms(arguments, data, deployment=file.spec.name, terms=file.spec.slo),
            key=card_key.load(data),
            clock=_CLOCK,
            models=models if models.is_dir() else None,
            repeat=_command(),
            valid_days=arguments.valid_days,
            progress=_tell,
        )
    )


def _of_url(arguments: argparse.Namespace) -> ServiceCard:
    if not arguments.model:
        raise ConfigError("--url takes --model, the name by which the service calls it")
    data = config.data_directory(arguments.data)
    secret = config.resolve_secret(arguments.key, key="--key") if arguments.key else ""
    return asyncio.run(
        certified.of_url(
            Target(arguments.url, arguments.model, secret, arguments.ca),
            _steps(arguments),
            _terms(arguments, data, deployment=arguments.model, terms=SloTerms()),
            key=card_key.load(data),
            clock=_CLOCK,
            repeat=_command(),
            valid_days=arguments.valid_days,
            progress=_tell,
        )
    )


def _file(arguments: argparse.Namespace) -> DeploymentFile:
    if arguments.what and arguments.deployment:
        raise ConfigError("give a file or --deployment, not both")
    if arguments.what:
        return deployments.load(Path(arguments.what[0]))
    if arguments.deployment:
        with desk.desk(arguments) as at:
            shown = at.shown(arguments.deployment)
        return deployments.given(shown["file"] or "", {}, file=arguments.deployment)
    engine = config.Config().engine
    text = (
        f'api = "v1"\n[deployment]\nname = "{engine.chat_model}"\nengine = "embedded"\n[revision]\n'
        f'weights = {{ uri = "{engine.chat_model}" }}\n'
        f"args = {{ slots = {engine.slots}, context_tokens = {engine.context_tokens} }}\n"
    )
    return deployments.given(text, {}, file="the embedded default")


def _steps(arguments: argparse.Namespace) -> Sequence[Step]:
    for name in arguments.only:
        if name not in STEPS:
            near = difflib.get_close_matches(name, STEPS, n=1)
            hint = f"did you mean `{near[0]}`? " if near else ""
            raise ConfigError(f"--only {name}: no such step; {hint}there are {', '.join(STEPS)}")
    return [step for name, step in STEPS.items() if not arguments.only or name in arguments.only]


def _terms(arguments: argparse.Namespace, data: Path, *, deployment: str, terms: SloTerms) -> Terms:
    bounds = certification.changed(Bounds(), dict(map(_bound, arguments.bound)))
    slo = (
        slos.load(Path(arguments.slo))
        if arguments.slo
        else certification.default_slo(deployment, terms, bounds)
    )
    _check(slo, deployment, arguments.slo)
    return Terms(
        slo=slo,
        completes_slo=not arguments.slo,
        workload=_workload(arguments.workload, data),
        bounds=bounds,
        size=certify.QUICK if arguments.quick else certify.FULL,
        rate_per_s=arguments.rate or slo.load.requests_per_s_max or 0.0,
        cases=arguments.cases,
        data=data,
        actor=identity.actor(),
        seed=arguments.seed,
        limit_s=arguments.time_limit,
    )


def _workload(named: str, data: Path) -> Workload:
    workload = requests.load(named, data=data)
    if workload.input_tokens is None or workload.output_tokens is None:
        raise ConfigError(
            f"--workload {named}: it must say `input_tokens` and `output_tokens`, as it is asked at several rates"
        )
    return workload


def _check(slo: Slo, deployment: str, file: str | None) -> None:
    if slo.deployment != deployment:
        raise ConfigError(f"{file}: `deployment` is {slo.deployment!r}; what is certified is {deployment!r}")


def _bound(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise ConfigError(f"--bound {text}: it takes NAME=VALUE, such as cancel_s=0.5") from None


def _list(*, as_json: bool) -> None:
    bounds = Bounds()
    rows = [
        (step.name, step.question, ", ".join(f"{name}={getattr(bounds, name):g}" for name in step.bounds))
        for step in STEPS.values()
    ]
    if as_json:
        names = ("name", "question", "bounds")
        common.print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        common.print_table(rows, headings=("step", "", "bounds"))


def _verify(arguments: argparse.Namespace, path: Path) -> int:
    """Says by which key it is signed, whether that is the one that is wanted, and whether it is still valid."""
    with path.open("rb") as file:
        content = file.read(CARD_BYTES_MAX)
    card = service_card.read(content, name=str(path))
    wanted = arguments.public_key or card_key.load(config.data_directory(arguments.data)).public
    if not service_card.is_genuine(card):
        print(f"{path}: NOT GENUINE: it was changed after it was signed, or never signed", file=sys.stderr)
        return FAILED
    if card.signature.key != wanted:
        print(
            f"{path}: signed with another key: {card.signature.key} ({card_key.fingerprint(card.signature.key)}), not {wanted}",
            file=sys.stderr,
        )
        return FAILED
    print(f"{path}: genuine, {card.deployment}, {card.verdict.value}, issued {card.issued}")
    print(f"signed with {card.signature.key} ({card_key.fingerprint(card.signature.key)})")
    if service_card.is_over(card, now_wall_s=_CLOCK.wall_s()):
        print(f"no longer valid, since {card.valid_until}")
        return FAILED
    print(f"valid until {card.valid_until}")
    return PASSED


def _write(card: ServiceCard, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{NAME}.json").write_bytes(service_card.as_json(card))
    (folder / f"{NAME}.md").write_text(service_card_text.markdown(card), encoding="utf-8")
    (folder / f"{NAME}.html").write_text(service_card_text.html(card), encoding="utf-8")


def _command() -> str:
    """As it was typed, but for where this machine keeps things: whoever repeats it has other folders."""
    words, kept = iter(sys.argv[1:]), []
    for word in words:
        if word in ("--data", "--card"):
            next(words, None)
        elif not word.startswith(("--data=", "--card=")):
            kept.append(word)
    return shlex.join(["headrace", *kept])


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

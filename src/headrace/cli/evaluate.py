"""`headrace eval`: how many of a set of cases does a model answer as it should, and is it as good as another?"""

import argparse
import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from headrace import config
from headrace.cli import common, evaluate_import, identity, section_text, target
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError, leaves
from headrace.evidence import cases as case_files
from headrace.evidence import page, quality, quality_text
from headrace.evidence.asking import Asker, Embedder
from headrace.evidence.cases import CaseSet
from headrace.evidence.judging import Judge
from headrace.evidence.prompting import Prompting
from headrace.evidence.quality import Terms
from headrace.evidence.target import Target
from headrace.evidence.uses import UseLog
from headrace.policies import looks
from headrace.policies.quality import SetKind
from headrace.policies.quality_report import PASSED, STATUS, QualityReport

_CLOCK = SystemClock()
MARGIN = 0.05
_STATUS_HELP = """
exit status: 0 passed, or measured where neither --compare nor --floor asks for more; 1 failed; 2 the operator must change
something; 3 not enough evidence; 4 the check could not be made, as too much was not answered
"""


def add(commands: Any) -> None:
    """Registers the command."""
    parser = common.command(
        commands,
        "eval",
        _eval,
        help="put a set of cases to a model, or to two, and say whether it is good enough; exit status 1 where it isn't",
        example="headrace eval --cases document-assistant\n"
        "         headrace eval --cases document-assistant --set acceptance --model chat@v4 --compare chat@v3",
        with_json=True,
    )
    parser.epilog = f"{parser.epilog}\n{_STATUS_HELP}"
    _add_what(parser)
    _add_judge(parser)
    _add_prompting(parser)
    _add_how(parser)
    evaluate_import.add(parser.add_subparsers(dest="action", metavar="import", required=False))


def _add_what(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cases",
        metavar="FILE|NAME",
        help="the cases: a file, or the name of a set in DIR/cases, or of one that comes with headrace",
    )
    parser.add_argument(
        "--set",
        type=SetKind,
        choices=list(SetKind),
        default=SetKind.TUNING,
        metavar="KIND",
        help="which set is meant, tuning or acceptance; a use of the latter is recorded (default: tuning)",
    )
    target.add_options(parser)
    parser.add_argument("--compare", metavar="M2", help="the accepted model, asked the same cases")
    parser.add_argument("--compare-url", metavar="URL", help="its server, if it's another")
    parser.add_argument("--compare-key", default="", metavar="REF", help="the key of that other server")
    parser.add_argument(
        "--margin",
        type=_share,
        default=MARGIN,
        metavar="X",
        help=f"how much smaller than M2's the share of right answers may be (default: {MARGIN})",
    )
    parser.add_argument("--floor", type=_share, metavar="Y", help="how small it may be at all")
    parser.add_argument(
        "--alpha",
        type=_chance,
        default=0.05,
        metavar="A",
        help="chance of a wrong verdict, one-sided; of an acceptance set over all looks for one decision (default: 0.05)",
    )


def _add_judge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--judge", metavar="M3", help="the model that cases with a rubric are judged by")
    parser.add_argument("--judge-url", metavar="URL", help="its server, if it's another")
    parser.add_argument("--judge-key", default="", metavar="REF", help="the key of that other server")
    parser.add_argument("--judge-revision", default="", metavar="D", help="the revision that it must be")
    parser.add_argument(
        "--judge-prompt", default="", metavar="D", help="the digest that its prompt must have"
    )
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="have the judge grade what rules have graded too, and say how far they agree",
    )
    parser.add_argument(
        "--prefer",
        action="store_true",
        help="have the judge say which of the two models' answers is better, each pair in both orders",
    )


def _add_prompting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--narrow",
        type=_excerpts,
        metavar="K",
        help="show --model only the K excerpts nearest to the question, as --embedding-model finds them; 0 shows none",
    )
    parser.add_argument("--embedding-model", metavar="E", help="an embedding model of the same server")
    parser.add_argument(
        "--refusal-rule",
        action="store_true",
        help="say once more behind the question when --model is to refuse",
    )


def _add_how(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--concurrency",
        type=common.positive,
        default=4,
        metavar="N",
        help=f"requests at once, at most {quality.CONCURRENCY_MAX} (default: 4)",
    )
    parser.add_argument(
        "--deadline", type=_seconds, default=60.0, metavar="S", help="for one answer (default: 60)"
    )
    parser.add_argument(
        "--time-limit",
        type=_seconds,
        default=3600.0,
        metavar="S",
        help="for all; what is not answered by then is an error (default: 3600)",
    )
    parser.add_argument("--list", action="store_true", help="show every case of a tuning set with its answer")
    parser.add_argument(
        "--unseal",
        action="store_true",
        help="show every case of an acceptance set too; it takes a reason (--for), is recorded, and after it the set is worth less",
    )
    parser.add_argument(
        "--for", dest="purpose", default="", metavar="TEXT", help="what the use is for, for the record"
    )
    parser.add_argument(
        "--seal",
        action="store_true",
        help="ask nothing: write number and digest of its cases into the first line of FILE",
    )
    parser.add_argument("--html", metavar="FILE", help="write the report as one page that needs nothing else")


def _eval(arguments: argparse.Namespace) -> int:
    data = config.data_directory(arguments.data)
    if not arguments.cases:
        raise ConfigError("--cases is needed: a file, or the name of a set")
    if arguments.seal:
        header = case_files.seal(Path(arguments.cases))
        print(
            f"{arguments.cases}: {header.set} set {header.name} version {header.version}, {header.cases} cases"
        )
        print(header.digest)
        return PASSED
    _check_wishes(arguments)
    own = target.chosen(arguments)
    _check_trust(arguments, own)
    path = case_files.find(arguments.cases, arguments.set, data=data)
    cases = case_files.load(path, expected=arguments.set)
    judge = _judge(arguments, own)
    if judge is None and case_files.needs_judge(cases.cases):
        raise ConfigError(f"{path} has cases with a rubric: name the model that judges them with --judge")
    report = _run(arguments, own, cases, judge, data)
    sections = quality_text.sections(report, is_listed=arguments.list or arguments.unseal)
    if arguments.html:
        title = f"Quality of {report.candidate.label} on {report.set.name}"
        # A page is read from its beginning, a terminal from its end.
        Path(arguments.html).write_text(page.page(title, [sections[-1], *sections[:-1]]), encoding="utf-8")
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        section_text.print_sections(sections)
    return PASSED if report.verdict is None else STATUS[report.verdict]


def _check_trust(arguments: argparse.Namespace, asked: Target) -> None:
    """Raises ConfigError for files that would not be looked at: no server speaks TLS with us."""
    others = (arguments.compare_url, arguments.judge_url)
    for option, urls in (("ca", (asked.url, *others)), ("certificate", (asked.url,))):
        if getattr(arguments, option) and not any((url or "").startswith("https:") for url in urls):
            raise ConfigError(f"--{option} is for a server with https://, and there is none")


def _check_wishes(arguments: argparse.Namespace) -> None:
    """Raises ConfigError for options that would have no effect, or a wrong one."""
    if arguments.unseal and not arguments.purpose:
        raise ConfigError("--unseal takes a reason, for the record: --for TEXT")
    if bool(arguments.narrow) is not bool(arguments.embedding_model):
        raise ConfigError("--narrow K, above 0, and --embedding-model E go together")
    for option in ("calibrate", "prefer", "judge_revision", "judge_prompt"):
        if getattr(arguments, option) and not arguments.judge:
            raise ConfigError(f"--{option.replace('_', '-')} is about a judge: name it with --judge")
    if arguments.prefer and not arguments.compare:
        raise ConfigError("--prefer is about two models: name the accepted one with --compare")


def _run(
    arguments: argparse.Namespace, own: Target, cases: CaseSet, judge: Judge | None, data: Path
) -> QualityReport:
    candidate = _asker(arguments, own, own.model)
    accepted = None
    if arguments.compare:
        accepted = _asker(arguments, own, arguments.compare, "compare")
    log = look = None
    if cases.header.set is SetKind.ACCEPTANCE:
        log = UseLog(data, actor=identity.actor(), clock=_CLOCK)
        models = [own.model, *([arguments.compare] if arguments.compare else [])]
        look = log.begin(cases, models=models, purpose=arguments.purpose, is_unsealed=arguments.unseal)
    terms = Terms(
        margin=arguments.margin if accepted is not None else None,
        floor=arguments.floor,
        # What several looks may be wrong with together is shared out among them.
        alpha=arguments.alpha if look is None else looks.alpha_at(look.number, alpha=arguments.alpha),
        concurrency=arguments.concurrency,
        limit_s=arguments.time_limit,
    )
    try:
        report = asyncio.run(
            quality.run(
                cases,
                candidate=candidate,
                accepted=accepted,
                terms=terms,
                clock=_CLOCK,
                judge=judge,
                prompting=_prompting(arguments, own),
                is_calibrated=arguments.calibrate,
                asks_preference=arguments.prefer,
                is_open=arguments.unseal,
                purpose=arguments.purpose,
                progress=_progress(),
            )
        )
    except BaseExceptionGroup as errors:
        # Nobody reads the progress any more: whoever started this is gone, and needs no result.
        raise leaves(errors)[0] from None
    if log is not None:
        report = msgspec.structs.replace(report, look=look)
        log.end(cases, report)
    return report


def _asker(arguments: argparse.Namespace, own: Target, model: str, whose: str = "") -> Asker:
    return Asker(model=model, **_server(arguments, own, whose))


def _server(arguments: argparse.Namespace, own: Target, whose: str = "") -> dict[str, Any]:
    """Whoever has a server of its own gets the key that is named for it, and never the other server's nor its certificate."""
    url, secret, certificate = own.url, own.key, own.certificate
    if whose and (other_url := getattr(arguments, f"{whose}_url")):
        reference = getattr(arguments, f"{whose}_key")
        url, certificate = other_url, ""
        secret = config.resolve_secret(reference, key=f"--{whose}-key") if reference else ""
    return {
        "url": url,
        "key": secret,
        "deadline_s": arguments.deadline,
        "clock": _CLOCK,
        "ca_file": own.ca_file,
        "certificate": certificate,
    }


def _prompting(arguments: argparse.Namespace, own: Target) -> Prompting:
    embedder = None
    if arguments.embedding_model:
        embedder = Embedder(model=arguments.embedding_model, **_server(arguments, own))
    return Prompting(arguments.narrow, embedder, arguments.refusal_rule)


def _judge(arguments: argparse.Namespace, own: Target) -> Judge | None:
    if not arguments.judge:
        return None
    return Judge(
        _asker(arguments, own, arguments.judge, "judge"),
        pinned=arguments.judge_revision,
        pinned_prompt=arguments.judge_prompt,
    )


def _progress() -> Callable[[int, int], None]:
    """Tells how far it is: on a terminal one line that is redrawn, elsewhere a line for each tenth."""
    is_live = common.progress_is_live()

    def tell(done: int, total: int) -> None:
        if is_live:
            end = "\n" if done == total else ""
            print(f"\r{done} of {total} answers", end=end, file=sys.stderr, flush=True)
        elif done * 10 // total > (done - 1) * 10 // total:
            print(f"{done} of {total} answers", file=sys.stderr, flush=True)

    return tell


def _number(text: str, *, least: float, most: float, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text!r}: {what}")
    return value


def _excerpts(text: str) -> int:
    return 0 if text == "0" else common.positive(text)


def _share(text: str) -> float:
    return _number(text, least=-1.0, most=1.0, what="a share such as 0.05")


def _chance(text: str) -> float:
    return _number(text, least=1e-9, most=0.5, what="a chance, above 0 and at most 0.5")


def _seconds(text: str) -> float:
    return _number(text, least=0.001, most=86_400.0, what="seconds, above 0 and at most 86400")

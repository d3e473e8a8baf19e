"""`headrace eval`: how many of a set of cases does a model answer as it should, and is it as good as another?"""

import argparse
import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from headrace import config
from headrace.cli import common, identity
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError, leaves
from headrace.evidence import cases as case_files
from headrace.evidence import quality
from headrace.evidence.asking import Asker
from headrace.evidence.cases import CaseSet
from headrace.evidence.judging import Judge
from headrace.evidence.quality import Terms
from headrace.evidence.uses import UseLog
from headrace.policies.quality import SetKind, Tally
from headrace.policies.quality_report import PASSED, STATUS, ModelFound, QualityReport

_CLOCK = SystemClock()
MARGIN = 0.05
_SHOWN_CHARACTERS = 100
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
        example="headrace eval --cases document-assistant --model smollm2-135m-instruct --url http://127.0.0.1:8000 --key file:key.txt\n"
        "         headrace eval --cases document-assistant --set acceptance --model chat@v4 --compare chat@v3 --url http://127.0.0.1:8000",
        with_json=True,
    )
    parser.epilog = f"{parser.epilog}\n{_STATUS_HELP}"
    _add_what(parser)
    _add_how(parser)


def _add_what(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cases",
        required=True,
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
    parser.add_argument("--model", metavar="M", help="the model, as the server calls it")
    parser.add_argument("--url", metavar="URL", help="an OpenAI-compatible server")
    parser.add_argument("--key", default="", metavar="REF", help="its key: env:NAME or file:PATH")
    parser.add_argument(
        "--ca",
        default="",
        metavar="FILE",
        help="PEM file of the authorities that may sign the certificates of servers with https:// (default: those of the system)",
    )
    parser.add_argument(
        "--certificate",
        default="",
        metavar="FILE",
        help="PEM file with the own certificate of the server at --url: it is trusted and no other, whatever its name is",
    )
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
        help="chance of a wrong verdict, one-sided (default: 0.05)",
    )
    parser.add_argument("--judge", metavar="M3", help="the model that cases with a rubric are judged by")
    parser.add_argument("--judge-url", metavar="URL", help="its server, if it's another")
    parser.add_argument("--judge-key", default="", metavar="REF", help="the key of that other server")
    parser.add_argument("--judge-revision", default="", metavar="D", help="the revision that it must be")


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
        help="show every case of an acceptance set too; that is recorded, and after it the set is worth less",
    )
    parser.add_argument(
        "--for", dest="purpose", default="", metavar="TEXT", help="what the use is for, for the record"
    )
    parser.add_argument(
        "--seal",
        action="store_true",
        help="ask nothing: write number and digest of its cases into the first line of FILE",
    )


def _eval(arguments: argparse.Namespace) -> int:
    data = config.data_directory(arguments.data)
    if arguments.seal:
        header = case_files.seal(Path(arguments.cases))
        print(
            f"{arguments.cases}: {header.set} set {header.name} version {header.version}, {header.cases} cases"
        )
        print(header.digest)
        return PASSED
    for option in ("model", "url"):
        if not getattr(arguments, option):
            raise ConfigError(f"--{option} is needed to ask anybody")
    _check_trust(arguments)
    path = case_files.find(arguments.cases, arguments.set, data=data)
    cases = case_files.load(path, expected=arguments.set)
    judge = _judge(arguments)
    if judge is None and case_files.needs_judge(cases.cases):
        raise ConfigError(f"{path} has cases with a rubric: name the model that judges them with --judge")
    report = _run(arguments, cases, judge, data)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        _print(report, is_listed=arguments.list or arguments.unseal)
    return PASSED if report.verdict is None else STATUS[report.verdict]


def _check_trust(arguments: argparse.Namespace) -> None:
    """Raises ConfigError for files that would not be looked at: no server speaks TLS with us."""
    own = (arguments.compare_url, arguments.judge_url)
    for option, urls in (("ca", (arguments.url, *own)), ("certificate", (arguments.url,))):
        if getattr(arguments, option) and not any((url or "").startswith("https:") for url in urls):
            raise ConfigError(f"--{option} is for a server with https://, and there is none")


def _run(arguments: argparse.Namespace, cases: CaseSet, judge: Judge | None, data: Path) -> QualityReport:
    candidate = _asker(arguments, arguments.model)
    accepted = None
    if arguments.compare:
        accepted = _asker(arguments, arguments.compare, "compare")
    terms = Terms(
        margin=arguments.margin if accepted is not None else None,
        floor=arguments.floor,
        alpha=arguments.alpha,
        concurrency=arguments.concurrency,
        limit_s=arguments.time_limit,
    )
    log = None
    if cases.header.set is SetKind.ACCEPTANCE:
        log = UseLog(data, actor=identity.actor(), clock=_CLOCK)
        models = [arguments.model, *([arguments.compare] if arguments.compare else [])]
        log.begin(cases, models=models, purpose=arguments.purpose, is_unsealed=arguments.unseal)
    try:
        report = asyncio.run(
            quality.run(
                cases,
                candidate=candidate,
                accepted=accepted,
                terms=terms,
                clock=_CLOCK,
                judge=judge,
                is_open=arguments.unseal,
                purpose=arguments.purpose,
                progress=_progress(),
            )
        )
    except BaseExceptionGroup as errors:
        # Nobody reads the progress any more: whoever started this is gone, and needs no result.
        raise leaves(errors)[0] from None
    if log is not None:
        log.end(cases, report)
    return report


def _asker(arguments: argparse.Namespace, model: str, whose: str = "") -> Asker:
    """Whoever has a server of its own gets the key that is named for it, and never the other server's nor its certificate."""
    url, key = arguments.url, "key"
    if whose and (own_url := getattr(arguments, f"{whose}_url")):
        url, key = own_url, f"{whose}_key"
    reference = getattr(arguments, key)
    secret = config.resolve_secret(reference, key=f"--{key.replace('_', '-')}") if reference else ""
    return Asker(
        url,
        model,
        key=secret,
        deadline_s=arguments.deadline,
        clock=_CLOCK,
        ca_file=arguments.ca,
        certificate=arguments.certificate if key == "key" else "",
    )


def _judge(arguments: argparse.Namespace) -> Judge | None:
    if not arguments.judge:
        return None
    return Judge(_asker(arguments, arguments.judge, "judge"), pinned=arguments.judge_revision)


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


def _print(report: QualityReport, *, is_listed: bool) -> None:
    used = report.set
    print(
        f"{used.kind} set {used.name}, version {used.version}, {used.cases} cases, in {report.took_s:.1f} s"
    )
    print(f"{used.digest}\n")
    found = [each for each in (report.candidate, report.accepted) if each is not None]
    common.print_table(
        [_row(each) for each in found],
        headings=("model", "right", "wrong", "errors", "share", "at least", "at most", "cut", "revision"),
    )
    print()
    common.print_table(
        [
            (each.by, each.name, _tally(each.candidate), *([_tally(each.accepted)] if each.accepted else []))
            for each in report.strata
        ],
        headings=("by", "", *(each.model for each in found)),
    )
    for each in found:
        for what, counts in (("wrong", each.misses), ("errors", each.errors)):
            if counts:
                listed = ", ".join(f"{name} {count}" for name, count in counts.items())
                print(f"\n{each.model}, {what}: {listed}", end="")
    print("\n" if any(each.misses or each.errors for each in found) else "")
    if is_listed:
        _print_cases(report)
    if report.p is not None:
        print(f"McNemar's exact test, one-sided: p = {report.p:.4f}")
    print(f"{report.verdict.value if report.verdict is not None else 'measured'}: {report.detail}")


def _row(found: ModelFound) -> tuple[object, ...]:
    tally, share = found.tally, found.share
    return (
        found.model,
        tally.right,
        tally.wrong,
        tally.errors,
        *(None if each is None else f"{each:.1%}" for each in (share.estimate, share.low, share.high)),
        found.cut,
        ", ".join(found.revisions) or None,
    )


def _tally(tally: Tally) -> str:
    errors = f", {tally.errors} not answered" if tally.errors else ""
    return f"{tally.right} of {tally.right + tally.wrong}{errors}"


def _print_cases(report: QualityReport) -> None:
    for case in report.cases:
        print(f"{case.id} ({case.category})")
        print(f"  {case.candidate:6} {_short(case.candidate_text)} {_bracketed(case.candidate_miss)}")
        if case.accepted is not None:
            print(f"  {case.accepted:6} {_short(case.accepted_text)} {_bracketed(case.accepted_miss)}")
    print()


def _short(text: str) -> str:
    """One line of it, without what a terminal would obey."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _SHOWN_CHARACTERS else line[: _SHOWN_CHARACTERS - 3] + "..."


def _bracketed(miss: str) -> str:
    return f"({miss})" if miss else ""


def _number(text: str, *, least: float, most: float, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text!r}: {what}")
    return value


def _share(text: str) -> float:
    return _number(text, least=-1.0, most=1.0, what="a share such as 0.05")


def _chance(text: str) -> float:
    return _number(text, least=1e-9, most=0.5, what="a chance, above 0 and at most 0.5")


def _seconds(text: str) -> float:
    return _number(text, least=0.001, most=86_400.0, what="seconds, above 0 and at most 86400")

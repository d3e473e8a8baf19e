"""What do the embedded models get right? `headrace eval` on both sets of the document assistant, asked in three ways.

Without any excerpt, with all of them, and with the nearest ones and the rule of when to refuse. What is judged was declared below,
before anything was asked: the floor and the margin. Every use of the acceptance set is recorded in the data directory (`--data`)
as that of `headrace eval` is, and its answers stay sealed. How fast the machine is decides how long this takes and nothing else.

`--page FILE` writes the figures between the marks of a Markdown page, and leaves what stands around them.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, table
from headrace import config
from headrace.core.clock import SystemClock
from headrace.core.verdicts import Reason
from headrace.evidence.asking import Asker, Embedder
from headrace.evidence.drill_instance import CONFIG, HEADRACE, Instance, instance

CASES, MODEL, EMBEDDING_MODEL = "document-assistant", "smollm2-135m-instruct", "all-minilm-l6-v2"
FLOOR, MARGIN = 0.5, 0.1
"""Fit for a document assistant: at least every second answer right. As good as with all excerpts: not worse by more than a tenth."""
WAYS = {
    "no excerpts": ("--narrow", "0"),
    "nearest two, refusal rule": ("--narrow", "2", "--embedding-model", EMBEDDING_MODEL, "--refusal-rule"),
}
ALL = "all excerpts"
KINDS = ("tuning", "acceptance")
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
_CLOCK = SystemClock()
_READY_LIMIT_S = 120.0
_ANSWER_LIMIT_S = 600.0
_RUN_LIMIT_S = 4 * 3600.0
_REASONS = {Reason.INSENSITIVE: ": one that gets nothing right would pass too"}
_WORDS = {"pass": "pass", "fail": "fail", "inconclusive": "not enough evidence", "error": "not made"}


def _facts() -> dict[str, Any]:
    """Of the machine and the versions what answers may depend on: no rate, no load."""
    facts = machine.facts()
    versions = {name: facts["versions"][name] for name in ("headrace", "python", "xllamacpp")}
    return {"date": facts["date"], "cpu": facts["cpu"], "cores": facts["cores"], "versions": versions}


async def _until_ready(running: Instance, key: str, model: str) -> None:
    url = f"http://127.0.0.1:{running.port}"
    chat = Asker(url, model, key=key, deadline_s=_ANSWER_LIMIT_S, clock=_CLOCK)
    embedder = Embedder(url, EMBEDDING_MODEL, key=key, deadline_s=_ANSWER_LIMIT_S, clock=_CLOCK)
    async with asyncio.timeout(_READY_LIMIT_S):
        while True:
            said = await chat.ask([{"role": "user", "content": "hello"}], output_tokens_max=1)
            if not (said.error or (await embedder.embed(["hello"])).error):
                return
            await asyncio.sleep(0.5)


def _asked(cases: str, kind: str, way: str, model: str) -> list[str]:
    return [
        *("eval", "--cases", cases, "--set", kind, "--model", model, *WAYS[way], "--compare", model),
        *("--margin", str(MARGIN), "--floor", str(FLOOR), "--concurrency", "2", "--deadline", "600", "--json"),
    ]  # fmt: skip


async def _evaluated(running: Instance, data: Path, asked: Sequence[str]) -> dict[str, Any]:
    """The report, without the texts of answers. Its progress goes to standard error."""
    process = await asyncio.create_subprocess_exec(
        *(*HEADRACE, *asked, "--url", f"http://127.0.0.1:{running.port}", "--key", f"file:{running.folder / 'key'}"),
        *("--time-limit", str(_RUN_LIMIT_S), "--data", str(data), "--for", "benchmarks.quality"),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    told, _ = await process.communicate()
    report: dict[str, Any] = json.loads(told)
    report["cases"] = [
        {name: value for name, value in case.items() if not name.endswith("_text")}
        for case in report["cases"]
    ]
    return report


async def _run(data: Path, model: str, cases: str, kinds: Sequence[str]) -> list[dict[str, Any]]:
    settings = CONFIG.replace('chat_model = ""', f'chat_model = "{model}"')
    settings = settings.replace('embedding_model = ""', f'embedding_model = "{EMBEDDING_MODEL}"')
    runs = []
    async with instance(_CLOCK, config_text=settings, models=data / "models") as running:
        key = (await running.command("keys", "create", "--tenant", "quality")).strip()
        (running.folder / "key").write_text(key)
        await _until_ready(running, key, model)
        for kind in kinds:
            for way in WAYS:
                asked = _asked(cases, kind, way, model)
                print(f"{kind}, {way}", file=sys.stderr, flush=True)
                report = await _evaluated(running, data, asked)
                command = " ".join(["headrace", *asked, "--url", "URL", "--key", "file:KEY"])
                runs.append({"set": kind, "way": way, "command": command, "report": report})
    return runs


def figures(found: dict[str, Any]) -> str:
    """All tables, as Markdown."""
    runs = {(run["set"], run["way"]): run["report"] for run in found["runs"]}
    kinds = [kind for kind in KINDS if any(kind == each for each, _ in runs)]
    parts = [_answers(runs, kinds), _verdicts(runs, kinds)]
    parts += [
        f"### {by}, {kind} set\n\n{_strata(runs, kind, of)}"
        for by, of in (
            ("By language", "language"),
            ("By category", "category"),
            ("By kind of check", "check"),
        )
        for kind in kinds
    ]
    return "\n\n".join(parts)


def _answers(runs: dict[tuple[str, str], Any], kinds: Sequence[str]) -> str:
    rows = []
    for kind in kinds:
        reports = {way: runs[kind, way] for way in WAYS}
        listed = [(way, report["candidate"]) for way, report in reports.items()]
        listed.insert(1, (ALL, reports[list(WAYS)[-1]]["accepted"]))
        listed.append((f"{ALL}, asked again", reports[next(iter(WAYS))]["accepted"]))
        rows += [
            (kind, way, _share(each["tally"], each["share"]), str(each["tally"]["errors"]), str(each["cut"]))
            for way, each in listed
        ]
    return _table(("set", "asked with", "right", "not answered", "cut at its limit of tokens"), rows)


def _verdicts(runs: dict[tuple[str, str], Any], kinds: Sequence[str]) -> str:
    rows = []
    for kind in kinds:
        for way in WAYS:
            report = runs[kind, way]
            floor, compared = report["floor"], report["comparison"]
            look = (report.get("look") or {}).get("number", "-")
            measure = compared["measure"]
            difference = (
                f"{_points(measure['estimate'])} ({_points(measure['low'])} to {_points(measure['high'])})"
            )
            rows.append(
                (
                    *(kind, way, str(look), f"{compared['alpha']:.3g}", difference),
                    _WORDS[compared["verdict"]] + _REASONS.get(compared["reason"], ""),
                    _WORDS[floor["verdict"]],
                )
            )
    return _table(
        (
            *("set", "asked with", "look", "alpha", f"less {ALL}, points"),
            *(f"not worse by more than {100 * MARGIN:.0f} points", f"at least {100 * FLOOR:.0f} % right"),
        ),
        rows,
    )


def _strata(runs: dict[tuple[str, str], Any], kind: str, by: str) -> str:
    reports = [runs[kind, way] for way in WAYS]
    of = [
        {each["name"]: each for each in report["strata"] if each["by"] == by} for report in reports
    ]  # a stratum is in both or in neither: they are of the same cases
    rows = []
    for name, last in of[-1].items():
        first, difference = of[0][name], last["difference"]
        rows.append(
            (
                name,
                _share(first["candidate"], first["share"]),
                _share(last["accepted"], last["accepted_share"]),
                _share(last["candidate"], last["share"]),
                f"{_points(difference['estimate'])} ({_points(difference['low'])} to {_points(difference['high'])})",
            )
        )
    first_way, last_way = WAYS
    return _table(("", first_way, ALL, last_way, "last less all excerpts, points"), rows)


def _share(tally: dict[str, int], share: dict[str, float | None]) -> str:
    said = f"{tally['right']} of {tally['right'] + tally['wrong']}"
    if share["low"] is None or share["high"] is None:
        return said
    return f"{said} ({share['low']:.0%} to {share['high']:.0%})".replace("%", " %")


def _points(difference: float | None) -> str:
    return "-" if difference is None else f"{100 * difference:+.0f}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def lines() -> Iterator[str]:
        yield f"| {' | '.join(headings)} |"
        yield "|" + "---|" * len(headings)
        for row in rows:
            yield f"| {' | '.join(row)} |"

    return "\n".join(lines())


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="data directory: its models, and the record of uses"
    )
    parser.add_argument("--model", default=MODEL, metavar="M", help=f"a stored chat model (default: {MODEL})")
    parser.add_argument("--cases", default=CASES, metavar="NAME", help=f"a set of cases (default: {CASES})")
    parser.add_argument("--set", choices=KINDS, action="append", help="only this set (default: both)")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="a page with marks, whose figures are replaced"
    )
    table.add_json_argument(parser, "quality")
    arguments = parser.parse_args(argv)
    data = config.data_directory(str(arguments.data) if arguments.data else None)
    facts = _facts()
    runs = asyncio.run(_run(data, arguments.model, arguments.cases, arguments.set or KINDS))
    found = {
        "model": arguments.model, "embedding_model": EMBEDDING_MODEL, "floor": FLOOR, "margin": MARGIN, "runs": runs
    }  # fmt: skip
    print(figures(found))
    if arguments.page is not None:
        before, _, rest = arguments.page.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        arguments.page.write_text(f"{before}{BEGIN}\n\n{figures(found)}\n\n{END}{after}", encoding="utf-8")
    print(f"\nreports: {table.write_json(arguments.json, 'quality', facts, found)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

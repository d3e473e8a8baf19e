"""Scripted revisions that answer the cases that come with headrace, well or badly, and `headrace eval`."""

import contextlib
import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.cli.main import main
from headrace.evidence import cases
from headrace.policies.quality import SetKind
from tests.support.scripted import ScriptedEngine, scripted_engine

ANSWERS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("answers.json").read_text(encoding="utf-8")
)
OWN = cases.OWN_SETS / "document-assistant"


def answers(known: dict[str, Any], *kinds: str) -> list[str]:
    """The known answers of a case of some kinds: `good` and `fine` ones are right, `bad` and `worse` ones wrong."""
    found = [known[kind] for kind in kinds if kind in known]
    return [text for each in found for text in ([each] if isinstance(each, str) else each)]


def own_set(kind: SetKind) -> cases.CaseSet:
    return cases.load(OWN / f"{kind}.jsonl", expected=kind)


def table(kind: SetKind, *, bad: Iterable[str] = ()) -> dict[str, str]:
    """What a revision says to each question of a set: the right thing, but for the cases named."""
    wrong = set(bad)
    return {
        case.question: ANSWERS[case.id]["bad" if case.id in wrong else "good"] for case in own_set(kind).cases
    }


def ids(kind: SetKind) -> list[str]:
    return [case.id for case in own_set(kind).cases]


@contextmanager
def revision(
    kind: SetKind = SetKind.ACCEPTANCE, *, bad: Iterable[str] = (), faults: str = ""
) -> Iterator[ScriptedEngine]:
    with scripted_engine(
        answers=table(kind, bad=bad), faults=faults, models=("chat@v3", "chat@v4")
    ) as engine:
        yield engine


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    returncode: int
    stdout: str
    stderr: str


def evaluate(data: Path, *arguments: str) -> Done:
    """Runs `headrace eval` with a data directory of the test's own, in this process: it starts in no time."""
    out, complaints = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(complaints):
        try:
            status = main(["eval", "--data", str(data), *arguments])
        except SystemExit as ended:  # argparse's own way out
            status = int(ended.code or 0)
    return Done(status, out.getvalue(), complaints.getvalue())


def report(done: Done) -> dict[str, Any]:
    assert done.stdout, done.stderr
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed

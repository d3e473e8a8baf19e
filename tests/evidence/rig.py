"""Scripted revisions that answer the cases that come with headrace, well or badly, and `headrace eval` as a process."""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.evidence import cases
from headrace.policies.quality import SetKind
from tests.support.scripted import ScriptedEngine, scripted_engine

ANSWERS: dict[str, dict[str, str]] = json.loads(
    Path(__file__).with_name("answers.json").read_text(encoding="utf-8")
)
OWN = cases.OWN_SETS / "document-assistant"
EVAL_LIMIT_S = 120.0


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


def evaluate(data: Path, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    """Runs `headrace eval` with a data directory of the test's own."""
    command = [sys.executable, "-m", "headrace", "eval", "--data", str(data), *arguments]
    return subprocess.run(command, capture_output=True, timeout=EVAL_LIMIT_S, check=False)


def report(done: "subprocess.CompletedProcess[bytes]") -> dict[str, Any]:
    assert done.stdout, done.stderr.decode()
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed

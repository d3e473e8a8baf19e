"""The report on the embedded models: its tables say what its JSON says, its acceptance answers are sealed, its commands exist."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from benchmarks import quality
from headrace.cli.main import parser
from headrace.evidence import cases
from headrace.policies.quality import SetKind

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
PAGE = (EVIDENCE / "quality-embedded.md").read_text(encoding="utf-8")
FOUND: dict[str, Any] = json.loads((EVIDENCE / "quality-embedded.json").read_text(encoding="utf-8"))


def test_the_tables_of_the_page_are_those_of_its_json() -> None:
    _, _, rest = PAGE.partition(quality.BEGIN)
    assert rest.partition(quality.END)[0].strip() == quality.figures(FOUND)


def test_every_set_was_asked_in_every_way_and_is_of_the_cases_that_come_along() -> None:
    kinds = {run["set"] for run in FOUND["runs"]}
    assert {(run["set"], run["way"]) for run in FOUND["runs"]} == {
        (kind, way) for kind in kinds for way in quality.WAYS
    }
    for run in FOUND["runs"]:
        own = cases.read(cases.OWN_SETS / quality.CASES / f"{run['set']}.jsonl")
        assert run["report"]["set"]["digest"] == own.header.digest, "the sets were changed: measure again"


def test_no_sealed_case_is_in_it() -> None:
    acceptance = [run["report"] for run in FOUND["runs"] if run["set"] == SetKind.ACCEPTANCE]
    assert all(not report["cases"] for report in acceptance)
    sealed = cases.read(cases.OWN_SETS / quality.CASES / "acceptance.jsonl").cases
    told = PAGE + json.dumps(FOUND, ensure_ascii=False)
    assert [case.id for case in sealed if case.id in told or case.question in told] == []


@pytest.mark.parametrize("run", FOUND["runs"], ids=lambda run: f"{run['set']}-{run['way']}")
def test_its_commands_are_ones_that_headrace_knows(run: dict[str, Any]) -> None:
    program, *arguments = shlex.split(run["command"])
    assert program == "headrace"
    assert parser("eval").parse_args(arguments).model == FOUND["model"]

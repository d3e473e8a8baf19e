"""Nothing of a sealed case becomes known, by whatever way a run tells of itself, until somebody unseals it and says why."""

import logging
import re
from pathlib import Path

import pytest

from headrace.evidence import cases
from headrace.evidence.asking import Reply
from headrace.evidence.quality_found import OTHERS, SEALED_STRATUM_MIN, Answers, Graded, Terms
from headrace.evidence.quality_found import report as summed_up
from headrace.policies.quality import Mark, SetKind
from tests.evidence.rig import ANSWERS, Done, answers, evaluate, ids, own_set, report, revision
from tests.support.model_server import model_server

pytestmark = pytest.mark.slow
ACCEPTANCE = ("--cases", "document-assistant", "--set", "acceptance", "--model", "chat@v4")
SECRETS = [
    text
    for case in own_set(SetKind.ACCEPTANCE).cases
    for text in (
        case.id,
        case.question,
        *answers(ANSWERS[case.id], "good", "bad"),
        *(passage.text for passage in case.passages),
    )
]


def leaked(shown: str) -> list[str]:
    return [text for text in SECRETS if text in shown]


def told(done: Done, *files: Path) -> str:
    return done.stdout + done.stderr + "".join(file.read_text() for file in files)


@pytest.mark.parametrize("faults", ["", "error:503@1/3", "cut:3@1/5"])
def test_no_way_of_telling_shows_a_sealed_case(
    tmp_path: Path, faults: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Table, list, JSON, page, progress, logs, the record of uses, and what an engine's failures are told by."""
    caplog.set_level(logging.DEBUG)
    with revision(bad=ids(SetKind.ACCEPTANCE)[::3], faults=faults) as engine:
        asked = (*ACCEPTANCE, "--url", engine.url, "--compare", "chat@v3", "--floor", "0.5")
        for number, options in enumerate(((), ("--list",), ("--json",), ("--json", "--list"))):
            page = tmp_path / f"{number}.html"
            done = evaluate(tmp_path, *asked, *options, "--html", str(page))
            assert not leaked(told(done, page))
    assert not leaked(caplog.text)
    record = b"".join(file.read_bytes() for file in tmp_path.glob("headrace.db*"))
    assert not leaked(record.decode(errors="replace"))


def test_a_server_cannot_put_an_answer_into_the_reason_of_its_refusal(tmp_path: Path) -> None:
    """Errors are counted by their reasons, and those come from outside."""
    reason = {"x-headrace-reason": "the answer to en-printer-toner is 150"}
    with model_server(lambda _, body: (500, reason, b"{}")) as server:
        done = evaluate(tmp_path, *ACCEPTANCE, "--url", server.url, "--json")
    assert report(done)["candidate"]["errors"] == {"500": 70}


def test_a_broken_set_says_where_and_not_what(tmp_path: Path) -> None:
    """What is wrong with a sealed file is told by line and id, for its author; its texts and answers are not."""
    own = cases.OWN_SETS / "document-assistant" / "acceptance.jsonl"
    path = tmp_path / "acceptance.jsonl"
    texts = [text for text in SECRETS if not re.fullmatch(r"[a-z0-9-]+", text)]
    for old, new in (
        (b'"numeric"', b'"numerical"'),
        (b'"passages": ["2"]', b'"passages": ["9"]'),
        (b"150", b"151"),
    ):
        path.write_bytes(own.read_bytes().replace(old, new))
        done = evaluate(
            tmp_path, "--cases", str(path), "--set", "acceptance", "--model", "m", "--url", "http://h"
        )
        assert done.returncode == 2
        assert not [text for text in texts if text in told(done)]


def test_a_case_is_not_known_by_being_alone_in_its_category() -> None:
    """A stratum of one would tell the mark of its case, and so would all the others together with the sum."""
    found = own_set(SetKind.ACCEPTANCE)
    for few, shown in ((["date"], None), (["date", "table", "long"], 3)):
        kept = [case for case in found.cases if case.category in ("answerable", "numeric")]
        kept += [next(case for case in found.cases if case.category == each) for each in few]
        some = cases.CaseSet(found.header, tuple(kept))
        graded = [Graded(Reply("x"), Mark.RIGHT) for _ in kept]
        strata = summed_up(some, [Answers("m", "", graded)], terms=Terms(), judge=None, is_open=False).strata
        by_category = {each.name: each.candidate.right for each in strata if each.by == "category"}
        assert all(count >= SEALED_STRATUM_MIN for count in by_category.values())
        assert by_category.get(OTHERS) == shown


def test_a_kind_of_check_that_few_sealed_cases_have_is_not_shown() -> None:
    found = own_set(SetKind.ACCEPTANCE)
    kept = [case for case in found.cases if case.category == "answerable"]
    few = next(case for case in found.cases if case.category == "refusal")
    some = cases.CaseSet(found.header, (*kept, few))
    graded = [
        Graded(
            Reply("x"),
            Mark.RIGHT,
            checks={str(check.__struct_config__.tag): Mark.RIGHT for check in case.checks},
        )
        for case in some.cases
    ]
    for is_open in (False, True):
        strata = summed_up(
            some, [Answers("m", "", graded)], terms=Terms(), judge=None, is_open=is_open
        ).strata
        counts = {each.name: each.candidate.right for each in strata if each.by == "check"}
        assert ("refuses" in counts) is is_open
        assert counts["cites"] == len(kept)


def test_unsealing_takes_a_reason(tmp_path: Path) -> None:
    with revision() as engine:
        done = evaluate(tmp_path, *ACCEPTANCE, "--url", engine.url, "--unseal")
        assert done.returncode == 2
        assert "--for" in done.stderr
        assert engine.stats()["requests"] == 0
        opened = evaluate(tmp_path, *ACCEPTANCE, "--url", engine.url, "--unseal", "--for", "why v4 failed")
    assert leaked(opened.stdout)

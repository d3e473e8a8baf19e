"""Sets that were written for other programs become sets of one's own: what can be checked is taken, the rest is named with why."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import ConfigError
from headrace.evidence import cases, importing
from headrace.evidence.cases import CaseSet
from headrace.evidence.foreign_cases import Format
from headrace.evidence.importing import Imported
from headrace.policies.grading import (
    Answers,
    Contains,
    Exact,
    Json,
    Judged,
    Numeric,
    Refuses,
)
from headrace.policies.quality import SetKind
from tests.evidence.rig import OWN, Done, evaluate


def converted(folder: Path, text: str, kind: Format, *, is_exact: bool = False) -> tuple[Imported, CaseSet]:
    source = folder / "source"
    source.write_text(text)
    target = folder / "mine" / "tuning.jsonl"
    found = importing.convert(source, kind, target, into=SetKind.TUNING, language="en", is_exact=is_exact)
    return found, cases.load(target, expected=SetKind.TUNING)


def lines(*rows: Any) -> str:
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)


def test_squad_has_contexts_as_passages_and_impossible_questions_as_missing_evidence(tmp_path: Path) -> None:
    paragraph = {
        "context": "The bridge is 214 metres long.",
        "qas": [
            {"id": "a/1", "question": "How long is it?", "answers": [{"text": "214 metres"}, {"text": "214 metres"}]},
            {"id": "a/2", "question": "How old is it?", "answers": [], "is_impossible": True},
            {"id": "a/3", "question": "Who built it?", "answers": []},
            {"id": "a/4"},
        ],
    }  # fmt: skip
    text = json.dumps({"data": [{"title": "Old_Bridge", "paragraphs": [paragraph]}]})
    found, written = converted(tmp_path, text, Format.SQUAD)
    assert (found.taken, found.categories) == (2, {"answerable": 1, "missing": 1})
    assert found.left == {"has no answer": (1, "question 3"), "has no question": (1, "question 4")}
    first, second = written.cases
    assert first.id == "a-1"
    assert first.passages[0].title == "Old Bridge"
    assert first.checks == (Contains(all=(("214 metres",),)), Answers())
    assert second.checks == (Refuses("missing"),)
    assert written.header.name == "mine"
    assert written.header.digest == found.header.digest


def test_chats_with_an_ideal_answer(tmp_path: Path) -> None:
    text = lines(
        {
            "input": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Two and two?"},
            ],
            "ideal": ["4", "four"],
        },
        {"input": "Capital of Peru?", "ideal": "Lima"},
        {"input": "Nothing", "ideal": []},
        {"input": [{"role": "user", "content": [{"type": "image_url"}]}], "ideal": "x"},
        "{",
    )
    found, written = converted(tmp_path, text, Format.OPENAI_EVALS)
    assert [case.question for case in written.cases] == ["Be brief.\n\nTwo and two?", "Capital of Peru?"]
    assert written.cases[0].checks[0] == Contains(all=(("4", "four"),))
    assert found.left == {
        "has no ideal": (1, "line 3"),
        "has no input that is text": (1, "line 4"),
        "is no JSON object": (1, "line 5"),
    }


def test_samples_with_a_target_or_with_choices(tmp_path: Path) -> None:
    text = lines(
        {"id": 7, "input": "How many?", "target": "1,200"},
        {"id": 7, "input": "Which?", "choices": ["red", "blue"], "target": "B"},
        {"id": "x", "input": "Say it", "target": 3.5},
    )
    _, written = converted(tmp_path, text, Format.INSPECT)
    assert [case.id for case in written.cases] == ["7", "7-2", "x"]
    assert written.cases[0].checks == (Numeric(1200),)
    assert written.cases[1].question.endswith("A) red\nB) blue\nAnswer with the letter alone.")
    assert written.cases[1].checks == (Exact(("B",)),)
    assert written.cases[2].checks == (Numeric(3.5),)


def test_documents_with_a_target(tmp_path: Path) -> None:
    text = lines(
        {"doc_id": 3, "doc": {"question": "How much?", "passage": "It is 18."}, "target": "so\n#### 18"},
        {"question": "Who?", "answer": "Ada"},
        {"doc": {"question": "Which?", "choices": ["a"]}, "target": 0},
        {"doc": {"text": "?"}, "target": "x"},
        {"doc": "?", "target": "x"},
        {"doc": {"question": "Why?"}},
    )
    found, written = converted(tmp_path, text, Format.LM_EVAL, is_exact=True)
    assert written.cases[0].passages[0].text == "It is 18."
    assert written.cases[0].checks == (Exact(("18",)),)
    assert written.cases[1].checks == (Exact(("Ada",)),)
    assert sorted(count for count, _ in found.left.values()) == [1, 1, 1, 1]


def test_promptfoo_as_csv_and_as_json(tmp_path: Path) -> None:
    text = (
        "question,context,__expected,__expected2\n"
        '"How long?","14 days.","contains: 14 days","not-contains:30"\n'
        "Say yes,,yes,\n"
        "As JSON?,,is-json,\n"
        "Like it?,,similar:good,\n"
        "Any?,,,\n"
    )
    (tmp_path / "csv").mkdir()
    found, written = converted(tmp_path / "csv", text, Format.PROMPTFOO)
    assert [case.checks for case in written.cases] == [
        (Contains(all=(("14 days",),)), Contains(none=("30",))),
        (Exact(("yes",)),),
        (Json({}),),
    ]
    assert found.left == {
        "expects 'similar', which is not checked here": (1, "row 5"),
        "expects nothing": (1, "row 6"),
    }
    tests = [
        {"vars": {"query": "Both?"}, "assert": [{"type": "contains-all", "value": ["a", "b"]}]},
        {"vars": {"query": "One?"}, "assert": [{"type": "contains-any", "value": "a, b"}]},
        {"vars": {"query": "Tone?"}, "assert": [{"type": "llm-rubric", "value": "is kind"}]},
        {"vars": {"query": "Shape?"}, "assert": [{"type": "is-json", "value": {"pattern": "x"}}]},
        {"vars": {"query": "Code?"}, "assert": [{"type": "javascript", "value": "output > 3"}]},
        {"vars": {"other": 1}, "assert": []},
        {"description": "none"},
        {"vars": {"query": "Odd?"}, "assert": ["x"]},
    ]
    (tmp_path / "json").mkdir()
    found, written = converted(tmp_path / "json", json.dumps({"tests": tests}), Format.PROMPTFOO)
    assert [case.checks for case in written.cases] == [
        (Contains(all=(("a",), ("b",))),),
        (Contains(all=(("a", "b"),)),),
        (Judged("is kind"),),
    ]
    assert sum(count for count, _ in found.left.values()) == 5


def test_cases_of_ones_own_form_with_or_without_a_header(tmp_path: Path) -> None:
    content = (OWN / "tuning.jsonl").read_text().splitlines()
    (tmp_path / "with").mkdir()
    found, _ = converted(tmp_path / "with", "\n".join(content), Format.HEADRACE)
    assert (found.taken, found.left) == (70, {})
    (tmp_path / "without").mkdir()
    found, _ = converted(tmp_path / "without", "\n".join([*content[1:5], '{"id": 1}', ""]), Format.HEADRACE)
    assert (found.taken, found.left) == (4, {"is no case of this form": (1, "line 5")})


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (Format.SQUAD, "{}", "SQuAD"),
        (Format.SQUAD, '{"data": [1]}', "SQuAD"),
        (Format.PROMPTFOO, "{", "neither CSV nor JSON"),
        (Format.PROMPTFOO, '{"tests": 1}', "no list of tests"),
        (Format.INSPECT, "", "0 can be taken"),
        (Format.INSPECT, '{"input": "x"}', r"has no target \(1, first line 1\)"),
    ],
)
def test_a_file_of_another_form_is_refused_with_what_is_wrong(
    tmp_path: Path, kind: Format, text: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        converted(tmp_path, text, kind)
    assert not (tmp_path / "mine").exists()


def imported(folder: Path, *arguments: str) -> Done:
    return evaluate(folder, "import", str(folder / "source"), "--format", "inspect", *arguments)


def test_the_command_says_what_was_taken_and_left_and_does_not_write_over_anything(tmp_path: Path) -> None:
    (tmp_path / "source").write_text(lines({"input": "How many?", "target": "12"}, {"input": "Why?"}))
    out = tmp_path / "mine" / "acceptance.jsonl"
    done = imported(tmp_path, "--out", str(out), "--set", "acceptance")
    assert done.returncode == 0, done.stderr
    assert "acceptance set mine, 1 cases taken: answerable 1" in done.stdout
    assert "left out 1, the first is line 2: has no target" in done.stdout
    assert cases.load(out, expected=SetKind.ACCEPTANCE).header.cases == 1
    again = imported(tmp_path, "--out", str(out), "--set", "acceptance")
    assert again.returncode == 2
    assert "there already" in again.stderr
    other = imported(tmp_path, "--out", str(tmp_path / "tuning.jsonl"), "--set", "acceptance")
    assert other.returncode == 2
    as_json = imported(tmp_path, "--out", str(tmp_path / "x.jsonl"), "--json")
    assert json.loads(as_json.stdout)["left_out"] == [
        {"reason": "has no target", "cases": 1, "first": "line 2"}
    ]


def test_what_is_in_the_other_set_already_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "source").write_text(lines({"input": "How many?", "target": "12"}))
    assert imported(tmp_path, "--out", str(tmp_path / "mine" / "tuning.jsonl")).returncode == 0
    both = imported(tmp_path, "--out", str(tmp_path / "mine" / "acceptance.jsonl"), "--set", "acceptance")
    assert both.returncode == 2
    assert "in common by their id" in both.stderr
    assert not (tmp_path / "mine" / "acceptance.jsonl").exists()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for content, words in ((None, "No such file"), (b"\xff\xfe", "not UTF-8")):
        if content is not None:
            (tmp_path / "source").write_bytes(content)
        done = imported(tmp_path, "--out", str(tmp_path / "x.jsonl"))
        assert done.returncode == 2
        assert words in done.stderr

"""Sets of cases: what a file must be, that two sets stay apart, and that every case that we ship can be answered."""

from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.core.errors import ConfigError
from headrace.evidence import cases
from headrace.evidence.cases import Case, CaseSet
from headrace.policies import grading, likeness
from headrace.policies.quality import SetKind
from tests.evidence.rig import ANSWERS, OWN, answers, own_set

HEADER: dict[str, Any] = {
    "name": "mine",
    "set": "acceptance",
    "version": 1,
    "instructions": {"en": "Answer."},
}


def case(id: str = "one", **fields: Any) -> dict[str, Any]:
    return {
        "id": id,
        "language": "en",
        "category": "answerable",
        "passages": [{"id": "1", "text": f"About {id}: 14 days."}],
        "question": f"How long is {id}?",
        "checks": [{"kind": "numeric", "value": 14, "units": ["days"]}],
        **fields,
    }


def written(path: Path, *lines: object, is_sealed: bool = True) -> Path:
    path.write_bytes(b"\n".join(msgspec.json.encode(line) for line in lines) + b"\n")
    if is_sealed:
        cases.seal(path)
    return path


def load(path: Path) -> CaseSet:
    return cases.load(path, expected=SetKind.ACCEPTANCE)


@pytest.mark.parametrize("kind", list(SetKind))
def test_every_case_that_comes_with_headrace_passes_good_answers_and_fails_plausible_bad_ones(
    kind: SetKind,
) -> None:
    for each in own_set(kind).cases:
        known = ANSWERS[each.id]
        for is_right, texts in ((True, ("good", "fine")), (False, ("bad", "worse"))):
            for text in answers(known, *texts):
                misses = [grading.grade(check, text, each.given) for check in each.checks]
                assert any(misses) is not is_right, (each.id, text, misses)


HARD = {"missing", "conflict", "newer", "refusal", "advice", "injection"}
PLAIN = {"answerable", "combined", "numeric", "date", "table", "format", "distractor", "citation", "long"}


def test_the_sets_that_come_with_headrace_have_both_languages_and_every_category_in_each() -> None:
    for kind in SetKind:
        found = own_set(kind).cases
        assert len(found) >= 60
        assert Counter(each.language for each in found)["zh"] >= len(found) / 4
        for language in ("en", "zh"):
            categories = {each.category for each in found if each.language == language}
            assert categories == HARD | PLAIN
        assert min(Counter(each.category for each in found).values()) >= 3
        longest = sorted(sum(len(passage.text) for passage in each.passages) for each in found)[-3:]
        assert longest[0] > 1500  # characters, in Chinese about as many tokens
        assert longest[1] > 7000


def test_no_case_is_in_both_sets_that_come_with_headrace() -> None:
    """`load` would refuse; here without it, by every id, question and passage, and by passages that are nearly the same."""
    both = [own_set(kind).cases for kind in SetKind]
    for of in (_ids, _questions, _texts):
        assert not of(both[0]) & of(both[1])
    assert max(likeness.contained(some, others) for some, others in product(*map(_texts, both))) < 0.3


def _ids(found: tuple[Case, ...]) -> set[str]:
    return {each.id for each in found}


def _questions(found: tuple[Case, ...]) -> set[str]:
    return {each.question for each in found}


def _texts(found: tuple[Case, ...]) -> set[str]:
    return {passage.text for each in found for passage in each.passages}


def test_a_set_is_found_by_its_file_by_its_name_and_in_the_data_directory_first(tmp_path: Path) -> None:
    assert cases.find("x/y.jsonl", SetKind.TUNING, data=tmp_path) == Path("x/y.jsonl")
    assert cases.find("document-assistant", SetKind.TUNING, data=tmp_path) == OWN / "tuning.jsonl"
    mine = tmp_path / "cases" / "document-assistant"
    mine.mkdir(parents=True)
    written(mine / "tuning.jsonl", {**HEADER, "set": "tuning"}, case())
    assert cases.find("document-assistant", SetKind.TUNING, data=tmp_path) == mine / "tuning.jsonl"
    with pytest.raises(ConfigError, match="document-assistant"):
        cases.find("nothing", SetKind.ACCEPTANCE, data=tmp_path)


def test_a_set_that_was_changed_after_it_was_sealed_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "acceptance.jsonl", HEADER, case())
    assert load(path).header.cases == 1
    path.write_bytes(path.read_bytes().replace(b"14 days", b"15 days"))
    with pytest.raises(ConfigError, match="changed after it was sealed"):
        load(path)
    cases.seal(path)
    assert load(path).label == "mine/acceptance@1"


def test_how_a_file_is_laid_out_does_not_change_its_digest(tmp_path: Path) -> None:
    path = written(tmp_path / "acceptance.jsonl", HEADER, case())
    path.write_bytes(path.read_bytes().replace(b'","', b'", "') + b"\n\n")
    assert load(path).header.cases == 1


def test_the_other_set_is_not_taken_for_the_one_that_was_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path / "set.jsonl", HEADER, case())
    with pytest.raises(ConfigError, match="its use is recorded"):
        cases.load(path, expected=SetKind.TUNING)
    tuning = written(tmp_path / "tuning.jsonl", {**HEADER, "set": "tuning"}, case("other"))
    with pytest.raises(ConfigError, match="is the tuning set"):
        load(tuning)


@pytest.mark.parametrize(
    ("twin", "by"),
    [
        (case("one", question="Another question?"), "id"),
        (
            case("two", question=" HOW long is  one?", passages=[{"id": "3", "text": "About ONE: 14 days."}]),
            "text",
        ),
    ],
)
def test_a_case_that_is_in_both_sets_is_an_error_whichever_is_loaded(
    tmp_path: Path, twin: dict[str, Any], by: str
) -> None:
    acceptance = written(tmp_path / "acceptance.jsonl", HEADER, case("one"), case("five"))
    written(tmp_path / "tuning.jsonl", {**HEADER, "set": "tuning"}, twin)
    with pytest.raises(ConfigError, match=f"in common by their {by}"):
        load(acceptance)
    with pytest.raises(ConfigError, match=f"in common by their {by}"):
        cases.load(tmp_path / "tuning.jsonl", expected=SetKind.TUNING)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((), "empty"),
        ((HEADER,), "1 to"),
        (({**HEADER, "set": "both"}, case()), "header"),
        (({**HEADER, "colour": "red"}, case()), "colour"),
        ((HEADER, case(language="fr")), "no instruction in language"),
        ((HEADER, case(), case()), "two cases have the id one"),
        ((HEADER, case(checks=[])), ":2:"),
        ((HEADER, case(checks=[{"kind": "guess"}])), "guess"),
        ((HEADER, case(checks=[{"kind": "cites", "passages": ["7"]}])), "no passage '7'"),
        ((HEADER, case(checks=[{"kind": "json", "schema": {"pattern": "(a+)+"}}])), "pattern"),
        ((HEADER, case(passages=[{"id": "one two", "text": ""}])), ":2:"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(
    tmp_path: Path, lines: tuple[dict[str, Any], ...], words: str
) -> None:
    path = written(tmp_path / "acceptance.jsonl", *lines, is_sealed=False)
    if not lines:
        path.write_bytes(b"")
    with pytest.raises(ConfigError, match=words):
        cases.read(path)


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.jsonl"):
        cases.read(tmp_path / "none.jsonl")
    (tmp_path / "a.jsonl").write_bytes(msgspec.json.encode(HEADER) + b"\n\xff\xfe\n")
    with pytest.raises(ConfigError, match=r"a\.jsonl:2"):
        cases.read(tmp_path / "a.jsonl")


def test_the_prompt_is_the_instruction_then_the_passages_under_their_numbers_then_the_question() -> None:
    found = own_set(SetKind.TUNING)
    system, user = cases.messages(found.cases[0], found.header)
    assert system == {"role": "system", "content": found.header.instructions["en"]}
    assert user["content"].startswith("[1] Opening hours: The reading room")
    assert user["content"].endswith("\n\n" + found.cases[0].question)
    bare = msgspec.structs.replace(found.cases[0], passages=())
    assert cases.messages(bare, found.header)[1]["content"] == bare.question


def test_whether_a_judge_is_needed_is_known_before_anybody_is_asked() -> None:
    plain = own_set(SetKind.TUNING).cases
    judged = msgspec.structs.replace(plain[0], checks=(grading.Judged("It is polite."),))
    assert not cases.needs_judge(plain)
    assert cases.needs_judge([*plain, judged])

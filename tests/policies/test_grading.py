"""Checks of one answer: a right one in other words passes, a wrong one that looks like it doesn't."""

from typing import Any

import msgspec
import pytest

from headrace.policies import grading
from headrace.policies.grading import (
    Answers,
    Check,
    Cites,
    Claim,
    Contains,
    Exact,
    Given,
    Json,
    Judged,
    Miss,
    Numeric,
    Refuses,
    Supported,
)

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"days": {"type": "integer"}, "items": {"type": "array"}, "ok": {"type": "boolean"}},
    "required": ["days"],
}


@pytest.mark.parametrize(
    ("check", "text", "wanted"),
    [
        (Exact(("Yes", "是")), " yes. ", None),
        (Exact(("Yes", "是")), "是。", None),
        (Exact(("Yes",)), "Yes, it is", Miss.NOT_EXACT),
        (Contains(all=(("28 days", "four weeks"), ("renew",))), "Four weeks; you may renew it.", None),
        (Contains(all=(("28 days",), ("renew",))), "28 days", Miss.LACKS),
        (Contains(none=("14",)), "in 2014, or 14.5, or 3,14", None),
        (Contains(none=("14",)), "It is 14.", Miss.HAS_FORBIDDEN),
        (Contains(all=(("ten",),)), "often", Miss.LACKS),
        (Contains(all=(("22点",),)), "最晚22点前", None),
        (Contains(all=(("€14",),)), "it costs €14", None),
        (Numeric(14, ("days",)), "You have 14 working days.", None),
        (Numeric(14, ("days",)), "You have fourteen days, in room 3.", None),
        (Numeric(14, ("天",)), "借期为十四天。", None),
        (Numeric(14, ("days",)), "You have 14 or 30 days.", Miss.WRONG_NUMBER),
        (Numeric(14, ("days",)), "14 days, sometimes 30 days", Miss.WRONG_NUMBER),
        (Numeric(14, ("days",), also=(30,)), "14 days, after that 30 days", None),
        (Numeric(14, ("days",)), "30 days", Miss.WRONG_NUMBER),
        (Numeric(14, ("days",)), "14 euros, for days", Miss.NO_NUMBER),
        (Numeric(14, ("days",)), "two weeks", Miss.NO_NUMBER),
        (Numeric(100, tolerance=0.02), "About 101.5", None),
        (Numeric(100), "about 101", Miss.WRONG_NUMBER),
        (Numeric(50, ("%",)), "A half, 50%", None),
        (Numeric(20, ("%",)), "It is 20 percent.", None),
        (Numeric(20, ("%",)), "占百分之二十", None),
        (Numeric(1340, ("euros", "€")), "You owe €1,340 in all.", None),
        (Numeric(1340, ("euros", "€")), "EUR 1,340 on page 12", Miss.NO_NUMBER),
        (Numeric(35_000, ("元",)), "共3.5万元", None),
        (Numeric(90, ("minutes",), factors={"hours": 60, "hour": 60}), "It lasts 1.5 hours.", None),
        (Numeric(90, ("minutes",), factors={"hours": 60}), "It lasts 2 hours.", Miss.WRONG_NUMBER),
        (Numeric(90, ("minutes",), factors={"hours": 60}), "It lasts 90 days.", Miss.NO_NUMBER),
        (Numeric(3.14, within=0.01), "3.15", None),
        (Numeric(3.14, within=0.01), "3.16", Miss.WRONG_NUMBER),
        (Numeric(-5, ("°C",)), "at −5 °C", None),
        (Cites(("1", "2")), "So [1], but [2].", None),
        (Cites(("1",), also=("3",)), "So [1, 3].", None),
        (Cites(("P1",)), "So [p1].", None),
        (Cites(("1",)), "So.", Miss.NO_CITATION),
        (Cites(("1",)), "So [1][2].", Miss.WRONG_CITATION),
        (Refuses("missing"), "The excerpts don't mention it.", None),
        (Refuses("missing"), "I can't tell you, I can't answer from these.", None),
        (Refuses("missing"), "It is 14 days.", Miss.NO_REFUSAL),
        (Refuses("forbidden"), "I can't share that.", None),
        (Refuses("forbidden"), "That is not stated.", Miss.NO_REFUSAL),
        (Refuses("missing"), "The excerpts don't say, but it is probably 5 years.", Miss.INVENTED),
        (Refuses("missing", none=("5 years",)), "They don't say. It is 5 years.", Miss.INVENTED),
        (Refuses("forbidden"), "I can't share that; it is probably in the contract.", None),
        (Refuses("forbidden", none=("Havel",)), "I can't share that Havel is behind.", Miss.INVENTED),
        (Refuses("advice"), "Please ask your doctor about that.", None),
        (Refuses("advice"), "请咨询医生。", None),
        (Refuses("advice", none=("stop taking",)), "Ask a doctor, but stop taking it.", Miss.INVENTED),
        (Refuses("advice"), "Take two of them.", Miss.NO_REFUSAL),
        (Answers(), "14 days", None),
        (Answers(), "I can't help with that.", Miss.FALSE_REFUSAL),
        (Answers(), "没有提到。", Miss.FALSE_REFUSAL),
        (Json(SCHEMA), '{"days": 14}', None),
        (Json(SCHEMA), '```json\n{"days": 14}\n```', None),
        (Json(SCHEMA), 'Here: {"days": 14}', Miss.INVALID_JSON),
        (Json(SCHEMA), '{"days": "14"}', Miss.INVALID_JSON),
        (Json(SCHEMA), '"\ud800"', Miss.INVALID_JSON),
        (Json(SCHEMA), "[" * 100_000, Miss.INVALID_JSON),
        (Json(SCHEMA, {"days": 15}), '{"days": 14}', Miss.WRONG_VALUES),
        (Json({}, {"name": "Mill Lane"}), '{"name": "mill  lane"}', None),
        (Json({}, {"items": ["A", 1]}), '{"items": ["a", 1]}', None),
        (Json({}, {"items": ["A"]}), '{"items": ["a", 1]}', Miss.WRONG_VALUES),
        (Json({}, {"who": {"name": "A", "age": 3}}), '{"who": {"age": 3, "name": "a"}}', None),
        (Json({}, {"who": {"name": "A"}}), '{"who": {"name": "b"}}', Miss.WRONG_VALUES),
        (Json({}, {"who": {"name": "A"}}), '{"who": {"name": "a", "x": 1}}', Miss.WRONG_VALUES),
        (Json({}, {"ok": True}), '{"ok": 1}', Miss.WRONG_VALUES),
        (Json({}, {"ok": True}), "[true]", Miss.WRONG_VALUES),
        (Judged("It is polite."), "whatever: a judge says", None),
    ],
)
def test_an_answer_is_graded_by_what_it_says(check: Check, text: str, wanted: Miss | None) -> None:
    assert grading.grade(check, text, Given()) is wanted


GIVEN = Given(
    "How high is the deposit for the 24 seats?",
    {"1": "House rules: a deposit of 50 euros.", "2": "Form: a deposit of 80 euros is due."},
)
DEPOSITS = Supported((Claim(("50",), ("1",)), Claim(("80", "eighty"), ("2",))))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The rules say 50 euros [1], the form says 80 euros [2].", None),
        ("By the rules [1] it is 50 euros, by the form [2] it is eighty.", None),
        ("The rules [1] say 50 while the form [2] says 80.", None),
        ("It is 50 euros. [1] But the form says 80! [2]", None),
        ("50 and 80 are both there [1][2].", None),
        ("[1] 50 euros", None),
        ("The rules say 50 euros [2], the form says 80 euros [1].", Miss.UNSUPPORTED),
        ("The rules [2] say 50 while the form [1] says 80.", Miss.UNSUPPORTED),
        ("50 euros", Miss.UNSUPPORTED),
        ("The deposit is 50 euros for 24 seats [1].", None),
        ("The deposit is 50 euros, and 15 of them are kept [1].", Miss.UNSUPPORTED),
        ("Something else altogether [1].", None),
    ],
)
def test_what_is_cited_must_hold_what_is_said(text: str, wanted: Miss | None) -> None:
    assert grading.grade(DEPOSITS, text, GIVEN) is wanted


def test_a_number_that_was_worked_out_is_founded_where_the_case_says_so() -> None:
    text = "Both together are 130 euros [1, 2]."
    assert grading.grade(Supported(), text, GIVEN) is Miss.UNSUPPORTED
    assert grading.grade(Supported(also=(130,)), text, GIVEN) is None


def test_a_check_is_named_as_files_of_cases_name_it() -> None:
    assert [grading.kind_of(check) for check in (Cites(passages=("1",)), Json(schema={}))] == [
        "cites",
        "json",
    ]


def test_checks_are_read_from_json_by_their_kind_and_an_unknown_word_is_an_error() -> None:
    read = msgspec.json.Decoder(Check).decode
    assert read(b'{"kind": "refuses", "because": "missing"}') == Refuses("missing")
    for wrong in (
        b'{"kind": "refuses"}',
        b'{"kind": "other"}',
        b'{"kind": "answers", "x": 1}',
        b'{"value": 1}',
    ):
        with pytest.raises(msgspec.ValidationError):
            read(wrong)

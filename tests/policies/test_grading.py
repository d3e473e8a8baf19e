"""Checks of one answer: a right one in other words passes, a wrong one that looks like it doesn't."""

from typing import Any

import msgspec
import pytest

from headrace.policies import grading
from headrace.policies.grading import (
    Answers,
    Check,
    Cites,
    Contains,
    Exact,
    Json,
    Judged,
    Miss,
    Numeric,
    Refuses,
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
        (Json({}, {"ok": True}), '{"ok": 1}', Miss.WRONG_VALUES),
        (Json({}, {"ok": True}), "[true]", Miss.WRONG_VALUES),
        (Judged("It is polite."), "whatever: a judge says", None),
    ],
)
def test_an_answer_is_graded_by_what_it_says(check: Check, text: str, wanted: Miss | None) -> None:
    assert grading.grade(check, text) is wanted


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

"""A judge is asked twice in two orders, never learns whose answer it sees, and what it can't tell counts for nothing."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace.core.clock import SystemClock
from headrace.evidence import judging
from headrace.evidence.asking import Asker
from headrace.evidence.judging import Choice, Judge, Opinion
from headrace.policies.quality import SetKind
from tests.evidence.rig import own_set
from tests.support.model_server import ModelServer, model_server

CASE = own_set(SetKind.TUNING).cases[0]
Say = Callable[[str], str]


def judged(say: Say, ask: Callable[[Judge], Any], **pins: str) -> tuple[Any, Judge, ModelServer]:
    """What comes of asking a judge that says that to a prompt."""
    with model_server(lambda _, body: say(body["messages"][1]["content"])) as server:
        judge = Judge(Asker(server.url, "judge", key="", deadline_s=10, clock=SystemClock()), **pins)
        return asyncio.run(ask(judge)), judge, server


def opinion(judge: Judge) -> Any:
    return judge.opinion(CASE, "28 days [2]", rubric="It is polite.")


@pytest.mark.parametrize(
    ("say", "wanted"),
    [
        (lambda asked: "PASS", Opinion(True)),
        (lambda asked: "Fail.", Opinion(False)),
        (lambda asked: "Well, that depends", Opinion(False, "unclear")),
        (lambda asked: "PASS, because it is polite", Opinion(False, "unclear")),
        (
            lambda asked: "PASS" if asked.index("<rubric>") > asked.index("<answer>") else "FAIL",
            Opinion(False, "disagrees_with_itself"),
        ),
    ],
)
def test_an_opinion_counts_where_the_judge_says_the_same_word_twice(say: Say, wanted: Opinion) -> None:
    found, judge, _ = judged(say, opinion)
    assert found == wanted
    assert judge.found().asked == 1
    assert judge.found().disagreed == (wanted.error == "disagrees_with_itself")
    assert judge.found().unclear == (wanted.error == "unclear")


def test_a_judge_sees_the_answer_in_two_orders_and_no_name_of_a_model() -> None:
    _, _, server = judged(lambda asked: "PASS", opinion)
    first, second = server.prompts()
    assert first != second
    assert sorted(first) == sorted(second)
    assert "28 days [2]" in first
    assert "chat" not in first.casefold().replace("<question>", "")


@pytest.mark.parametrize(
    ("say", "wanted"),
    [
        (lambda asked: "ONE" if asked.index("good") < asked.index("poor") else "TWO", Choice.FIRST),
        (lambda asked: "TWO" if asked.index("good") < asked.index("poor") else "ONE", Choice.SECOND),
        (lambda asked: "SAME", Choice.TIE),
        (lambda asked: "ONE", Choice.SWAYED),
        (lambda asked: "both", Choice.ERROR),
    ],
)
def test_of_two_answers_one_is_better_if_it_is_so_in_either_place(say: Say, wanted: Choice) -> None:
    found, _, _ = judged(say, lambda judge: judge.preference(CASE, "a good one", "a poor one"))
    assert found is wanted


def test_a_judge_is_held_against_answers_whose_worth_is_known() -> None:
    async def ask(judge: Judge) -> None:
        for answer, is_right in (("fine", True), ("fine", True), ("fine", False), ("bad", False)):
            await judge.compare_with_rules(CASE, answer, is_right=is_right)

    _, judge, _ = judged(lambda asked: "PASS" if "fine" in asked else "FAIL", ask)
    beside = judge.found().calibration
    assert beside is not None
    assert (beside.both_right, beside.judge_only, beside.rules_only, beside.both_wrong) == (2, 1, 0, 1)
    assert beside.kappa == pytest.approx(0.5)


def test_a_judge_of_another_revision_or_prompt_than_the_pinned_one_is_a_problem() -> None:
    pins = ({"pinned": "sha256:1"}, {"pinned": "sha256:2"}, {"pinned_prompt": "sha256:0"})
    problems = [judged(lambda asked: "PASS", opinion, **each)[1].found().problem for each in pins]
    assert problems[0] == ""
    assert "not the pinned one" in problems[1]
    assert judging.PROMPT in problems[2]


def test_a_server_that_fails_is_the_error_of_an_opinion() -> None:
    with model_server(lambda _, body: (503, {"x-headrace-reason": "saturated"}, b"{}")) as server:
        judge = Judge(Asker(server.url, "judge", key="", deadline_s=10, clock=SystemClock()))
        assert asyncio.run(opinion(judge)) == Opinion(False, "503 saturated")
        assert asyncio.run(judge.preference(CASE, "a", "b")) is Choice.ERROR
    assert judge.found().calibration is None

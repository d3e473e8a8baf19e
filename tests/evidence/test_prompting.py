"""What a model is shown of a case: all of it, or the nearest excerpts, and the rule of when to refuse."""

import asyncio
from typing import Any

from headrace.core.clock import SystemClock
from headrace.evidence import cases
from headrace.evidence.asking import Embedder
from headrace.evidence.prompting import PLAIN, Prompting, Shown
from headrace.policies.quality import SetKind
from tests.evidence.rig import own_set
from tests.support.model_server import model_server

SET = own_set(SetKind.TUNING)
CASE = SET.cases[0]


def prompted(answer: Any, *, nearest: int) -> tuple[Shown, list[Any]]:
    with model_server(lambda path, body: answer) as server:
        embedder = Embedder(server.url, "near", key="", deadline_s=10, clock=SystemClock())
        shown = asyncio.run(Prompting(nearest, embedder).prompt(CASE, SET.header))
        return shown, server.asked


def test_a_case_is_shown_as_it_is_unless_something_else_is_wished() -> None:
    shown = asyncio.run(PLAIN.prompt(CASE, SET.header))
    assert shown.messages == cases.messages(CASE, SET.header)
    assert PLAIN.label == ""


def test_the_nearest_excerpts_are_shown_in_their_order_and_under_their_numbers() -> None:
    shown, asked = prompted([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.5, 0.5]], nearest=2)
    content = shown.messages[1]["content"]
    assert "[1]" not in content
    assert content.index("[2]") < content.index("[3]")
    assert content.endswith(CASE.question)
    path, body = asked[0]
    assert path == "/v1/embeddings"
    assert body["input"][0] == CASE.question
    assert len(body["input"]) == 1 + len(CASE.passages)


def test_a_model_is_asked_without_any_excerpt() -> None:
    """What it gets right then, it hasn't read."""
    shown = asyncio.run(Prompting(0).prompt(CASE, SET.header))
    assert [message["content"] for message in shown.messages] == [
        SET.header.instructions[CASE.language],
        CASE.question,
    ]
    assert Prompting(0, is_ruled=True).label == "no excerpts, refusal rule"


def test_where_there_are_no_more_excerpts_than_wished_nobody_is_asked() -> None:
    shown, asked = prompted([[1.0]], nearest=3)
    assert not asked
    assert shown.messages == cases.messages(CASE, SET.header)


def test_the_refusal_rule_stands_behind_the_question_in_its_language() -> None:
    ruled = Prompting(is_ruled=True)
    chinese = next(case for case in SET.cases if case.language == "zh")
    assert ruled.label == "refusal rule"
    for case, words in ((CASE, "The excerpts don't say"), (chinese, "摘录中没有提到")):
        content = asyncio.run(ruled.prompt(case, SET.header)).messages[1]["content"]
        assert content.index(case.question) < content.index(words)


def test_vectors_that_did_not_come_are_an_error_and_no_prompt() -> None:
    refused = (429, {"x-headrace-reason": "rate_limited"}, b"{}")
    for answer, error in (
        (refused, "embedding 429 rate_limited"),
        ([[1.0]], "embedding not_an_answer"),
        ([[1.0], [1.0], [1.0], [1.0, 2.0]], "embedding not_an_answer"),
        ((200, {}, b"?"), "embedding not_an_answer"),
    ):
        assert prompted(answer, nearest=1)[0] == Shown([], error)
    embedder = Embedder("http://127.0.0.1:1", "near", key="", deadline_s=1, clock=SystemClock())
    assert asyncio.run(Prompting(1, embedder).prompt(CASE, SET.header)).error.startswith("embedding ")

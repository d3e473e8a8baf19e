"""Whose count is written down (T31): the engine's final usage, else its last running count, else our estimate; never error text."""

from typing import Any

import pytest

from tests.gateway.rig import Rig, assert_broken, words
from tests.support.wire import Exchange

TOKENS = 20
PROMPT_TOKENS = 2  # "hello"
ASKED = {"stream_options": {"include_usage": True}}


def counted(rig: Rig, answer: Exchange) -> tuple[str, int, int]:
    record = rig.record(answer)
    return record.usage_source, record.prompt_tokens, record.completion_tokens


def usages(answer: Exchange) -> list[dict[str, Any]]:
    return [event["usage"] for event in answer.events if event.get("usage") is not None]


@pytest.mark.parametrize("fields", [{}, ASKED], ids=["unasked", "asked"])
@pytest.mark.parametrize(
    ("faults", "source"),
    [
        ("", "final"),
        ("usage:none", "estimated"),
        ("usage:zero", "estimated"),
        ("usage:negative", "estimated"),
        ("usage:cumulative", "final"),
        ("usage:after_finish", "final"),
        ("usage:with_choices", "final"),
        ("usage:after_done", "estimated"),
        ("usage:none, delta:1", "estimated"),
        ("usage:none, delta:7", "estimated"),
    ],
)
def test_a_stream_is_counted_by_the_best_source_that_can_be_true(
    pair: Rig, faults: str, source: str, fields: dict[str, Any]
) -> None:
    """T31; REPORTS 29, 36: the same number whoever counted, and however the text was cut."""
    pair.set_faults(faults)
    assert counted(pair, pair.ask(**fields)) == (source, PROMPT_TOKENS, TOKENS)


@pytest.mark.parametrize(
    ("faults", "source"),
    [
        ("", "final"),
        ("usage:none", "estimated"),
        ("usage:zero", "estimated"),
        ("usage:negative", "estimated"),
    ],
)
def test_a_whole_answer_is_counted_by_the_best_source_that_can_be_true(
    pair: Rig, faults: str, source: str
) -> None:
    """T31: unknown is never zero, also where nothing was streamed."""
    pair.set_faults(faults)
    assert counted(pair, pair.ask(stream=False)) == (source, PROMPT_TOKENS, TOKENS)


@pytest.mark.parametrize("faults", ["usage:none", "usage:zero"])
def test_tool_arguments_are_counted_like_text(pair: Rig, faults: str) -> None:
    pair.set_faults(faults)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    answers = [pair.ask(stream=stream, tools=[tool], tool_choice="required") for stream in (True, False)]
    # The arguments have exactly 20 tokens, and the name is one more byte.
    assert [counted(pair, answer) for answer in answers] == [("estimated", PROMPT_TOKENS, TOKENS + 1)] * 2


@pytest.mark.parametrize(
    "faults", ["", "usage:cumulative", "usage:after_finish", "usage:with_choices", "usage:cached=64"]
)
def test_usage_is_shown_to_who_asked_and_only_after_the_text(pair: Rig, faults: str) -> None:
    """T31, REPORTS 28: wherever the engine put it, it comes at the end, and it is the true one."""
    pair.set_faults(faults)
    answer = pair.ask(**ASKED)
    with_text = [
        index
        for index, event in enumerate(answer.events)
        if any(choice["delta"].get("content") for choice in event["choices"])
    ]
    with_usage = [index for index, event in enumerate(answer.events) if event.get("usage") is not None]
    assert with_usage
    assert min(with_usage) > max(with_text)
    assert usages(answer)[-1]["completion_tokens"] == TOKENS


@pytest.mark.parametrize(
    "faults", ["", "usage:cumulative", "usage:after_finish", "usage:with_choices", "usage:after_done"]
)
@pytest.mark.parametrize(
    "fields", [{}, {"stream_options": {"include_usage": False}}, {"stream_options": None}]
)
def test_usage_is_not_shown_to_who_did_not_ask(pair: Rig, faults: str, fields: dict[str, Any]) -> None:
    """T31: we always ask the engine, and a caller that didn't must not stumble over an event without choices."""
    pair.set_faults(faults)
    answer = pair.ask(**fields)
    assert usages(answer) == []
    assert all(event["choices"] for event in answer.events)


@pytest.mark.parametrize("faults", ["usage:cached=15872", "usage:with_choices+cached=15872"])
@pytest.mark.parametrize("stream", [True, False])
def test_cached_tokens_are_recorded_and_shown_where_they_are_the_callers_own(
    pair: Rig, faults: str, stream: bool
) -> None:
    """REPORTS 28. These engines are salted; what others do is in test_cache_isolation.py."""
    pair.set_faults(faults)
    answer = pair.ask(stream=stream, **(ASKED if stream else {}))
    record = pair.record(answer)
    assert (record.prompt_tokens, record.cached_tokens, record.completion_tokens) == (15872, 15872, TOKENS)
    assert b'"cached_tokens":15872' in answer.body


@pytest.mark.parametrize(
    ("faults", "source"),
    [
        ("cut:7", "estimated"),
        ("usage:cumulative, cut:7", "cumulative"),
        ("usage:negative, cut:7", "estimated"),
    ],
)
def test_a_broken_stream_is_counted_by_what_came_of_it(pair: Rig, faults: str, source: str) -> None:
    pair.set_faults(faults)
    answer = pair.ask()
    assert_broken(answer, text=words(7))
    assert counted(pair, answer) == (source, PROMPT_TOKENS, 7)


def test_an_engine_that_reports_progress_is_asked_for_it_and_the_caller_never_sees_it(solo: Rig) -> None:
    """The dialect of the scripted engine has running counts, as llama.cpp's has."""
    solo.set_faults("usage:none, cut:9")
    answer = solo.ask()
    assert counted(solo, answer) == ("cumulative", PROMPT_TOKENS, 9)
    assert b"timings" not in answer.body


def test_the_text_of_an_error_is_never_output(pair: Rig) -> None:
    """T31: five tokens came, then an error with a message."""
    pair.set_faults("error_event:5")
    assert counted(pair, pair.ask()) == ("estimated", PROMPT_TOKENS, 5)


@pytest.mark.parametrize(
    "fault", ["error:500", "error_first:500", "error_hostile", "html", "cut:0", "refuse"]
)
@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_never_began_has_no_known_usage(pair: Rig, fault: str, stream: bool) -> None:
    """T31: unknown is not zero; whoever lost our request may have worked on it first."""
    pair.set_faults(fault)
    source, _, completion_tokens = counted(pair, pair.ask(stream=stream))
    assert (source, completion_tokens) == ("unknown", 0)


@pytest.mark.parametrize("fault", ["error:400", "error:429"])
def test_work_that_was_never_taken_up_counts_nothing(pair: Rig, fault: str) -> None:
    pair.set_faults(fault)
    assert counted(pair, pair.ask()) == ("none", 0, 0)


def test_a_retried_request_is_charged_for_the_answer_that_arrived(pair: Rig) -> None:
    """The attempt that failed keeps its own record; the request has the tokens of the last one."""
    pair.engines[0].set_faults("cut:0")
    answers = [pair.ask() for _ in range(12)]
    assert {counted(pair, answer) for answer in answers} == {("final", PROMPT_TOKENS, TOKENS)}
    retried = [pair.executions(answer) for answer in answers if len(pair.executions(answer)) == 2]
    assert retried
    for first, second in retried:
        assert (first.outcome, first.usage_source) == ("upstream_unreachable", "unknown")
        assert (second.outcome, second.completion_tokens) == ("completed", TOKENS)

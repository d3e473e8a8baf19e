"""Two answers to one mirrored request: what counts as the same, and what as a fault of the candidate's alone."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.policies import comparison
from headrace.policies.comparison import Comparison, Fault, Likeness


def body(text: str | None, *, finish: str = "stop", **message: Any) -> bytes:
    return msgspec.json.encode(
        {"choices": [{"index": 0, "message": {"content": text, **message}, "finish_reason": finish}]}
    )


def calls(*named: tuple[str, str]) -> bytes:
    return body(
        None, tool_calls=[{"function": {"name": name, "arguments": arguments}} for name, arguments in named]
    )


def compared(accepted: bytes, candidate: bytes, *, wants_json: bool = False) -> Comparison:
    found = comparison.compare(accepted, candidate, wants_json=wants_json)
    assert found is not None
    return found


LOAN = "A loan lasts 14 days and can be renewed once at the desk [1]."


@pytest.mark.parametrize(
    ("candidate", "wanted"),
    [
        (LOAN, Likeness.SAME),
        ("A loan lasts **14 days**  and can be renewed once at the desk [1].", Likeness.EQUIVALENT),
        ("A loan lasts 14 days, and it can be renewed once at the desk [1].", Likeness.EQUIVALENT),
        ("A loan lasts 30 days and can be renewed once at the desk [1].", Likeness.DIFFERENT),
        ("A loan lasts 14 days and can be renewed once at the desk [2].", Likeness.DIFFERENT),
        ("A loan lasts 14 days and cannot be renewed once at the desk [1].", Likeness.DIFFERENT),
        ("Ask at the desk.", Likeness.DIFFERENT),
    ],
)
def test_equivalent_answers_have_the_same_facts_in_mostly_the_same_words(
    candidate: str, wanted: Likeness
) -> None:
    found = compared(body(LOAN), body(candidate))
    assert found.likeness is wanted
    assert not found.is_worse
    assert found.agrees is (wanted is not Likeness.DIFFERENT)


@pytest.mark.parametrize(
    ("candidate", "wanted"),
    [
        (body(""), Fault.EMPTY),
        (body("I'm sorry, but I can't help with that."), Fault.REFUSED),
        (body(None, refusal="No."), Fault.REFUSED),
        (body("A loan lasts", finish="length"), Fault.TRUNCATED),
        (body("借书期限为十四天，可在服务台续借一次。"), Fault.OTHER_LANGUAGE),
        (body("A loan lasts " * 100), Fault.REPETITION),
        (body(" ".join(f"day {n}," for n in range(900))), Fault.MUCH_LONGER),
        (calls(("renew", "{}")), Fault.TOOL_CALL),
        (b"<html>", Fault.UNREADABLE),
        (b'{"choices": []}', Fault.UNREADABLE),
    ],
)
def test_a_fault_that_the_accepted_answer_has_not_counts_against_the_candidate(
    candidate: bytes, wanted: Fault
) -> None:
    found = compared(body(LOAN), candidate)
    assert wanted in found.faults
    assert found.is_worse
    assert not found.agrees


def test_what_both_do_is_no_fault_of_the_candidate() -> None:
    refusal = body("I'm sorry, but I can't help with that.")
    again = body("I am sorry, but I cannot help with that at all.")
    assert not compared(refusal, again).is_worse
    assert not compared(body("", finish="length"), body(" ", finish="length")).is_worse
    assert not compared(body("no thanks"), body("[1, 2", finish="stop"), wants_json=True).is_worse


def test_json_is_compared_by_its_values_where_both_have_it() -> None:
    accepted = body('{"days": 14, "renewals": 1}')
    assert compared(accepted, body('{"renewals":1,"days":14}'), wants_json=True).agrees
    assert compared(accepted, body('{"renewals":1,"days":15}')).likeness is Likeness.DIFFERENT
    broken = compared(accepted, body('{"days": 14, '), wants_json=True)
    assert broken.faults == (Fault.INVALID_JSON,)
    assert compared(accepted, body("14"), wants_json=True).faults == (Fault.INVALID_JSON,)
    assert not compared(accepted, body('{"days": 14, ')).is_worse  # nobody asked for JSON


def test_tool_calls_are_the_same_by_name_and_by_the_values_of_their_arguments() -> None:
    accepted = calls(("renew", '{"item": 7, "days": 14}'))
    said_too = body(
        "Done.", tool_calls=[{"function": {"name": "renew", "arguments": '{"item": 7, "days": 14}'}}]
    )
    assert not compared(accepted, said_too).is_worse
    assert compared(accepted, calls(("renew", '{"days":14,"item":7}'))).agrees
    for other in (
        calls(("renew", '{"item": 8, "days": 14}')),
        calls(("reserve", '{"item": 7, "days": 14}')),
        calls(("renew", "{}"), ("renew", "{}")),
        calls(("renew", "not JSON")),
    ):
        found = compared(accepted, other)
        assert found.faults == (Fault.TOOL_CALL,)
        assert found.likeness is Likeness.DIFFERENT


def test_completions_are_compared_as_chat_is() -> None:
    plain = [msgspec.json.encode({"choices": [{"text": text}]}) for text in ("a b", "a  B", "c")]
    assert compared(plain[0], plain[1]).likeness is Likeness.EQUIVALENT
    assert compared(plain[0], plain[2]).likeness is Likeness.DIFFERENT


def test_an_accepted_answer_that_cannot_be_read_compares_with_nothing() -> None:
    assert comparison.compare(b"", body("a")) is None


@given(st.text(), st.text())
def test_whatever_is_compared_the_words_in_common_are_a_share_and_an_answer_agrees_with_itself(
    some: str, other: str
) -> None:
    assert 0.0 <= compared(body(some), body(other)).overlap <= 1.0
    assert compared(body(some), body(some)).agrees


@pytest.mark.parametrize(
    "piece", ["1", "一", "[1 ", "twenty-", "no ", "a'", "1,111", "[", '{"a":1,', "cannot "]
)
def test_hundreds_of_kilobytes_are_compared_by_their_heads(piece: str) -> None:
    """Text made to be slow: what isn't linear in it would take longer than the test may."""
    text = piece * (400_000 // len(piece))
    found = compared(body(text), body(text[:-1] + "!"))
    assert found.likeness is Likeness.DIFFERENT
    assert compared(body(text), body(text)).likeness is Likeness.SAME

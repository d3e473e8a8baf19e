"""Turns of one conversation are guessed where something speaks for it, and nothing is guessed where nothing does."""

import pytest

from headrace.policies.conversation_guess import CALLERS_MAX, GAP_MAX_S, OPEN_MAX, Conversations, Said


def said(prompt: int, output: int = 10, **known: object) -> Said:
    began_s = float(str(known.pop("began_s", 0.0)))
    whole = {"caller": "a", "is_person": True, "cached_tokens": 0, "ended_s": began_s + 1.0, **known}
    return Said(began_s=began_s, prompt_tokens=prompt, output_tokens=output, **whole)  # type: ignore[arg-type]


def test_a_prompt_with_all_that_was_said_before_is_the_same_persons_next_turn() -> None:
    conversations = Conversations()
    first = conversations.place(said(100))
    assert conversations.place(said(130, began_s=5.0)) == first
    assert conversations.place(said(180, began_s=9.0)) == first


@pytest.mark.parametrize(
    "second",
    [
        said(109, began_s=5.0),  # shorter than prompt and answer together
        said(130, began_s=0.5),  # asked before the answer was there
        said(130, began_s=GAP_MAX_S + 2.0),
        said(130, began_s=5.0, caller="b"),
    ],
)
def test_what_cannot_be_a_next_turn_begins_a_conversation(second: Said) -> None:
    conversations = Conversations()
    assert conversations.place(said(100)) != conversations.place(second)


@pytest.mark.parametrize(("cached", "is_same"), [(0, False), (50, False), (95, True)])
def test_an_application_with_many_users_is_told_apart_by_its_cache(cached: int, is_same: bool) -> None:
    """A key that serves many people would otherwise make one conversation of them all."""
    conversations = Conversations()
    first = conversations.place(said(100, is_person=False))
    second = conversations.place(said(130, began_s=5.0, is_person=False, cached_tokens=cached))
    assert (second == first) is is_same


def test_of_several_conversations_the_last_that_fits_goes_on() -> None:
    conversations = Conversations()
    long, short = conversations.place(said(500)), conversations.place(said(50, began_s=2.0))
    assert conversations.place(said(70, began_s=5.0)) == short
    assert conversations.place(said(600, began_s=8.0)) == short  # 80 and what a person added
    assert conversations.place(said(700, began_s=8.5)) == long


def test_conversations_of_long_ago_are_forgotten() -> None:
    conversations = Conversations()
    first = conversations.place(said(100, is_person=False))
    for number in range(OPEN_MAX):
        conversations.place(said(5000, began_s=2.0 + number, is_person=False))
    again = conversations.place(said(130, began_s=90.0, is_person=False, cached_tokens=100))
    assert again != first
    callers = Conversations()
    first = callers.place(said(100))
    for number in range(CALLERS_MAX):
        callers.place(said(1, began_s=2.0, caller=number))
    assert callers.place(said(130, began_s=3.0)) != first

"""Prompts are as long as planned, share what they are planned to share, and nothing else."""

from itertools import islice, takewhile
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.workload import (
    ArrivalKind,
    Arrivals,
    Arrived,
    LengthKind,
    Lengths,
    Prefixes,
    Turns,
    Workload,
    constant,
)
from headrace.evidence.prompts import CONVERSATIONS_MAX, LESSONS_MAX, Measure, Prompts
from headrace.policies import workload_plan
from headrace.policies.workload_plan import Planned

LEARNED = Measure(1.0, 0.0, lessons=1)


def workload(**said: Any) -> Workload:
    arrivals = said.pop("arrivals", Arrivals(ArrivalKind.POISSON, rate_per_s=1.0))
    lengths = {
        "input_tokens": Lengths(LengthKind.UNIFORM, minimum=40, maximum=400),
        "output_tokens": constant(30),
    }
    return Workload("w", arrivals, **{**lengths, **said})


def planned(of: Workload, count: int, **terms: Any) -> list[Planned]:
    return list(islice(workload_plan.plan(of, chance=Random(1), **terms), count))


def words(messages: list[dict[str, str]]) -> int:
    return sum(len(message["content"].split()) for message in messages)


def joined(messages: list[dict[str, str]]) -> str:
    return "".join(message["content"] for message in messages)


def shared_words(first: str, second: str) -> int:
    """How many they begin with in common."""
    pairs = zip(first.split(), second.split(), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@given(seed=st.integers(0, 1000), tokens=st.integers(1, 50_000), group=st.sampled_from([None, 3]))
def test_a_prompt_has_as_many_words_as_tokens_are_planned(seed: int, tokens: int, group: int | None) -> None:
    of = workload(prefixes=Prefixes(5, 4, 1.0, constant(50)), seed=seed)
    one = planned(of, 1)[0]._replace(
        input_tokens=tokens, prefix_group=group, prefix_tokens=min(55, max(0, tokens - 8))
    )
    made = words(Prompts(of, measure=LEARNED).messages(one))
    assert made == tokens or (tokens < 20 and made <= tokens + 8)


def test_requests_of_a_group_begin_alike_and_others_differ_from_their_first_words_on() -> None:
    of = workload(prefixes=Prefixes(20, 2, 1.0, constant(100)))
    prompts = Prompts(of, measure=LEARNED)
    found = [(each, joined(prompts.messages(each))) for each in planned(of, 40) if each.input_tokens > 130]
    for first, text in found:
        for second, other in found:
            if first.number >= second.number:
                continue
            shared = shared_words(text, other)
            if first.prefix_group == second.prefix_group:
                assert 120 <= shared <= 124
            else:
                assert 20 <= shared <= 24


def test_the_same_workload_says_the_same_again_and_another_nonce_something_else() -> None:
    of = workload(prefixes=Prefixes(20, 2, 1.0, constant(20)))
    one = planned(of, 1)[0]
    text = joined(Prompts(of).messages(one))
    assert joined(Prompts(of).messages(one)) == text
    other = joined(Prompts(of, nonce=7).messages(one))
    assert shared_words(text, other) < 3
    assert len(other.split()) == len(text.split())


def test_blocks_of_a_trace_are_the_same_text_wherever_they_stand_first() -> None:
    of = workload(arrivals=Arrivals(ArrivalKind.TRACE, file="t"))
    rows = [Arrived(0.0, 1100, 5, (1, 2, 3)), Arrived(1.0, 1200, 5, (1, 2, 4)), Arrived(2.0, 600, 5, (1, 9))]
    prompts = Prompts(of, measure=LEARNED)
    first, second, third = planned(of, 3, trace=rows)
    assert not prompts.is_prefix_seen(first)
    texts = [joined(prompts.messages(first))]
    assert prompts.is_prefix_seen(second)
    texts += [joined(prompts.messages(second)), joined(prompts.messages(third))]
    assert [len(text.split()) for text in texts] == [1100, 1200, 600]
    assert 1024 <= shared_words(*texts[:2]) <= 1028
    assert 512 <= shared_words(*texts[1:]) <= 516


def test_a_prompt_that_is_shorter_than_a_block_is_its_own() -> None:
    one = planned(
        workload(arrivals=Arrivals(ArrivalKind.TRACE, file="t")), 1, trace=[Arrived(0.0, 60, 5, (1,))]
    )
    assert words(Prompts(workload(), measure=LEARNED).messages(one[0])) == 60


def test_what_the_template_adds_is_part_of_what_all_prompts_share() -> None:
    of = workload(prefixes=Prefixes(50, 1, 1.0, constant(100)), input_tokens=constant(300))
    one = planned(of, 1)[0]
    system, user = Prompts(of, measure=Measure(2.0, 30.0, lessons=1)).messages(one)
    assert len(system["content"].split()) == 10
    assert words([system, user]) * 2 + 30 == 300


def test_a_prefix_is_cold_the_first_time_and_seen_from_then_on() -> None:
    of = workload(prefixes=Prefixes(0, 1, 1.0, constant(20)))
    first, second = planned(of, 2)
    prompts = Prompts(of)
    assert not prompts.is_prefix_seen(first)
    prompts.messages(first)
    assert prompts.is_prefix_seen(second)
    assert not prompts.is_prefix_seen(second._replace(prefix_group=None))


def test_later_turns_repeat_what_was_said_and_what_was_answered() -> None:
    of = workload(
        turns=Turns(constant(3), tokens=constant(25)),
        prefixes=Prefixes(system_tokens=10),
        arrivals=Arrivals(ArrivalKind.CLOSED, concurrency=1),
        input_tokens=Lengths(LengthKind.CONSTANT, value=100, maximum=1000),
    )
    first, second, third = planned(of, 3)
    prompts = Prompts(of, measure=LEARNED)
    said = prompts.messages(first)
    assert [message["role"] for message in said] == ["system", "user"]
    prompts.heard(first, "an answer")
    prompts.heard(first, "again")  # which changes nothing
    assert not prompts.is_prefix_seen(first)
    assert prompts.is_prefix_seen(second)
    more = prompts.messages(second)
    assert more[:2] == said
    assert more[2] == {"role": "assistant", "content": "an answer"}
    assert words(more) == second.input_tokens
    last = prompts.messages(third)  # nobody told what was answered: text of that length stands for it
    assert last[:4] == more
    assert [message["role"] for message in last[4:]] == ["assistant", "user"]
    assert len(last[4]["content"].split()) == 30
    assert words(last) == third.input_tokens
    prompts.heard(third, "the end")
    assert not prompts.is_prefix_seen(third)  # it is forgotten: nothing comes after it


def test_a_turn_whose_conversation_is_not_known_any_more_begins_anew() -> None:
    of = workload(turns=Turns(constant(2)), arrivals=Arrivals(ArrivalKind.CLOSED, concurrency=1))
    first, second = planned(of, 2)
    prompts = Prompts(of, measure=LEARNED)
    for conversation in range(CONVERSATIONS_MAX + 1):
        prompts.messages(first._replace(conversation=conversation, input_tokens=8))
    assert not prompts.is_prefix_seen(second)
    assert [message["role"] for message in prompts.messages(second)] == ["user"]


# What is learned of a model


@pytest.mark.parametrize(("per_word", "overhead"), [(1.0, 0), (1.37, 31), (2.4, 8)])
def test_prompts_become_as_long_as_planned_in_the_models_own_tokens(per_word: float, overhead: int) -> None:
    of = workload()
    prompts = Prompts(of)
    for each in planned(of, LESSONS_MAX):
        prompts.learn(each, round(words(prompts.messages(each)) * per_word) + overhead)
    assert prompts.measure.lessons == LESSONS_MAX
    assert prompts.measure.tokens_per_word == pytest.approx(per_word, rel=0.02)
    for each in planned(of, 60)[LESSONS_MAX:]:
        tokens = words(prompts.messages(each)) * per_word + overhead
        assert tokens == pytest.approx(each.input_tokens, abs=0.02 * each.input_tokens + 2)


def test_prompts_of_one_length_teach_how_long_words_are_and_not_the_template() -> None:
    of = workload(input_tokens=constant(200))
    prompts = Prompts(of)
    sent = [(each, words(prompts.messages(each))) for each in planned(of, 4)]
    for each, count in sent:
        prompts.learn(each, 2 * count + 10)
    assert prompts.measure.overhead_tokens == Measure().overhead_tokens
    last = planned(of, 5)[4]
    assert words(prompts.messages(last)) * 2 + 10 == pytest.approx(200, rel=0.03)


def test_what_was_settled_is_not_learned_anew() -> None:
    """Shared texts would change, and no cache would know them."""
    of = workload()
    first, second = planned(of, 2)
    prompts = Prompts(of)
    prompts.messages(first)
    prompts.learn(first, 900)
    measure = prompts.settle()
    prompts.messages(second)
    prompts.learn(second, 5)
    assert prompts.measure == measure
    given_to_others = Prompts(of, measure=measure)
    given_to_others.messages(first)
    given_to_others.learn(first, 3)
    assert given_to_others.measure == measure

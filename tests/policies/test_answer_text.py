"""What is read out of an answer: words, numbers, citations, script, refusals and repetition, in English and Chinese."""

import pytest

from headrace.policies import answer_text
from headrace.policies.answer_text import Script


def read(text: str) -> str:
    return answer_text.normalised(text)


def test_a_text_is_normalised_to_one_way_of_writing_it() -> None:
    assert read("  It’s **Ｆｕｌｌ**－width,\n\t`１４`  ") == "it's full-width, 14"


def test_citations_are_the_marks_in_brackets_and_nothing_else() -> None:
    text = "By rule [2], see also [p4, 5] and 【6】；[note] and (7) and [see page 8] are none."
    assert answer_text.citations(text) == {"2", "p4", "5", "6"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The loan lasts two weeks", Script.LATIN),
        ("借期为两周, see rule A", Script.HAN),
        ("貸出期間は二週間です", Script.KANA),
        ("대출 기간은 2주입니다", Script.HANGUL),
        ("Срок две недели", Script.CYRILLIC),
        ("مدة الإعارة أسبوعان", Script.ARABIC),
        ("14 / 30", Script.NONE),
    ],
)
def test_a_text_is_in_the_script_of_most_of_its_letters(text: str, wanted: Script) -> None:
    assert answer_text.script(text) is wanted


@pytest.mark.parametrize(
    "text",
    [
        "The excerpts do not mention a fee.",
        "The excerpts don’t say how much it costs.",
        "There is no information about parking in the passages.",
        "This isn't covered in the excerpts.",
        "I cannot find the answer in the excerpts.",
        "None of the passages gives a price.",
        "The fee is not stated.",
        "摘录中没有提到费用。",
        "资料未说明停车费。",
        "根据摘录无法确定答案。",
        "我不知道。",
        "信息不足，无法回答。",
    ],
)
def test_an_answer_that_finds_nothing_is_known_as_one(text: str) -> None:
    assert answer_text.finds_nothing(read(text))


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't share another person's address.",
        "I cannot provide medical advice.",
        "I am not able to help with that.",
        "We are unable to disclose personal records.",
        "抱歉，我不能提供他人的住址。",
        "我无法透露该员工的工资。",
        "不能告诉您其他读者的借阅记录。",
    ],
)
def test_an_answer_that_declines_is_known_as_one(text: str) -> None:
    assert answer_text.declines(read(text))


@pytest.mark.parametrize(
    "text",
    [
        "A loan lasts 14 days [1].",
        "The library is not open on Mondays.",
        "Food may not be taken into the reading room.",
        "You must return the key before you leave.",
        "借期为14天，可以续借一次【1】。",
        "周一不开放。",
        "阅览室内不得饮食。",
    ],
)
def test_an_answer_is_neither(text: str) -> None:
    assert not answer_text.finds_nothing(read(text))
    assert not answer_text.declines(read(text))


def test_what_says_one_thing_over_and_over_at_its_end_runs_away() -> None:
    opening = "The loan lasts fourteen days, and it can be renewed once. "
    assert answer_text.runs_away(opening + "and so on, " * 40)
    assert answer_text.runs_away("借期" * 200)
    assert not answer_text.runs_away("no " * 20)
    assert not answer_text.runs_away(opening)
    assert not answer_text.runs_away(" ".join(str(number) for number in range(2000)))
    over = "and so on, " * 40 + " ".join(str(number) for number in range(900))
    assert not answer_text.runs_away(over)


def test_words_in_common_are_counted_as_often_as_both_have_them() -> None:
    some, others = answer_text.words("to be or not to be"), answer_text.words("to be sure")
    assert answer_text.overlap(some, others) == pytest.approx(2 * 2 / 9)
    assert answer_text.overlap(some, some) == 1.0
    assert answer_text.overlap(answer_text.words(""), answer_text.words("")) == 1.0
    assert answer_text.words("借期14天")["借"] == 1
    assert answer_text.negations("it isn't so, 不是, never") == 3

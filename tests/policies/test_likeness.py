"""Texts that are nearly the same are found, whatever was changed in a few places; others are not."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.policies import likeness

LOAN = "Books are lent for 28 days. A loan can be renewed twice, unless another reader has reserved the book."
CHANGED = LOAN.replace("28", "21").replace("Books", "Novels")
FEE = "A reader's card costs 12 euros a year, and a late book costs 20 cents a day until it is given back."


def test_a_text_with_a_few_changed_words_is_nearly_the_same() -> None:
    assert likeness.contained(LOAN, LOAN.upper()) == 1.0
    assert likeness.contained(LOAN, CHANGED) > likeness.NEARLY
    assert likeness.contained(LOAN, f"{FEE} {LOAN} {FEE}") == 1.0
    assert (
        likeness.contained("图书借期为二十八天，可以续借两次。", "图书借期为二十一天，可以续借两次。") > 0.3
    )
    assert likeness.contained(LOAN, FEE) == 0.0


def test_pairs_are_found_between_two_sets_of_named_texts() -> None:
    some, others = {"a": [FEE, LOAN], "b": ["Something else."]}, {"c": [CHANGED], "d": [FEE[::-1]]}
    assert list(likeness.near(some, others)) == [("a", "c")]
    assert not list(likeness.near(some, {}))


words = st.lists(
    st.sampled_from(["book", "loan", "day", "reader", "card", "fee", "馆", "书"]), max_size=30
).map(" ".join)


@given(words, words)
def test_likeness_is_the_same_both_ways_and_whole_for_oneself(some: str, others: str) -> None:
    assert likeness.contained(some, others) == likeness.contained(others, some)
    assert 0.0 <= likeness.contained(some, others) <= 1.0
    assert likeness.contained(some, some) == 1.0
    assert bool(list(likeness.near({"a": [some]}, {"b": [others]}))) is (
        likeness.contained(some, others) >= likeness.NEARLY
    )

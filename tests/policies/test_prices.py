"""Which price holds: the most specific one that had begun when the request arrived, whatever is entered later."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.prices import EVERY_MODEL, EVERY_TENANT, Item, Price, rates_of
from headrace.core.tenant import SYSTEM_TENANT
from headrace.policies import prices
from headrace.policies.prices import PriceBook

SELECTORS = [("acme", "m"), ("acme", EVERY_MODEL), (EVERY_TENANT, "m"), (EVERY_TENANT, EVERY_MODEL)]


def price(number: int, tenant: str, model: str, *, from_s: float, withdrawn: bool = False) -> Price:
    stated = None if withdrawn else {Item.INPUT: str(number)}
    return Price(
        f"p{number}", tenant, model, "EUR", from_s, stated, None if stated is None else rates_of(stated)
    )


def found(book: PriceBook, *, wall_s: float = 100.0, tenant: str = "acme", model: str = "m") -> str | None:
    hit = book.find(tenant, model, wall_s=wall_s)
    return None if hit is None else hit.version


def test_the_tenant_goes_before_the_model_and_both_before_what_holds_for_all() -> None:
    entered = [price(number, *selector, from_s=0) for number, selector in enumerate(SELECTORS, start=1)]
    for missing in range(4):
        assert found(PriceBook(entered[missing:])) == f"p{missing + 1}"
    assert found(PriceBook(entered), tenant="other") == "p3"
    assert found(PriceBook(entered), tenant="other", model="n") == "p4"
    assert found(PriceBook()) is None


def test_a_price_holds_from_its_moment_on_and_what_was_before_stays() -> None:
    book = PriceBook([price(1, "", "*", from_s=10), price(2, "", "*", from_s=20)])
    assert [found(book, wall_s=at) for at in (9.9, 10, 19.9, 20, 1e9)] == [None, "p1", "p1", "p2", "p2"]


def test_of_two_prices_for_one_moment_the_one_entered_later_holds() -> None:
    assert found(PriceBook([price(1, "", "m", from_s=10), price(2, "", "m", from_s=10)])) == "p2"


def test_a_withdrawn_price_gives_way_to_the_more_general_one() -> None:
    book = PriceBook(
        [
            price(1, "", "*", from_s=0),
            price(2, "acme", "m", from_s=10),
            price(3, "acme", "m", from_s=20, withdrawn=True),
        ]
    )
    assert [found(book, wall_s=at) for at in (5, 15, 25)] == ["p1", "p2", "p1"]
    assert found(PriceBook([price(1, "", "m", from_s=0, withdrawn=True)])) is None


def test_a_version_is_found_by_its_name() -> None:
    book = PriceBook([price(1, "", "m", from_s=0)])
    assert book.version("p1") == price(1, "", "m", from_s=0)
    assert book.version("p2") is None
    assert len(book) == 1


def test_what_is_remembered_of_lookups_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "_TIMELINES_MAX", 2)
    book = PriceBook([price(1, "", "*", from_s=0)])
    assert {found(book, model=f"m{number}") for number in range(5)} == {"p1"}


ENTRIES = st.lists(st.tuples(st.sampled_from(SELECTORS), st.integers(0, 5), st.booleans()), max_size=8)


@given(entries=ENTRIES, wall_s=st.integers(-1, 6), later=ENTRIES)
def test_what_is_entered_for_later_changes_nothing_before(
    entries: list[tuple[tuple[str, str], int, bool]],
    wall_s: int,
    later: list[tuple[tuple[str, str], int, bool]],
) -> None:
    """The past can't be changed by a version that begins after it."""
    book = [
        price(n, *selector, from_s=at, withdrawn=w) for n, (selector, at, w) in enumerate(entries, start=1)
    ]
    more = [
        price(n, *selector, from_s=wall_s + 1 + at, withdrawn=w)
        for n, (selector, at, w) in enumerate(later, start=len(book) + 1)
    ]
    assert found(PriceBook(book), wall_s=wall_s) == found(PriceBook(book + more), wall_s=wall_s)


def test_what_we_ask_ourselves_costs_nothing_whatever_everybody_pays() -> None:
    book = PriceBook([price(1, "", "*", from_s=0), price(2, SYSTEM_TENANT, "m", from_s=0)])
    assert found(book) == "p1"
    assert found(book, tenant=SYSTEM_TENANT) is None

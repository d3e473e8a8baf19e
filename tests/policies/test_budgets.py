"""Claims about a budget by itself: nothing is lent beyond it, every charge counts once, and periods are apart."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ids import KeyId, RequestId, TenantId
from headrace.core.quotas import Amounts, BudgetKey, Period, QuotaUnit, span_of
from headrace.policies import budgets
from headrace.policies.budgets import PERIODS_KEPT, Book, Budget, Budgets

TENANT, KEY_ID = TenantId("acme"), KeyId("k1")
DAY_S = 86400.0
NOON_S = 1_800_000_000.0 // DAY_S * DAY_S + DAY_S / 2


def key(
    unit: QuotaUnit = QuotaUnit.TOKENS, period: Period = Period.DAY, *, of: str = "", tenant: str = TENANT
) -> BudgetKey:
    return BudgetKey(TenantId(tenant), KeyId(of), unit, period)


def budget(limit: int) -> Budget:
    return Budget(key(), span_of(Period.DAY, NOON_S), limit)


def read_book(limit: int, *, wall_s: float = NOON_S) -> Book:
    book = Book(key(), limit, wall_s)
    book.read(0, [])
    return book


@given(
    limit=st.integers(0, 50),
    steps=st.lists(
        st.tuples(st.sampled_from(["lend", "end", "lose"]), st.integers(0, 2), st.integers(0, 20)),
        max_size=30,
    ),
)
def test_spent_and_lent_never_pass_the_limit(limit: int, steps: list[tuple[str, int, int]]) -> None:
    """Any order of loans, ends and lost holders, where nobody spends more than was lent for it."""
    tried = budget(limit)
    loans: dict[int, list[int]] = {}
    for step, holder, amount in steps:
        match step:
            case "lend":
                is_lent = tried.lend(holder, amount)
                assert is_lent == (amount <= limit - tried.spent - sum(map(sum, loans.values())))
                if is_lent:
                    loans.setdefault(holder, []).append(amount)
            case "end" if loans.get(holder):
                lent = loans[holder].pop()
                tried.spent += min(amount, lent)
                tried.give_back(holder, lent)
            case "lose":
                tried.lost(holder)
                loans.pop(holder, None)
        assert tried.lent == sum(map(sum, loans.values()))
        assert tried.lent_to(holder) == sum(loans.get(holder, ()))
        assert tried.spent + tried.lent <= limit
        assert tried.left == limit - tried.spent - tried.lent


def test_what_is_passed_on_is_the_heirs_until_it_is_lost() -> None:
    tried = budget(10)
    assert tried.lend(1, 4)
    tried.pass_on(1, -1)
    tried.pass_on(2, -2)
    assert (tried.holders, tried.lent) == ([-1], 4)
    tried.lost(-1)
    assert (tried.holders, tried.lent) == ([], 0)


def test_each_threshold_is_told_once() -> None:
    tried = budget(100)
    told = []
    for _ in range(100):
        tried.spent += 1
        told.append(tried.newly_low())
    assert [each for each in told if each] == [80, 95]
    assert tried.low_percent == 95


def test_what_was_spent_before_and_while_it_was_read_counts_once() -> None:
    """The ledger's sums have some of the requests that were recorded meanwhile, and not others."""
    book = Book(key(), 100, NOON_S)
    assert not book.is_read
    assert book.at(NOON_S) is None, "nothing is lent while it isn't known what was spent"
    for number in range(3):
        book.spend(RequestId(f"r{number}"), NOON_S, 10)
    assert book.unread == ["r0", "r1", "r2"]
    book.read(40 + 10, [RequestId("r1")])
    found = book.at(NOON_S)
    assert found is not None
    assert (found.spent, book.unread, book.is_read) == (40 + 30, [], True)
    book.spend(RequestId("r3"), NOON_S, 5)
    assert book.newest.spent == 75


def test_a_request_belongs_to_the_period_of_its_arrival() -> None:
    """A period's end under load loses and doubles nothing."""
    book = read_book(100)
    assert book.at(NOON_S).lend(0, 100)  # type: ignore[union-attr]
    tomorrow = book.at(NOON_S + DAY_S)
    assert tomorrow is not None
    assert tomorrow.lend(0, 100), "the new period is whole"
    assert book.newest is tomorrow
    book.spend(RequestId("late"), NOON_S, 7)
    today = book.at(NOON_S)
    assert today is not None
    assert (today.spent, tomorrow.spent) == (7, 0)
    assert book.opened == today.span


def test_old_periods_are_forgotten_and_nothing_is_lent_of_what_isnt_known() -> None:
    book = read_book(100)
    for day in range(6):
        assert book.at(NOON_S + day * DAY_S) is not None
    assert len(book.budgets) == PERIODS_KEPT
    assert book.at(NOON_S) is None
    assert book.spend(RequestId("r"), NOON_S, 5) is None
    assert book.at(NOON_S - 30 * DAY_S) is None
    assert read_book(5).at(NOON_S + 3 * DAY_S) is not None
    between = read_book(5)
    newest = between.at(NOON_S + 3 * DAY_S)
    assert between.at(NOON_S + DAY_S) is not None, "a request may come late, and the clock may be set back"
    assert between.newest is newest
    book.set_limit(7)
    assert {each.limit for each in book.budgets} == {7}


def test_a_period_that_was_forgotten_before_it_was_read_stays_so() -> None:
    book = Book(key(), 100, NOON_S)
    for day in range(6):
        book.spend(RequestId(f"r{day}"), NOON_S + day * DAY_S, 1)
    book.read(1000, [RequestId("r0")])
    assert book.newest.spent == 1


def test_a_correction_counts_once_and_in_its_period() -> None:
    book = Book(key(QuotaUnit.MONEY), 100, NOON_S)
    book.correct(1, NOON_S, 50)
    assert book.newest.spent == 0, "what is read will have it"
    book.read(50, [])
    book.corrected = 1
    for number in (1, 2, 2):
        book.correct(number, NOON_S, -10)
    book.correct(3, NOON_S - 90 * DAY_S, -10)
    assert (book.newest.spent, book.corrected) == (40, 3)


def test_quotas_come_and_go_and_what_was_spent_stays() -> None:
    tried = Budgets()
    tokens, requests = key(), key(QuotaUnit.REQUESTS)
    assert [book.key for book in tried.set_limits({tokens: 100}, wall_s=NOON_S)] == [tokens]
    (book,) = tried.agreed()
    book.read(0, [])

    def spend(number: int) -> int:
        return len(
            tried.spend(TENANT, KEY_ID, Amounts(1, 10, 0), request=RequestId(f"r{number}"), wall_s=NOON_S)
        )

    assert spend(1) == 1
    assert tried.set_limits({}, wall_s=NOON_S) == []
    assert list(tried.agreed()) == []
    assert spend(2) == 1
    assert book.newest.lend(0, 10**15), "a quota that was given up refuses nothing"
    new = tried.set_limits({tokens: 50, requests: 5}, wall_s=NOON_S)
    assert [book.key for book in new] == [requests]
    assert (book.newest.limit, book.newest.spent) == (50, 20)
    assert tried.set_limits({tokens: 50, requests: 5}, wall_s=NOON_S) == []
    assert tried.find(tokens) is book
    assert tried.find(key(tenant="other")) is None


def test_a_keys_quota_counts_its_own_requests_alone() -> None:
    tried = Budgets()
    for book in tried.set_limits({key(): 100, key(of=KEY_ID): 50, key(of="k2"): 50}, wall_s=NOON_S):
        book.read(0, [])
    tried.spend(TENANT, KEY_ID, Amounts(1, 10, 0), request=RequestId("r"), wall_s=NOON_S)
    tried.spend(TENANT, KEY_ID, Amounts(1, 10, 0), request=RequestId("old"), wall_s=NOON_S - 40 * DAY_S)
    tried.spend(TenantId("other"), KEY_ID, Amounts(1, 10, 0), request=RequestId("o"), wall_s=NOON_S)
    assert {book.key.key_id: book.newest.spent for book in tried.agreed()} == {"": 10, "k1": 10, "k2": 0}


@pytest.mark.parametrize(
    ("amount", "spent", "left", "says", "wait_s"),
    [
        (200, 0, 100, "more than all of it: 100 tokens", DAY_S / 2),
        (40, 30, 20, "20 tokens are left while other requests are in progress", 1.0),
        (40, 90, -5, "10 tokens of 100 tokens are left", DAY_S / 2),
    ],
)
def test_a_refusal_says_what_is_left_and_when_to_come_back(
    amount: int, spent: int, left: int, says: str, wait_s: float
) -> None:
    refusal = budgets.exhausted(
        key(),
        amount=amount,
        limit=100,
        spent=spent,
        left=left,
        span=span_of(Period.DAY, NOON_S),
        wall_s=NOON_S,
    )
    assert says in refusal.message
    assert "tokens/day of this tenant" in refusal.message
    assert refusal.retry_after_s == wait_s


def test_what_never_comes_back_is_asked_for_again_tomorrow() -> None:
    refusal = budgets.exhausted(
        key(period=Period.TOTAL, of=KEY_ID),
        amount=5,
        limit=4,
        spent=4,
        left=0,
        span=span_of(Period.TOTAL, NOON_S),
        wall_s=NOON_S,
    )
    assert refusal.retry_after_s == budgets.NEVER_RETRY_AFTER_S
    assert math.isfinite(refusal.retry_after_s)
    assert "of this key" in refusal.message
    assert "tokens/day" in budgets.unavailable(key()).message

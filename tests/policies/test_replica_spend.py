"""What replicas cost is counted to the day, and what is left of it bounds how many there may be."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.deployment_terms import BudgetTerms
from headrace.core.money import PICO
from headrace.policies.replica_spend import HOUR_S, Ordered, Spend, accrue, allowance, spent_between

MIDNIGHT_S = 1_700_006_400.0
DAY_S = 24 * HOUR_S
TERMS = BudgetTerms(replica_hour="0.10", per_day="5.00")
PRICE = TERMS.replica_hour_pico


def spent(pico: int, *, day_start_s: float = MIDNIGHT_S) -> Spend:
    return Spend(day_start_s, pico, 0.0)


def test_replicas_cost_by_the_hour_from_their_launch_to_their_end() -> None:
    spend = accrue(Spend(), replicas=3, price_pico=PRICE, now_s=50.0, wall_s=MIDNIGHT_S)
    assert spend.spent_pico == 0, "nobody knows how long they have been there"
    spend = accrue(spend, replicas=3, price_pico=PRICE, now_s=50.0 + HOUR_S, wall_s=MIDNIGHT_S + HOUR_S)
    assert spend.spent_pico == 3 * PRICE


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0.001, 500.0)), min_size=1, max_size=100))
def test_many_short_counts_come_to_the_same_as_the_whole(parts: list[tuple[int, float]]) -> None:
    spend, now_s = spent(0), 0.0
    for replicas, seconds in parts:
        now_s += seconds
        spend = accrue(spend, replicas=replicas, price_pico=PRICE, now_s=now_s, wall_s=MIDNIGHT_S + 1.0)
    whole = sum(replicas * seconds for replicas, seconds in parts) * PRICE / HOUR_S
    # Each count rounds to a millionth of a second of each replica.
    assert (
        abs(spend.spent_pico - whole) <= sum(replicas + 1 for replicas, _ in parts) * PRICE / HOUR_S / 1e6 + 1
    )


def test_at_midnight_the_new_day_has_what_came_after_it() -> None:
    before = spent(7 * PICO)
    after = accrue(before, replicas=2, price_pico=PRICE, now_s=HOUR_S, wall_s=MIDNIGHT_S + DAY_S + HOUR_S / 4)
    assert after.day_start_s == MIDNIGHT_S + DAY_S
    assert after.spent_pico == 2 * PRICE // 4


def test_a_clock_that_goes_back_over_midnight_gives_no_second_budget() -> None:
    today = spent(4 * PICO, day_start_s=MIDNIGHT_S + DAY_S)
    later = accrue(today, replicas=1, price_pico=PRICE, now_s=HOUR_S, wall_s=MIDNIGHT_S + DAY_S - 60.0)
    assert later.day_start_s == today.day_start_s
    assert later.spent_pico == 4 * PICO + PRICE


def test_a_clock_that_was_days_ahead_keeps_no_budget_from_coming_back() -> None:
    ahead = accrue(
        Spend(MIDNIGHT_S, 7, 0.0), replicas=1, price_pico=PRICE, now_s=0.0, wall_s=MIDNIGHT_S + 9 * DAY_S
    )
    ahead = Spend(ahead.day_start_s, 5 * PICO, 0.0)
    back = accrue(ahead, replicas=0, price_pico=PRICE, now_s=1.0, wall_s=MIDNIGHT_S + 60.0)
    assert back == Spend(MIDNIGHT_S, 5 * PICO, 1.0)
    tomorrow = accrue(back, replicas=0, price_pico=PRICE, now_s=2.0, wall_s=MIDNIGHT_S + DAY_S)
    assert (tomorrow.day_start_s, tomorrow.spent_pico) == (MIDNIGHT_S + DAY_S, 0)


def test_without_a_price_or_a_bound_any_number_can_be_paid() -> None:
    for terms in (BudgetTerms(replica_hour="0.10"), BudgetTerms(per_day="5.00")):
        allowed = allowance(spent(10**15), terms, replicas_min=1, stay_s=60.0, wall_s=MIDNIGHT_S)
        assert allowed.replicas_max > 10**6
        assert not allowed.is_short
        assert not allowed.is_spent


def test_what_the_least_number_needs_until_midnight_is_set_aside() -> None:
    """Of 5.00 a day one replica needs 2.40; 2.60 is left for others, which is 26 replica-hours."""
    allowed = allowance(spent(0), TERMS, replicas_min=1, stay_s=HOUR_S, wall_s=MIDNIGHT_S)
    assert allowed.replicas_max == 1 + 26
    noon = allowance(spent(3 * PICO), TERMS, replicas_min=1, stay_s=HOUR_S, wall_s=MIDNIGHT_S + 12 * HOUR_S)
    assert noon.replicas_max == 1 + 8


def test_the_budget_is_short_before_it_is_spent() -> None:
    short = allowance(spent(4 * PICO), TERMS, replicas_min=1, stay_s=60.0, wall_s=MIDNIGHT_S)
    assert short == (1, True, False)
    gone = allowance(spent(5 * PICO), TERMS, replicas_min=1, stay_s=60.0, wall_s=MIDNIGHT_S)
    assert gone == (1, True, True)


@given(
    hours=st.floats(0.0, 24.0), spent_pico=st.integers(0, 5 * PICO), least=st.integers(0, 2), stay_s=st.floats(60.0, 7200.0)
)  # fmt: skip
def test_what_is_allowed_can_be_paid_for(hours: float, spent_pico: int, least: int, stay_s: float) -> None:
    """As many as allowed for as long as one stays, and the least number until midnight, cost no more than is left."""
    allowed = allowance(
        spent(spent_pico), TERMS, replicas_min=least, stay_s=stay_s, wall_s=MIDNIGHT_S + hours * HOUR_S
    )
    left_s = (24.0 - hours) * HOUR_S
    extra = allowed.replicas_max - least
    cost = (least * left_s + extra * min(stay_s, left_s)) * PRICE / HOUR_S
    assert not extra or cost <= TERMS.per_day_pico - spent_pico + (extra + least) * PRICE / HOUR_S / 1e5


def test_what_was_spent_in_a_time_that_is_over_is_counted_by_its_orders() -> None:
    orders = [Ordered(0.0, 1, PRICE), Ordered(HOUR_S, 3, PRICE), Ordered(2 * HOUR_S, 0, PRICE)]
    assert spent_between(orders, since_s=0.0, until_s=3 * HOUR_S) == (4 * PRICE, 0.0)
    assert spent_between(orders, since_s=HOUR_S / 2, until_s=1.5 * HOUR_S) == (2 * PRICE, HOUR_S / 2)
    assert spent_between(orders, since_s=-HOUR_S, until_s=0.0) == (0, 0.0), "nobody knows what was before"
    assert spent_between([], since_s=0.0, until_s=9.0) == (0, 9.0)


@given(
    st.lists(st.tuples(st.floats(0, 1000), st.integers(0, 9)), max_size=20),
    st.lists(st.floats(0, 2000), min_size=2, max_size=6),
)
def test_what_parts_of_a_time_cost_comes_to_what_the_whole_did(
    made: list[tuple[float, int]], cuts: list[float]
) -> None:
    orders = [Ordered(at_s, replicas, PRICE) for at_s, replicas in sorted(made)]
    cuts = sorted(cuts)
    whole, _ = spent_between(orders, since_s=cuts[0], until_s=cuts[-1])
    parts = sum(spent_between(orders, since_s=a, until_s=b)[0] for a, b in pairwise(cuts))
    assert abs(whole - parts) <= 10 * len(cuts) * (len(orders) + 1) * PRICE / HOUR_S / 1e6 + 1

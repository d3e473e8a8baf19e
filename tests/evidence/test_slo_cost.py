"""What a qualified result cost: by which records, and what is said where they don't know."""

from pathlib import Path

import pytest

from headrace.core.clock import SystemClock
from headrace.core.money import PICO
from headrace.core.slo import CostTerms, Slo
from headrace.core.verdicts import Verdict
from headrace.evidence import slo_cost
from headrace.evidence.page import Section
from headrace.evidence.slo_cost import NO_ORDERS, Orders
from headrace.policies.decisions import decision
from headrace.policies.replica_spend import HOUR_S, Ordered
from headrace.policies.slo import Attainment, Tally
from headrace.stores.fleet import Change, open_fleet
from headrace.stores.opening import prepare

SLO = Slo("chat", failure_share_max=0.1, cost=CostTerms("EUR", "0.10"))
EUROS = frozenset({"EUR"})


def attained(good: int, bad: int = 0) -> Attainment:
    return Attainment(good + bad, {}, (), Tally(good, {"slow": bad} if bad else {}))


def orders(*made: tuple[float, int], price: int = PICO, currencies: frozenset[str] = EUROS) -> Orders:
    return Orders([Ordered(at_s, replicas, price) for at_s, replicas in made], currencies)


def judged(
    found: Attainment, known: Orders, *, right_share: float | None = None, is_quiet: bool = False
) -> slo_cost.CostFound:
    window_s = 0.0, HOUR_S
    cost = slo_cost.judge(SLO, found, known, window_s=window_s, right_share=right_share, is_quiet=is_quiet)
    assert cost is not None
    return cost


def test_an_hour_of_a_replica_is_paid_by_what_it_got_done() -> None:
    known = orders((0.0, 2), (HOUR_S / 2, 0))
    assert judged(attained(10), known).per_result_pico == PICO // 10
    assert judged(attained(10), known).verdict is Verdict.PASS
    assert judged(attained(9, bad=90), known).verdict is Verdict.FAIL, (
        "what wasn't qualified pays for nothing"
    )
    half = judged(attained(19), known, right_share=0.5)
    assert (half.qualified, half.verdict) == (9, Verdict.FAIL)
    assert any("50 %" in note for note in half.notes)


def test_what_was_dear_because_there_was_less_to_do_than_promised_refutes_nothing() -> None:
    assert judged(attained(9), orders((0.0, 1)), is_quiet=True).verdict is Verdict.INCONCLUSIVE
    assert judged(attained(10), orders((0.0, 1)), is_quiet=True).verdict is Verdict.PASS
    assert judged(attained(0, bad=1), orders((0.0, 1)), is_quiet=True).verdict is Verdict.INCONCLUSIVE


def test_idle_replicas_without_a_result_refute_it_unless_nobody_asked() -> None:
    assert judged(attained(0, bad=3), orders((0.0, 1))).verdict is Verdict.FAIL
    assert judged(attained(0), orders((0.0, 1))).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("known", "why"),
    [
        (NO_ORDERS, "knows of no replicas"),
        (orders((0.0, 1), price=0, currencies=frozenset()), "`budget.replica_hour` doesn't say"),
        (orders((0.0, 1), currencies=frozenset({"USD"})), "paid in USD"),
        (orders((2 * HOUR_S, 1)), "no replicas in that time"),
    ],
)
def test_where_nobody_knows_what_was_spent_nothing_is_proven(known: Orders, why: str) -> None:
    cost = judged(attained(1000), known)
    assert (cost.verdict, cost.per_result_pico) == (Verdict.INCONCLUSIVE, None)
    assert why in cost.says


def test_what_was_before_the_first_order_is_said_to_be_unknown() -> None:
    assert any("isn't known" in note for note in judged(attained(50), orders((HOUR_S / 2, 1))).notes)


@pytest.mark.parametrize(
    ("requests", "cost", "both"),
    [
        (Verdict.PASS, Verdict.FAIL, Verdict.FAIL),
        (Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE),
        (Verdict.INCONCLUSIVE, Verdict.PASS, Verdict.INCONCLUSIVE),
        (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.FAIL),
        (Verdict.PASS, Verdict.PASS, Verdict.PASS),
    ],
)
def test_requests_and_cost_are_proven_together(requests: Verdict, cost: Verdict, both: Verdict) -> None:
    found = slo_cost.CostFound(cost, "it", 1, 1)
    shown = slo_cost.beside(Section("chat", verdict=requests, says="requests"), SLO, found)
    assert shown.verdict is both
    assert "Cost " in shown.prose[0]


def test_the_controllers_own_decisions_say_how_many_replicas_there_were(tmp_path: Path) -> None:
    """What another version wrote in another shape ends what was known before it."""
    prepare(tmp_path, "")
    store = open_fleet(tmp_path, clock=SystemClock())
    store.take_lease("test")
    budget = {"setting": {"budget": {"replica_hour": "0.5", "currency": "EUR"}}}
    made = [
        decision("scale", "chat", "steady", budget, {"replicas": 7}),
        decision("scale", "chat", "steady", {"odd": 1}, {"replicas": 8}),
        decision("scale", "chat", "load_up", budget, {"replicas": 3}),
        decision("scale", "other", "load_up", budget, {"replicas": 9}),
        decision("rollout", "chat", "done", {}, {}),
    ]
    store.write(Change(decisions=made))
    known = slo_cost.orders(store, "chat")
    store.close()
    assert [(each.replicas, each.price_pico) for each in known.orders] == [(3, PICO // 2)]
    assert known.currencies == EUROS

"""What did a qualified result cost, and was it no more than is promised? Replicas by the hour, over what they got done.

All replicas that there were to be count, at work or idle, as the controller's decisions record them, with the price that was
in force. What isn't a replica (network, storage, operations) is in a plan's cost alone, and said to be missing here.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from headrace.core import moments, money
from headrace.core.deployment_terms import BudgetTerms
from headrace.core.slo import Slo
from headrace.core.verdicts import Verdict
from headrace.evidence.numbers import number, share
from headrace.evidence.page import Section, Table
from headrace.evidence.slo_report import WORDS
from headrace.policies.replica_spend import Ordered, spent_between
from headrace.policies.slo import Attainment
from headrace.stores.fleet import DECISIONS_MAX, FleetStore

_SCALE = "scale"
_SLACK_S = 60.0


class _Setting(msgspec.Struct):
    budget: BudgetTerms


class _Inputs(msgspec.Struct):
    """Of a scaling decision's, what it cost."""

    setting: _Setting


class _Outcome(msgspec.Struct):
    replicas: int


class CostFound(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        spent_pico, per_result_pico: Of the promise's currency; None where it isn't known.
        qualified: Results that were whole, within every bound, and right as far as that is known.
        notes: What the figure doesn't hold.
    """

    verdict: Verdict
    says: str
    spent_pico: int | None
    qualified: int
    per_result_pico: int | None = None
    notes: tuple[str, ...] = ()


class Orders(NamedTuple):
    """How many replicas there were to be, and in which currencies they are paid."""

    orders: list[Ordered]
    currencies: frozenset[str]


NO_ORDERS = Orders([], frozenset())


def orders(store: FleetStore, deployment: str) -> Orders:
    """All that is kept of it."""
    made: list[Ordered] = []
    currencies: set[str] = set()
    for kept in store.decisions(deployment=deployment, kind=_SCALE, most=DECISIONS_MAX):
        try:
            budget = msgspec.json.decode(kept.decision.inputs, type=_Inputs).setting.budget
            replicas = msgspec.json.decode(kept.decision.outcome, type=_Outcome).replicas
        except (
            ValueError
        ):  # of another version, in another shape: what came before it isn't known to have gone on
            made.clear()
            continue
        made.append(Ordered(kept.at_s, replicas, budget.replica_hour_pico))
        if budget.replica_hour_pico:
            currencies.add(budget.currency)
    return Orders(made, frozenset(currencies))


def judge(
    slo: Slo,
    found: Attainment,
    known: Orders,
    *,
    window_s: tuple[float, float],
    right_share: float | None = None,
    is_quiet: bool = False,
) -> CostFound | None:
    """None where nothing is promised of cost.

    Args:
        window_s: From when to when, Unix seconds.
        is_quiet: There was less to do than the promise is for: idle replicas may be dear, and only what was cheap proves something.
        right_share: Of the answers, as a quality set found it; None where none was asked.
    """
    most = slo.cost.max_pico
    if most is None:
        return None
    qualified = found.qualified.good
    if right_share is not None:
        qualified = int(qualified * right_share)  # rounded down, to our own disadvantage
    spent, known_from_s = spent_between(known.orders, since_s=window_s[0], until_s=window_s[1])
    if why := _unknown(slo, known, spent):
        return CostFound(Verdict.INCONCLUSIVE, why, None, qualified)
    notes = tuple(_notes(known_from_s, since_s=window_s[0], right_share=right_share))
    if qualified <= 0:
        verdict = Verdict.FAIL if found.intended and not is_quiet else Verdict.INCONCLUSIVE
        says = f"{_amount(spent, slo)} were spent, and no result is qualified"
        return CostFound(verdict, says, spent, qualified, notes=notes)
    each = -(-spent // qualified)  # rounded up, for the same reason: an amount is never a float
    dear = Verdict.INCONCLUSIVE if is_quiet else Verdict.FAIL
    return CostFound(
        Verdict.PASS if each <= most else dear,
        f"{_amount(each, slo)} for each of {number(qualified)} qualified results, {_amount(most, slo)} is allowed",
        spent,
        qualified,
        each,
        notes,
    )


def _amount(pico: int, slo: Slo) -> str:
    return f"{money.format_amount(pico)} {slo.cost.currency}"


def _unknown(slo: Slo, known: Orders, spent: int) -> str:
    """Why nobody knows what was spent; "" where it is known."""
    others = sorted(known.currencies - {slo.cost.currency})
    if others:
        return f"its replicas are paid in {', '.join(others)}, and the promise is in {slo.cost.currency}"
    if not known.orders:
        return "this data directory knows of no replicas that it had"
    if not known.currencies:
        return "the deployment's `budget.replica_hour` doesn't say what a replica costs"
    return "" if spent else "it had no replicas in that time that cost something"


def _notes(known_from_s: float, *, since_s: float, right_share: float | None) -> Iterator[str]:
    yield "The cost is that of replicas, at work or idle; network, storage and operations are in no record."
    if known_from_s > since_s + _SLACK_S:
        yield f"How many replicas there were before {moments.utc(known_from_s)} isn't known, and costs nothing here."
    if right_share is None:
        yield "No quality is given (`--quality`): every whole answer within the bounds counts as qualified."
    else:
        yield f"{share(right_share)} of the answers count as right, as the quality set found."


def beside(shown: Section, slo: Slo, cost: CostFound | None) -> Section:
    """A section about requests, with their cost."""
    if cost is None:
        return shown
    assert shown.verdict is not None, "it says whether promises were kept"
    verdict = with_cost(shown.verdict, cost)
    prose = (*shown.prose, f"Cost {WORDS[cost.verdict]}: {cost.says}.", *cost.notes)
    tables = (*shown.tables, _table(cost, slo))
    if verdict is shown.verdict:
        return shown._replace(prose=prose, tables=tables)
    says = f"cost {WORDS[cost.verdict]}: {cost.says}"
    return shown._replace(prose=prose, tables=tables, verdict=verdict, says=says)


def with_cost(verdict: Verdict, cost: CostFound | None) -> Verdict:
    """Of requests and cost together: one that is refuted is enough, and what is proven is all of it."""
    if cost is None or verdict in (Verdict.FAIL, Verdict.ERROR) or cost.verdict is Verdict.PASS:
        return verdict
    return cost.verdict


def _table(cost: CostFound, slo: Slo) -> Table:
    return Table(
        ("cost", "spent", "qualified", "each", "at most"),
        [
            (
                "a qualified result",
                "-" if cost.spent_pico is None else _amount(cost.spent_pico, slo),
                f"{cost.qualified:,}",
                "-" if cost.per_result_pico is None else _amount(cost.per_result_pico, slo),
                _amount(slo.cost.max_pico or 0, slo),
            )
        ],
        left=1,
    )

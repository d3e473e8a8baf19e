"""Two revisions on the same cases: what is shown, what isn't, and how often that is wrong."""

import math
import re
from math import comb
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.verdicts import Reason, Verdict
from headrace.policies import distributions, looks, pairs
from headrace.policies.pairs import Pairs


def test_a_hundred_pairs_have_the_exact_p_of_a_sign_test() -> None:
    table = Pairs(both=80, candidate_only=2, accepted_only=8, neither=10)
    assert table.cases == 100
    assert pairs.worse_p(table) == pytest.approx((comb(10, 8) + comb(10, 9) + 1) / 1024)
    assert pairs.two_sided_p(table) == pytest.approx(2 * 56 / 1024)
    assert pairs.two_sided_p(Pairs(5, 0, 0, 0)) == 1.0


def tango_by_search(table: Pairs, d: float) -> float:
    """The score at a true difference of `d`, its nuisance found by trying, not by the closed form."""
    b, c, n = table.accepted_only, table.candidate_only, table.cases

    def likelihood(q: float) -> float:
        parts = ((c, q + d), (b, q), (n - b - c, 1 - 2 * q - d))
        return sum(count * math.log(share) for count, share in parts if count)

    low, high = max(0.0, -d) + 1e-13, (1 - d) / 2 - 1e-13
    for _ in range(200):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (left, high) if likelihood(left) < likelihood(right) else (low, right)
    return (c - b - n * d) / math.sqrt(n * (2 * low + d * (1 - d)))


@given(st.tuples(*[st.integers(0, 40)] * 4), st.sampled_from([0.01, 0.05, 0.2]))
def test_at_each_bound_the_score_is_the_quantile(counts: tuple[int, int, int, int], alpha: float) -> None:
    table = Pairs(*counts)
    found = pairs.difference(table, alpha=alpha)
    if not table.cases:
        assert (found.estimate, found.low, found.high) == (None, -1.0, 1.0)
        return
    assert found.estimate is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.estimate <= found.high
    z = distributions.normal_quantile(1 - alpha)
    if found.low > -0.999:
        assert tango_by_search(table, found.low) == pytest.approx(z, abs=1e-3)
    if found.high < 0.999:
        assert tango_by_search(table, found.high) == pytest.approx(-z, abs=1e-3)


def test_where_no_case_differs_the_interval_still_has_a_width() -> None:
    z = distributions.normal_quantile(0.95)
    found = pairs.difference(Pairs(30, 0, 0, 10), alpha=0.05)
    reach = z * z / (40 + z * z)
    assert (found.low, found.high) == pytest.approx((-reach, reach))


def test_the_chance_of_a_false_pass_is_about_alpha() -> None:
    """Counted out over all tables of 40 cases, of candidates that are worse by exactly the margin."""
    n, margin, alpha = 40, 0.1, 0.05
    passes = {
        (b, c): pairs.judge(Pairs(n - b - c, c, b, 0), margin=margin, alpha=alpha).verdict is Verdict.PASS
        for b in range(n + 1)
        for c in range(n + 1 - b)
    }
    for better in (0.0, 0.01, 0.05, 0.2):
        worse = better + margin
        chance = sum(
            comb(n, b) * comb(n - b, c) * worse**b * better**c * max(0.0, 1 - worse - better) ** (n - b - c)
            for (b, c), is_pass in passes.items()
            if is_pass
        )
        assert chance < 0.055


@pytest.mark.parametrize(
    ("table", "margin", "wanted"),
    [
        (Pairs(300, 0, 0, 0), 0.01, (Verdict.PASS, Reason.SHOWN_NOT_WORSE)),
        (Pairs(36, 0, 0, 4), 0.01, (Verdict.INCONCLUSIVE, Reason.TOO_FEW_SAMPLES)),
        (Pairs(0, 0, 0, 0), 0.01, (Verdict.INCONCLUSIVE, Reason.TOO_FEW_SAMPLES)),
        (Pairs(28, 0, 12, 0), 0.01, (Verdict.FAIL, Reason.SHOWN_WORSE)),
        (Pairs(36, 1, 3, 0), 0.0, (Verdict.INCONCLUSIVE, Reason.UNDECIDED)),
        (Pairs(20, 0, 3, 0), 0.01, (Verdict.INCONCLUSIVE, Reason.TOO_FEW_SAMPLES)),
        (Pairs(0, 0, 0, 20), 0.15, (Verdict.INCONCLUSIVE, Reason.INSENSITIVE)),
        (Pairs(0, 30, 0, 10), 0.15, (Verdict.PASS, Reason.SHOWN_NOT_WORSE)),
        (Pairs(6, 0, 0, 34), 0.15, (Verdict.PASS, Reason.SHOWN_NOT_WORSE)),
        (Pairs(20, 18, 2, 0), -0.05, (Verdict.PASS, Reason.SHOWN_NOT_WORSE)),
        (Pairs(400, 2, 2, 0), -0.05, (Verdict.FAIL, Reason.SHOWN_WORSE)),
    ],
)
def test_a_candidate_passes_only_where_it_is_shown_not_to_be_worse(
    table: Pairs, margin: float, wanted: tuple[Verdict, Reason]
) -> None:
    """A negative margin asks for better, and then as good is not enough."""
    judged = pairs.judge(table, margin=margin, alpha=0.05)
    assert (judged.verdict, judged.reason) == wanted
    assert judged.candidate_samples == table.cases


def test_the_numbers_of_cases_in_the_documents_are_right() -> None:
    page = Path(__file__).parents[2] / "docs" / "concepts" / "quality.md"
    row = re.compile(r"^\| (0\.\d+) \| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)
    rows = row.findall(page.read_text(encoding="utf-8"))
    assert len(rows) == 5
    for margin, none, some, first_look in rows:
        assert pairs.cases_needed(float(margin), alpha=looks.alpha_at(1, alpha=0.05)) == int(first_look)
        assert pairs.cases_needed(float(margin), alpha=0.05) == int(none)
        assert pairs.cases_needed(float(margin), alpha=0.05, differing=0.1) == int(some)


def test_as_many_cases_as_are_said_to_be_needed_are_enough() -> None:
    assert pairs.cases_needed(0.01, alpha=0.05) == 268
    assert pairs.cases_needed(0.1, alpha=0.05) == 25
    for margin, differing in ((0.01, 0.0), (0.05, 0.1), (0.02, 0.3)):
        needed = pairs.cases_needed(margin, alpha=0.05, differing=differing)
        each = round(needed * differing / 2)
        table = Pairs(needed - 2 * each, each, each, 0)
        assert pairs.judge(table, margin=margin * 1.02, alpha=0.05).verdict is Verdict.PASS
        half = Pairs(needed // 2 - each, each // 2, each // 2, 0)
        assert pairs.judge(half, margin=margin, alpha=0.05).verdict is Verdict.INCONCLUSIVE
    assert pairs.cases_needed(0.05, alpha=0.05, power=0.9) > 2 * pairs.cases_needed(0.05, alpha=0.05)

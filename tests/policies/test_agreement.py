"""Two graders agree by more than chance, by chance alone, or by less."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.policies import agreement

counts = st.integers(0, 500)


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        ((20, 5, 10, 15), 0.4),  # Cohen's own kind of example
        ((50, 0, 0, 50), 1.0),
        ((25, 25, 25, 25), 0.0),
        ((0, 50, 50, 0), -1.0),
        ((10, 0, 0, 0), None),
        ((0, 0, 0, 0), None),
    ],
)
def test_kappa_is_agreement_beyond_chance(table: tuple[int, int, int, int], wanted: float | None) -> None:
    assert agreement.kappa(*table) == (wanted if wanted is None else pytest.approx(wanted))


@given(counts, counts, counts, counts)
def test_kappa_lies_between_the_ends_and_does_not_care_who_is_first(a: int, b: int, c: int, d: int) -> None:
    found = agreement.kappa(a, b, c, d)
    assert found is None or -1.0 <= found <= 1.0 + 1e-9
    other = agreement.kappa(a, c, b, d)
    assert found == (other if other is None else pytest.approx(other))


def test_a_calibration_has_the_table_the_share_with_its_bounds_and_kappa() -> None:
    found = agreement.calibration(20, 5, 10, 15)
    assert (found.both_right, found.judge_only, found.rules_only, found.both_wrong) == (20, 5, 10, 15)
    assert found.agreement.estimate == pytest.approx(0.7)
    assert found.agreement.low is not None
    assert found.agreement.low < 0.7
    assert found.kappa == pytest.approx(0.4)

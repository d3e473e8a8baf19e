"""What a qualified result costs, part by part, and where a price pays for it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import money
from headrace.core.capacity_plan import CostTerms
from headrace.policies import cost, replications
from headrace.policies.cost import Use

COSTS = CostTerms(
    date="2026-11-30", replica_hour="2", storage_month="730", monitoring_month="1460", operations_month="7300",
    network_gb="0.1", bytes_per_token=200, completed=0.99, within=0.98, accepted=0.9, attempts=1.1,
    price_input_mtok="1", price_output_mtok="4",
)  # fmt: skip


def test_everything_that_is_paid_for_is_divided_by_the_results_that_qualify() -> None:
    """10 replicas at 2, and 13 an hour for the rest; 36,000 requests, of which 87.3 % qualify."""
    made = cost.bill(COSTS, Use("normal", 10.0, 10, 0.6), output_tokens=100)
    assert (made.working, made.idle) == (12 * money.PICO, 8 * money.PICO)
    assert (made.storage, made.monitoring, made.operations) == (
        1 * money.PICO,
        2 * money.PICO,
        10 * money.PICO,
    )
    assert made.network == round(0.1 * 36_000 * 1.1 * 100 * 200 / 1e9 * money.PICO)
    assert made.qualified == pytest.approx(36_000 * 0.99 * 0.98 * 0.9)
    assert made.per_result == pytest.approx(made.total / made.qualified)
    assert made.wasted == pytest.approx((made.working + made.network) * (1 - 0.99 * 0.98 * 0.9 / 1.1))


def test_an_hour_without_work_costs_and_has_no_result_to_divide_it_by() -> None:
    made = cost.bill(COSTS, Use("quiet", 0.0, 10, 0.0), output_tokens=100)
    assert (made.working, made.idle, made.per_result) == (0, 20 * money.PICO, None)
    assert made.total == 33 * money.PICO


@given(share=st.floats(0.1, 1.0), rate=st.floats(0.1, 1000.0))
def test_the_fewer_results_qualify_the_dearer_each_is(share: float, rate: float) -> None:
    use = Use("normal", rate, 10, 0.6)
    good = cost.bill(msgspec.structs.replace(COSTS, accepted=1.0), use, output_tokens=100)
    poor = cost.bill(msgspec.structs.replace(COSTS, accepted=share), use, output_tokens=100)
    assert good.per_result is not None
    assert poor.per_result is not None
    assert poor.per_result * share == pytest.approx(good.per_result, rel=1e-6)


def test_the_price_pays_for_ready_capacity_from_some_utilisation_on() -> None:
    """A request brings 0.0014; 20 attempts a second at full use are 18.2 requests, of which 87.3 % qualify; 33 an hour is ready."""
    found = cost.break_even(COSTS, replicas=10, full_rate_per_s=20.0, input_tokens=1000, output_tokens=100)
    brings = 0.0014 * 20 / 1.1 * 3600 * 0.99 * 0.98 * 0.9
    network = 0.1 * 20 * 3600 * 100 * 200 / 1e9
    assert found.ready_hour == 33 * money.PICO
    assert found.full_hour == pytest.approx(brings * money.PICO)
    assert found.network_hour == pytest.approx(network * money.PICO)
    assert found.utilisation == pytest.approx(33 / (brings - network))
    dearer = cost.break_even(
        COSTS, replicas=10, full_rate_per_s=20.0, input_tokens=1000, output_tokens=100, price_factor=2.0,
        cost_factor=0.5,
    )  # fmt: skip
    assert dearer.utilisation == pytest.approx(33 / 2 / (2 * brings - network / 2))


@given(
    replicas=st.integers(1, 50),
    rate=st.floats(0.5, 100.0),
    output=st.integers(1, 2000),
    attempts=st.floats(1.0, 3.0),
    accepted=st.floats(0.1, 1.0),
)
def test_at_the_break_even_an_hour_brings_what_it_costs(
    replicas: int, rate: float, output: int, attempts: float, accepted: float
) -> None:
    terms = msgspec.structs.replace(COSTS, attempts=attempts, accepted=accepted)
    found = cost.break_even(
        terms, replicas=replicas, full_rate_per_s=rate, input_tokens=1000, output_tokens=output
    )
    assert found.utilisation is not None
    use = Use("even", rate / attempts * found.utilisation, replicas, found.utilisation)
    hour = cost.bill(terms, use, output_tokens=output)
    assert hour.qualified * (1000 + 4 * output) / 1e6 * money.PICO == pytest.approx(hour.total, rel=1e-6)


@pytest.mark.parametrize(
    "changes", [{"price_input_mtok": "", "price_output_mtok": ""}, {"network_gb": "1000"}]
)
def test_what_is_not_sold_or_brings_less_than_its_own_network_never_pays(changes: dict[str, str]) -> None:
    poor = msgspec.structs.replace(COSTS, **changes)
    found = cost.break_even(poor, replicas=1, full_rate_per_s=1.0, input_tokens=1, output_tokens=1)
    assert found.utilisation is None


def test_ten_runs_have_bounds_by_student_s_t_and_one_has_none() -> None:
    assert replications.t_quantile(9, alpha=0.05) == pytest.approx(2.2622, abs=1e-4)
    found = replications.mean([1.0, 2.0, 3.0, 4.0])
    assert found.estimate == 2.5
    assert found.low == pytest.approx(2.5 - 3.1824 * 1.29099 / 2, abs=1e-3)
    assert replications.mean([1.0]).low is None
    assert replications.mean([1.0, float("inf")]).high is None
    assert replications.mean([]).estimate is None

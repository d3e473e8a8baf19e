"""What the autoscaler is for, in figures, on a virtual clock: the promise of a fleet of peak size, for less of it.

`python -m benchmarks.autoscale` has the long form, over days of real requests, where two thirds are enough.
"""

from collections.abc import Callable

import pytest

from headrace.core.deployment_terms import ScaleTerms, SloTerms
from headrace.evidence.simulate_fleet import Fixed, FleetModel, Wanted
from headrace.evidence.simulate_replica import Pace
from headrace.evidence.simulate_run import Run
from headrace.evidence.simulate_work import Promise, Work
from headrace.policies.autoscale import ScaleState, Setting, decide
from headrace.policies.autoscale_signals import FleetView, LoadSample
from tests.support import arrivals

SECONDS = 3600.0
RATE = 12.0
PACE = Pace(slots=8, stages_s={"launch": 3.0, "load": 10.0, "warm": 2.0})
PROMISE = Promise(ttft_s=2.0)
PEAK = 9  # the smallest fleet whose busiest minutes keep the promise at that rate


def works(rate: Callable[[float], float], *, seconds: float = SECONDS, seed: int = 1) -> list[Work]:
    return arrivals.arrivals(rate, rate_max=RATE, seconds=seconds, output_tokens=200, seed=seed)


def autoscaled(requests: list[Work], *, replicas: int, pace: Pace = PACE, predict: str = "off") -> Run:
    setting = Setting(ScaleTerms(max=2 * PEAK, predict=predict), SloTerms(ttft_p95_ms=2000.0))  # type: ignore[arg-type]
    state = ScaleState()

    def scaler(sample: LoadSample | None, fleet: FleetView, *, now_s: float, wall_s: float) -> Wanted:
        nonlocal state
        state, decision = decide(state, setting, sample, fleet, now_s=now_s, wall_s=wall_s)
        return Wanted(decision.replicas, decision.remove)

    return FleetModel(requests, scaler, pace=pace, promise=PROMISE, replicas=replicas).run()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "share"),
    [
        pytest.param(arrivals.diurnal(0.1 * RATE, RATE, day_s=SECONDS), 0.88, id="a day in an hour"),
        pytest.param(
            arrivals.ramp(0.1 * RATE, RATE, from_s=0.3 * SECONDS, to_s=0.9 * SECONDS), 0.7, id="a ramp"
        ),
    ],
)
def test_load_that_changes_is_served_as_well_as_by_a_fleet_of_peak_size_for_less_of_it(
    rate: Callable[[float], float], share: float
) -> None:
    requests = works(rate)
    peak = FleetModel(requests, Fixed(PEAK), pace=PACE, promise=PROMISE, replicas=PEAK).run()
    run = autoscaled(requests, replicas=PEAK)
    assert peak.worst_minute() >= 0.99
    assert run.attainment >= peak.attainment - 0.01
    assert run.replica_hours <= share * peak.replica_hours
    assert run.cut == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_constant_load_changes_the_number_at_most_twice(seed: int) -> None:
    run = autoscaled(works(arrivals.constant(0.5 * RATE), seconds=2 * SECONDS, seed=seed), replicas=5)
    assert run.changes <= 2
    assert run.attainment >= 0.99


@pytest.mark.slow
def test_a_climb_that_goes_on_for_longer_than_a_start_takes_is_met_better_by_a_forecast() -> None:
    slow = Pace(slots=8, stages_s={"launch": 10.0, "load": 150.0, "warm": 20.0})
    requests = works(arrivals.ramp(0.05 * RATE, RATE, from_s=300.0, to_s=1100.0), seconds=1200.0)
    without = autoscaled(requests, replicas=2, pace=slow)
    ahead = autoscaled(requests, replicas=2, pace=slow, predict="auto")
    assert ahead.attainment > without.attainment + 0.02

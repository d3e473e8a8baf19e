"""Claims about what several processes count together: sums, and nothing that was counted is ever taken back."""

import msgspec

from headrace.telemetry.exposition import Exposition
from headrace.telemetry.merging import MetricsState, add, merged, state_of
from headrace.telemetry.metrics import Metrics


def counted(requests: int, *, lag_s: float = 0.0) -> MetricsState:
    metrics = Metrics()
    metrics.retries.labels("m").add(requests)
    metrics.connections.labels().set(requests)
    metrics.event_loop_lag_seconds.labels().set(lag_s)
    metrics.replica_ejected.labels("m", "r").set(True)
    for _ in range(requests):
        metrics.ttft_seconds.labels("m").observe(0.05)
    return state_of(metrics)


def test_counters_histograms_and_gauges_of_all_processes_sum_up() -> None:
    total = merged([counted(2), counted(3)])
    assert total.retries.labels("m").value == 5
    assert total.connections.labels().value == 5
    assert sum(total.ttft_seconds.labels("m").counts) == 5
    assert round(total.ttft_seconds.labels("m").sum, 6) == 0.25


def test_a_gauge_that_makes_no_sense_as_a_sum_shows_the_largest() -> None:
    total = merged([counted(1, lag_s=0.2), counted(1, lag_s=0.7)])
    assert total.event_loop_lag_seconds.labels().value == 0.7
    assert total.replica_ejected.labels("m", "r").value == 1
    assert all(series.value == 1 for _, series in total.build_info.series())


def test_what_is_left_is_shown_of_the_process_that_has_least() -> None:
    """Also below zero: a certificate that expired is not hidden by one that was reloaded, nor by who has none."""
    states = []
    for days, left_bytes in ((-3.0, 500), (80.0, 100)):
        metrics = Metrics()
        metrics.tls_expiry_days.labels().set(days)
        metrics.memory_left_bytes.labels().set(left_bytes)
        states.append(state_of(metrics))
    service = Metrics()
    service.tls_expiry_days.remove()
    service.memory_left_bytes.remove()
    total = merged([state_of(service), *states])
    assert total.tls_expiry_days.labels().value == -3.0
    assert total.memory_left_bytes.labels().value == 100


def test_a_process_that_is_gone_leaves_what_it_counted_and_not_what_it_showed() -> None:
    gone = Metrics()
    add(gone, counted(4))
    assert gone.retries.labels("m").value == 4
    assert sum(gone.ttft_seconds.labels("m").counts) == 4
    assert gone.connections.labels().value == 0


def test_what_a_process_counted_survives_the_way_to_another() -> None:
    state = counted(3, lag_s=0.5)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=MetricsState) == state


def test_a_scrape_shows_the_sum_with_what_was_counted_elsewhere() -> None:
    metrics = Metrics()
    metrics.retries.labels("m").add(1)
    text = Exposition(metrics, elsewhere=lambda: [counted(2), counted(3)]).render().decode()
    assert 'headrace_retries_total{model="m"} 6.0' in text
    assert metrics.retries.labels("m").value == 1

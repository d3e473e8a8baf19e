"""Claims about the metrics: bounded series, true histograms, a scrape that parses, a table that is documented."""

import threading
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import headrace
from headrace.telemetry.exposition import Exposition
from headrace.telemetry.families import Family, Kind
from headrace.telemetry.metrics import Metrics

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def scrape(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of one scrape, read back by the Prometheus parser."""
    text = Exposition(metrics).render().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return scrape(metrics).get((name, frozenset(labels.items())))


def test_what_was_added_is_what_is_scraped() -> None:
    metrics = Metrics()
    metrics.retries.labels("m").add()
    metrics.retries.labels("m").add(2)
    metrics.in_flight.labels("m", "r").set(7)
    metrics.in_flight.labels("m", "r").add(-3)
    assert value(metrics, "headrace_retries_total", model="m") == 3
    assert value(metrics, "headrace_in_flight", model="m", replica="r") == 4


def test_a_kept_child_and_a_looked_up_one_are_the_same_series() -> None:
    metrics = Metrics()
    kept = metrics.retries.labels("m")
    metrics.retries.labels("m").add()
    kept.add()
    assert value(metrics, "headrace_retries_total", model="m") == 2


def test_a_metric_without_labels_is_there_before_anything_happened() -> None:
    metrics = Metrics()
    assert value(metrics, "headrace_connections") == 0
    assert value(metrics, "headrace_unmatched_requests_total") == 0
    assert value(metrics, "headrace_build_info", version=headrace.__version__) == 1


@pytest.mark.parametrize("seconds", [0, 0.0004, 0.001, 0.0011, 0.7, 600, 601, 1e9])
def test_an_observation_is_in_every_bucket_whose_bound_is_not_below_it(seconds: float) -> None:
    metrics = Metrics()
    metrics.ttft_seconds.labels("m").observe(seconds)
    buckets = {
        float(dict(labels)["le"]): count
        for (name, labels), count in scrape(metrics).items()
        if name == "headrace_ttft_seconds_bucket"
    }
    assert buckets == {bound: float(seconds <= bound) for bound in buckets}
    assert float("inf") in buckets


def test_histograms_keep_their_invariants_while_another_thread_observes() -> None:
    """Buckets never fall along `le`, and the count is the +Inf bucket, in every scrape of a busy histogram."""
    metrics, done = Metrics(), threading.Event()

    def observe() -> None:
        child, step = metrics.itl_seconds.labels("m"), 0
        while not done.is_set():
            child.observe(step % 40_000 / 1000)
            step += 7

    writer = threading.Thread(target=observe)
    writer.start()
    try:
        exposition = Exposition(metrics)
        for _ in range(20):
            families = text_string_to_metric_families(exposition.render().decode())
            samples = next(f for f in families if f.name == "headrace_itl_seconds").samples
            buckets = [s.value for s in samples if s.name.endswith("_bucket")]
            assert buckets == sorted(buckets)
            assert [s.value for s in samples if s.name.endswith("_count")] == buckets[-1:]
    finally:
        done.set()
        writer.join()


def test_new_series_during_a_scrape_do_not_break_it() -> None:
    metrics, done = Metrics(), threading.Event()

    def grow() -> None:
        step = 0
        while not done.is_set():
            metrics.in_flight.labels("m", f"r{step % 300}").set(step)
            metrics.in_flight.remove("m", f"r{(step + 150) % 300}")
            step += 1

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        exposition = Exposition(metrics)
        for _ in range(50):
            exposition.render()
    finally:
        done.set()
        writer.join()


@pytest.mark.slow
def test_series_stay_below_the_declared_ceilings_under_hostile_labels() -> None:
    """T59: 100 000 distinct label values, of every family at once, leave the number of series where the table says."""
    metrics = Metrics()
    families = metrics.families()
    for step in range(100_000):
        family = families[step % len(families)]
        family.labels(*(f"hostile-{step}" for _ in family.spec.labels))
    samples = scrape(metrics)
    for family in families:
        assert len(family.series()) <= family.spec.series_max, family.spec.name
    ours = sum(name.startswith("headrace_") for name, _ in samples)
    assert ours <= sum(family.spec.samples_max for family in families)


def test_what_is_over_the_ceiling_is_counted_under_other() -> None:
    metrics = Metrics()
    rounds = 3 * metrics.refusals.spec.series_max
    for step in range(rounds):
        metrics.refusals.labels(f"code-{step}", "x").add()
    counts = [child.value for _, child in metrics.refusals.series()]
    assert sum(counts) == rounds
    other = value(metrics, "headrace_refusals_total", code="other", reason="other")
    assert other == rounds - (metrics.refusals.spec.series_max - 1)


@pytest.mark.parametrize("label", ["line\nbreak", "\x1b[31m", "\ud800", "x" * 201, "nul\0"])
def test_a_label_that_no_sane_name_looks_like_becomes_other_and_the_scrape_stays_whole(label: str) -> None:
    metrics = Metrics()
    metrics.retries.labels(label).add()
    assert value(metrics, "headrace_retries_total", model="other") == 1


@pytest.mark.parametrize("label", ['quote"d', "back\\slash", "naïve-模型", "", "a/b:c@d"])
def test_an_odd_but_sane_label_survives_the_scrape(label: str) -> None:
    metrics = Metrics()
    metrics.retries.labels(label).add()
    assert value(metrics, "headrace_retries_total", model=label) == 1


def test_a_scrape_callback_fills_gauges_and_a_failing_one_costs_only_itself() -> None:
    metrics = Metrics()
    metrics.replica_ready.labels("m", "gone").set(1)

    def broken() -> None:
        raise RuntimeError("no such fleet")

    def fill() -> None:
        metrics.replica_ready.clear()
        metrics.replica_ready.labels("m", "r0").set(1)

    metrics.on_scrape(broken)
    metrics.on_scrape(fill)
    samples = scrape(metrics)
    ready = [dict(labels)["replica"] for name, labels in samples if name == "headrace_replica_ready"]
    assert ready == ["r0"]
    assert value(metrics, "headrace_internal_errors_total", where="scrape") == 2


def test_the_table_follows_the_naming_rules_of_prometheus() -> None:
    specs = [family.spec for family in Metrics().families()]
    assert len({spec.name for spec in specs}) == len(specs)
    for spec in specs:
        assert spec.name.startswith("headrace_")
        assert spec.name.endswith("_total") == (spec.kind is Kind.COUNTER)
        assert spec.help.endswith(".")
        assert list(spec.buckets) == sorted(set(spec.buckets))
        assert (spec.series_max == 1) == (not spec.labels), "a labelled family needs room for `other`"


@pytest.mark.parametrize("family", Metrics().families(), ids=lambda family: family.spec.name)
def test_every_metric_stands_in_the_reference_with_its_help(family: Family[Any]) -> None:
    spec = family.spec
    labels = ", ".join(f"`{label}`" for label in spec.labels) or "-"
    row = f"| `{spec.name}` | {spec.kind.value} | {labels} | {spec.help} | {spec.series_max} |"
    assert row in REFERENCE.read_text(encoding="utf-8").splitlines()


def test_the_reference_names_no_metric_that_does_not_exist() -> None:
    names = {family.spec.name for family in Metrics().families()}
    rows = [
        line for line in REFERENCE.read_text(encoding="utf-8").splitlines() if line.startswith("| `headrace_")
    ]
    assert {row.split("`")[1] for row in rows} == names

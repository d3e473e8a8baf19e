"""Alerts are made of promises: how fast a budget must burn, over which windows, and what the rules say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.slo import Metric, Objective, Slo
from headrace.policies import slo_alerts
from headrace.policies.slo import promises
from headrace.policies.slo_alerts import ALARMS, Group, Rule

EDGES = (0.1, 0.2, 0.5, 1, 2, 5)
FINE = (0.01, 0.02, 0.05)
CHAT = Slo("chat", failure_share_max=0.01, objectives=(Objective(Metric.TTFT, 2000, 0.95),), window_days=30)


def made(slo: Slo) -> Group:
    return slo_alerts.groups(slo, seconds=EDGES, token_seconds=FINE)


def recorded(slo: Slo, name: str, objective: str) -> str:
    (found,) = [
        rule.expr
        for rule in made(slo).rules
        if rule.name == name and rule.labels.get("objective") == objective
    ]
    return found


def alerts(slo: Slo) -> list[Rule]:
    return [rule for rule in made(slo).rules if rule.is_alert]


def test_the_burn_rates_of_thirty_days_are_those_of_the_method() -> None:
    """The Site Reliability Workbook, chapter 5, table 5-8."""
    assert [slo_alerts.burn_rate(alarm, CHAT) for alarm in ALARMS] == pytest.approx([14.4, 6, 3, 1])


@given(st.floats(1, 366), st.floats(0.001, 0.999))
def test_an_outage_is_always_told_of_and_what_is_allowed_never(window_days: float, failures: float) -> None:
    """Whatever is promised: where every request fails, the share is above the bound of every alarm."""
    slo = Slo("a", failure_share_max=failures, window_days=window_days)
    (promise,) = promises(slo)
    for alarm in ALARMS:
        assert promise.miss_share_max <= slo_alerts.miss_share(alarm, promise, slo) < 1
        assert slo_alerts.burn_rate(alarm, slo) >= 1, "what is allowed wakes nobody"


def test_every_promise_has_an_alert_for_each_pair_of_windows() -> None:
    assert [
        (rule.labels["objective"], rule.labels["severity"], rule.labels["window"]) for rule in alerts(CHAT)
    ] == [
        (objective, severity, window)
        for objective in ("failures", "ttft 2000 ms")
        for severity, window in (("page", "1h"), ("page", "6h"), ("ticket", "1d"), ("ticket", "3d"))
    ]


def test_an_alert_needs_both_windows_and_more_than_a_few_misses() -> None:
    first = alerts(CHAT)[0].expr
    which = '{deployment="chat",objective="failures"}'
    assert first == (
        f"headrace:slo_misses:rate1h{which} > 0.144 * headrace:slo_counted:rate1h{which}"
        f" and headrace:slo_misses:rate5m{which} > 0.144 * headrace:slo_counted:rate5m{which}"
        f" and headrace:slo_misses:rate1h{which} * 3600 >= 3"
    )


def test_windows_longer_than_the_budgets_are_left_out() -> None:
    short = Slo("chat", failure_share_max=0.01, window_days=1)
    assert [rule.labels["window"] for rule in alerts(short)] == ["1h", "6h", "1d"]
    minutes = Slo("chat", failure_share_max=0.01, window_days=0.01)
    assert alerts(minutes) == []
    assert made(minutes).notes == ("chat has no alerts: its error budget is of less than 1h",)


def test_what_is_recorded_has_every_outcome_of_ours_in_the_denominator() -> None:
    base = {rule.name: rule.expr for rule in made(CHAT).rules if "objective" not in rule.labels}
    assert 'outcome=~"refused|failed|broken"' in base["headrace:slo_failed:rate5m"]
    assert "queue_full" in base["headrace:slo_failed:rate5m"]
    assert "rate_limited" not in base["headrace:slo_failed:rate5m"]
    failures = recorded(CHAT, "headrace:slo_counted:rate5m", "failures")
    assert "slo_failed" in failures
    assert "slo_delivered" in failures
    first = recorded(CHAT, "headrace:slo_counted:rate5m", "ttft 2000 ms")
    assert "slo_unbegun" in first, "what never began has no first token, and counts"


def test_a_bound_between_two_buckets_is_watched_at_the_tighter_one_and_that_is_said() -> None:
    between = Slo("chat", objectives=(Objective(Metric.TOTAL, 3000, 0.9),))
    assert 'le="2.0"' in recorded(between, "headrace:slo_misses:rate5m", "total 3000 ms")
    assert made(between).notes == (
        "total 3000 ms is watched at 2000 ms, the next tighter bucket of the histogram",
    )
    on_one = Slo("chat", objectives=(Objective(Metric.TOTAL, 2000, 0.9),))
    assert made(on_one).notes == ()
    assert 'outcome="delivered"' in recorded(on_one, "headrace:slo_misses:rate5m", "total 2000 ms")


def test_a_bound_below_every_bucket_can_not_be_watched_and_that_is_said() -> None:
    tiny = Slo("chat", objectives=(Objective(Metric.TTFT, 50, 0.9),))
    assert made(tiny).notes == ("ttft 50 ms is not watched: no bucket of the histogram is that short",)
    assert alerts(tiny) == []


@pytest.mark.parametrize("metric", [Metric.ITL, Metric.TPOT])
def test_what_no_metric_knows_of_single_requests_is_watched_by_gaps_and_that_is_said(metric: Metric) -> None:
    paced = Slo("chat", objectives=(Objective(metric, 50, 0.9),))
    assert "headrace_itl_seconds_bucket" in recorded(paced, "headrace:slo_misses:rate5m", f"{metric} 50 ms")
    (note,) = made(paced).notes
    assert "by the share of gaps" in note


def test_spans_are_written_as_prometheus_writes_them() -> None:
    assert [slo_alerts.span(s) for s in (300, 3600, 7200, 86_400, 259_200, 90)] == [
        "5m",
        "1h",
        "2h",
        "1d",
        "3d",
        "90s",
    ]


def test_text_in_the_file_means_nothing_to_yaml() -> None:
    text = slo_alerts.as_yaml(
        [
            Group(
                "it's: {a}",
                (Rule("r", 'up{a="b"}', {}, is_alert=True, annotations={"summary": "# no"}),),
                ("n",),
            )
        ],
        heading=["made of a\nname"],
    )
    assert text.splitlines() == [
        "# made of a name",
        "groups:",
        "  # n.",
        "  - name: 'it''s: {a}'",
        "    rules:",
        "      - alert: 'r'",
        "        expr: 'up{a=\"b\"}'",
        "        annotations:",
        "          summary: '# no'",
    ]

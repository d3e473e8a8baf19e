"""How long a start takes is what starts have taken: of this revision here, or of what is most like it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.policies.cold_start import STARTS_MAX, ColdStart, Figures, figures
from headrace.policies.quantiles import nearest_rank

TOTALS = st.lists(st.floats(0.1, 1e4), min_size=1, max_size=40)


def start(
    total_s: float, *, digest: str = "sha256:a", hardware: str = "here", deployment: str = "m"
) -> ColdStart:
    return ColdStart(
        deployment, digest, hardware, {"starting": 0.25 * total_s, "loading": 0.75 * total_s}, 0.0
    )


def found(starts: list[ColdStart]) -> Figures:
    known = figures(starts, deployment="m", digest="sha256:a", hardware="here")
    assert known is not None
    return known


def test_what_was_never_started_is_unknown() -> None:
    assert (
        figures([start(9.0, deployment="other")], deployment="m", digest="sha256:a", hardware="here") is None
    )


def test_of_a_hundred_starts_the_last_ones_count() -> None:
    known = found([*(start(1000.0) for _ in range(80)), *(start(float(n)) for n in range(1, STARTS_MAX + 1))])
    assert known.p50_s == 10.0
    assert known.p95_s == 19.0
    assert not known.is_like


def test_each_stage_has_its_own_figures() -> None:
    stages = found([start(4.0), start(8.0)]).stages
    assert [(stage.name, stage.p50_s, stage.p95_s) for stage in stages] == [
        ("starting", 1.0, 2.0),
        ("loading", 3.0, 6.0),
    ]


def test_a_stage_that_older_starts_did_not_have_is_of_the_newer_ones() -> None:
    older = ColdStart("m", "sha256:a", "here", {"starting": 5.0}, 0.0)
    assert [stage.p50_s for stage in found([older, start(8.0)]).stages] == [2.0, 6.0]


@pytest.mark.parametrize(
    ("starts", "total_s"),
    [
        ([start(1.0), start(2.0, hardware="there"), start(3.0, digest="sha256:b")], 1.0),
        ([start(2.0, hardware="there"), start(3.0, digest="sha256:b")], 2.0),
        ([start(3.0, digest="sha256:b"), start(4.0, digest="sha256:b", hardware="there")], 3.0),
        ([start(4.0, digest="sha256:b", hardware="there")], 4.0),
    ],
)
def test_a_first_start_is_judged_by_what_is_most_like_it(starts: list[ColdStart], total_s: float) -> None:
    known = found(starts)
    assert known.totals_s == (total_s,)
    assert known.is_like is (total_s != 1.0)


def test_a_caller_is_told_what_is_left_of_the_start() -> None:
    known = found([start(float(total)) for total in (10, 20, 30, 40)])
    assert known.left_s(0.0) == 40.0
    assert known.left_s(35.0) == 5.0
    assert known.left_s(39.9) == 1.0


def test_one_that_takes_longer_than_any_before_is_not_promised_for_the_next_second() -> None:
    assert found([start(10.0)]).left_s(100.0) == 25.0


@given(totals=TOTALS, elapsed_s=st.floats(0.0, 2e4))
def test_whoever_waits_as_told_finds_it_ready_in_most_of_the_cases_that_were_seen(
    totals: list[float], elapsed_s: float
) -> None:
    known = found([start(total) for total in totals])
    back_s = elapsed_s + known.left_s(elapsed_s)
    longer = [total for total in known.totals_s if total > elapsed_s]
    assert sum(total <= back_s + 1e-6 for total in longer) >= 0.9 * len(longer)


@given(values=TOTALS, share=st.floats(0.01, 1.0))
def test_a_quantile_is_a_value_that_so_many_do_not_exceed(values: list[float], share: float) -> None:
    value = nearest_rank(values, share)
    assert value in values
    assert sum(each <= value for each in values) >= share * len(values) - 1e-6

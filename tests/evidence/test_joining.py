"""A real service's records explain what its callers waited for."""

import asyncio

import pytest

from headrace.core.clock import SystemClock
from headrace.core.load_records import LoadRun, Outcome
from headrace.core.workload import ArrivalKind, Arrivals, Workload, constant
from headrace.evidence import joining, load_page
from headrace.evidence.load import run_load
from headrace.evidence.load_terms import LoadTerms
from headrace.evidence.target import Target
from headrace.policies.load_report import summarise
from tests.edge.conftest import Edge, running_edge
from tests.support.provider import wait_until

TTFT_S, ITL_S, TOKENS, CALLERS = 0.1, 0.01, 10, 3


@pytest.mark.slow
def test_the_parts_of_what_callers_waited_for_add_up_and_lie_where_the_engine_and_its_queue_put_them() -> (
    None
):
    """One slot and three callers: each waits for the two before it, and the engine takes what its script says."""
    workload = Workload(
        "closed",
        Arrivals(ArrivalKind.CLOSED, concurrency=CALLERS),
        input_tokens=constant(20),
        output_tokens=constant(TOKENS),
    )
    with running_edge(
        upstream_slots=1, slots=1, ttft_ms=TTFT_S * 1000, itl_ms=ITL_S * 1000, tokens=TOKENS
    ) as edge:
        edge.service.cli(
            "prices", "set", "--model", "scripted", "--currency", "EUR", "--input", "1", "--output", "2"
        )
        wait_until(lambda: edge.service.chat(edge.key) and is_charged(edge), what="the price to be in force")
        target = Target(edge.service.url, "scripted", edge.key)
        terms = LoadTerms(duration_s=2.0, learns_lengths=False)
        run: LoadRun = asyncio.run(run_load(target, workload, clock=SystemClock(), terms=terms))
        whole = [record for record in run.records if record.outcome is Outcome.OK]
        assert len(whole) >= CALLERS
        ids = {record.request_id for record in whole}
        wait_until(
            lambda: ids <= joining.recorded(edge.service.data, run).keys(), what="all records to be written"
        )
        joined = joining.join(edge.service.data, run)
    assert (joined.matched, joined.whole, joined.nameless, joined.unmatched) == (
        len(run.records),
        len(whole),
        0,
        {},
    )
    assert joined.misfits == 0
    mean = joined.mean
    assert mean is not None
    waited_s = sum(record.ended_s - record.due_s for record in whole) / len(whole)
    assert mean.total_s == pytest.approx(waited_s, rel=1e-6)
    engine_s = TTFT_S + (TOKENS - 1) * ITL_S
    assert mean.execution_s >= engine_s * 0.95
    # All but the first three wait for two others; beside a noisy machine nothing else takes as long.
    assert mean.queue_s >= engine_s
    assert mean.queue_s + mean.execution_s >= 0.5 * mean.total_s
    assert joined.charges.keys() == {"EUR"}
    page = load_page.html(summarise(run), run, more=[joining.section(joined)])
    assert "Whose time is it?" in page
    assert "the slowest twentieth" in page


def is_charged(edge: Edge) -> bool:
    newest = edge.service.usage("--limit", "1")
    return bool(newest) and float(newest[0]["charge"]) > 0

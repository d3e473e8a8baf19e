"""Several processes send one plan between them, and what one of them took with it is not forgotten."""

import asyncio
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import uvloop

from headrace.core.clock import SystemClock
from headrace.core.load_records import LoadRun, Outcome
from headrace.core.workload import ArrivalKind, Arrivals, Turns, Workload, constant
from headrace.evidence import load_processes
from headrace.evidence.load import LoadTerms, Target, run_load
from headrace.evidence.load_terms import Progress
from tests.support.scripted import scripted_engine


def workload(rate_per_s: float, **fields: Any) -> Workload:
    return Workload(
        "test",
        Arrivals(ArrivalKind.POISSON, rate_per_s=rate_per_s),
        input_tokens=constant(30),
        output_tokens=constant(5),
        **fields,
    )


def drive(url: str, asked: Workload, *, processes: int, **terms: Any) -> LoadRun:
    said = LoadTerms(**({"duration_s": 1.5, "learns_lengths": False} | terms))
    return load_processes.drive(
        Target(url, "scripted"), asked, said, clock=SystemClock(), processes=processes
    )


@pytest.mark.slow
def test_three_processes_send_what_one_would_have_sent() -> None:
    asked = workload(60.0, turns=Turns(constant(2), gap_s=0.1))
    with scripted_engine(slots=64) as engine:
        alone = uvloop.run(
            run_load(
                Target(engine.url, "scripted"), asked, clock=SystemClock(),
                terms=LoadTerms(duration_s=1.5, learns_lengths=False),
            )
        )  # fmt: skip
        before = engine.stats()["requests"]
        together = drive(engine.url, asked, processes=3)
        sent = engine.stats()["requests"] - before
    assert Counter(record.outcome for record in together.records) == {Outcome.OK: len(together.records)}
    assert sent == len(together.records) == sum(process.sent for process in together.processes)
    # A turn may be due later than planned, or not within the run: that depends on the answers.
    planned = {record.number: record.due_s for record in alone.records if record.turn == 1}
    assert {record.number: record.due_s for record in together.records if record.turn == 1} == pytest.approx(
        planned
    )
    assert {record.process for record in together.records} == {0, 1, 2}
    assert len(together.processes) == 3
    assert all(process.cpu_share > 0.0 and not process.lost for process in together.processes)


@pytest.mark.slow
def test_a_closed_loops_callers_are_divided_and_none_is_lost() -> None:
    with scripted_engine(slots=64, ttft_ms=20) as engine:
        found = drive(engine.url, workload(1.0), processes=2, concurrency=5)
        assert engine.stats()["running_max"] == 5
    assert found.concurrency == 5
    assert {record.outcome for record in found.records} == {Outcome.OK}


def _children(seconds: float) -> list[int]:
    """Those of this process that are children of a load generator, once there are any."""
    end_s = time.monotonic() + seconds
    while True:
        found = []
        for entry in Path("/proc/self/task").glob("*/children"):
            for pid in map(int, entry.read_text().split()):
                command = Path(f"/proc/{pid}/cmdline")
                if command.exists() and b"load_child" in command.read_bytes():
                    found.append(pid)
        if len(found) > 1 or time.monotonic() > end_s:
            return sorted(found)
        time.sleep(0.05)


@pytest.mark.slow
def test_the_run_of_several_processes_is_over_when_there_were_enough_requests() -> None:
    """Whichever of them sent the last one: the others know nothing of it."""
    with scripted_engine(slots=64) as engine:
        found = drive(engine.url, workload(60.0), processes=3, requests_max=20, duration_s=30.0)
    assert len(found.records) == 20
    assert found.window.to_s == found.duration_s < 10.0


@pytest.mark.slow
def test_a_process_that_is_killed_is_reported_and_what_it_would_have_sent_counts_as_unsent() -> None:
    async def killed() -> LoadRun:
        has_begun = asyncio.Event()

        def tell(progress: Progress) -> None:
            if progress.sent > 100:
                has_begun.set()

        with scripted_engine(slots=64) as engine:
            asked = workload(100.0)
            terms = LoadTerms(duration_s=4.0, learns_lengths=False)
            running = asyncio.create_task(
                load_processes.run_processes(
                    Target(engine.url, "scripted"), asked, clock=SystemClock(), terms=terms, processes=2,
                    progress=tell,
                )
            )  # fmt: skip
            pids = await asyncio.to_thread(_children, 60.0)
            await has_begun.wait()
            os.kill(pids[-1], signal.SIGKILL)
            return await running

    found = uvloop.run(killed())
    (lost,) = [process for process in found.processes if process.lost]
    assert lost.lost == "killed by SIGKILL"
    unsent = [record for record in found.records if record.outcome is Outcome.UNSENT]
    assert {(record.reason, record.process) for record in unsent} == {("process_lost", lost.number)}
    assert any(record.process == lost.number and record.outcome is Outcome.OK for record in found.records)
    # Every request of the plan has its one record.
    assert sorted(record.number for record in found.records) == list(range(len(found.records)))
    assert len(found.records) == pytest.approx(400, abs=100)


@pytest.mark.slow
def test_one_word_stops_all_processes_and_they_report_what_there_is() -> None:
    async def stopped() -> LoadRun:
        stop = asyncio.Event()

        def tell(progress: Progress) -> None:
            if progress.sent > 20:
                stop.set()

        with scripted_engine(slots=64) as engine:
            return await load_processes.run_processes(
                Target(engine.url, "scripted"), workload(100.0), clock=SystemClock(), processes=2, progress=tell,
                terms=LoadTerms(duration_s=600.0, learns_lengths=False), stop=stop,
            )  # fmt: skip

    found = uvloop.run(stopped())
    assert found.is_stopped
    assert found.duration_s < 500.0
    assert len(found.records) > 20
    assert not any(process.lost for process in found.processes)

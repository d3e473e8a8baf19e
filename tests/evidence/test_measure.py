"""`headrace measure` finds what a replica can do: on a model of one whose capacity is known, and on a real one beside it."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec
import pytest

from headrace.core.capacity import Bound, CapacityRecord, MemoryUse, Saturation
from headrace.core.capacity_plan import LoadTerms
from headrace.core.clock import SystemClock
from headrace.core.load_records import Gaps, Lateness, LoadRecord, LoadRun, Outcome, Window
from headrace.core.verdicts import Interval, Verdict
from headrace.core.workload import Workload
from headrace.evidence import capacity, measure, measure_report, memory_watch, page, simulate_load, tables
from headrace.evidence.measure import Measurement, Shape, Subject, Terms
from headrace.evidence.memory_watch import MemoryWatch
from headrace.policies.quality import Mark

SHAPES = (Shape("short-short", 100, 11), Shape("long-short", 1000, 11), Shape("long-long", 1000, 41))


class Server:
    """A replica with slots, a prefill and steps, in virtual time: what it would have answered to a load."""

    def __init__(self, *, slots: int, refuses_beyond: int = 10**6) -> None:
        self._slots = slots
        self._refuses_beyond = refuses_beyond
        self.loads: list[tuple[str, int | None, float | None]] = []
        self.nonces: list[int] = []

    def service_s(self, workload: Workload) -> tuple[float, float]:
        """To the first token, and in all."""
        assert workload.input_tokens is not None
        assert workload.output_tokens is not None
        ttft_s = 0.02 + (workload.input_tokens.value or 0) / 2000
        return ttft_s, ttft_s + 0.01 * ((workload.output_tokens.value or 0) - 1)

    async def __call__(
        self,
        workload: Workload,
        *,
        duration_s: float,
        warmup_s: float,
        concurrency: int | None,
        rate_per_s: float | None,
        nonce: int,
    ) -> LoadRun:
        self.loads.append((workload.name, concurrency, rate_per_s))
        self.nonces.append(nonce)
        await asyncio.sleep(0)
        chance = Random(nonce)
        free_at = [0.0] * self._slots
        records: list[LoadRecord] = []
        due = [0.0] * (concurrency or 0)
        at_s = 0.0
        while True:
            if rate_per_s is not None:
                at_s += chance.expovariate(rate_per_s)
            else:
                at_s = due.pop(due.index(min(due)))
            if at_s >= duration_s:
                break
            record = self._answered(workload, at_s, free_at, busy=concurrency or 0)
            records.append(record)
            due.append(record.ended_s)
        return LoadRun(
            workload.name, "d", 1, "u", "chat", 0.0, duration_s, Window(warmup_s, duration_s), records, Lateness(), [],
            is_closed=concurrency is not None, concurrency=concurrency, rate_per_s=rate_per_s,
        )  # fmt: skip

    def _answered(self, workload: Workload, at_s: float, free_at: list[float], *, busy: int) -> LoadRecord:
        if busy > self._refuses_beyond:
            return LoadRecord(0, at_s, at_s, None, None, at_s + 0.1, Outcome.REFUSED, status=503)
        first_s, total_s = self.service_s(workload)
        slot = free_at.index(min(free_at))
        begin_s = max(at_s, free_at[slot])
        free_at[slot] = begin_s + total_s
        assert workload.input_tokens is not None
        assert workload.output_tokens is not None
        tokens = workload.output_tokens.value or 0
        return LoadRecord(
            0, at_s, at_s, begin_s + first_s, begin_s + total_s, begin_s + total_s, Outcome.OK, revision="sha256:7",
            input_tokens=workload.input_tokens.value, cached_tokens=0, output_tokens=tokens,
            gaps=Gaps(tokens - 1, total_s - first_s, 0.01, {90: tokens - 1}), is_streamed=True,
        )  # fmt: skip


def measured(
    server: Server,
    *,
    ask: measure.Ask | None = None,
    pids: Sequence[int] = (),
    slots: int = 0,
    told: list[str] | None = None,
    is_slow: measure.IsSlow = lambda run: False,
    **terms: object,
) -> CapacityRecord:
    clock = SystemClock()
    lines: list[str] = [] if told is None else told
    return asyncio.run(
        Measurement(
            server,
            Subject("chat", slots=slots, planned={"weights": 10, "process": 5}),
            terms=Terms(shapes=SHAPES, hold_s=0.0, **terms),  # type: ignore[arg-type]
            clock=clock,
            memory=MemoryWatch(pids, clock=clock),
            ask=ask,
            is_slow=is_slow,
            tell=lines.append,
        ).run()
    )


def of(record: CapacityRecord, shape: str) -> Saturation:
    return next(each for each in record.saturation if each.shape == shape)


@pytest.mark.parametrize("slots", [1, 3, 6])
def test_the_true_capacity_is_found_within_five_percent_for_every_length(slots: int) -> None:
    server = Server(slots=slots)
    record = measured(server, slots=slots)
    for shape in SHAPES:
        _, service_s = server.service_s(measure.workload(shape, seed=1))
        found = of(record, shape.name)
        assert found.bound is Bound.THROUGHPUT
        assert found.requests_per_s.estimate == pytest.approx(slots / service_s, rel=0.05)
        assert found.concurrency == slots
        assert found.service_s == pytest.approx(service_s, rel=0.01)
    assert record.digest == "sha256:7"
    assert len(set(server.nonces)) == len(server.nonces), "no level asks what another has asked"


@pytest.mark.parametrize("slots", [1, 3, 6])
def test_a_plan_from_the_record_finds_the_true_capacity_within_five_percent(slots: int) -> None:
    """The whole way: what a plan takes a replica to do by its pace, for lengths of which some were measured and some weren't."""
    server = Server(slots=slots)
    replica = simulate_load.measured(measured(server, slots=slots), start_s=0.0)
    for shape in (*SHAPES, Shape("between", 400, 25)):
        _, service_s = server.service_s(measure.workload(shape, seed=1))
        load = LoadTerms(1.0, input_tokens=shape.input_tokens, output_tokens=shape.output_tokens)
        by_slots = replica.at_once / capacity.time_of(load, replica)
        assert by_slots == pytest.approx(slots / service_s, rel=0.05)


def test_what_a_closed_loop_can_do_is_confirmed_for_callers_who_do_not_wait() -> None:
    server = Server(slots=4)
    record = measured(server)
    first = record.saturation[0]
    assert first.requests_per_s.estimate is not None
    assert first.confirmed_rate_per_s == pytest.approx(0.95 * first.requests_per_s.estimate)
    assert [load[2] for load in server.loads if load[2] is not None] == pytest.approx(
        [share * first.requests_per_s.estimate for share in measure.CONFIRM_SHARES]
    )


def test_the_pace_of_the_replica_is_found_and_holds_for_a_level_that_it_was_not_fitted_to() -> None:
    record = measured(Server(slots=4), slots=4)
    assert record.pace is not None
    assert record.pace.overhead_s == pytest.approx(0.02, rel=0.05)
    assert record.pace.prefill_tokens_per_s == pytest.approx(2000, rel=0.05)
    assert record.pace.step_s == pytest.approx(0.01, rel=0.05)
    assert record.pace.held_out_errors
    assert all(abs(error) < 0.05 for error in record.pace.held_out_errors.values())
    (held_out,) = [level for level in record.levels if level.is_held_out]
    assert (held_out.shape, held_out.concurrency) == ("long-long", 4)


def test_a_service_that_refuses_ends_the_sweep_and_its_capacity_is_what_it_did_before() -> None:
    record = measured(Server(slots=8, refuses_beyond=2))
    assert record.saturation[0].bound is Bound.FAILURES
    assert record.saturation[0].concurrency == 2


def test_a_promise_that_is_broken_ends_the_sweep() -> None:
    record = measured(Server(slots=8), is_slow=lambda run: (run.concurrency or 0) > 2)
    assert record.saturation[0].bound is Bound.LATENCY
    assert record.saturation[0].concurrency == 2


def test_a_sweep_that_runs_out_of_callers_or_time_proves_no_end() -> None:
    record = measured(Server(slots=50), callers_max=4)
    assert not record.saturation[0].is_proven
    told: list[str] = []
    late = measured(Server(slots=2), limit_s=0.0, told=told)
    assert late.saturation == ()
    assert late.pace is None
    assert any("the time is over" in line for line in told)


def test_quality_is_asked_at_rest_and_beside_the_load_and_judged_case_by_case() -> None:
    server = Server(slots=2)
    asked_after: list[tuple[int, int]] = []

    async def ask(at_once: int) -> list[Mark]:
        asked_after.append((len(server.loads), at_once))
        under_load = bool(server.loads)
        return [
            Mark.RIGHT,
            Mark.WRONG if under_load else Mark.RIGHT,
            Mark.RIGHT if under_load else Mark.WRONG,
            Mark.ERROR if under_load else Mark.RIGHT,
        ]

    record = measured(server, ask=ask)
    found = record.quality
    assert found is not None
    assert (found.idle_right, found.loaded_right, found.idle_only, found.loaded_only) == (3, 2, 1, 1)
    assert (found.cases, found.idle_errors, found.loaded_errors) == (4, 0, 1)
    assert found.judgement.verdict is Verdict.INCONCLUSIVE, "so few show nothing"
    assert (record.levels[-1].quality_right, record.levels[-1].quality_asked) == (2, 4)
    assert asked_after[0] == (0, 2)
    assert asked_after[1][1] == 1, "a case at a time beside two callers: more would be the load"
    assert server.loads[-1][1] == record.saturation[0].concurrency, "at the knee"


def test_memory_is_watched_beside_what_was_planned() -> None:
    record = measured(Server(slots=1), pids=[os.getpid()])
    assert record.memory.planned_bytes == 15
    assert record.memory.idle_bytes > 1_000_000
    assert record.memory.peak_bytes >= record.memory.idle_bytes
    assert measured(Server(slots=1)).memory.peak_bytes == 0


def test_progress_is_told_level_by_level() -> None:
    told: list[str] = []
    record = measured(Server(slots=2), told=told)
    lines = [line for line in told if "requests/s" in line]
    assert len(lines) == len(record.levels)
    assert lines[0].startswith("short-short, 1 callers: ")


# How it reads


def texts(record: CapacityRecord) -> str:
    return tables.markdown(measure_report.sections(record))


def test_a_record_reads_as_sections_and_as_one_page() -> None:
    record = measured(Server(slots=2), pids=[os.getpid()], slots=2)
    text = texts(record)
    assert "more callers brought no more results" in text
    assert "requests per second were kept up with that came whenever they liked" in text
    assert "Level by level: long-long" in text
    assert "held out" in text
    assert measure_report.sections(record)[0].verdict is Verdict.PASS
    written = page.page("t", measure_report.sections(record), facts=measure_report.facts(record))
    assert "Results per second, short-short" in written


def test_a_sweep_without_an_end_or_without_a_level_proves_nothing() -> None:
    open_end = measure_report.sections(measured(Server(slots=50), callers_max=2))[0]
    assert open_end.verdict is Verdict.INCONCLUSIVE
    nothing = measured(Server(slots=1), limit_s=0.0)
    assert measure_report.sections(nothing)[0].verdict is Verdict.ERROR
    assert "could not be seen from here" in texts(nothing)


def test_a_rate_that_no_one_kept_up_with_is_told() -> None:
    record = measured(Server(slots=2))
    first = msgspec.structs.replace(record.saturation[0], confirmed_rate_per_s=None)
    assert "no rate that was tried was kept up with" in texts(
        msgspec.structs.replace(record, saturation=(first,))
    )


@pytest.mark.parametrize(
    ("slope", "verdict"),
    [
        (Interval(10_000.0, 9_000.0, 11_000.0), Verdict.FAIL),
        (Interval(0.0, -10.0, 10.0), Verdict.PASS),
        (Interval(1000.0, 900.0, 1100.0), Verdict.PASS),
        (Interval(None, None, None), Verdict.INCONCLUSIVE),
    ],
)
def test_memory_that_grows_at_constant_load_is_told(slope: Interval, verdict: Verdict) -> None:
    """By more than a hundredth of it in an hour, and surely: caches fill, and libraries keep pools."""
    use = MemoryUse(planned={"weights": 1 << 27}, peak_bytes=1 << 27, slope_bytes_per_s=slope, samples=100)
    record = msgspec.structs.replace(measured(Server(slots=1)), memory=use)
    (found,) = [section for section in measure_report.sections(record) if section.heading == "Memory"]
    assert found.verdict is verdict
    assert "The most was 100 % of what was planned." in found.prose


def test_quality_and_the_list_of_records_read_as_tables() -> None:
    quality = measure.under_load(marks("R" * 18 + "WW"), marks("R" * 17 + "WWR"), margin=0.05)
    record = msgspec.structs.replace(measured(Server(slots=1)), quality=quality)
    assert "beside the load | 18 of 20" in texts(record)
    assert "Of the 20 cases, 1 were right at rest alone and 1 beside the load alone" in texts(record)
    table = measure_report.listed(
        [(7, record), (8, msgspec.structs.replace(record, saturation=()))], ["a", "b"]
    )
    assert [row[0] for row in table.rows] == ["7", "8"]


def marks(letters: str) -> list[Mark]:
    return [{"R": Mark.RIGHT, "W": Mark.WRONG}[letter] for letter in letters]


@pytest.mark.parametrize(
    ("loaded", "verdict"),
    [
        ("R" * 60 + "W" * 10, Verdict.PASS),
        ("R" * 40 + "W" * 30, Verdict.FAIL),
        ("W" * 9 + "R" * 60 + "W", Verdict.INCONCLUSIVE),
    ],
)
def test_what_changed_under_load_decides_and_not_how_many_are_right(loaded: str, verdict: Verdict) -> None:
    """60 of 70 right at rest: the same 60, 20 fewer, and as many, of which 9 are others."""
    assert (
        measure.under_load(marks("R" * 60 + "W" * 10), marks(loaded), margin=0.05).judgement.verdict
        is verdict
    )


# Memory


def process(proc: Path, pid: int, *, pss_kib: int | None, rss_kib: int, children: str = "") -> None:
    (proc / str(pid) / "task" / str(pid)).mkdir(parents=True)
    if pss_kib is not None:
        (proc / str(pid) / "smaps_rollup").write_text(f"0-1 rollup\nRss: 9 kB\nPss: {pss_kib} kB\n")
    (proc / str(pid) / "status").write_text(f"Name: x\nVmRSS: {rss_kib} kB\n")
    (proc / str(pid) / "task" / str(pid) / "children").write_text(children)


def test_an_engine_has_what_all_that_it_started_have(tmp_path: Path) -> None:
    process(tmp_path, 1, pss_kib=100, rss_kib=500, children="2 3")
    process(tmp_path, 2, pss_kib=50, rss_kib=500, children="1")
    process(tmp_path, 3, pss_kib=None, rss_kib=7)
    assert memory_watch.total_bytes([1], proc=tmp_path) == (100 + 50 + 7) * 1024
    assert memory_watch.total_bytes([99], proc=tmp_path) == 0

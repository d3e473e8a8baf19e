"""The record of a measurement, and what its numbers add up to."""

import msgspec

from headrace.core.capacity import Bound, CapacityRecord, Hardware, Level, MemoryUse, Saturation
from headrace.core.verdicts import Interval

LEVEL = Level(
    shape="short-short",
    concurrency=2,
    window_s=10,
    input_tokens=100,
    output_tokens=20,
    in_flight=1.9,
    outcomes={"ok": 40, "failed": 1, "refused": 2, "cancelled": 3},
    throughput=Interval(4, 3.9, 4.1),
    output_tokens_per_s=80,
)
SATURATION = Saturation(
    shape="short-short",
    bound=Bound.THROUGHPUT,
    concurrency=2,
    requests_per_s=Interval(4, 3.9, 4.1),
    output_tokens_per_s=Interval(80, 78, 82),
    service_s=0.5,
)


def test_what_was_cancelled_as_planned_has_neither_completed_nor_failed() -> None:
    assert (LEVEL.completed, LEVEL.failed) == (40, 3)
    assert LEVEL.requests_per_s == 4


def test_a_sweep_that_ended_before_anything_showed_the_end_proves_none() -> None:
    assert SATURATION.is_proven
    assert not msgspec.structs.replace(SATURATION, bound=Bound.NONE).is_proven


def test_the_plan_of_memory_is_the_sum_of_its_parts() -> None:
    assert MemoryUse(planned={"weights": 5, "kv": 3}).planned_bytes == 8
    assert MemoryUse().planned_bytes == 0


def test_a_record_survives_being_written_and_read() -> None:
    record = CapacityRecord(
        model="chat",
        digest="sha256:0",
        runtime="scripted",
        hardware=Hardware(cpu="c", cores=2, memory_bytes=1),
        slots=2,
        levels=(LEVEL,),
        saturation=(SATURATION,),
        measured_s=1.0,
        took_s=2.0,
    )
    assert msgspec.json.decode(msgspec.json.encode(record), type=CapacityRecord) == record
    assert record.requests_per_s == 4
    assert msgspec.structs.replace(record, saturation=()).requests_per_s == 0

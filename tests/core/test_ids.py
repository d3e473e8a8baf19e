"""Request ids are UUIDs of version 7: unique by chance, sortable by time."""

import uuid
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ids import request_id

WALL_S = st.floats(0.0, 2**47 / 1000)


@given(wall_s=WALL_S, seed=st.integers())
def test_a_request_id_is_a_uuid_of_version_7(wall_s: float, seed: int) -> None:
    value = uuid.UUID(request_id(Random(seed), wall_s=wall_s).removeprefix("req_"))
    assert value.version == 7
    assert value.variant == uuid.RFC_4122
    assert value.int >> 80 == int(wall_s * 1000)


@given(times_s=st.lists(WALL_S, min_size=2), seed=st.integers())
def test_ids_of_different_milliseconds_sort_by_time(times_s: list[float], seed: int) -> None:
    chance = Random(seed)
    by_id = sorted(times_s, key=lambda wall_s: request_id(chance, wall_s=wall_s))
    assert [int(s * 1000) for s in by_id] == sorted(int(s * 1000) for s in times_s)


def test_all_74_random_bits_are_used() -> None:
    chance, seen = Random(1), 0
    for _ in range(200):
        seen |= int(request_id(chance, wall_s=0.0)[4:], 16)
    fixed = (0x7 << 76) | (0b10 << 62)
    assert seen == fixed | ((2**12 - 1) << 64) | (2**62 - 1)

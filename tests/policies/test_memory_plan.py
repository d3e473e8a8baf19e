"""A replica's memory is known before it starts, and whether it fits beside what else runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.policies.memory_plan import (
    MIB,
    NUMBER_BYTES,
    PROCESS_BYTES,
    Architecture,
    MemoryPlan,
    Tenant,
    fit,
    of_replica,
)

SMOLLM2 = Architecture(
    layers=30,
    kv_heads=3,
    head_size=64,
    embedding=576,
    feed_forward=1536,
    vocabulary=49152,
    context_tokens_max=8192,
)
WEIGHTS_BYTES = 98_362_432


def plan(slots: int = 4, context_tokens: int = 4096, kv_cache_type: str = "f16") -> MemoryPlan:
    return of_replica(
        SMOLLM2,
        weights_bytes=WEIGHTS_BYTES,
        slots=slots,
        context_tokens=context_tokens,
        batch_tokens=256,
        kv_cache_type=kv_cache_type,
    )


@pytest.mark.parametrize(
    ("slots", "context_tokens", "measured_mib"),
    [(1, 512, 176), (1, 4096, 256), (4, 4096, 526), (8, 8192, 1607)],
)
def test_the_plan_is_what_the_embedded_engine_was_seen_to_use(
    slots: int, context_tokens: int, measured_mib: int
) -> None:
    """D1. Resident memory of the engine after a prompt of two thousand tokens."""
    assert plan(slots, context_tokens).replica_bytes / MIB == pytest.approx(measured_mib, rel=0.02)


def test_shared_heads_make_the_cache_smaller() -> None:
    """Grouped-query attention: 9 heads share 3 pairs of keys and values."""
    assert plan(1, 1).kv_bytes == 2 * 30 * 3 * 64 * 2


@pytest.mark.parametrize("kind", NUMBER_BYTES)
def test_a_cache_of_smaller_numbers_is_smaller(kind: str) -> None:
    assert plan(kv_cache_type=kind).kv_bytes == round(2 * 30 * 3 * 64 * NUMBER_BYTES[kind] * 4 * 4096)


def test_an_unknown_number_format_counts_as_the_usual_one() -> None:
    assert plan(kv_cache_type="fp7") == plan()


def test_embeddings_keep_no_cache() -> None:
    made = of_replica(
        SMOLLM2, weights_bytes=1, slots=4, context_tokens=512, batch_tokens=512, has_kv_cache=False
    )
    assert made.kv_bytes == 0


def test_what_is_not_known_yet_is_told_as_a_lower_bound() -> None:
    made = of_replica(None, weights_bytes=5, slots=4, context_tokens=512, batch_tokens=512)
    assert (made.kv_bytes, made.replica_bytes) == (None, 5 + PROCESS_BYTES)
    made = of_replica(
        None, weights_bytes=5, slots=4, context_tokens=512, batch_tokens=512, has_kv_cache=False, devices=2
    )
    assert (made.kv_bytes, made.replica_bytes) == (0, 5 + 2 * PROCESS_BYTES)


@given(slots=st.integers(1, 64), context_tokens=st.integers(16, 1 << 17))
def test_more_work_at_once_never_takes_less(slots: int, context_tokens: int) -> None:
    least = plan(slots, context_tokens).replica_bytes
    assert least <= plan(slots + 1, context_tokens).replica_bytes
    assert least < plan(slots, context_tokens + 1).replica_bytes


def test_a_change_needs_room_for_both_versions() -> None:
    """ray#63016: start first, and check the capacity before."""
    planned, old = Tenant("chat", 40, 1, 2), Tenant("chat", 30, 1, 1)
    others = [Tenant("embed", 10, 1, 3)]
    found = fit(75, planned=planned, others=others, replaced=old)
    assert (found.least_bytes, found.change_bytes, found.most_bytes) == (50, 80, 140)
    assert (found.fits, found.fits_change, found.fits_most) == (True, False, False)
    alone = fit(50, planned=planned, others=others)
    assert (alone.least_bytes, alone.change_bytes, alone.fits_change) == (50, 50, True)


def test_a_deployment_that_rests_at_zero_still_needs_room_for_one() -> None:
    assert fit(5, planned=Tenant("a", 10, 0, 1), others=[]).fits is False
    assert (
        fit(100, planned=Tenant("a", 10, 0, 1), others=[], replaced=Tenant("a", 10, 0, 1)).change_bytes == 20
    )

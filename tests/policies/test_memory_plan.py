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


def cache_bytes(architecture: Architecture, context_tokens: int) -> int | None:
    made = of_replica(architecture, weights_bytes=0, slots=2, context_tokens=context_tokens, batch_tokens=64)
    return made.kv_bytes


def test_latent_attention_keeps_one_compressed_vector_for_all_heads() -> None:
    """MLA as DeepSeek-V3 has it: 61 layers, 512 + 64 numbers a token, where 128 heads would have 32,768 for keys alone."""
    latent = Architecture(61, 128, 192, 7168, 18432, 129280, latent_size=512, position_size=64)
    assert cache_bytes(latent, 1000) == 61 * (512 + 64) * 2 * 1000 * 2


def test_devices_share_the_heads_of_a_cache_and_beyond_them_keep_copies() -> None:
    eight = Architecture(1, 8, 1, 8, 8, 0)
    assert [eight.cache_copies(devices) for devices in (1, 8, 16)] == [1, 1, 2]
    latent = Architecture(1, 8, 1, 8, 8, 0, latent_size=4)
    assert [latent.cache_copies(devices) for devices in (1, 8)] == [1, 8]


def test_values_may_be_of_another_size_than_keys() -> None:
    assert cache_bytes(Architecture(1, 2, 192, 64, 64, 0, value_size=128), 10) == 2 * (192 + 128) * 2 * 10 * 2


def test_layers_with_a_sliding_window_keep_what_it_shows_and_the_step_that_is_computed() -> None:
    """Gemma 3: five of six layers see 512 tokens."""
    windowed = Architecture(12, 1, 8, 64, 64, 0, window_tokens=512, windowed_layers=10)
    number = 2 * 8 * 2 * 2
    assert cache_bytes(windowed, 10_000) == number * (2 * 10_000 + 10 * (512 + 64))
    assert cache_bytes(windowed, 100) == number * 12 * 100, "no more than there is"


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

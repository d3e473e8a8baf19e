"""How many requests fit beside the weights, and that they do."""

import math
from random import Random
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.policies import memory_room
from headrace.policies.memory_plan import MIB, Architecture
from headrace.policies.memory_room import Device, Held, Room

GIB = 1 << 30
LLAMA_8B = Architecture(32, 8, 128, 4096, 14336, 128256)
DEEPSEEK_V3 = Architecture(61, 128, 192, 7168, 18432, 129280, latent_size=512, position_size=64)


def room(
    held: Held,
    *,
    architecture: Architecture = LLAMA_8B,
    weights_bytes: int = 16_060_000_000,
    device: Device | None = None,
    kv_cache_type: str = "f16",
) -> Room:
    return memory_room.room(
        architecture, weights_bytes=weights_bytes, held=held, batch_tokens=2048, kv_cache_type=kv_cache_type,
        device=device or Device(80_000_000_000, used_share=0.9, reserved_bytes=round(3.5 * GIB)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("context_tokens", "kv_cache_type", "fit"), [(2048, "f16", 194), (4096, "f16", 97), (4096, "fp8", 194)]
)
def test_eight_billion_parameters_leave_room_for_398_thousand_tokens_on_80_gb(
    context_tokens: int, kv_cache_type: str, fit: int
) -> None:
    """Two bytes each, 90 % of the device, 3.5 GiB for everything else; 128 KiB a token, or half of that."""
    assert room(memory_room.reserved(context_tokens), kv_cache_type=kv_cache_type).requests == fit


def test_what_a_step_takes_is_counted_where_nobody_says_it() -> None:
    found = room(memory_room.reserved(2048), device=Device(80_000_000_000))
    assert found.fixed_bytes - found.weights_bytes == 2048 * (4096 + 14336) * 8 + 66 * MIB
    assert found.request_bytes == 2048 * 128 * 1024 + 128256 * 4, "its logits too"


def test_several_devices_hold_what_one_does_not() -> None:
    """671 GB of weights; a latent that all heads share is on every device, and so one more device holds no more of it."""
    held = memory_room.reserved(4096)
    eight = room(
        held, architecture=DEEPSEEK_V3, weights_bytes=671_000_000_000, device=Device(80 * GIB, devices=8)
    )
    assert eight.requests == 0
    assert eight.devices_min is not None
    assert eight.devices_min > 8
    one, two = (
        room(held, architecture=DEEPSEEK_V3, weights_bytes=GIB, device=Device(80 * GIB, devices=devices))
        for devices in (1, 2)
    )
    assert two.token_bytes == 2 * one.token_bytes
    assert two.requests == pytest.approx(one.requests, rel=0.02)


def test_no_number_of_devices_helps_where_each_is_full_of_its_own_needs() -> None:
    found = room(memory_room.reserved(2048), device=Device(GIB, reserved_bytes=2 * GIB))
    assert (found.requests, found.devices_min) == (0, None)


@given(
    weights_gib=st.integers(1, 400),
    device_gib=st.integers(8, 192),
    held=st.builds(Held, st.floats(1, 50_000), st.floats(0, 50_000)),
)
def test_so_many_fit_and_one_more_would_not_and_on_the_least_devices_there_is_room(
    weights_gib: int, device_gib: int, held: Held
) -> None:
    device = Device(device_gib * GIB, reserved_bytes=2 * GIB)
    found = room(held, weights_bytes=weights_gib * GIB, device=device)
    left = found.usable_bytes - found.fixed_bytes
    spread = 2.326 * 128 * 1024 * (math.ceil(held.mean + held.deviation) - math.ceil(held.mean))

    def needs(requests: int) -> float:
        return requests * found.request_bytes + math.sqrt(requests) * spread

    assert found.requests == 0 or needs(found.requests) <= left * (1 + 1e-6)
    if left >= found.request_bytes:
        assert needs(found.requests + 1) > left * (1 - 1e-6)
    assert found.devices_min is not None
    enough = room(held, weights_bytes=weights_gib * GIB, device=device._replace(devices=found.devices_min))
    assert enough.fixed_bytes + found.request_bytes <= enough.usable_bytes * (1 + 1e-9)


@given(least=st.integers(100, 20_000), more=st.integers(0, 20_000))
def test_longer_requests_never_fit_in_greater_number(least: int, more: int) -> None:
    short, long = (
        memory_room.paged(input_tokens=tokens, output_tokens=tokens / 4, spread=1.0)
        for tokens in (least, least + more)
    )
    assert room(short).requests >= room(long).requests


@pytest.mark.parametrize("spread", [0.0, 0.5, 0.9])
def test_what_requests_hold_that_are_met_at_one_moment(spread: float) -> None:
    """Answers are met by their length, each at some moment of its own; drawn here, one by one."""
    chance = Random(7)
    sigma = math.sqrt(math.log1p(spread * spread))

    def drawn(mean: float) -> float:
        return chance.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma)

    answers = [drawn(200) for _ in range(40_000)]
    met = chance.choices(answers, weights=answers, k=40_000)
    held = [drawn(1000) + answer * chance.random() for answer in met]
    found = memory_room.paged(input_tokens=1000, output_tokens=200, spread=spread)
    assert found.mean == pytest.approx(fmean(held) + 8, rel=0.02)
    assert found.deviation == pytest.approx(pstdev(held), rel=0.06)

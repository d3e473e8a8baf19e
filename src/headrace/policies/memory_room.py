"""How many requests fit the memory of one replica? What its weights leave, over what each request has in the cache.

    room     = share of the memory that may be used - weights - workspace - the engine itself
    held     = of one request, in the mean over the time that it is there: its prompt, and what it has of its answer

A long answer is there for longer than a short one, and is met the more often: with lengths that vary by a standard deviation of
s times their mean m, an answer that is met is (1 + s^2) m long in the mean, and half of that is there. An engine that pages its
cache has what is held and half a page; one that reserves a context for each slot has that, whatever is held.

So many fit that all of them find room in 99 of 100 moments: what they hold together varies, by the root of their number.
"""

import math
from typing import NamedTuple

from headrace.policies import memory_plan
from headrace.policies.memory_plan import Architecture

PAGE_TOKENS = 16
_SURE = 2.326  # standard deviations that are passed in one moment of a hundred
_REQUESTS_MAX = 1_000_000


class Held(NamedTuple):
    """Tokens that one request has in the cache, while it is there."""

    mean: float
    deviation: float


def reserved(context_tokens: int) -> Held:
    """Of an engine that reserves so much for each slot."""
    return Held(float(context_tokens), 0.0)


def paged(*, input_tokens: float, output_tokens: float, spread: float) -> Held:
    """Of an engine that pages.

    With lognormal answers n, E[n^k] = m^k (1 + s^2)^(k (k - 1) / 2); of one that is met, what it has so far has the moments
    E[n^2] / (2 E[n]) and E[n^3] / (3 E[n]).

    Args:
        input_tokens, output_tokens: In the mean of all requests.
        spread: Standard deviation of both over their means.
    """
    wide = 1.0 + spread * spread
    so_far = output_tokens * wide / 2.0
    variance = output_tokens**2 * wide**3 / 3.0 - so_far**2 + (spread * input_tokens) ** 2
    return Held(input_tokens + so_far + PAGE_TOKENS / 2, math.sqrt(variance))


class Device(NamedTuple):
    """What a replica runs on.

    Attributes:
        devices: Between which weights and cache are split.
        used_share: Of the memory that the engine may use.
        reserved_bytes: Of each, what the engine and its steps take; None as the memory plan has it.
    """

    memory_bytes: int
    devices: int = 1
    used_share: float = 0.9
    reserved_bytes: int | None = None

    @property
    def usable_bytes(self) -> float:
        """Of one."""
        return self.memory_bytes * self.used_share


class Room(NamedTuple):
    """What the memory of one replica holds.

    Attributes:
        usable_bytes: Of all its devices.
        fixed_bytes: Of that, whatever runs: weights, workspace, the engine.
        token_bytes: Of one token, in every layer that keeps all.
        request_bytes: Of one request in the mean.
        held: By one request.
        requests: That fit at once; 0 if not even one does.
        devices_min: On which one request would fit; None where no number of them helps.
    """

    usable_bytes: int
    weights_bytes: int
    fixed_bytes: int
    token_bytes: int
    request_bytes: int
    held: Held
    requests: int
    devices_min: int | None


def room(
    architecture: Architecture,
    *,
    weights_bytes: int,
    device: Device,
    held: Held,
    batch_tokens: int,
    kv_cache_type: str = "f16",
) -> Room:
    """How much room there is, and how many requests it is enough for."""

    def bytes_for(slots: int, tokens: float) -> tuple[int, int]:
        """What doesn't depend on the requests, and what does."""
        plan = memory_plan.of_replica(
            architecture, weights_bytes=weights_bytes, slots=slots, context_tokens=math.ceil(tokens),
            batch_tokens=batch_tokens, kv_cache_type=kv_cache_type, devices=device.devices,
        )  # fmt: skip
        if device.reserved_bytes is None:
            return weights_bytes + plan.workspace_bytes + plan.process_bytes, plan.kv_bytes or 0
        return weights_bytes + device.reserved_bytes * device.devices, plan.kv_bytes or 0

    fixed, _ = bytes_for(0, held.mean)
    with_one, cache = bytes_for(1, held.mean)
    one = with_one - fixed + cache
    deviation = bytes_for(1, held.mean + held.deviation)[1] - cache
    usable = math.floor(device.usable_bytes * device.devices)
    return Room(
        usable, weights_bytes, fixed, bytes_for(1, 1)[1], one, held, _most(usable - fixed, one, deviation),
        _devices_min(device, weights_bytes + one, (fixed - weights_bytes) / device.devices),
    )  # fmt: skip


def _most(room_bytes: int, one: int, deviation: int) -> int:
    """The most of which n x one + _SURE x sqrt(n) x deviation is no more than there is."""
    if room_bytes < one:
        return 0
    spare = _SURE * deviation
    root = (math.sqrt(spare * spare + 4.0 * one * room_bytes) - spare) / (2.0 * one)
    return min(_REQUESTS_MAX, math.floor(root * root + 1e-9))


def _devices_min(device: Device, needed_bytes: int, each_bytes: float) -> int | None:
    left = device.usable_bytes - each_bytes
    return math.ceil(needed_bytes / left) if left > 0 else None

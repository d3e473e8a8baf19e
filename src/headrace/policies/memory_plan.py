"""How much memory will a replica take, and how many fit beside what else runs? Known before anything is started.

    weights     as large as their files
    KV cache    2 x layers x KV heads x head size x bytes of one number, for every token of every slot (grouped-query
                attention has fewer KV heads than heads); with latent attention (MLA) one compressed vector and the part of the
                key that knows positions instead; in layers with a sliding window only that many tokens, and those of the step
                that is computed; none for embeddings, which are computed in one pass
    workspace   what one step computes with: batch x (embedding + feed-forward) x 8 bytes, and the logits of each slot; for
                embeddings the attention of every token to every other, batch x batch x heads x 4 bytes
    process     the engine's program and its libraries

Measured beside it on 2026-11-30 with `headrace.engines.embedded` (xllamacpp 2026.10) and SmolLM2 135M: 176, 256, 526 and
1607 MiB resident for 1x512, 1x4096, 4x4096 and 8x8192 tokens; the plan says 175, 254, 525 and 1605.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

MIB = 1 << 20
PROCESS_BYTES = 66 * MIB
NUMBER_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "auto": 2.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}
"""Bytes of one number of a KV cache, by the name of its type; blocks of 32 share a scale."""


class Architecture(msgspec.Struct, frozen=True):
    """What the header of weights says about the model.

    Attributes:
        kv_heads: Heads with keys and values of their own; the others share them.
        head_size: Numbers in one key and in one value.
        context_tokens_max: Longest context that it was trained for; 0 when unknown.
        value_size: Numbers in one value, where they are another than in a key; 0 where not.
        latent_size, position_size: With latent attention, numbers in the compressed vector and in the key's part for
            positions, which all heads share; 0 without.
        window_tokens: Of windowed_layers, how far back a token sees; 0 sees all.
    """

    layers: int
    kv_heads: int
    head_size: int
    embedding: int
    feed_forward: int
    vocabulary: int
    context_tokens_max: int = 0
    value_size: int = 0
    latent_size: int = 0
    position_size: int = 0
    window_tokens: int = 0
    windowed_layers: int = 0

    @property
    def token_numbers(self) -> int:
        """What one layer keeps of one token."""
        if self.latent_size:
            return self.latent_size + self.position_size
        return self.kv_heads * (self.head_size + (self.value_size or self.head_size))

    def cache_copies(self, devices: int) -> float:
        """How often so many devices have the whole cache between them: heads are split, and beyond their number there are
        copies; what all heads share can't be split."""
        return float(devices) if self.latent_size else max(1.0, devices / self.kv_heads)

    def layer_tokens(self, context_tokens: int, *, batch_tokens: int) -> int:
        """Tokens that are kept of one sequence, summed over the layers."""
        seen = (
            min(context_tokens, self.window_tokens + batch_tokens) if self.window_tokens else context_tokens
        )
        return (self.layers - self.windowed_layers) * context_tokens + self.windowed_layers * seen


class MemoryPlan(msgspec.Struct, frozen=True):
    """Bytes of one replica; None where nothing is known yet.

    Attributes:
        kv_bytes: For the whole of `slots` times `context_tokens`.
    """

    weights_bytes: int = 0
    kv_bytes: int | None = None
    workspace_bytes: int = 0
    process_bytes: int = PROCESS_BYTES

    @property
    def replica_bytes(self) -> int:
        """At least this much; all of it where the KV cache is known."""
        return self.weights_bytes + (self.kv_bytes or 0) + self.workspace_bytes + self.process_bytes


def of_replica(
    architecture: Architecture | None,
    *,
    weights_bytes: int,
    slots: int,
    context_tokens: int,
    batch_tokens: int,
    has_kv_cache: bool = True,
    kv_cache_type: str = "f16",
    devices: int = 1,
) -> MemoryPlan:
    """What one replica takes in all.

    Args:
        architecture: None where the header isn't here.
        devices: Between which weights and, by its heads, the cache are split; each has a workspace and a process of its own.
    """
    if architecture is None:
        return MemoryPlan(weights_bytes, None if has_kv_cache else 0, process_bytes=PROCESS_BYTES * devices)
    kv_bytes = 0.0
    if has_kv_cache:
        number = NUMBER_BYTES.get(kv_cache_type, NUMBER_BYTES["f16"])
        kept = architecture.layer_tokens(context_tokens, batch_tokens=batch_tokens)
        copies = architecture.cache_copies(devices)
        kv_bytes = kept * architecture.token_numbers * number * slots * copies
    step = batch_tokens * (architecture.embedding + architecture.feed_forward) * 8
    if not has_kv_cache:
        step += batch_tokens**2 * (architecture.embedding // architecture.head_size) * 4
    logits = slots * architecture.vocabulary * 4
    return MemoryPlan(
        weights_bytes,
        round(kv_bytes),
        workspace_bytes=(step + logits) * devices,
        process_bytes=PROCESS_BYTES * devices,
    )


class Tenant(NamedTuple):
    """A deployment on the machine: so many replicas of that size."""

    name: str
    replica_bytes: int
    replicas_min: int
    replicas_max: int


class Fit(msgspec.Struct, frozen=True):
    """What the machine has, and what is asked of it.

    Attributes:
        usable_bytes: Of the machine or its container, after the headroom and what the service itself takes.
        least_bytes: With every deployment at its least.
        most_bytes: With every deployment at its most, and both versions of the one that changes.
        change_bytes: With every deployment at its least, and both versions of the one that changes.
    """

    usable_bytes: int
    least_bytes: int
    change_bytes: int
    most_bytes: int

    @property
    def fits(self) -> bool:
        return self.least_bytes <= self.usable_bytes

    @property
    def fits_change(self) -> bool:
        """Whether the new version can start before the old one ends."""
        return self.change_bytes <= self.usable_bytes

    @property
    def fits_most(self) -> bool:
        return self.most_bytes <= self.usable_bytes


def fit(
    usable_bytes: int, *, planned: Tenant, others: Iterable[Tenant], replaced: Tenant | None = None
) -> Fit:
    """Whether a deployment fits beside the others, and beside the version that it replaces.

    Without a replica nothing is served, so the least that a version needs while it takes over is one.
    """
    elsewhere = list(others)
    beside_min = sum(other.replica_bytes * other.replicas_min for other in elsewhere)
    beside_max = sum(other.replica_bytes * other.replicas_max for other in elsewhere)
    old_min = old_max = 0
    if replaced is not None:
        old_min = replaced.replica_bytes * max(1, replaced.replicas_min)
        old_max = replaced.replica_bytes * replaced.replicas_max
    first = planned.replica_bytes * max(1, planned.replicas_min)
    return Fit(
        usable_bytes,
        least_bytes=beside_min + first,
        change_bytes=beside_min + first + old_min,
        most_bytes=beside_max + planned.replica_bytes * planned.replicas_max + old_max,
    )

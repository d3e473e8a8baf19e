"""What do prompts have in common? Beginnings that are shared, how long they are, and how often each of them is asked about."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.core.workload import BLOCK_TOKENS, Arrived, Prefixes, constant
from headrace.policies import length_fit

_SYSTEM_SHARE = 0.9


class _Group(NamedTuple):
    requests: int
    blocks: int


def fit(rows: Sequence[Arrived]) -> tuple[Prefixes, float | None]:
    """Shared beginnings, and the share of all tokens that an earlier prompt had in the same place."""
    blocked = [row for row in rows if row.blocks]
    if not blocked:
        return _cached(rows), None
    occurs = Counter(block for row in blocked for block in row.blocks)
    known: set[int] = set()
    reused = 0
    for row in blocked:
        reused += _leading(row.blocks, known)
        known.update(row.blocks)
    reuse = reused / sum(len(row.blocks) for row in blocked)
    system = 0
    while True:
        column = Counter(row.blocks[system] for row in blocked if len(row.blocks) > system)
        if not column or column.most_common(1)[0][1] < max(2.0, _SYSTEM_SHARE * len(blocked)):
            break
        system += 1
    groups: dict[int, list[int]] = defaultdict(list)
    for row in blocked:
        shared = _leading_shared(row.blocks, occurs)
        if shared > system:
            groups[row.blocks[system]].append(shared - system)
    sizes = sorted(
        (_Group(len(found), _middle(found)) for found in groups.values() if len(found) > 1), reverse=True
    )
    if not sizes:
        return Prefixes(system * BLOCK_TOKENS), reuse
    tokens = length_fit.fit([group.blocks * BLOCK_TOKENS for group in sizes]).chosen
    share = sum(group.requests for group in sizes) / len(rows)
    skew = _skew([group.requests for group in sizes])
    return Prefixes(system * BLOCK_TOKENS, len(sizes), round(share, 4), tokens, skew), reuse


def _leading(blocks: Sequence[int], known: set[int]) -> int:
    return next((index for index, block in enumerate(blocks) if block not in known), len(blocks))


def _leading_shared(blocks: Sequence[int], occurs: Mapping[int, int]) -> int:
    return next((index for index, block in enumerate(blocks) if occurs[block] < 2), len(blocks))


def _middle(found: Sequence[int]) -> int:
    return sorted(found)[len(found) // 2]


def _skew(sizes: Sequence[int]) -> float:
    """Of a Zipf distribution, from the most often chosen down: the slope of the logarithms, each rank as heavy as its requests."""
    points = [(math.log(rank), math.log(size), float(size)) for rank, size in enumerate(sizes, 1)]
    whole = sum(weight for *_, weight in points)
    mean_x = sum(x * weight for x, _, weight in points) / whole
    mean_y = sum(y * weight for _, y, weight in points) / whole
    across = sum(weight * (x - mean_x) ** 2 for x, _, weight in points)
    along = sum(weight * (x - mean_x) * (y - mean_y) for x, y, weight in points)
    return round(min(5.0, max(0.0, -along / across)), 2) if across else 0.0


def _cached(rows: Sequence[Arrived]) -> Prefixes:
    """What a cache had says how much is shared, and not what: one text stands for all of them."""
    told = [row.cached_tokens for row in rows if row.cached_tokens is not None]
    hits = [tokens for tokens in told if tokens]
    if not hits:
        return Prefixes()
    return Prefixes(groups=1, share=round(len(hits) / len(told), 4), tokens=constant(_middle(hits)))

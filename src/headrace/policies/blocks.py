"""How many independent samples are those of one run worth? Neighbours in a queue are slow together.

A run is cut into blocks of neighbours that are long enough to depend little on each other. If samples were independent, the share
of an event in the blocks would differ as a binomial's does; by how much more it differs, by so much fewer samples count.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from headrace.policies.proportions import Share

Item = TypeVar("Item")

BLOCKS = 20
"""Enough to see how far they differ, and as few as that allows, so that each is long."""
BLOCKS_MIN = 5
_BLOCK_ITEMS = 5


def cut(items: Sequence[Item], *, blocks: int = BLOCKS) -> list[Sequence[Item]]:
    """Into runs of neighbours of about equal length: at most `blocks`, fewer where there are few items."""
    count = min(len(items), max(BLOCKS_MIN, min(blocks, len(items) // _BLOCK_ITEMS)))
    edges = [len(items) * index // max(1, count) for index in range(count + 1)]
    return [items[low:high] for low, high in pairwise(edges)]


def worth(blocks: Sequence[Share]) -> int:
    """How many independent trials tell as much of the share of an event as these, at least one and at most as many as they are.

    p (1 - p) over the variance of p that the blocks show, B / (B - 1) x sum((y - p m)^2) / n^2, with y events among the m trials
    of each of B blocks. Fewer than BLOCKS_MIN of them can't show it; then each block counts once.

    Source: W. G. Cochran, Sampling Techniques, 3rd edition, section 9A (ratio of cluster totals); the quotient is L. Kish's
    design effect.
    """
    known = [block for block in blocks if block.trials]
    n, count = sum(block.trials for block in known), len(known)
    if count < BLOCKS_MIN:
        return count
    p = sum(block.events for block in known) / n
    spread = sum((block.events - p * block.trials) ** 2 for block in known) * count / (count - 1)
    if not 0.0 < p < 1.0 or spread <= n * p * (1 - p):
        return n
    return max(1, math.floor(n * n * p * (1 - p) / spread + 1e-9))

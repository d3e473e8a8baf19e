"""Which replica takes this request? Filter, score, pick: the least loaded of those with a free slot, ties by chance."""

from collections.abc import Iterable
from typing import Protocol, TypeVar

from headrace.core.chance import Chance


class Candidate(Protocol):
    """What balancing must know of a replica: requests running on it, how many it may run, and whether it is out."""

    @property
    def outstanding(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def is_ejected(self) -> bool: ...


T = TypeVar("T", bound=Candidate)


def eligible(candidates: list[T]) -> list[T]:
    """The replicas that may be used at all: all but the ejected, or all if every one is ejected (never eject the last)."""
    healthy = [candidate for candidate in candidates if not candidate.is_ejected]
    return healthy or candidates


def pick(candidates: Iterable[T], *, chance: Chance) -> T | None:
    """The candidate with the smallest share of its slots in use, or None if none has a free slot.

    Ties are broken by chance: a fixed order would send every first request of every gateway to the same replica.
    """
    best: T | None = None
    best_load = 1.0
    ties = 1
    for candidate in candidates:
        load = candidate.outstanding / candidate.slots
        if load < best_load:
            best, best_load, ties = candidate, load, 1
        elif load == best_load and best is not None:
            ties += 1
            if chance.randrange(ties) == 0:
                best = candidate
    return best

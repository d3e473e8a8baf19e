"""Randomness as a dependency: `random.Random(seed)` satisfies it, and so does a test's fixed sequence."""

from typing import Protocol


class Chance(Protocol):
    def random(self) -> float:
        """A float in [0, 1)."""
        ...

    def randrange(self, stop: int, /) -> int:
        """An int in [0, stop)."""
        ...

    def getrandbits(self, k: int, /) -> int:
        """An int of `k` random bits."""
        ...


class Seeded:
    """Numbers from a seed alone, for pure code that needs several streams that don't depend on each other.

    Source: SplitMix64; G. L. Steele, D. Lea, C. H. Flood, Fast splittable pseudorandom number generators, OOPSLA 2014.
    """

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def getrandbits(self, k: int, /) -> int:
        assert 0 < k <= 64
        self._state = state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        return (state ^ (state >> 31)) >> (64 - k)

    def random(self) -> float:
        return self.getrandbits(53) * 2.0**-53

    def randrange(self, stop: int, /) -> int:
        return int(self.random() * stop)


_MASK = (1 << 64) - 1

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

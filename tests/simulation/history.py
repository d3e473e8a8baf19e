"""What happened, in order: hashed as a whole, so that two runs can be compared, with the last lines kept for people."""

import hashlib
from collections import deque
from collections.abc import Callable

LINES_KEPT = 400


class Violation(AssertionError):
    """A law of tests/simulation/laws.py doesn't hold."""


class History:
    """Every event of a run. `tell` gets each line, for whoever wants to read along.

    Attributes:
        broken: Laws that were found broken, and bugs, wherever: the gateway outlives its bugs, so raising isn't enough.
    """

    def __init__(self, now_s: Callable[[], float], *, tell: Callable[[str], None] | None = None) -> None:
        self._now_s = now_s
        self._tell = tell
        self._hash = hashlib.blake2b(digest_size=16)
        self.last: deque[str] = deque(maxlen=LINES_KEPT)
        self.count = 0
        self.broken: list[BaseException] = []

    def add(self, kind: str, *facts: object) -> None:
        line = f"{self._now_s():.6f} {kind} {' '.join(map(str, facts))}"
        self._hash.update(line.encode() + b"\n")
        self.count += 1
        self.last.append(line)
        if self._tell is not None:
            self._tell(line)

    def mix(self, *numbers: float) -> None:
        """An event that is only hashed: there are too many of its kind to read."""
        self._hash.update(repr(numbers).encode())

    def require(self, holds: bool, what: str) -> None:
        """A law: raises Violation unless it holds."""
        if not holds:
            self.broken.append(Violation(what))
            raise self.broken[-1]

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

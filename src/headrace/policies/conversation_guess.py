"""Which requests are turns of one conversation? A guess: no record says it, and nothing of what was said is known.

A later turn repeats all that was said, so its prompt is at least as long as the earlier prompt and its answer together, and a
prefix cache has it. Where neither the person who asked nor what a cache had is known, nothing is guessed.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple

GAP_MAX_S = 1800.0
CACHED_LEAST = 0.9
OPEN_MAX = 64
CALLERS_MAX = 50_000


class Said(NamedTuple):
    """One request that was answered.

    Attributes:
        caller: Whoever asked, as exactly as that is known.
        is_person: Whether that is one person, and not an application with many.
    """

    caller: Hashable
    is_person: bool
    began_s: float
    ended_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int


class Conversations:
    """Gives each request a number of its conversation.

    State: `_open` has the last requests of conversations that may go on, by caller, the newest last; callers of long ago are
    forgotten.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[Hashable, list[tuple[int, Said]]] = OrderedDict()
        self._count = 0

    def place(self, said: Said) -> int:
        """Requests must come in the order in which they began."""
        open_ = [
            each for each in self._open.pop(said.caller, []) if said.began_s - each[1].ended_s <= GAP_MAX_S
        ]
        number = None
        for index in range(len(open_) - 1, -1, -1):
            if _goes_on(open_[index][1], said):
                number, _ = open_.pop(index)
                break
        if number is None:
            number, self._count = self._count, self._count + 1
        open_.append((number, said))
        self._open[said.caller] = open_[-OPEN_MAX:]
        if len(self._open) > CALLERS_MAX:
            self._open.popitem(last=False)
        return number


def _goes_on(before: Said, said: Said) -> bool:
    if said.began_s < before.ended_s or said.prompt_tokens < before.prompt_tokens + before.output_tokens:
        return False
    return said.is_person or said.cached_tokens >= max(1.0, CACHED_LEAST * before.prompt_tokens)

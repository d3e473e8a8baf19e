"""Which artifacts go when a store holds more than it may? What wasn't used for longest first, and never what somebody needs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Held(NamedTuple):
    """One thing that a store holds, which goes whole or stays whole.

    Attributes:
        blobs: The files that it needs, by digest, with their bytes; others may need some of them too.
        used_s: When it was last used, in Unix seconds.
        is_kept: Whether somebody needs it.
    """

    id: str
    blobs: Mapping[str, int]
    used_s: float
    is_kept: bool


def held_bytes(held: Sequence[Held]) -> int:
    """What all of them take: a file that several need is there once."""
    return sum({blob: size for each in held for blob, size in each.blobs.items()}.values())


def evicted(held: Sequence[Held], *, bytes_max: int) -> list[Held]:
    """What has to go, in that order, until the rest fits; all that may go where that isn't enough.

    What would never free anything, because each of its files is needed by something that stays, stays too.
    """
    needed = {blob for each in held if each.is_kept for blob in each.blobs}
    users = Counter(blob for each in held for blob in each.blobs)
    total_bytes = held_bytes(held)
    gone = []
    for each in sorted(held, key=lambda each: (each.used_s, each.id)):
        if total_bytes <= bytes_max:
            break
        if each.is_kept or each.blobs.keys() <= needed:
            continue
        total_bytes -= sum(size for blob, size in each.blobs.items() if users[blob] == 1)
        users.subtract(each.blobs.keys())
        gone.append(each)
    return gone

"""How many replicas are started, and which of them have to go? Never by number alone: by what each of them is worth now."""

from collections.abc import Sequence
from typing import NamedTuple

from headrace.core.ids import ReplicaId


class Present(NamedTuple):
    """A replica that is there or on its way, and isn't about to go.

    Attributes:
        decided_s: When it was decided on.
    """

    id: ReplicaId
    is_ready: bool
    in_flight: int
    decided_s: float


class Plan(NamedTuple):
    """So many more, or these no longer."""

    starts: int
    removals: tuple[ReplicaId, ...]


def plan(present: Sequence[Present], wanted: int, *, first: Sequence[ReplicaId] = ()) -> Plan:
    """What makes `present` as many as are wanted.

    One that isn't ready yet goes before any that serves, and one with little to do before one with much; of equals the
    youngest goes, which has the least in its caches.

    Args:
        first: Those go before all others, in this order.
    """
    surplus = len(present) - wanted
    if surplus <= 0:
        return Plan(-surplus, ())
    ranks = {id_: rank for rank, id_ in enumerate(first)}
    order = sorted(
        present,
        key=lambda each: (
            ranks.get(each.id, len(ranks)),
            each.is_ready,
            each.in_flight,
            -each.decided_s,
            each.id,
        ),
    )
    return Plan(0, tuple(each.id for each in order[:surplus]))

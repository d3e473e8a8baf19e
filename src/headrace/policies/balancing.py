"""Which replica takes this request? Filter, score, pick: the least loaded of those with a free slot, ties by chance."""

from collections.abc import Iterable
from typing import Protocol, TypeVar

from headrace.core.chance import Chance
from headrace.policies.health import Circuit, ReplicaHealth


class Slots(Protocol):
    """Requests running on a replica, and how many it may run, over all of its models."""

    @property
    def outstanding(self) -> int: ...
    @property
    def slots(self) -> int: ...


class Candidate(Protocol):
    """What balancing must know of a replica: its slots; and requests for this model that run on it, and its health at it."""

    @property
    def shared(self) -> Slots: ...
    @property
    def outstanding(self) -> int: ...
    @property
    def health(self) -> ReplicaHealth: ...


T = TypeVar("T", bound=Candidate)

# Of more replicas than this, so many are looked at: the least loaded of sixteen by chance is as good as that of all, for
# practical purposes (Mitzenmacher, 2001), and a fleet of two thousand would take half a millisecond for each request.
MANY = 64
LOOKED_AT = 16


def choose(candidates: list[T], *, now_s: float, chance: Chance) -> T | None:
    """The replica for a request, or None if none that may be used has a free slot."""
    if len(candidates) > MANY and (found := _pick_of_some(candidates, chance)) is not None:
        return found
    for candidate in candidates:
        if not candidate.health.is_settled:
            return _choose_warily(candidates, now_s, chance)
    return pick(candidates, chance=chance)


def eligible(candidates: list[T], *, now_s: float) -> list[T]:
    """The filter: who may be used at all, whether or not a slot is free.

    Who asked for a rest has it, even if nobody else is left. The ejected are out, and one that may be well again gets one
    request to show it; but the last is never ejected: where no other is left, those are used, the hopeful first.
    """
    awake = [each for each in candidates if each.health.rest_until_s <= now_s]
    sound: list[T] = []
    hopeful: list[T] = []
    for each in awake:
        circuit = each.health.circuit(now_s)
        if circuit is Circuit.HALF_OPEN:
            hopeful.append(each)
        elif circuit is not Circuit.OPEN:
            sound.append(each)
    if sound:
        return sound + [each for each in hopeful if not each.health.trials]
    return hopeful or awake


def rest_s(candidates: Iterable[Candidate], *, now_s: float) -> float:
    """How long all of them rest; 0.0 if one doesn't."""
    return max(0.0, min((each.health.rest_until_s for each in candidates), default=0.0) - now_s)


def pick(candidates: Iterable[T], *, chance: Chance) -> T | None:
    """The candidate with the smallest share of its slots in use, or None if none has a free slot.

    Ties are broken by chance: a fixed order would send every first request of every gateway to the same replica.
    """
    best: T | None = None
    best_load = 1.0
    ties = 1
    for candidate in candidates:
        shared = candidate.shared
        if shared.outstanding >= shared.slots:
            continue  # also one that may get nothing at the moment, with no slots at all
        load = shared.outstanding / shared.slots
        if load < best_load:
            best, best_load, ties = candidate, load, 1
        elif load == best_load and best is not None:
            ties += 1
            if chance.random() * ties < 1.0:
                best = candidate
    return best


def _pick_of_some(candidates: list[T], chance: Chance) -> T | None:
    """As `pick`, of some by chance. None if there is more to be said about one of them, or none has a free slot: then all
    are looked at."""
    count = len(candidates)
    best: T | None = None
    least = 1.0
    for _ in range(LOOKED_AT):
        candidate = candidates[int(chance.random() * count)]
        if not candidate.health.is_settled:
            return None
        shared = candidate.shared
        if shared.outstanding < shared.slots and (load := shared.outstanding / shared.slots) < least:
            best, least = candidate, load
    return best


def _choose_warily(candidates: list[T], now_s: float, chance: Chance) -> T | None:
    """A quiet one may be at a long prompt or may hang: it is used where no other has a free slot."""
    usable = eligible(candidates, now_s=now_s)
    lively = [each for each in usable if not each.health.is_quiet]
    chosen = _pick_weighted(lively, now_s, chance)
    return (
        chosen if chosen is not None or len(lively) == len(usable) else _pick_weighted(usable, now_s, chance)
    )


def _pick_weighted(candidates: list[T], now_s: float, chance: Chance) -> T | None:
    """As `pick`, by the load that each would have with this request, as if one that starts slowly had fewer slots."""
    scores = [
        ((each.shared.outstanding + 1) / (each.shared.slots * each.health.weight(now_s)), each)
        for each in candidates
        if each.shared.outstanding < each.shared.slots
    ]
    if not scores:
        return None
    least = min(score for score, _ in scores)
    best = [each for score, each in scores if score == least]
    return best[chance.randrange(len(best))]

"""How many replicas does so much work need? Little's law with its numbers, and what chance, a loss and the tail do to it.

    in progress = rate x time in the system               1000 per second x 2 s = 2000
    carrying    = in progress / what one replica runs     2000 / 200 = 10, with nothing to spare
    replicas    = that, and the spare                     10 x 1.3 = 13

The law wants the mean. Whoever puts a tail in its place, because the tail is what was promised, gets a number that is safe
and too large: by how much depends on how times are spread, which has to be said. And it says nothing of queues: a replica
is full by chance before the fleet is, so what the spare is for is looked at here as well. Whether a promise holds is for
the simulation to say (headrace/evidence/simulate.py).
"""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

from headrace.policies import staffing

# Sums and products of fractions are not exact: what is above a whole number by less than this share is that number.
_NEAR = 1e-9


class Sizing(NamedTuple):
    """Little's law, and a fleet by it.

    Attributes:
        in_progress: Requests in the system in the mean.
        carrying: Replicas that carry it if nothing is ever uneven.
        replicas: With the spare.
        utilisation: Of those, in the mean.
    """

    rate_per_s: float
    time_s: float
    per_replica: float
    spare_share: float
    in_progress: float
    carrying: int
    replicas: int
    utilisation: float


def size(*, rate_per_s: float, time_s: float, per_replica: float, spare_share: float = 0.0) -> Sizing:
    """The fleet for so many requests a second of that mean time.

    Args:
        time_s: In the system: in the queue and on a replica.
        per_replica: Requests that one replica runs at once and still serves well; above 0.
        spare_share: On top, as a share: 0.3 for 30 %.
    """
    in_progress = rate_per_s * time_s
    carrying = whole(in_progress / per_replica)
    replicas = whole(in_progress / per_replica * (1.0 + spare_share))
    utilisation = in_progress / (replicas * per_replica) if replicas else 0.0
    return Sizing(rate_per_s, time_s, per_replica, spare_share, in_progress, carrying, replicas, utilisation)


def whole(replicas: float) -> int:
    """So many or the next whole number."""
    return math.ceil(replicas - _NEAR * max(1.0, replicas))


class Lognormal(NamedTuple):
    """Times spread as most service times are: none below zero, few very long.

    Attributes:
        cv: Standard deviation as a share of the mean.
    """

    mean_s: float
    cv: float

    @classmethod
    def of_quantile(cls, time_s: float, *, share: float, cv: float) -> "Lognormal":
        """The one of which that share is no longer than that."""
        sigma = _sigma(cv)
        return cls(time_s * math.exp(sigma * (sigma / 2.0 - NormalDist().inv_cdf(share))), cv)

    def quantile_s(self, share: float) -> float:
        sigma = _sigma(self.cv)
        return self.mean_s * math.exp(sigma * (NormalDist().inv_cdf(share) - sigma / 2.0))


def _sigma(cv: float) -> float:
    return math.sqrt(math.log1p(cv * cv))


class TwoViews(NamedTuple):
    """The same promise sized twice.

    Attributes:
        by_tail: As if each request took as long as the one at that quantile.
        by_mean: With the mean that the law asks for: measured, or what follows from the quantile and the spread.
        spread: What was assumed of the spread; None where the mean was measured.
    """

    by_tail: Sizing
    by_mean: Sizing
    spread: Lognormal | None


def both(
    *,
    rate_per_s: float,
    tail_s: float,
    tail_share: float,
    per_replica: float,
    spare_share: float,
    cv: float,
    mean_s: float | None = None,
) -> TwoViews:
    """By the tail and by the mean.

    Args:
        tail_s: `tail_share` of the requests are to take no longer than this.
        cv: Of the times, for the mean; not looked at where that is known.
        mean_s: The measured mean.
    """
    spread = Lognormal.of_quantile(tail_s, share=tail_share, cv=cv) if mean_s is None else None
    times_s = (tail_s, spread.mean_s if spread is not None else mean_s or 0.0)
    tail, mean = (
        size(rate_per_s=rate_per_s, time_s=time_s, per_replica=per_replica, spare_share=spare_share)
        for time_s in times_s
    )
    return TwoViews(tail, mean, spread)


class Occupancy(NamedTuple):
    """What so many replicas look like under the load.

    Attributes:
        full_share: The chance that a replica is full when a request comes, if requests are spread by chance.
        waiting_share: The chance of a wait, if there is one queue and the next slot that is free takes its first.
        utilisation_after_loss, full_share_after_loss: With one replica fewer; infinite and certain with none.
    """

    replicas: int
    utilisation: float
    full_share: float
    waiting_share: float
    utilisation_after_loss: float
    full_share_after_loss: float

    @property
    def is_stable(self) -> bool:
        """Whether what comes is less than what can be done: else the queue grows without end."""
        return self.utilisation < 1.0 - _NEAR

    @property
    def survives_loss(self) -> bool:
        """The same for one replica fewer."""
        return self.utilisation_after_loss < 1.0 - _NEAR


def occupancy(in_progress: Callable[[int], float], *, per_replica: int, replicas: int) -> Occupancy:
    """How full so many replicas are: requests that come by chance and are spread by chance make the number on each a
    Poisson variable, whatever the times they take (M/G/infinity), and it is full at `per_replica` of them.

    Args:
        in_progress: On so many replicas in all, in the mean.
        replicas: At least 1.
    """
    load, left = in_progress(replicas), replicas - 1
    remaining = in_progress(left) if left else math.inf
    return Occupancy(
        replicas,
        load / (replicas * per_replica),
        poisson_tail(load / replicas, per_replica),
        staffing.waiting_share(load, replicas * per_replica),
        remaining / (left * per_replica) if left else math.inf,
        poisson_tail(remaining / left, per_replica) if left else 1.0,
    )


def in_progress(
    *, rate_per_s: float, alone_s: float, each_s: float, per_replica: int, replicas: int
) -> float:
    """On so many replicas in all, where a request takes the longer the more there are: b on each of n replicas make it take
    alone + each x b, and b = rate / n x that, so that b = rate x alone / (n - rate x each).

    Where that is more than the replicas run at once they can't keep up, and all that they run are in progress for as long as
    it then takes.

    Args:
        alone_s: What a request takes without others; each_s: more of it for every request on the same replica.
        replicas: At least 1.
    """
    room = replicas - rate_per_s * each_s
    if room > 0.0 and (load := rate_per_s * alone_s / room) <= per_replica:
        return load * replicas
    return rate_per_s * (alone_s + each_s * per_replica)


def poisson_tail(mean: float, least: int) -> float:
    """The chance of at least so many where there are `mean` in the mean."""
    if mean <= 0.0:
        return 0.0 if least > 0 else 1.0
    if least <= mean:  # the smaller part is below
        return 1.0 - math.fsum(_poisson(mean, count) for count in range(least))
    total, count = 0.0, least
    while (term := _poisson(mean, count)) > total * 1e-17:
        total += term
        count += 1
    return total


def _poisson(mean: float, count: int) -> float:
    return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))

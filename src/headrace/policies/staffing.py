"""How many slots does so much work need, if hardly anybody is to wait for one? Erlang's answer, of 1917.

Requests come by chance, so a number that is right in the mean is too small every other moment. What is needed on top is less
in proportion for a large fleet than for a small one.
"""

import math
from statistics import NormalDist

# Below this there is no work: sums of fractions are not exact.
_NEAR = 1e-9
_NORMAL = NormalDist()
_SPARE_MAX = 8.0  # standard deviations; beyond it nobody waits, as far as a float can tell


def slots_for(load: float, *, waiting_share: float) -> int:
    """The fewest slots in which at most that share of the requests finds none free, and has to wait.

    P(wait) = slots * B / (slots - load * (1 - B)), with Erlang's B by its recursion:
    B(0) = 1, B(n) = load * B(n - 1) / (n + load * B(n - 1)).

    Args:
        load: Requests in progress in the mean, had each its slot at once.
        waiting_share: Above 0.
    """
    if load < _NEAR:
        return 0
    blocked, slots = 1.0, 0
    while True:
        slots += 1
        blocked = load * blocked / (slots + load * blocked)
        if slots > load and slots * blocked <= waiting_share * (slots - load * (1.0 - blocked)):
            return slots


def waiting_share(load: float, slots: int) -> float:
    """The share of the requests that finds none of so many slots free and has to wait, by the same formula; 1.0 where the
    slots can't keep up."""
    if load >= slots:
        return 1.0
    blocked = 1.0
    for number in range(1, slots + 1):
        blocked = load * blocked / (number + load * blocked)
        if not blocked:  # less than a float can tell, however many there are beyond
            return 0.0
    return slots * blocked / (slots - load * (1.0 - blocked))


def slots_by_square_root(load: float, *, waiting_share: float) -> float:
    """The same as `slots_for` by the rule of thumb for large fleets: load + beta * sqrt(load), where beta follows from the
    share that may wait: share = 1 / (1 + beta * Phi(beta) / phi(beta)) (Halfin and Whitt, 1981)."""
    low, high = 0.0, _SPARE_MAX
    for _ in range(60):
        beta = (low + high) / 2.0
        if 1.0 / (1.0 + beta * _NORMAL.cdf(beta) / _NORMAL.pdf(beta)) > waiting_share:
            low = beta
        else:
            high = beta
    return load + high * math.sqrt(load)

"""How many slots does so much work need, if hardly anybody is to wait for long? Erlang's answer, of 1917.

Requests come by chance, so a number that is right in the mean is too small every other moment. What is needed on top is less
in proportion for a large fleet than for a small one, and less where a request may wait, or where it is over quickly.
"""

import math

# Below this there is no work: sums of fractions are not exact.
_NEAR = 1e-9


def slots_for(load: float, *, wait_in_services: float, share: float) -> int:
    """The fewest slots in which at most that share of the requests waits longer than that.

    P(wait > t) = C(slots, load) * exp(-(slots - load) * t / service), C by Erlang, from his B by its recursion:
    B(0) = 1, B(n) = load * B(n - 1) / (n + load * B(n - 1)).

    Args:
        load: Requests in progress in the mean, had each its slot at once.
        wait_in_services: The wait that is allowed, in times that a request takes.
        share: Above 0.
    """
    if load < _NEAR:
        return 0
    blocked, slots = 1.0, 0
    while True:
        slots += 1
        blocked = load * blocked / (slots + load * blocked)
        if slots <= load:
            continue
        waits = slots * blocked / (slots - load * (1.0 - blocked))
        if waits * math.exp(-(slots - load) * wait_in_services) <= share:
            return slots

"""How many slots does so much work need, if hardly anybody is to wait for one? Erlang's answer, of 1917.

Requests come by chance, so a number that is right in the mean is too small every other moment. What is needed on top is less
in proportion for a large fleet than for a small one.
"""

# Below this there is no work: sums of fractions are not exact.
_NEAR = 1e-9


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

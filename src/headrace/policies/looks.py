"""How may one look again and again at growing numbers without finding, in the end, what isn't there?

A test that is wrong once in twenty looks is wrong almost surely if it is repeated every minute until it finds something. So a
chance of `alpha` for all looks together is spent in parts: look k may be wrong with alpha / (k (k + 1)). The parts add up to
alpha over any number of looks, however they depend on each other (Boole's inequality), so nobody has to say beforehand how
many there will be, and whether one looks on may depend on what was seen. It is spent early: half at the first look, a sixth
at the second, because a bad revision should be found at once, and what is not found then has had more requests to show it.

Alpha spending: K. K. G. Lan, D. L. DeMets, Biometrika 70 (1983) 659. Their functions need the joint distribution of looks and
buy some power with it; this needs nothing, and holds for exact tests of small numbers.
"""


def alpha_at(look: int, *, alpha: float) -> float:
    """What look `look`, 1 the first, may spend of `alpha`."""
    return alpha / (look * (look + 1))


def shared(alpha: float, *, among: int) -> float:
    """What each of several checks, made side by side, may spend (Bonferroni): one wrong verdict is enough to roll back."""
    return alpha / max(1, among)

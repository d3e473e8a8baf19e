"""May a failed attempt be repeated? Only while a budget, shared by all requests, lasts."""

WINDOW_S = 10.0


class RetryBudget:
    """A purse of retries: each request pays in `ratio`, each retry takes out 1, and `floor_per_s` drips in besides.

    So over any long time retries <= ratio * requests + floor_per_s * seconds; the purse holds at most what
    WINDOW_S of the floor and 100 requests would put in, which bounds a burst after a quiet time.
    Source: the retry budget of Finagle and linkerd (20 % of requests plus a floor over a 10 s window).
    """

    def __init__(self, *, ratio: float, floor_per_s: float, now_s: float) -> None:
        self._ratio = ratio
        self._floor_per_s = floor_per_s
        self._balance_max = floor_per_s * WINDOW_S + ratio * 100.0
        self._balance = min(self._balance_max, floor_per_s * WINDOW_S)
        self._counted_s = now_s

    def request(self) -> None:
        """A request arrived."""
        balance = self._balance + self._ratio
        self._balance = balance if balance < self._balance_max else self._balance_max

    def take(self, *, now_s: float) -> bool:
        """Takes one retry out; False if the purse is empty."""
        drip = max(0.0, now_s - self._counted_s) * self._floor_per_s
        self._balance = min(self._balance_max, self._balance + drip)
        self._counted_s = max(now_s, self._counted_s)
        if self._balance < 1.0:
            return False
        self._balance -= 1.0
        return True

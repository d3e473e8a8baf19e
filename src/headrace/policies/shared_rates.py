"""How much of a rate that several hosts share has this one, and what does it ask of the store for its workers?

The store has the bucket; what it has lent has left it. While the store is silent, a host admits its even part of the rate, so that
all hosts together admit the rate, whatever each of them has heard.
"""

from typing import NamedTuple

from headrace.core.leases import AskRate, GrantRate, RateKey, WorkerId
from headrace.policies.leases import LEASE_PART
from headrace.policies.limits import LimitView, PartBucket, part_of

# For so long after the store had too little nobody asks it again: others may have returned what they did not use.
DENIAL_S = 0.02

GrantMessages = list[tuple[WorkerId, GrantRate]]


class Wish(NamedTuple):
    """What a host asks of the store for one rate.

    Attributes:
        needed: Waited for now; less than `least` is of no use.
        ahead: Expected to be of use soon.
        back: Returned unused; negative what was used without a lease.
    """

    key: RateKey
    per_minute: int
    burst: int
    needed: int
    least: int
    ahead: int
    back: int


class Lent(NamedTuple):
    """The store's answer to a wish: so much is the host's, and so much is `left` in the bucket."""

    amount: int
    left: float


class LimitStoreError(Exception):
    """The server can't be had, or refuses. The message holds no address."""


class Answer(NamedTuple):
    """How many hosts are there now, and what was lent for each wish, in their order."""

    hosts: int
    lent: list[Lent]


class SharedRate:
    """One host's side of one rate.

    State: `_held`, lent by the store and given to no worker; `_owed`, what the next wish takes back to it; `_waiting`, the question of each
    worker that has no answer yet, the oldest first; `_used`, what workers got in this window and did not return; `_left` of the bucket at `_left_at_s`, as the
    store said; and in a silence our part of the bucket, and what was taken from it.

    Args:
        workers: How many share what this host gets.
        hosts: How many hosts share the rate.
    """

    def __init__(self, asked: AskRate, *, workers: int, hosts: int) -> None:
        self.key = asked.key
        self._workers = workers
        self._hosts = hosts
        self._revision = asked.revision
        self._per_minute, self._burst = asked.per_minute, asked.burst
        self._held = 0
        self._owed = 0
        self._waiting: dict[WorkerId, AskRate] = {}
        self._used = 0
        self._used_before = 0
        self._left = float(asked.burst)
        self._left_at_s: float | None = None
        self._denied_until_s = 0.0
        self._part: PartBucket | None = None
        self._unlent = 0

    @property
    def is_waiting(self) -> bool:
        """Whether a worker has no answer yet."""
        return bool(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether nothing happens until somebody asks."""
        return not (self._waiting or self._held or self._owed or self._used or self._used_before)

    def ask(self, worker: WorkerId, asked: AskRate) -> None:
        """A worker has one question at a time."""
        if asked.revision > self._revision:
            self._revision = asked.revision
            self._per_minute, self._burst = asked.per_minute, asked.burst
        self._waiting[worker] = asked

    def lost(self, worker: WorkerId) -> None:
        """The worker is gone; what it had was perhaps used."""
        self._waiting.pop(worker, None)

    def returned(self, count: int, *, is_silent: bool = False) -> None:
        """What a worker did not use, or, negative, used without a lease or beyond what had been taken for it. Where there is little of it, it
        goes on to the store at once: whoever returns much would otherwise lend it to itself again and again, and leave other hosts nothing."""
        self._used = max(0, self._used - count)
        self._held += count
        if self._held < 0:
            self._owed += self._held
            self._held = 0
        elif not is_silent and 2 * self._left < self._burst:
            self._return_spare()

    def settle(self, now_s: float, *, silent_since_s: float | None = None) -> GrantMessages:
        """Answers every worker that can be answered without the store, or all of them while it is silent."""
        messages: GrantMessages = []
        for worker, asked in list(self._waiting.items()):
            granted = self._answer(asked, now_s, silent_since_s)
            if granted is not None:
                del self._waiting[worker]
                messages.append((worker, granted))
        return messages

    def wish(self, now_s: float) -> Wish | None:
        """What to ask of the store now; None where nothing is lacking. It is sent, and ends by `lent` or `failed`."""
        counts = [asked.count for asked in self._waiting.values()]
        least = min((max(1, asked.least) for asked in self._waiting.values() if asked.count), default=0)
        target = self._target
        spare = max(0, self._held - sum(counts))
        ahead = max(0, target - spare)
        is_enough = 2 * spare >= target or now_s < self._denied_until_s
        if is_enough and not (self._waiting or self._owed):
            return None
        ahead += sum(min(asked.ahead, self._ahead_max // self._workers) for asked in self._waiting.values())
        wished = Wish(
            self.key,
            self._per_minute,
            self._burst,
            needed=max(0, sum(counts) - self._held),
            least=max(0, least - self._held),
            ahead=ahead,
            back=self._owed,
        )
        self._owed = 0
        return wished

    def lent(self, wished: Wish, lent: Lent, now_s: float) -> None:
        """The store has answered."""
        self._held += lent.amount
        self._left, self._left_at_s = lent.left, now_s
        if lent.amount < max(1, wished.needed):
            self._denied_until_s = now_s + DENIAL_S

    def failed(self, wished: Wish) -> None:
        """Nobody knows whether the store has heard it. Debts are told again, gifts are not: neither can lend anything twice."""
        self._owed += min(0, wished.back)

    def spoke(self) -> None:
        """The store speaks again. What was admitted meanwhile is taken from its bucket, as far as that has filled in the silence."""
        self._owed -= min(self._unlent, part_of(self._burst, self._hosts))
        self._unlent = 0
        self._part = None

    def close_window(self, *, is_silent: bool) -> None:
        """Called four times a second: what is more than is expected to be used soon goes back, unless it may be needed before the store
        speaks again."""
        self._used_before, self._used = self._used, 0
        if not is_silent:
            self._return_spare()

    def view(self, now_s: float) -> LimitView:
        """What no worker holds, as far as this host knows."""
        left = min(float(self._burst), max(0.0, self._left_now(now_s)))
        return LimitView(self._burst, int(left), (self._burst - left) * 60.0 / self._per_minute)

    @property
    def _ahead_max(self) -> int:
        """Half of what a host may have ahead lies here, the other half with its workers."""
        return self._per_minute // (2 * LEASE_PART * self._hosts)

    @property
    def _target(self) -> int:
        """What is expected to be of use soon: as much as one window took, twice over."""
        return min(self._ahead_max, 2 * max(self._used, self._used_before))

    def _return_spare(self) -> None:
        spare = self._held - self._target - sum(asked.count for asked in self._waiting.values())
        if spare > 0:
            self._held -= spare
            self._owed += spare

    def _answer(self, asked: AskRate, now_s: float, silent_since_s: float | None) -> GrantRate | None:
        least = max(1, asked.least)
        if self._held >= max(1, asked.count):
            spare = self._held - asked.count
            return self._grant(
                asked, asked.count + min(asked.ahead, spare, self._ahead_max // self._workers), now_s
            )
        if self._held >= least and (silent_since_s is not None or now_s < self._denied_until_s):
            return self._grant(asked, self._held, now_s)
        if silent_since_s is not None:
            return self._grant_part(asked, least, now_s, silent_since_s)
        if now_s < self._denied_until_s:
            return self._grant(asked, 0, now_s)
        return None

    def _grant(self, asked: AskRate, count: int, now_s: float) -> GrantRate:
        count = min(count, self._held)
        self._held -= count
        self._used += count
        return GrantRate(asked.key, count, self._left_now(now_s))

    def _grant_part(self, asked: AskRate, least: int, now_s: float, silent_since_s: float) -> GrantRate:
        """Out of our part of the bucket. Who needs more than all of it may go when it is full."""
        if self._part is None:
            self._part = PartBucket(silent_since_s)
        part = self._part
        part.refill_part(self._per_minute, self._burst, self._hosts, now_s)
        enough = min(least, part_of(self._burst, self._hosts))
        count = max(least, min(asked.count, int(part.left))) if asked.count and part.left >= enough else 0
        part.left -= count
        self._unlent += count
        # Our part fills more slowly than the bucket that the worker knows of, so what lacks weighs more.
        return GrantRate(asked.key, count, least - max(0.0, enough - part.left) * self._hosts)

    def _left_now(self, now_s: float) -> float:
        """Beside what workers hold."""
        come = 0.0 if self._left_at_s is None else (now_s - self._left_at_s) * self._per_minute / 60.0
        return self._held + min(float(self._burst), self._left + come)

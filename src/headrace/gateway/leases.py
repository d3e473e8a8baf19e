"""What does this worker hold of what all workers share? Pieces of pools, lent by the authority and given back to it.

Decisions are made on what is held. Where that is too little, the authority is asked while the request waits, never longer
than ANSWER_LIMIT_S; while the authority is silent, everything stays as it is held.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError
from headrace.core.leases import (
    ANSWER_LIMIT_S,
    Asking,
    Deny,
    Grant,
    LentSlot,
    PoolKey,
    Recall,
    Return,
    Sated,
    Want,
)
from headrace.gateway.walk import Signal


class Waiters:
    """Walks that wait for an answer of the authority, in the order in which they came."""

    def __init__(self) -> None:
        self._signals: deque[Signal] = deque()

    def __len__(self) -> int:
        return len(self._signals)

    def wake(self, count: int) -> None:
        """Lets the first ones go on, before this returns."""
        for _ in range(min(count, len(self._signals))):
            self._signals.popleft().set()

    async def wait(self, limit_s: float) -> None:
        """Until woken, or the limit. Driven by hand as it is (see walk.py), it takes its limit from a timer."""
        loop = asyncio.get_running_loop()
        signal = Signal()
        self._signals.append(signal)
        # Two turns later: if this process was late itself, an answer is in the socket now, and is read first.
        timer = loop.call_later(limit_s, loop.call_soon, loop.call_soon, signal.set)
        try:
            await signal
        finally:
            timer.cancel()
            if signal in self._signals:
                self._signals.remove(signal)


class Stock(ABC):
    """Our pieces of one pool: `held`, of which we may `keep` so many while others wait for them.

    Attributes:
        total: The pool's size as we know it, 0 where the authority knows it better.
        wanted: How many more the authority thinks that we have a use for.
        is_hungry: Others have a use for what is idle here.
        is_denied: There is nothing to be had until the next grant.
    """

    def __init__(self, key: PoolKey, *, total: int = 0) -> None:
        self.key = key
        self.total = total
        self.held = 0
        self.keep = 0
        self.wanted = 0
        self.is_hungry = False
        self.is_denied = False
        self.waiters = Waiters()

    @property
    def usable(self) -> int:
        return min(self.held, self.keep) if self.is_hungry else self.held

    @abstractmethod
    def in_use(self) -> int: ...

    def wish(self) -> int:
        """How many more we have a use for."""
        return len(self.waiters)

    def changed(self, lent: Sequence[LentSlot]) -> None:  # noqa: B027 -- most stocks only count
        """`usable` is another number; `lent` are the new pieces, where it matters which."""

    def withdraw(self, count: int) -> list[LentSlot]:
        """Picks idle pieces that go back, where it matters which."""
        return []


class Lacking(Exception):
    """Too little is held to decide. `wait` asks for more; `refusal` is what holds if there is no more to be had."""

    def __init__(self, refusal: HeadraceError, ask: Callable[[], Waiters]) -> None:
        super().__init__()
        self.refusal = refusal
        self.ask = ask


class Leases:
    """All stocks of this worker, and its side of the conversation about them.

    State: `pressed`, the pools that others want our pieces of; `_due`, those to be asked for at the end of this turn of the
    loop; `is_silent` from a question without an answer to the next word of the authority, last heard at `_heard_s`.

    Args:
        make: The stock of a pool that the authority lends without being asked.
    """

    def __init__(
        self, send: Callable[[Asking], None], *, make: Callable[[PoolKey], Stock], clock: Clock
    ) -> None:
        self._send = send
        self._make = make
        self._clock = clock
        self._stocks: dict[PoolKey, Stock] = {}
        self._due: dict[PoolKey, Stock] = {}
        self._heard_s = clock.now_s()
        self.is_silent = False
        self.pressed: set[PoolKey] = set()
        self.revision = 0

    def __iter__(self) -> Iterator[Stock]:
        return iter(list(self._stocks.values()))

    def stock(self, key: PoolKey) -> Stock:
        stock = self._stocks.get(key)
        if stock is None:
            stock = self._stocks[key] = self._make(key)
        return stock

    def heard(self) -> None:
        """The authority has said something."""
        self._heard_s = self._clock.now_s()
        self.is_silent = False

    async def obtain(self, lacking: Lacking, *, until_s: float) -> None:
        """Asks for what is lacking, and waits for the answer; raises the refusal when there is no time or nobody to ask."""
        now_s = self._clock.now_s()
        waiters = lacking.ask()
        if self.is_silent or now_s >= until_s:
            raise lacking.refusal
        wait_s = until_s - now_s
        await waiters.wait(wait_s)
        # Of a wait that the caller's deadline or an earlier answer made short nothing follows.
        if self._heard_s < now_s and wait_s > ANSWER_LIMIT_S / 2:
            self.is_silent = True

    def ask(self, stock: Stock) -> Waiters:
        """We have a use for more of it; said once, at the end of this turn of the loop."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._ask)
        self._due[stock.key] = stock
        return stock.waiters

    def tell_limit(self, stock: Stock) -> None:
        """The pool has another size, or none: then nothing of it is counted any more."""
        stock.is_denied = False
        if not stock.total:
            stock.wanted = 0
        self._send(Want(stock.key, stock.wanted, stock.total, self.revision))

    def freed(self, key: PoolKey) -> None:
        """Something of a pressed pool may be idle now."""
        self._give_back(self._stocks[key], is_answer=False)

    def received(self, message: Grant | Recall | Sated | Deny) -> None:
        self.heard()
        stock = self.stock(message.key)
        match message:
            case Grant(_, count, keep, lent):
                stock.held += count
                stock.keep = keep
                stock.wanted = max(0, stock.wanted - count)
                stock.is_denied = False
                stock.changed(lent)
                stock.waiters.wake(count)
                if not stock.wanted and stock.wish():
                    self.ask(stock)
                if stock.is_hungry:  # who waited has left meanwhile
                    self._give_back(stock, is_answer=False)
            case Recall(_, keep):
                stock.is_hungry = True
                stock.keep = keep
                self.pressed.add(stock.key)
                self._give_back(stock, is_answer=True)
            case Sated():
                stock.is_hungry = False
                self.pressed.discard(stock.key)
                stock.changed(())
            case Deny():
                if (
                    stock.wanted
                ):  # else the question was withdrawn meanwhile, and the authority won't come back to it
                    stock.is_denied = True
                    stock.wanted = 1
                stock.waiters.wake(len(stock.waiters))

    def drop(self, stock: Stock) -> None:
        """Gives all of it back: it has no use any more, and nothing of it is in use."""
        if stock.held:
            self._send(Return(stock.key, stock.held))
        self.pressed.discard(stock.key)
        self._due.pop(stock.key, None)
        del self._stocks[stock.key]

    def _ask(self) -> None:
        due, self._due = self._due, {}
        for stock in due.values():
            if stock.is_denied:
                continue  # the authority knows that we want one, and says when there is one
            # Of those who were refused in a silence nobody waits; without a question it would have no end.
            wish = stock.wish() or int(self.is_silent)
            # A wish that has grown a little is no news: what is granted meanwhile says whether it was enough.
            if (wish == 0) != (stock.wanted == 0) or wish >= 2 * stock.wanted > 0:
                stock.wanted = wish
                self._send(Want(stock.key, wish, stock.total, self.revision))

    def _give_back(self, stock: Stock, *, is_answer: bool) -> None:
        idle = max(0, stock.held - stock.in_use())
        count = idle if stock.is_hungry else 0
        if not count and not is_answer:
            return
        lent = stock.withdraw(count)
        stock.held -= count
        stock.changed(())
        self._send(Return(stock.key, count, lent))

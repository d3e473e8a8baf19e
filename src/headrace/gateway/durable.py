"""When does the answer of a durable tenant end? Once its record is committed, so that what was seen to end is on the disk."""

from headrace.gateway.walk import Signal


class Confirmation:
    """That a record is in the ledger, or that it can't be known.

    Attributes:
        over: Await it: then `is_good` holds.
        is_good: The end of the answer may go out.
    """

    __slots__ = ("is_good", "over")

    def __init__(self) -> None:
        self.over = Signal()
        self.is_good = False

    def settle(self, *, is_good: bool) -> None:
        """The last word; after a wait that was given up, nobody hears it."""
        if not self.over.is_set:
            self.is_good = is_good
            self.over.set()

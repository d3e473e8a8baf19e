"""How much of a budget may each worker hold? Escrow, lent out of it in small blocks, and called back where it gets tight.

A worker reserves from its escrow without asking. What it has spent of it, it says with each record; so the authority's sum
over spent and lent is never behind what workers may still do, whatever is on its way between them.
"""

from headrace.core.leases import AskEscrow, EscrowId, LentEscrow, RecallEscrow, WorkerId
from headrace.policies.budgets import Budget

# What is lent ahead of requests is at most this part of the limit, and of half of what is left, divided among the workers.
AHEAD_PART = 20

EscrowMessages = list[tuple[WorkerId, LentEscrow | RecallEscrow]]


class EscrowLender:
    """The authority's side of one budget.

    State, by worker: `_waiting`, the question that has no answer yet, the oldest first; `_told`, who gives back at once what
    is idle, and gets nothing ahead; `_unanswered`, who was told and hasn't said yet what it has.
    """

    def __init__(self, budget: Budget, *, workers: int) -> None:
        self.budget = budget
        self._id = EscrowId(budget.key, budget.span.start_s)
        self._workers = workers
        self._waiting: dict[WorkerId, AskEscrow] = {}
        self._told: set[WorkerId] = set()
        self._unanswered: set[WorkerId] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether somebody gets no answer before others have said what they have."""
        return bool(self._waiting)

    def ask(self, worker: WorkerId, asked: AskEscrow) -> EscrowMessages:
        """The worker has requests that need so much."""
        self._waiting[worker] = asked
        return self._settle()

    def returned(self, worker: WorkerId, amount: int) -> EscrowMessages:
        """The worker has no use for so much, perhaps for nothing: it has answered."""
        self._unanswered.discard(worker)
        self.budget.give_back(worker, amount)
        return self._settle()

    def spent(self, worker: WorkerId, amount: int) -> None:
        """So much of what the worker held is spent; the record has added it to what the budget has spent."""
        self.budget.give_back(worker, amount)

    def lost(self, worker: WorkerId, *, heir: WorkerId) -> EscrowMessages:
        """The worker is gone; until it is known what it had spent, an heir has what it held, and gives nothing back."""
        self.budget.pass_on(worker, heir)
        self._waiting.pop(worker, None)
        self._told.discard(worker)
        self._told.add(heir)
        self._unanswered.discard(worker)
        return self._settle()

    def buried(self, heir: WorkerId) -> EscrowMessages:
        """What the heir's worker had spent is in the budget, so that the rest is free."""
        self.budget.lost(heir)
        self._told.discard(heir)
        return self._settle()

    def stop_waiting(self) -> EscrowMessages:
        """Whoever hasn't said what it has holds up the others no longer; but nobody can tell them that there is no more."""
        return self._settle(is_waiting=False)

    def _settle(self, *, is_waiting: bool = True) -> EscrowMessages:
        """Answers what can be answered; where too little is left for all, only after everyone has said what is idle."""
        messages: EscrowMessages = []
        for worker, asked in list(self._waiting.items()):
            is_known = True
            if self.budget.left < asked.needed:
                messages += self._recall(besides=worker)
                is_known = not self._unanswered - {worker}
                if is_waiting and not is_known:
                    continue
            del self._waiting[worker]
            messages.append((worker, self._lend(worker, asked, is_known=is_known)))
        return messages

    def _recall(self, *, besides: WorkerId) -> EscrowMessages:
        told = [each for each in self.budget.holders if each != besides and each not in self._told]
        self._told.update(told)
        self._unanswered.update(told)
        return [(each, RecallEscrow(self._id)) for each in told]

    def _lend(self, worker: WorkerId, asked: AskEscrow, *, is_known: bool) -> LentEscrow:
        """All that is needed, and some ahead where there is plenty; of too little as much as one request may have a use for."""
        budget = self.budget
        left = max(0, budget.left)
        if asked.needed <= left:
            ahead_max = min(budget.limit // AHEAD_PART, (left - asked.needed) // 2) // self._workers
            amount = asked.needed + min(asked.ahead, ahead_max)
        else:
            amount = left if asked.least <= left else 0
        budget.lend(worker, amount)
        is_tight = budget.left * AHEAD_PART < budget.limit
        (self._told.add if is_tight else self._told.discard)(worker)
        return LentEscrow(
            self._id, amount, left=budget.left, spent=budget.spent, is_tight=is_tight, is_known=is_known
        )


class Escrow:
    """The worker's side: what it holds of one budget, of which `reserved` is for requests in progress.

    Attributes:
        is_tight: What is idle goes back at once.
        left, spent: Of the budget, as the authority last said; `held` is counted as neither.
        used, used_before: What was reserved in this window, and in the last one.
    """

    __slots__ = ("held", "id", "is_tight", "left", "limit", "reserved", "spent", "used", "used_before")

    def __init__(self, escrow_id: EscrowId, *, limit: int) -> None:
        self.id = escrow_id
        self.limit = limit
        self.held = 0
        self.reserved = 0
        self.is_tight = False
        self.left = limit
        self.spent = 0
        self.used = 0
        self.used_before = 0

    @property
    def idle(self) -> int:
        return self.held - self.reserved

    def reserve(self, amount: int) -> bool:
        """All of that, or nothing."""
        if amount > self.held - self.reserved:
            return False
        self.reserved += amount
        self.used += amount
        return True

    def settle(self, reserved: int, *, spent: int) -> int:
        """A request that had reserved so much has ended. Returns how much of the escrow is spent with it.

        What an engine has generated beyond what was asked for is in the record, and in no escrow.
        """
        self.reserved -= reserved
        from_escrow = min(spent, reserved)
        self.held -= from_escrow
        return from_escrow

    def lent(self, message: LentEscrow) -> None:
        self.held += message.amount
        self.left = message.left
        self.spent = message.spent
        self.is_tight = message.is_tight

    def withdraw(self, *, keep: int) -> int:
        """Takes out what is idle beyond `keep`, to be given back."""
        amount = max(0, self.held - self.reserved - keep)
        self.held -= amount
        return amount

    @property
    def ahead(self) -> int:
        """What is expected to be reserved soon, beyond what waits: as much as one window took, twice over."""
        return 2 * max(self.used, self.used_before)

    def close_window(self) -> None:
        self.used_before, self.used = self.used, 0

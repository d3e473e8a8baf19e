"""Which requests does a workload make, and when? One after the other, the same again from the same seed.

Times are drawn from one stream and everything else from another, in the same number of draws for every request. So the requests of a
workload stay what they are when only their rate changes, and changing how many are cancelled changes nothing else. Conversations that
go on at the start, which are more at a higher rate, have a stream of their own.
"""

import math
from collections.abc import Iterable, Iterator
from copy import copy
from heapq import heappop, heappush
from itertools import chain, count, islice, takewhile
from typing import NamedTuple

import msgspec

from headrace.core.chance import Chance, Seeded
from headrace.core.workload import BLOCK_TOKENS, ArrivalKind, Arrivals, Arrived, Workload, at_rate, constant
from headrace.policies import arrival_times, lengths

OWN_TOKENS_MIN = 8
"""Of every prompt, so many tokens aren't shared: nobody sends a document without a question."""
_TRIES = 1000
_BEGUN_MAX = 10_000


class Planned(NamedTuple):
    """One request that is to be sent.

    Attributes:
        number: From 0, in the order in which they are due.
        due_s: From the start of the run; None in a closed loop. A turn isn't sent before the one before it has ended, whenever
            it is due.
        input_tokens: Of the whole prompt, with its prefix and the conversation so far.
        prefix_group: Which shared text it is about; None where it is about none.
        prefix_tokens: Of its beginning, how many it has in common with others: the common beginning and the group's.
        turn, turns: From 1, and how many this conversation has; 0 where a trace doesn't say how many.
        cancel_after_tokens: When its caller leaves; such a request is streamed.
        blocks: Of a trace that says what prompts consist of.
    """

    number: int
    due_s: float | None
    input_tokens: int
    output_tokens: int
    prefix_group: int | None
    prefix_tokens: int
    conversation: int
    turn: int
    is_streamed: bool
    cancel_after_s: float | None
    cancel_after_tokens: int | None
    deadline_s: float | None
    turns: int = 1
    blocks: tuple[int, ...] = ()


def plan(
    workload: Workload,
    *,
    chance: Chance,
    duration_s: float | None = None,
    rate_per_s: float | None = None,
    trace: Iterable[Arrived] = (),
) -> Iterator[Planned]:
    """Every request, in the order in which they are due; of a closed loop conversation by conversation, and without an end of
    its own. Nothing is kept but the conversations that go on.

    Args:
        duration_s: Instead of the workload's own; what would be due later isn't planned. A closed loop has no times, and ends
            when its driver says.
        rate_per_s: Instead of the workload's own; a closed loop becomes an open one.
        trace: What the file of the arrivals says, in order and at the rate that is asked for, where they are a trace.
    """
    if rate_per_s is not None:
        workload = at_rate(workload, rate_per_s)
    until_s = duration_s or workload.duration_s or math.inf
    clock_chance = Seeded(chance.getrandbits(64))
    draws = _Draws(workload, chance)
    made: Iterator[Planned]
    match workload.arrivals.kind:
        case ArrivalKind.CLOSED:
            made = chain.from_iterable(draws.conversation(number, None) for number in count())
        case ArrivalKind.TRACE:
            made = _as_traced(draws, trace, until_s)
        case _:
            made = _as_due(draws, workload, clock_chance, until_s)
    numbered = (planned._replace(number=number) for number, planned in enumerate(made))
    return islice(numbered, workload.requests_max)


def _as_due(draws: "_Draws", workload: Workload, clock_chance: Chance, until_s: float) -> Iterator[Planned]:
    rate = workload.arrivals.rate_per_s
    assert rate is not None, "checked with the file"
    begins = at_rate(workload, rate / draws.turns_mean()).arrivals
    later = _going_on(draws, begins)
    times = takewhile(
        lambda at_s: at_s <= until_s, arrival_times.times(begins, chance=clock_chance, until_s=until_s)
    )
    for conversation, at_s in enumerate(times):
        while later and later[0][0] <= at_s:
            yield heappop(later)[2]
        first, *rest = draws.conversation(conversation, at_s)
        yield first
        for planned in rest:
            assert planned.due_s is not None
            heappush(later, (planned.due_s, conversation, planned))
    while later and later[0][0] <= until_s:
        yield heappop(later)[2]


def _going_on(draws: "_Draws", begins: Arrivals) -> list[tuple[float, int, Planned]]:
    """As a heap, the turns that are left of conversations that began before the start, at the rate of the start.

    Without them second turns would be missing until the first conversations come to theirs, and every short run would have a lower
    rate than it was asked for. The first of the turns that are left is the first that this run sees: all that was said is in its
    prompt, and nobody has it in a cache.
    """
    reach_s = draws.lasts_s()
    if not reach_s:
        return []
    level = msgspec.structs.replace(begins, modulation=0.0)
    _, rate = next(arrival_times.pieces(level, chance=draws.apart))
    before = draws.with_chance(draws.apart)
    at_s, heap = 0.0, list[tuple[float, int, Planned]]()
    for conversation in range(-1, -_BEGUN_MAX - 1, -1):
        at_s += math.log(1.0 - draws.apart.random()) / rate
        if at_s < -reach_s:
            break
        left = [
            planned for planned in before.conversation(conversation, at_s) if (planned.due_s or 0.0) >= 0.0
        ]
        for turn, planned in enumerate(left, 1):
            assert planned.due_s is not None
            heappush(heap, (planned.due_s, conversation, planned._replace(turn=turn, turns=len(left))))
    return heap


def _as_traced(draws: "_Draws", trace: Iterable[Arrived], until_s: float) -> Iterator[Planned]:
    """What the trace says, and draws for what it doesn't."""
    numbers: dict[str, int] = {}
    turns: dict[int, int] = {}
    known: set[int] = set()
    alone = count(-1, -1)
    for row in takewhile(lambda row: row.at_s <= until_s, trace):
        drawn = draws.request(row.at_s)
        if row.conversation:
            conversation = numbers.setdefault(row.conversation, len(numbers))
            turn = turns[conversation] = turns.get(conversation, 0) + 1
        else:
            conversation, turn = next(alone), 1
        input_tokens = max(1, drawn.input_tokens if row.input_tokens is None else row.input_tokens)
        group, prefix_tokens = drawn.prefix_group, drawn.prefix_tokens
        if row.blocks:
            seen = next(
                (index for index, block in enumerate(row.blocks) if block not in known), len(row.blocks)
            )
            known.update(row.blocks)
            group, prefix_tokens = row.blocks[0], seen * BLOCK_TOKENS
        elif row.cached_tokens is not None:
            # Which text was cached isn't known: the beginning of one that all have in common is as good.
            group, prefix_tokens = (0, row.cached_tokens) if row.cached_tokens and turn == 1 else (None, 0)
        yield drawn._replace(
            input_tokens=input_tokens,
            output_tokens=max(1, drawn.output_tokens if row.output_tokens is None else row.output_tokens),
            prefix_group=group,
            prefix_tokens=_shared(prefix_tokens, input_tokens),
            conversation=conversation,
            turn=turn,
            turns=0 if row.conversation else 1,
            # Who leaves after some tokens has them one by one.
            is_streamed=drawn.is_streamed
            if row.is_streamed is None or drawn.cancel_after_tokens is not None
            else row.is_streamed,
            cancel_after_s=drawn.cancel_after_s if row.cancel_after_s is None else row.cancel_after_s,
            blocks=row.blocks,
        )


class _Draws:
    """What requests are like, apart from when they are due."""

    def __init__(self, workload: Workload, chance: Chance) -> None:
        self._chance = chance
        self._workload = workload
        self._input = lengths.sampler(workload.input_tokens or constant(1))
        self._output = lengths.sampler(workload.output_tokens or constant(1))
        self._turns = lengths.sampler(workload.turns.count)
        self._more = lengths.sampler(workload.turns.tokens)
        self._input_max = (workload.input_tokens or constant(1)).maximum
        prefixes = workload.prefixes
        of_groups = Seeded(chance.getrandbits(64))
        length = lengths.sampler(prefixes.tokens or constant(1))
        self._group_tokens = [length(of_groups.random()) for _ in range(prefixes.groups)]
        self._group = lengths.zipf(prefixes.groups, prefixes.skew) if prefixes.groups else lambda share: 0
        self.apart = Seeded(of_groups.getrandbits(64))

    def with_chance(self, chance: Chance) -> "_Draws":
        """Other requests about the same texts."""
        other = copy(self)
        other._chance = chance
        return other

    def lasts_s(self) -> float:
        """From the first turn to the last, of nearly all conversations; 0 where they have but one."""
        turns = self._workload.turns
        gaps = self._turns(1.0 - 2.0**-53) - 1
        # The sum of so many exponential gaps has a mean and a variance of their number.
        return turns.gap_s * (gaps + 4.0 * math.sqrt(gaps)) if gaps else 0.0

    def turns_mean(self) -> float:
        """How many turns a conversation has; found by trying, as long ones end early, and from the same tries every time."""
        if self._workload.turns.count == constant(1):
            return 1.0
        tries = _Draws(self._workload, Seeded(0))
        return sum(len(tries.conversation(number, None)) for number in range(_TRIES)) / _TRIES

    def request(self, due_s: float | None) -> Planned:
        """One that stands alone."""
        return self.conversation(0, due_s)[0]

    def conversation(self, conversation: int, due_s: float | None) -> list[Planned]:
        """All turns of one, with the times at which they would be due."""
        chance, prefixes = self._chance.random, self._workload.prefixes
        input_tokens, turns = self._input(chance()), self._turns(chance())
        in_group, which = chance(), self._group(chance())
        group, prefix_tokens = None, prefixes.system_tokens
        if self._group_tokens and in_group < prefixes.share:
            group, prefix_tokens = which, prefix_tokens + self._group_tokens[which]
        prefix_tokens = _shared(prefix_tokens, input_tokens)
        made = [self._planned(due_s, input_tokens, group, prefix_tokens, conversation, 1, turns)]
        for turn in range(2, turns + 1):
            gap_s, more = -self._workload.turns.gap_s * math.log(1.0 - chance()), self._more(chance())
            input_tokens += made[-1].output_tokens + more
            due_s = None if due_s is None else due_s + gap_s
            made.append(self._planned(due_s, input_tokens, group, prefix_tokens, conversation, turn, turns))
        fitting = sum(planned.input_tokens <= self._input_max for planned in made)
        if fitting < turns:
            made = [planned._replace(turns=fitting) for planned in made[:fitting]]
        return made

    def _planned(
        self,
        due_s: float | None,
        input_tokens: int,
        group: int | None,
        prefix_tokens: int,
        conversation: int,
        turn: int,
        turns: int,
    ) -> Planned:
        workload, chance = self._workload, self._chance.random
        output_tokens, is_streamed = self._output(chance()), chance() < workload.stream_share
        leaves, when = chance() < workload.cancel.share, -math.log(1.0 - chance())
        after_s = after_tokens = None
        if leaves and workload.cancel.after_tokens is not None:
            after_tokens = max(1, min(output_tokens - 1, round(when * workload.cancel.after_tokens)))
            is_streamed = True
        elif leaves:
            after_s = when * (workload.cancel.after_s or 0.0)
        return Planned(
            0, due_s, input_tokens, output_tokens, group, prefix_tokens, conversation, turn, is_streamed,
            after_s, after_tokens, workload.deadline_s, turns,
        )  # fmt: skip


def _shared(prefix_tokens: int, input_tokens: int) -> int:
    return max(0, min(prefix_tokens, input_tokens - OWN_TOKENS_MIN))

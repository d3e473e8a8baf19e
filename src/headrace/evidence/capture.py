"""What did callers of this service ask for, and when? A trace from the ledger, without any text: the ledger has none.

Whoever asked is in it only as a number that was made with a key of this capture alone, which nobody keeps.
"""

import hmac
from collections.abc import Iterable
from statistics import median_low
from typing import NamedTuple

import msgspec

from headrace.core.outcome import Outcome
from headrace.core.request import Endpoint
from headrace.core.usage import UsageRecord, UsageSource
from headrace.core.workload import Arrived
from headrace.policies.conversation_guess import Conversations, Said

REQUESTS_MAX = 500_000
_NAME_DIGITS = 12


class Captured(msgspec.Struct, frozen=True):
    """What was taken from the ledger.

    Attributes:
        trace: In the order of their arrival.
        others: Requests of other endpoints, which are left out.
        unknown: Whose lengths nobody reported; cancelled: whose callers left. For both the median stands in the trace.
        conversations: Of more than one turn.
        is_whole: Whether all that was asked for is in it.
    """

    trace: list[Arrived]
    others: int
    unknown: int
    cancelled: int
    conversations: int
    is_whole: bool

    @property
    def cannot_know(self) -> list[str]:
        """What a reader must not take from it."""
        return [
            "What was said: the ledger has no text, so prompts of a replay are made up; where a cache had their beginning, they share one.",
            "Who was refused: no record is made of those, so at a busy time more was asked for than is here.",
            "How long an answer was allowed to be, or would have become: only how long it was.",
            *(
                [f"How long {self.unknown:,} requests were, of which nobody reported it: the median stands for them."]
                if self.unknown
                else []
            ),
            *(
                [f"How long the answers to {self.cancelled:,} callers who left would have been: at least the median, and more than they had got."]
                if self.cancelled
                else []
            ),
            "Which requests were turns of one conversation: guessed from callers, lengths and caches"
            f" ({self.conversations:,} found).",
        ]  # fmt: skip


class _Taken(NamedTuple):
    arrived: Arrived
    conversation: int | None
    caller: tuple[str, str, str]


def capture(records: Iterable[UsageRecord], *, secret: bytes, requests_max: int = REQUESTS_MAX) -> Captured:
    """The trace of those records.

    Args:
        records: In the order in which they began.
        secret: What pseudonyms are made with; another one makes others.
    """
    conversations = Conversations()
    taken: list[_Taken] = []
    others = unknown = cancelled = 0
    is_whole = True
    first_s = None
    for record in records:
        if record.endpoint not in (Endpoint.CHAT_COMPLETIONS, Endpoint.COMPLETIONS):
            others += 1
            continue
        if len(taken) == requests_max:
            is_whole = False
            break
        first_s = record.started_s if first_s is None else first_s
        taken.append(_taken(record, record.started_s - first_s, conversations))
        unknown += taken[-1].arrived.input_tokens is None
        cancelled += taken[-1].arrived.cancel_after_s is not None
    turns: dict[int, int] = {}
    for each in taken:
        if each.conversation is not None:
            turns[each.conversation] = turns.get(each.conversation, 0) + 1
    named = [
        each.arrived._replace(conversation=_pseudonym(each, secret))
        if each.conversation is not None and turns[each.conversation] > 1
        else each.arrived
        for each in taken
    ]
    several = sum(count > 1 for count in turns.values())
    return Captured(_filled(named), others, unknown, cancelled, several, is_whole)


def _taken(record: UsageRecord, at_s: float, conversations: Conversations) -> _Taken:
    caller = (record.tenant, record.key_id, record.user)
    arrived = Arrived(max(0.0, at_s), is_streamed=record.is_streaming)
    if record.outcome == Outcome.CANCELLED:
        arrived = arrived._replace(cancel_after_s=record.total_s)
    if record.usage_source in (UsageSource.UNKNOWN, UsageSource.NONE) or not record.prompt_tokens:
        return _Taken(arrived, None, caller)
    arrived = arrived._replace(
        input_tokens=record.prompt_tokens,
        output_tokens=record.completion_tokens or None,
        cached_tokens=record.cached_tokens,
    )
    said = Said(
        caller,
        bool(record.user),
        record.started_s,
        record.started_s + record.total_s,
        record.prompt_tokens,
        record.completion_tokens,
        record.cached_tokens,
    )
    return _Taken(arrived, conversations.place(said), caller)


def _pseudonym(taken: _Taken, secret: bytes) -> str:
    named = repr((taken.caller, taken.conversation)).encode()
    return hmac.digest(secret, named, "sha256").hex()[:_NAME_DIGITS]


def _filled(trace: list[Arrived]) -> list[Arrived]:
    """With the median where a length isn't known."""
    inputs = [row.input_tokens for row in trace if row.input_tokens is not None]
    outputs = [
        row.output_tokens for row in trace if row.output_tokens is not None and row.cancel_after_s is None
    ]
    of_input = median_low(inputs) if inputs else 1
    of_output = median_low(outputs) if outputs else 1
    return [
        row._replace(
            input_tokens=of_input if row.input_tokens is None else row.input_tokens,
            output_tokens=_answer(row, of_output),
        )
        for row in trace
    ]


def _answer(row: Arrived, middle: int) -> int:
    if row.output_tokens is None:
        return middle
    # Who left would have got more than what had come by then.
    return row.output_tokens if row.cancel_after_s is None else max(middle, row.output_tokens + 1)

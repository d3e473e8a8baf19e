"""Did the engine generate what its attempts say? Its own counters beside their sums, as an interval that must hold.

An engine counts on and on, and its counters are read now and then, so a stretch between two readings has attempts that lie
in it and attempts that cross an end of it. The first count whole, the others somewhere from nothing to all of it:

    sure <= counted <= sure + crossing + what an engine goes on with after it was told to stop

An attempt that is still in progress, or that a crash cut off, has no record, and an engine may count it as it goes. Where one
may lie, there is no upper bound.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator

import msgspec

from headrace.core.ids import ReplicaId
from headrace.core.outcome import AttemptOutcome
from headrace.core.usage import ExecutionRecord, UsageSource
from headrace.policies.reconciliation import Cause, Difference

EDGE_S = 1.0
"""A reading and the end of an attempt are not one moment: attempts that end this near to a reading may be on either side."""

OVERRUN_TOKENS = 256
"""What an engine may generate between being told to stop an attempt and stopping; llama.cpp stops within 0.12 s."""

LONGEST_S = 3900.0
"""No attempt lasts longer: `request.deadline_max_s` and a little. One that began before what is looked at may reach into it."""

ESTIMATE_SPREAD = 4
"""An estimate may be that many times too small: it takes a token for four bytes, and a token has at least one."""


class Stretch(msgspec.Struct, frozen=True, gc=False):
    """Two readings of one running engine's counters, in Unix seconds and tokens.

    Attributes:
        incarnation: Grows where an engine that others start has begun to count from zero.
    """

    replica: ReplicaId
    generation: int
    incarnation: int
    since_s: float
    until_s: float
    prompt_before: int
    prompt_after: int
    completion_before: int
    completion_after: int


class Reading(msgspec.Struct, frozen=True, gc=False):
    """What an engine said that it had counted, at a Unix time."""

    replica: ReplicaId
    generation: int
    at_s: float
    prompt: int
    completion: int


def read_on(last: Stretch | None, reading: Reading, *, stretch_s: float) -> Stretch:
    """The stretch that this reading ends: the last one made longer, or the next one, which begins where that ended.

    A counter that has gone back belongs to an engine that began anew: what it counted before its first reading is nobody's.

    Args:
        stretch_s: Stretches are cut at about this length, so that what differs is found near to its time.
    """
    if last is None or last.generation != reading.generation:
        return _begin(reading, incarnation=0)
    if (
        reading.prompt < last.prompt_after
        or reading.completion < last.completion_after
        or reading.at_s < last.until_s  # the clock was set back
    ):
        return _begin(reading, incarnation=last.incarnation + 1)
    if reading.at_s - last.since_s > stretch_s:
        last = msgspec.structs.replace(
            last,
            since_s=last.until_s,
            prompt_before=last.prompt_after,
            completion_before=last.completion_after,
        )
    return msgspec.structs.replace(
        last, until_s=reading.at_s, prompt_after=reading.prompt, completion_after=reading.completion
    )


def _begin(reading: Reading, *, incarnation: int) -> Stretch:
    return Stretch(
        reading.replica, reading.generation, incarnation, reading.at_s, reading.at_s,
        reading.prompt, reading.prompt, reading.completion, reading.completion,
    )  # fmt: skip


class Unrecorded(msgspec.Struct, frozen=True, gc=False):
    """An attempt that has no record, or none yet; between which Unix times it surely lay.

    Attributes:
        replica: None where it may have been any of them.
    """

    replica: ReplicaId | None
    generation: int
    since_s: float
    until_s: float = math.inf


class _Sums:
    """What the attempts of one stretch say: `sure` and `most`, prompt and completion tokens; `is_open` if one's usage is
    unknown, or one has no record, so that there is no upper bound."""

    __slots__ = ("is_open", "most_completion", "most_prompt", "sure_completion", "sure_prompt")

    def __init__(self) -> None:
        self.sure_prompt = self.sure_completion = self.most_prompt = self.most_completion = 0
        self.is_open = False

    def add(self, execution: ExecutionRecord, *, is_whole: bool) -> None:
        source = execution.usage_source
        if source == UsageSource.UNKNOWN:
            self.is_open = True
            return
        spread = ESTIMATE_SPREAD if source == UsageSource.ESTIMATED else 1
        self.most_prompt += spread * execution.prompt_tokens
        self.most_completion += spread * execution.completion_tokens
        if execution.outcome != AttemptOutcome.COMPLETED:
            self.most_completion += OVERRUN_TOKENS
        elif is_whole and spread == 1 and execution.completion_tokens:
            # Engines differ in whether they count what their cache held; llama.cpp counts no prompt that it generates nothing
            # after, as for embeddings, and nothing at all of what is cut off.
            self.sure_prompt += execution.prompt_tokens - execution.cached_tokens
            self.sure_completion += execution.completion_tokens


class EngineBook:
    """The stretches, and the attempts that were put beside them."""

    def __init__(self, stretches: Iterable[Stretch]) -> None:
        self._lanes: dict[tuple[str, int], list[tuple[Stretch, _Sums]]] = {}
        for stretch in _apart(stretches):
            lane = self._lanes.setdefault((stretch.replica, stretch.generation), [])
            lane.append((stretch, _Sums()))
        self._starts = {key: [stretch.since_s for stretch, _ in lane] for key, lane in self._lanes.items()}

    @property
    def stretches(self) -> int:
        return sum(len(lane) for lane in self._lanes.values())

    def add(self, execution: ExecutionRecord) -> None:
        """An attempt, in any order."""
        key = (execution.replica, execution.generation)
        lane = self._lanes.get(key)
        if lane is None:
            return
        first_s = execution.started_s
        last_s = first_s + execution.duration_s
        at = bisect_right(self._starts[key], last_s + EDGE_S) - 1
        while at >= 0:
            stretch, sums = lane[at]
            if stretch.until_s <= first_s - EDGE_S:
                return
            is_whole = stretch.since_s <= first_s - EDGE_S and last_s + EDGE_S <= stretch.until_s
            sums.add(execution, is_whole=is_whole)
            at -= 1

    def open(self, unrecorded: Unrecorded) -> None:
        """An attempt that has no record."""
        for (replica, generation), lane in self._lanes.items():
            if unrecorded.replica is None or (replica, generation) == (
                unrecorded.replica,
                unrecorded.generation,
            ):
                for stretch, sums in lane:
                    if (
                        stretch.since_s <= unrecorded.until_s + EDGE_S
                        and unrecorded.since_s - EDGE_S < stretch.until_s
                    ):
                        sums.is_open = True

    def differences(self) -> Iterator[Difference]:
        for lane in self._lanes.values():
            for stretch, sums in lane:
                yield from _compare(
                    stretch, "completion_tokens", stretch.completion_after - stretch.completion_before,
                    sums.sure_completion, sums.most_completion, is_open=sums.is_open,
                )  # fmt: skip
                yield from _compare(
                    stretch, "prompt_tokens", stretch.prompt_after - stretch.prompt_before,
                    sums.sure_prompt, sums.most_prompt, is_open=sums.is_open,
                )  # fmt: skip


def _apart(stretches: Iterable[Stretch]) -> list[Stretch]:
    """By their beginnings, without those of one engine that overlap: a clock was set back in between, and nobody can tell in
    which of them an attempt lay."""
    apart: list[Stretch] = []
    lanes: dict[tuple[str, int], list[Stretch]] = {}
    for stretch in sorted(stretches, key=lambda each: each.since_s):
        lanes.setdefault((stretch.replica, stretch.generation), []).append(stretch)
    for lane in lanes.values():
        reached_s = -math.inf
        for place, stretch in enumerate(lane):
            following_s = lane[place + 1].since_s if place + 1 < len(lane) else math.inf
            if reached_s <= stretch.since_s and stretch.until_s <= following_s:
                apart.append(stretch)
            reached_s = max(reached_s, stretch.until_s)
    return apart


def _compare(
    stretch: Stretch, unit: str, counted: int, sure: int, most: int, *, is_open: bool
) -> Iterator[Difference]:
    subject = f"{stretch.replica}/{stretch.generation}"
    if counted < sure:
        yield Difference(Cause.ENGINE_LESS, subject, sure, counted, unit)
    elif counted > most and not is_open:
        yield Difference(Cause.ENGINE_MORE, subject, most, counted, unit)

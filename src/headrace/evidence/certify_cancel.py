"""Does work stop when its caller leaves? Seen at the engines themselves, and in the ledger."""

import asyncio

from headrace.evidence.certify import NotMade, Stage
from headrace.evidence.certify_caller import Leave, Reply
from headrace.evidence.drill_instance import DrillError
from headrace.policies.certification import at_least, at_most, told

# What a small model goes on and on with isn't known before.
LONG = (
    "Count from one to a thousand, in words, one after the other.",
    "Write a very long story about a mill, a river and the people who live there, with all that they say.",
    "List every animal that you know, and write a paragraph about each of them.",
)
OUTPUT_TOKENS = 512
# What would end by itself within twice the bound can't show that it was stopped.
_LONGER_THAN, _LONG_ENOUGH = 2.0, 2.5
_RECORDS_LIMIT_S = 30.0


async def stop_work(stage: Stage) -> None:
    """T5, REPORTS 18, 21 and 23: callers leave whole answers and streams, before the first event and amid them."""
    limit_s = stage.bounds.cancel_s
    text, natural_s = await _longest(stage)
    if natural_s < _LONGER_THAN * limit_s:
        raise NotMade(
            f"no answer takes longer than {natural_s:.2f} s, too short to be seen to stop within {limit_s:g} s"
        )
    await stage.here.idle_after_s(stage.clock, since_s=stage.clock.now_s(), limit_s=limit_s)
    ways = (
        (True, Leave(events=3)),
        (True, Leave(after_s=0.2 * limit_s)),
        (False, Leave(after_s=0.2 * limit_s)),
    )
    stopped_s: list[float | None] = []
    before = len(stage.subject.history)
    for _ in range(stage.size.trials):
        for is_streamed, leave in ways:
            stopped_s.append(await _left(stage, text, is_streamed, leave))
    ended = [each for each in stopped_s if each is not None]
    stage.add(
        told("time of such an answer that nobody leaves", natural_s, "s"),
        at_most("answers that their engine went on with", len(stopped_s) - len(ended), 0, samples=len(stopped_s)),
        at_most(
            "longest time from leaving until the engine had stopped", max(ended, default=None), limit_s, "s",
            samples=len(ended),
        ),
    )  # fmt: skip
    ids = {each.request_id for each in stage.subject.history[before:] if each.request_id}
    stage.add(
        at_least("of those with a known name, recorded as cancelled", await _cancelled(stage, ids), len(ids))
    )


async def _longest(stage: Stage) -> tuple[str, float]:
    """The question whose answer takes longest, and how long. Raises DrillError where none is answered."""
    found: list[tuple[float, str]] = []
    for text in LONG:
        whole = await stage.subject.owner.chat(text, stream=True, output_tokens_max=OUTPUT_TOKENS)
        if whole.is_answered:
            found.append((whole.took_s, text))
        if whole.is_answered and whole.took_s > _LONG_ENOUGH * stage.bounds.cancel_s:
            break
    if not found:
        raise DrillError("the answer that is to be left isn't given at all")
    took_s, text = max(found)
    return text, took_s


async def _left(stage: Stage, text: str, is_streamed: bool, leave: Leave) -> float | None:
    """Seconds until no engine worked any more. As much is asked for as before."""
    reply: Reply = await stage.subject.owner.chat(
        text, stream=is_streamed, output_tokens_max=OUTPUT_TOKENS, leave=leave
    )
    if reply.left_at_s is None:
        raise DrillError(f"an answer ended before its caller left: {reply.status} {reply.reason}")
    stopped_s = await stage.here.idle_after_s(
        stage.clock, since_s=reply.left_at_s, limit_s=stage.bounds.cancel_s
    )
    if stopped_s is None:  # it goes on, and the next caller must not find it at work
        await stage.here.idle_after_s(stage.clock, since_s=stage.clock.now_s(), limit_s=60.0)
    return stopped_s


async def _cancelled(stage: Stage, ids: set[str]) -> int:
    until_s = stage.clock.now_s() + _RECORDS_LIMIT_S
    while True:
        rows = await stage.here.running.records()
        found = sum(1 for row in rows if row["request_id"] in ids and row["outcome"] == "cancelled")
        if found == len(ids) or stage.clock.now_s() > until_s:
            return found
        await asyncio.sleep(0.2)

"""Is every request of the certification in the ledger exactly once, with what the engine counted, and does the service grow?"""

import asyncio
import functools
import os
from pathlib import Path
from typing import Any

import msgspec

from headrace.evidence.certify import NotMade, Stage
from headrace.evidence.certify_caller import at_once
from headrace.evidence.certify_subject import JUDGED
from headrace.evidence.drill_instance import RECORDS_MAX, DrillError
from headrace.policies import certification
from headrace.policies.certification import Books, at_most, slope_at_most, told

SHORT = "How much is it?"
_SETTLE_LIMIT_S = 60.0
_COUNTED_REQUESTS = 12
_CONCURRENCY = 4
# The first blocks fill pools and caches, once.
_WARM_BLOCKS = 3
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


async def reconcile(stage: Stage) -> None:
    """Callers, records, attempts, charges and the engines' counters; all that was asked until now."""
    if stage.subject.is_cut:
        raise NotMade("a step before was ended amid its requests, so nobody knows what became of them")
    await _compare_counters(stage)
    limit = stage.bounds.books_off
    books = await _compared(stage)
    stage.add(
        told("requests of this certification", books.asked),
        told("records of them", books.recorded),
        at_most("answered and not recorded", books.unrecorded, limit),
        at_most("recorded twice", books.doubled, limit),
        at_most("records of requests that nobody sent", books.strangers, limit),
    )
    found = await _reconciled(stage)
    stage.add(
        at_most("faults that `headrace reconcile` finds", found["faults"], limit),
        at_most("work of which nobody knows whose it was", found["counts"].get("orphan", 0), limit),
    )
    stage.notes += [
        f"{each['cause']}: {each['subject']}" for each in found["differences"] if each["is_fault"]
    ]
    rows = await stage.here.running.records()
    judged = sum(row["tenant"] == JUDGED for row in rows)
    if judged or stage.subject.judged:
        # Not every case may have been asked, for want of time.
        off = max(0, judged - stage.subject.judged, stage.subject.answered - judged)
        stage.add(at_most("records of cases more or fewer than one each", off, limit))
    summed = msgspec.json.decode(await stage.here.running.command("usage", "--json"))
    requests = sum(row["requests"] for row in summed)
    stage.add(
        at_most(
            "requests in the sums and not in the list, or the other way", abs(requests - len(rows)), limit
        )
    )


async def _compare_counters(stage: Stage) -> None:
    """While nobody else asks: what the engines count is what is recorded, token for token."""
    # What was asked before and left is counted when its slot is given back.
    await stage.here.idle_after_s(stage.clock, since_s=stage.clock.now_s(), limit_s=_SETTLE_LIMIT_S)
    before = await _output_tokens(stage)
    if before is None:
        stage.notes.append("the engine has no counter of tokens to compare with")
        return
    asked = len(stage.subject.history)
    callers = (stage.subject.owner, stage.here.other)
    for number in range(_COUNTED_REQUESTS):
        caller = callers[number % len(callers)]
        await caller.chat(f"{SHORT} {number}", stream=number % 3 == 0, output_tokens_max=8)
    ids = {each.request_id for each in stage.subject.history[asked:]}
    recorded = await _recorded_tokens(stage, ids)
    after = await _output_tokens(stage)
    counted = None if after is None else after - before
    off = None if counted is None or recorded is None else abs(counted - recorded)
    stage.add(
        told("output tokens that the engines counted", counted, samples=_COUNTED_REQUESTS),
        told("output tokens that the ledger has of the same", recorded, samples=_COUNTED_REQUESTS),
        at_most("difference of the two", off, stage.bounds.books_off),
    )


async def _output_tokens(stage: Stage) -> float | None:
    counted = [each.output_tokens for each in await stage.here.engines()]
    return None if None in counted else sum(each or 0.0 for each in counted)


async def _recorded_tokens(stage: Stage, ids: set[str]) -> float | None:
    """Of all attempts for these requests; None where a record never came."""
    until_s = stage.clock.now_s() + _SETTLE_LIMIT_S
    while stage.clock.now_s() < until_s:
        rows = [row for row in await stage.here.running.records() if row["request_id"] in ids]
        if len({row["request_id"] for row in rows}) == len(ids):
            return float(sum(each["completion_tokens"] or 0 for row in rows for each in row["executions"]))
        await asyncio.sleep(0.3)
    return None


async def _compared(stage: Stage) -> Books:
    """Once every answer had time to be written down."""
    if len(stage.subject.history) > RECORDS_MAX:
        raise DrillError(f"more than {RECORDS_MAX} requests can't be compared")
    until_s = stage.clock.now_s() + _SETTLE_LIMIT_S
    while True:
        rows = await stage.here.running.records()
        books = certification.compare_books(
            stage.subject.history, [row["request_id"] for row in rows if row["tenant"] != JUDGED]
        )
        if not books.unrecorded or stage.clock.now_s() > until_s:
            return books
        await asyncio.sleep(0.5)


async def _reconciled(stage: Stage) -> dict[str, Any]:
    """What `headrace reconcile` says, with the callers' side of it."""
    running = stage.here.running
    file = running.folder / "history.jsonl"
    file.write_bytes(
        b"".join(
            msgspec.json.encode(
                {
                    "id": each.request_id,
                    "has_ended": True,
                    "prompt_tokens": each.prompt_tokens,
                    "completion_tokens": each.completion_tokens,
                }
            )
            + b"\n"
            for each in stage.subject.history
            if each.is_whole and each.request_id
        )
    )
    said = await running.command("reconcile", "--json", "--history", str(file), allowed=(0, 1))
    found: dict[str, Any] = msgspec.json.decode(said)
    return found


async def hold_memory(stage: Stage) -> None:
    """T60 in short: the same work again and again, and how much more memory the service's processes have each time."""
    size = stage.size
    points: list[tuple[float, float]] = []
    engines: list[float] = []
    sent = 0
    for block in range(size.blocks):
        jobs = [
            functools.partial(
                stage.subject.owner.chat, f"{SHORT} {number}", stream=number % 2 == 0, output_tokens_max=1
            )
            for number in range(sent, sent + size.block_requests)
        ]
        await at_once(jobs, most=_CONCURRENCY)
        sent += size.block_requests
        own, theirs = await _resident_bytes(stage)
        if block >= _WARM_BLOCKS:
            points.append((float(sent), own))
            engines.append(theirs)
    stage.add(
        slope_at_most(
            "growth of the service's processes with each request",
            points,
            stage.bounds.memory_bytes_per_request,
            "bytes",
        ),
        told("memory of the service's processes at the end", points[-1][1] / 2**20, "MiB"),
        told("memory of the engines at the end", engines[-1] / 2**20, "MiB"),
        told("growth of the engines meanwhile", (engines[-1] - engines[0]) / 2**20, "MiB"),
        told("requests meanwhile", sent),
    )


async def _resident_bytes(stage: Stage) -> tuple[float, float]:
    """Of the service's own processes, and of its engines."""
    pids = {each.pid for each in await stage.here.engines()}
    own = theirs = 0.0
    for pid in stage.here.running.processes():
        if pid in pids:
            theirs += _resident(pid)
        elif pid == stage.here.running.pid:
            own += _resident(pid)
    return own, theirs


def _resident(pid: int) -> int:
    """0 for a process that has ended meanwhile."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0

"""When does the answer of a durable tenant end? Once its record is committed, so that what was seen to end is on the disk."""

import asyncio

from headrace.core import endings
from headrace.core.clock import Clock
from headrace.core.outcome import Reason
from headrace.gateway.delivery import Delivery
from headrace.gateway.dispatch import Slot
from headrace.gateway.usage import Account, UsageCloser

RETRY_AFTER_S = 5.0


async def end(account: Account, delivery: Delivery, slot: Slot, usage: UsageCloser, *, clock: Clock) -> None:
    """Lets a held end go out after the commit, or ends the answer with an error where there will be none in time."""
    account.queue_wait_s = slot.ticket.waited_s
    confirmation = usage.draft(account, delivery)
    left_s = account.request.deadline_s - clock.now_s()
    timer = asyncio.get_running_loop().call_later(max(0.0, left_s), confirmation.over.set)
    try:
        await confirmation.over
    finally:
        timer.cancel()
    if confirmation.is_good:
        delivery.release()
    else:
        ending = endings.find(Reason.UNRECORDED, delivery.stage)
        delivery.fail(ending.as_error(retry_after_s=RETRY_AFTER_S))

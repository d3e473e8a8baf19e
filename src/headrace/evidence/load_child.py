"""One process of a load generator that has several.

    python -m headrace.evidence.load_child

Started by load_processes with one end of a socket pair as standard input. It ends with the pair, and leaves Ctrl-C to who started it.
"""

import asyncio
import os
import signal
import socket
import sys

import uvloop

from headrace.core.clock import SystemClock
from headrace.core.load_records import LoadRecord
from headrace.evidence import load, load_link
from headrace.evidence.load_link import Begin, Done, Ear, Kept, Ready, Setup, say
from headrace.evidence.load_terms import Progress
from headrace.evidence.prompts import Measure
from headrace.evidence.target import Target

LINK_FD = 0


async def _run() -> int:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=os.dup(LINK_FD)))
    ear = Ear(reader, load_link.Down)
    try:
        setup = await ear.hear()
        if not isinstance(setup, Setup):
            return 1
        await _do(setup, ear, writer)
    finally:
        writer.close()
    return 0


async def _do(setup: Setup, ear: Ear, writer: asyncio.StreamWriter) -> None:
    stop = asyncio.Event()
    latest = Progress()

    def tell(progress: Progress) -> None:
        nonlocal latest
        latest = progress

    def keep(records: list[LoadRecord]) -> None:
        say(writer, Kept(latest, records))

    async def begin() -> float:
        say(writer, Ready())
        message = await ear.hear()
        if isinstance(message, Begin):
            tasks.create_task(_listen(ear, stop))
            return message.at_s
        stop.set()  # the other side has gone, or doesn't want it any more
        return SystemClock().now_s()

    async with asyncio.TaskGroup() as tasks:
        part = await load.run_part(
            Target(setup.url, setup.model, setup.key, setup.ca_file, setup.certificate),
            setup.workload,
            clock=SystemClock(),
            terms=setup.terms,
            measure=Measure(*setup.measure),
            share=load.Share(setup.process, setup.processes),
            begin=begin,
            progress=tell,
            keep=keep,
            stop=stop,
        )
        say(writer, Done(part))
        # The group ends when `_listen` does: once the other side has read all, and says so.


async def _listen(ear: Ear, stop: asyncio.Event) -> None:
    """Until the pair ends. Being told to stop isn't the end: what is found is still wanted."""
    while await ear.hear() is not None:
        stop.set()
    stop.set()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(uvloop.run(_run()))


if __name__ == "__main__":
    main()

"""What is the scripted engine as a child of ours? The same server, with the settings and reports of the embedded one.

    python -m headrace.engines.scripted_child     one line of settings on standard input, reports on standard output

It stands in for an engine that loads for a long time, runs out of memory, never gets ready or dies, at no cost. The end of
standard input ends it.
"""

import asyncio
import os
import select
import sys
from collections.abc import Callable
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError
from headrace.engines import child, scripted, scripted_faults
from headrace.engines.scripted_play import Settings

LOAD_FAILURES = {
    "failed": "scripted: the model can't be loaded",
    "out_of_memory": "scripted: failed to allocate 1 TB: out of memory",
}


class ChildSettings(msgspec.Struct, frozen=True):
    """All that the child needs to know; travels to it as one line of JSON. See scripted_play.Settings.

    Attributes:
        fault: A script of scripted_faults.
        load_s: It reports that it loads, and opens its port after this time.
        ready_after_s: From then on it answers 503 for this time.
        load_fault: What goes wrong at the end of `load_s`: it reports a failure and ends, it ends without a word, or it
            goes on loading for ever.
        lives_s: It ends with status 1 after it has listened for this time; 0 is never.
    """

    model_name: str
    api_key: str
    slots: int = 64
    ttft_ms: float = 0.0
    itl_ms: float = 0.0
    tokens: int = 20
    prefix_cache_tokens: int = 0
    prefill_tokens_per_s: float = 0.0
    fault: str = ""
    load_s: float = 0.0
    ready_after_s: float = 0.0
    load_fault: Literal["", "failed", "out_of_memory", "crash", "hang"] = ""
    lives_s: float = 0.0
    answers: dict[str, str] = {}
    seed: int = 0

    def engine(self) -> Settings:
        """As the server takes them. Raises ConfigError for a bad script of faults."""
        return Settings(
            models=(self.model_name,),
            slots=self.slots,
            ttft_s=self.ttft_ms / 1000,
            itl_s=self.itl_ms / 1000,
            tokens=self.tokens,
            prefix_cache_tokens=self.prefix_cache_tokens,
            prefill_tokens_per_s=self.prefill_tokens_per_s,
            faults=scripted_faults.parse(self.fault),
            answers=self.answers,
            first_word=self.seed % 1000,
            loading_s=self.ready_after_s,
            api_key=self.api_key,
        )


def main() -> int:
    """Loads, reports the port, serves until standard input ends; returns 1 when loading failed."""
    reports = child.Reports()
    settings = msgspec.json.decode(child.settings_line(), type=ChildSettings)
    reports.loading()
    hangs = settings.load_fault == "hang"
    if _input_ended_within(None if hangs else settings.load_s):
        return 0
    if settings.load_fault == "crash":
        return 1
    if settings.load_fault:
        reports.failed(LOAD_FAILURES[settings.load_fault])
        return 1
    try:
        engine = settings.engine()
        scripted.run(
            engine,
            clock=SystemClock(),
            on_ready=lambda url: reports.listening(urlsplit(url).port or 0),
            stops=lambda stop: _watch(stop, lives_s=settings.lives_s),
        )
    except ConfigError as error:
        reports.failed(str(error))
        return 1
    return 0


def _input_ended_within(wait_s: float | None) -> bool:
    """Waits for the end of standard input, on which nothing comes after the settings."""
    return bool(select.select([0], [], [], wait_s)[0])


def _watch(stop: Callable[[], None], *, lives_s: float) -> None:
    loop = asyncio.get_running_loop()

    def input_ended() -> None:
        loop.remove_reader(0)
        stop()

    loop.add_reader(0, input_ended)
    if lives_s:
        loop.call_later(lives_s, os._exit, 1)


if __name__ == "__main__":
    sys.exit(main())

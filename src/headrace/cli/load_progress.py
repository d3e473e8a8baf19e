"""How far is a load, and how does it go? One line that is redrawn on a terminal, and a line now and then elsewhere."""

import sys

from headrace.cli import common
from headrace.core.load_records import Outcome
from headrace.evidence.load_terms import Progress

LINE_EVERY_S = 10.0


class LoadProgress:
    """State: when the next plain line is due, in seconds of the run, and whether a line was drawn that must be ended."""

    def __init__(self) -> None:
        self._is_live = common.progress_is_live()
        self._next_s = LINE_EVERY_S
        self._is_drawn = False

    def tell(self, progress: Progress) -> None:
        """Called several times a second."""
        if self._is_live:
            print(f"\r\x1b[K{line(progress)}", end="", file=sys.stderr, flush=True)
            self._is_drawn = True
        elif progress.elapsed_s >= self._next_s:
            self._next_s += LINE_EVERY_S
            print(line(progress), file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._is_drawn:
            print(file=sys.stderr, flush=True)


def line(progress: Progress) -> str:
    """It as one line; outcomes that didn't come aren't in it."""
    ends = ", ".join(f"{progress.outcomes[each]} {each}" for each in Outcome if progress.outcomes.get(each))
    if progress.elapsed_s >= progress.duration_s:
        return f"{progress.elapsed_s:.0f} s: all {progress.sent} sent, {progress.open} still open{f', {ends}' if ends else ''}"
    late = f", sent up to {progress.late_by_s * 1000:.1f} ms late" if progress.late_by_s > 0.005 else ""
    return (
        f"{progress.elapsed_s:.0f} of {progress.duration_s:.0f} s: {progress.sent} sent, {progress.open} open"
        f"{f', {ends}' if ends else ''}{late}"
    )

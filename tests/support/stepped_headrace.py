"""headrace on a wall clock that a test sets: `python stepped_headrace.py FILE up ...`; run it instead of `headrace`.

FILE says by how many seconds the clock is wrong. The monotonic clock is the machine's, which nobody can set.
"""

import sys
import time
from pathlib import Path

from headrace.__main__ import run
from headrace.core.clock import SystemClock


def install(offset: Path) -> None:
    SystemClock.wall_s = staticmethod(lambda: time.time() + float(offset.read_text()))


if __name__ == "__main__":
    install(Path(sys.argv.pop(1)))
    run()

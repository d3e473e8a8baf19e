"""How much memory do an engine's processes have, over time? Read from /proc beside a load, by its owner or by root.

Counted is the proportional set size: pages that several processes share are divided between them, so the sum over processes
is what they have. Where that may not be read it is the resident size, which counts shared pages for each of them.
"""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

from headrace.core.clock import Clock

EVERY_S = 0.5
PROCESSES_MAX = 256
_KIB = 1024


class MemoryWatch:
    """Samples of processes and of all that they have started.

    State: `samples`, (seconds, bytes), grows by one every EVERY_S while `watch` runs.
    """

    def __init__(self, pids: Sequence[int], *, clock: Clock, proc: Path = Path("/proc")) -> None:
        self._pids = tuple(pids)
        self._clock = clock
        self._proc = proc
        self.samples: list[tuple[float, float]] = []

    @property
    def is_watching(self) -> bool:
        return bool(self._pids)

    async def watch(self) -> None:
        """Until it is cancelled."""
        while True:
            self.look()
            await asyncio.sleep(EVERY_S)

    def look(self) -> int:
        """What they have now; 0 where none of them is there."""
        found = total_bytes(self._pids, proc=self._proc)
        if found:
            self.samples.append((self._clock.now_s(), float(found)))
        return found

    def peak(self, *, since_s: float = 0.0) -> int:
        """Most that was seen from then on; 0 where nothing was."""
        return round(max((size for at_s, size in self.samples if at_s >= since_s), default=0.0))


def total_bytes(pids: Iterable[int], *, proc: Path = Path("/proc")) -> int:
    """Of those processes and their descendants; who has ended has none."""
    waiting, seen, total = list(pids), set[int](), 0
    while waiting and len(seen) < PROCESSES_MAX:
        pid = waiting.pop()
        if pid in seen:
            continue
        seen.add(pid)
        total += _bytes_of(proc / str(pid))
        waiting += _children(proc / str(pid))
    return total


def _bytes_of(process: Path) -> int:
    for file, name in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        try:
            for line in (process / file).read_text(encoding="ascii", errors="replace").splitlines():
                if line.startswith(name):
                    return int(line.split()[1]) * _KIB
        except (OSError, ValueError, IndexError):
            continue  # not ours to read, or gone
    return 0


def _children(process: Path) -> list[int]:
    found: list[int] = []
    try:
        for thread in (process / "task").iterdir():
            found += map(int, (thread / "children").read_text(encoding="ascii").split())
    except (OSError, ValueError):
        pass  # it has just ended, or the kernel doesn't say
    return found

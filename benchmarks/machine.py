"""Which machine is this, and how much of its cores do processes take that are not part of the benchmark?"""

import contextlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import headrace

FOREIGN_SHARE_MAX = 0.08
ALL_CORES = -1

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PACKAGES = ("uvloop", "httptools", "msgspec", "xllamacpp")


def facts() -> dict[str, Any]:
    """What a figure means nothing without: date, hardware, versions, and the load before the benchmark began."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES,
        "kernel": platform.platform(),
        "load_average_at_start": os.getloadavg(),
        "versions": {
            "headrace": headrace.__version__,
            "commit": _output("git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"),
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in _PACKAGES},
            "nginx": _output(program("nginx"), "-v").rpartition("/")[2],
            "wrk": next(iter(_output(program("wrk"), "-v").splitlines()), "").partition(" [")[0],
        },
    }


def program(name: str) -> str | None:
    """Where a program is. Debian's nginx lies in a directory that is on the PATH of root alone."""
    return shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/sbin")


def cpu_s(pids: Iterable[int]) -> float:
    """CPU time that these processes and the children that they have waited for have used; ended ones count nothing."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS_PER_S


def resident_bytes(pids: Iterable[int]) -> int:
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids) * _PAGE_BYTES


def family(pid: int) -> list[int]:
    """The process and its descendants, as they are now."""
    found = [pid]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            found += map(int, children.read_text().split())
    return found


class Window:
    """A span of time, as a context manager: CPU used by one set of processes, and by strangers on each core.

    Args:
        measured: Processes whose CPU time is wanted.
        ours: For each core, the processes of the benchmark that run there and nowhere else; for ALL_CORES, all of them.
    """

    def __init__(self, measured: Sequence[int], ours: Mapping[int, Sequence[int]]) -> None:
        self.seconds = 0.0
        self.cpu_s = 0.0
        self.foreign_share: dict[int, float] = {}
        self._measured = measured
        self._ours = ours

    def __enter__(self) -> "Window":
        self._before = self._read()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        (started_s, cpu_s, busy_s), (ended_s, cpu_end_s, busy_end_s) = self._before, self._read()
        self.seconds = ended_s - started_s
        self.cpu_s = cpu_end_s - cpu_s
        self.foreign_share = {
            core: max(0.0, busy_end_s[core] - busy_s[core]) / self.seconds for core in self._ours
        }

    @property
    def is_contended(self) -> bool:
        return any(share > FOREIGN_SHARE_MAX for share in self.foreign_share.values())

    def _read(self) -> tuple[float, float, dict[int, float]]:
        busy_s = cores_busy_s()
        foreign_s = {core: busy_s[core] - cpu_s(pids) for core, pids in self._ours.items()}
        return time.perf_counter(), cpu_s(self._measured), foreign_s


def cores_busy_s() -> dict[int, float]:
    """CPU time that each core, and ALL_CORES together, were not idle; time stolen by the hypervisor counts as busy."""
    found = {}
    for line in Path("/proc/stat").read_text().splitlines():
        if core := re.match(r"cpu(\d+) ", line):
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, line.split()[1:9])
            found[int(core[1])] = (user + nice + system + irq + softirq + steal) / _TICKS_PER_S
    found[ALL_CORES] = sum(found.values())
    return found


def _cpu_model() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()


def _output(*command: str | None) -> str:
    """What a command says of itself, on either stream; "" where it isn't installed or fails to start."""
    if command[0] is None or not shutil.which(command[0]):
        return ""
    done = subprocess.run(
        [part for part in command if part], capture_output=True, text=True, timeout=10, check=False
    )
    return (done.stdout + done.stderr).strip()

"""What if the controller is killed, the disk is full, or somebody sets the clock?"""

import asyncio
import contextlib
import os
import resource
import signal
from pathlib import Path

from headrace.config import surroundings
from headrace.core import moments
from headrace.evidence.drill import Drill, Sign, Stage, untouched
from headrace.evidence.drill_instance import DrillError
from headrace.evidence.drill_report import Bounds, Check

HOUR_S = 3600.0
_FAILING = "headrace_ledger_failing"
_CLOCK = "clock"
# Read by every Python that starts with this folder on its path, before anything of ours is imported.
_STEPPED = """\
import time
from pathlib import Path

def _stepped(true=time.time, offset=Path({path!r})):
    return true() + float(offset.read_text())

time.time = _stepped
"""


async def _kill_controller(stage: Stage) -> None:
    pid = stage.before.controller["pid"]
    stage.victims.append(pid)
    stage.mark()
    stage.signal(pid, signal.SIGKILL)


def _has_another_controller(stage: Stage) -> bool:
    controller = stage.watch.look.controller
    is_up = controller.get("pid") not in (None, *stage.victims) and not controller["is_behind"]
    return is_up and untouched(stage)


async def _fill_disk(stage: Stage) -> None:
    stage.mark()
    limited = [_limit_files(pid, 0) for pid in stage.running.processes()]
    try:
        await asyncio.sleep(stage.hold_s)
    finally:
        for pid, before in limited:
            _limit_files(pid, before)


def _limit_files(pid: int, size_bytes: int) -> tuple[int, int]:
    """From now on that process can write nothing to a file beyond that size; returns what held before."""
    with contextlib.suppress(ProcessLookupError):
        soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes, hard))
        return pid, soft
    return pid, resource.RLIM_INFINITY


def _is_written_again(stage: Stage) -> bool:
    return untouched(stage) and stage.watch.metrics[_FAILING] == 0


async def _step_clock(stage: Stage) -> None:
    stage.mark()
    for wrong_by_s in (HOUR_S, -HOUR_S, 0.0):
        _set_clock(stage.running.folder, wrong_by_s)
        await asyncio.sleep(stage.hold_s)
    rows = await stage.running.records()
    times_s = [moments.unix_s(row["started"]) for row in rows]
    if max(times_s) - min(times_s) < HOUR_S:
        raise DrillError("the clock of its service could not be set")
    spans = [
        row[name]
        for row in rows
        for name in ("queue_wait_s", "ttft_s", "total_s")
        if row.get(name) is not None
    ]
    elapsed_s = stage.clock.now_s() - stage.before.at_s + HOUR_S / 2
    wrong = [span for span in spans if not 0 <= span < elapsed_s]
    stage.notes.append(
        Check("durations in the ledger that the step has spoilt", len(wrong) if spans else None, 0)
    )


def _set_clock(folder: Path, wrong_by_s: float) -> None:
    """In one step: whoever reads it sees the old time or the new one."""
    draft = folder / f"{_CLOCK}.draft"
    draft.write_text(str(wrong_by_s))
    draft.replace(folder / _CLOCK)


def _with_clock(folder: Path) -> dict[str, str]:
    _set_clock(folder, 0.0)
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_STEPPED.format(path=str(folder / _CLOCK)))
    inherited = surroundings.inherited().get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(site), inherited)))}


CONTROLLER_LOSS = Drill(
    "controller-loss",
    "The controller is killed under load: does anybody notice, and are its engines kept?",
    "kill -9 of the controller; nothing is simulated",
    _kill_controller,
    Bounds(callers_s=0.0, recovered_s=20.0),
    signs=(Sign("controller.lost", within_s=5.0),),
    is_whole=_has_another_controller,
)

FULL_DISK = Drill(
    "full-disk",
    "Nothing can be written any more: is work refused rather than lost, and does it go on by itself?",
    "RLIMIT_FSIZE of every process is set to 0, so that the kernel refuses each write to a file, as on a full disk but with"
    " EFBIG instead of ENOSPC; another file system would take root",
    _fill_disk,
    # With ledger.mode = "strict", which is the default, all work that comes meanwhile is refused.
    Bounds(callers_s=30.0, recovered_s=40.0, refused=1000),
    signs=(Sign(metric=_FAILING, within_s=10.0),),
    is_whole=_is_written_again,
)

CLOCK_STEP = Drill(
    "clock-step",
    "The clock is set an hour forward, two back, and right again: does anything but the time of day notice?",
    "time.time() of every Python process is wrong by an hour either way; the system's clock, which needs root, stays as it is,"
    " and so do the few moments that SQLite takes by itself",
    _step_clock,
    Bounds(callers_s=0.0, recovered_s=40.0),
    is_whole=untouched,
    environment=_with_clock,
)

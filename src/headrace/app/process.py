"""What every process of the service does once, for itself."""

import contextlib
import ctypes
import gc
import os
import resource
import signal
from pathlib import Path

PR_SET_PDEATHSIG = 1


def calm_the_collector() -> None:
    """What is alive now (modules, tables) lives as long as the process: it is never looked at again for cycles, and the
    rest less often. The request path makes hardly any cycles; at the default thresholds the collector took 5 % of it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def keep_memory_out_of_dumps() -> None:
    """If this process crashes, or one that it starts, nothing of its memory is written anywhere: it holds prompts and keys.

    The limit is for dumps that are files; a program that takes dumps over a pipe is told of the crash, without the memory.
    Both are inherited by children, also over exec. Who wants a dump after all can raise them for a running process.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    with contextlib.suppress(OSError):  # a kernel that never dumps has no such file
        Path("/proc/self/coredump_filter").write_text("0")


def die_with_parent() -> None:
    """The kernel kills this process when its parent dies, however busy or stuck it is.

    A parent that died before this call is not noticed; who calls it watches something else as well.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def how_it_ended(status: int) -> str:
    """A process, by its exit status as asyncio has it: negative for a signal."""
    if -status in signal.valid_signals():
        return f"killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"

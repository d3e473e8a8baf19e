"""What every process of the service does once, for itself."""

import ctypes
import gc
import os
import signal

PR_SET_PDEATHSIG = 1


def calm_the_collector() -> None:
    """What is alive now (modules, tables) lives as long as the process: it is never looked at again for cycles, and the
    rest less often. The request path makes hardly any cycles; at the default thresholds the collector took 5 % of it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def die_with_parent() -> None:
    """The kernel kills this process when its parent dies, however busy or stuck it is.

    A parent that died before this call is not noticed; who calls it watches something else as well.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

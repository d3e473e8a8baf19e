"""When is the next moment? An alarm that goes off to some 0.1 ms; the event loops' own timers have a grain of 1 ms."""

import asyncio
import contextlib
import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

_CLOCK_MONOTONIC = 1
_TICK_BYTES = 8
_NEAREST_S = 1e-6  # a time of 0 would switch a timer of the kernel off


class _Span(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Span), ("value", _Span))


class Alarm:
    """Calls back once for each time that it was set. On Linux it is a timer of the kernel, elsewhere one of the loop.

    State: `_handle` where it is one of the loop.
    """

    def __init__(self, ring: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        self._ring = ring
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None
        self._libc: Any = None
        self._file = -1
        if sys.platform == "linux":
            libc = ctypes.CDLL(None, use_errno=True)
            self._file = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
            if self._file >= 0:
                self._libc = libc
                self._setting = _Setting()
                self._pointer = ctypes.byref(self._setting)
                loop.add_reader(self._file, self._rang)

    def set(self, after_s: float) -> None:
        """In so many seconds, instead of what was set before."""
        if self._libc is None:
            self._cancel()
            self._handle = self._loop.call_later(max(0.0, after_s), self._ring)
            return
        after_s = max(_NEAREST_S, after_s)
        value = self._setting.value
        value.seconds = seconds = int(after_s)
        value.nanoseconds = int((after_s - seconds) * 1e9)
        self._libc.timerfd_settime(self._file, 0, self._pointer, None)

    def close(self) -> None:
        self._cancel()
        if self._libc is not None:
            self._libc = None
            self._loop.remove_reader(self._file)
            os.close(self._file)

    def _rang(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it was set anew since
            os.read(self._file, _TICK_BYTES)
            self._ring()

    def _cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

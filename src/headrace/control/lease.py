"""Which controller acts? The one that holds the lock: the kernel frees it when the holder ends, whatever it died of.

The lock keeps two of one machine apart while they live; the epoch in the store keeps writes of one that was given up, and
comes back, out of the books (stores/fleet.py).
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator
from pathlib import Path

LOOK_EVERY_S = 0.05


@contextlib.asynccontextmanager
async def sole_controller(run: Path) -> AsyncIterator[None]:
    """Waits until no other controller acts for that directory, and lets none until the end. Raises OSError."""
    lock = os.open(run / "controller.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(LOOK_EVERY_S)
        yield
    finally:
        os.close(lock)

"""Who uses the data directory? One service at a time."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from headrace.core.errors import ConfigError


@contextlib.contextmanager
def sole_user(data: Path) -> Iterator[None]:
    """Holds the data directory for one service at a time. Raises ConfigError when another has it.

    The kernel drops the lock of a killed process.
    """
    run_dir = data / "run"
    try:
        run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (run_dir / "lock").open("w")
    except OSError as error:
        raise ConfigError(f"data directory {data} can't be used: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{data} is in use by a running service; stop it, or choose another with --data"
            ) from None
        yield

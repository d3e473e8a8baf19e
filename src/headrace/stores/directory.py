"""Who uses the data directory? One service at a time."""

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

from headrace.core.errors import ConfigError

# Who only asks whether a service runs holds the lock for a moment; a service that starts just then tries again.
ASK_AGAIN_S = 0.02
ASKS_MAX = 50


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
        for ask in range(ASKS_MAX):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if ask + 1 == ASKS_MAX:
                    raise ConfigError(
                        f"{data} is in use by a running service; stop it, or choose another with --data"
                    ) from None
                time.sleep(ASK_AGAIN_S)
        yield


def is_in_use(data: Path) -> bool:
    """Whether a service has the data directory now; what a killed one left behind proves nothing."""
    try:
        with (data / "run" / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False

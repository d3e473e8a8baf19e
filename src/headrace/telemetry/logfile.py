"""Where do log lines go? A file that moves itself aside before it grows too large."""

import contextlib
import os
from pathlib import Path
from typing import TextIO

BYTES_MAX = 32 * 1024 * 1024


class RotatingFile:
    """Appends to `path`; at `bytes_max` the file becomes `path.1` (the older `.1` is dropped) and a new one begins.

    So at most twice `bytes_max` is on disk. Only `write` and `flush`, which is all that a Log needs. Lines name tenants
    and requests, so only the owner may read them.
    """

    def __init__(self, path: Path, *, bytes_max: int = BYTES_MAX) -> None:
        self._path = path
        self._bytes_max = bytes_max
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._stream = _appending(path)
        self._size = path.stat().st_size

    def write(self, text: str) -> int:
        if self._stream.closed or self._size + len(text) > self._bytes_max:
            self._begin_anew()
        written = self._stream.write(text)
        self._size += written
        return written

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()

    def _begin_anew(self) -> None:
        # Any step may fail (a full disk, no descriptor left): the next line starts over, from whatever is there.
        with contextlib.suppress(OSError):
            self._stream.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.replace(self._path.with_name(self._path.name + ".1"))
        self._stream = _appending(self._path)
        self._size = 0


def _appending(path: Path) -> TextIO:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "a", encoding="utf-8")

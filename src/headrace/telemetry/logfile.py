"""Where do log lines go? A file that moves itself aside before it grows too large."""

from pathlib import Path
from typing import TextIO

BYTES_MAX = 32 * 1024 * 1024


class RotatingFile:
    """Appends to `path`; at `bytes_max` the file becomes `path.1` (the older `.1` is dropped) and a new one begins.

    So at most twice `bytes_max` is on disk. Only `write` and `flush`, which is all that a Log needs.
    """

    def __init__(self, path: Path, *, bytes_max: int = BYTES_MAX) -> None:
        self._path = path
        self._bytes_max = bytes_max
        path.parent.mkdir(parents=True, exist_ok=True)
        self._stream: TextIO = path.open("a", encoding="utf-8")
        self._size = path.stat().st_size

    def write(self, text: str) -> int:
        if self._size + len(text) > self._bytes_max:
            self._stream.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._stream = self._path.open("a", encoding="utf-8")
            self._size = 0
        self._size += len(text)
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()

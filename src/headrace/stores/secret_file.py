"""Where does a secret of the data directory lie? In a file that only its owner may read, made once whoever comes first."""

import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from headrace.core.errors import ConfigError


def held(path: Path, *, bytes_n: int, make: Callable[[], bytes]) -> bytes:
    """The secret in that file, which is made where there is none.

    Raises:
        ConfigError: Others can read it, it has not just so many bytes, or it can't be read or written.
    """
    try:
        if not path.exists():
            _write(path, make())
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            secret = file.read(bytes_n + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise ConfigError(f"{path}: mode {mode:04o}; only its owner may read it: chmod 600 {path}")
    if len(secret) != bytes_n:
        raise ConfigError(f"{path}: must hold exactly {bytes_n} bytes; restore it from a backup")
    return secret


def _write(path: Path, secret: bytes) -> None:
    """Aside, then linked into place: whoever comes first wins, and nobody reads half of one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
    finally:
        draft.unlink()

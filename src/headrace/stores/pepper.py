"""Where is the secret that stored keys are hashed under? In a file of its own, beside the database and not in it."""

import os
import secrets
import stat
from pathlib import Path

from headrace.core.errors import ConfigError

NAME = "pepper"
_BYTES = 32


def load(path: Path) -> bytes:
    """The pepper in that file, made on the first call. Raises ConfigError when others can read it or it isn't ours."""
    try:
        if not path.exists():
            _make(path)
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            pepper = file.read(_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise ConfigError(f"{path}: mode {mode:04o}; only its owner may read it: chmod 600 {path}")
    if len(pepper) != _BYTES:
        raise ConfigError(f"{path}: must hold exactly {_BYTES} bytes; restore it from a backup")
    return pepper


def _make(path: Path) -> None:
    """Writes a new pepper aside and links it into place: whoever comes first wins, and nobody reads half of one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
    finally:
        draft.unlink()

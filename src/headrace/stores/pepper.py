"""Where is the secret that stored keys are hashed under? In a file of its own, beside the database and not in it."""

import secrets
from pathlib import Path

from headrace.stores import secret_file

NAME = "pepper"
_BYTES = 32


def load(path: Path) -> bytes:
    """The pepper in that file, made on the first call. Raises ConfigError when others can read it or it isn't ours."""
    return secret_file.held(path, bytes_n=_BYTES, make=lambda: secrets.token_bytes(_BYTES))

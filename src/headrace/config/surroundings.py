"""What is told from outside the file? Environment variables, the data directory, and secrets where a reference says they are."""

import os
import re
from pathlib import Path

from headrace.core.errors import ConfigError

_PREFIX = "HEADRACE_"
_SECRET = re.compile(r"[!-~]+")


def environment(name: str) -> str | None:
    """The value of `HEADRACE_<NAME>`, the environment's mirror of a `headrace up` option; flags win over it."""
    return os.environ.get(variable(name))


def inherited() -> dict[str, str]:
    """All of the environment, for a process that gets the same."""
    return dict(os.environ)


def variable(name: str) -> str:
    """What that environment variable is called."""
    return _PREFIX + name.upper().replace("-", "_")


def data_directory(flag: str | None) -> Path:
    """Where state lives: the flag, else HEADRACE_DATA, else the user's data home. Raises ConfigError without a home."""
    chosen = flag or environment("data")
    if not chosen:
        chosen = os.path.join(os.environ.get("XDG_DATA_HOME") or "~/.local/share", "headrace")
    try:
        return Path(chosen).expanduser().absolute()
    except RuntimeError:
        raise ConfigError(
            f"data directory {chosen}: this user has no home directory; name another with --data or HEADRACE_DATA"
        ) from None


def resolve_secret(reference: str, *, key: str) -> str:
    """The secret behind `env:NAME` or `file:PATH`, one word of printable ASCII, as a header can carry it.

    Raises ConfigError that names the reference, never the value.
    """
    kind, _, name = reference.partition(":")
    if kind == "env":
        value = os.environ.get(name)
        if value is None:
            raise ConfigError(f"{key}: environment variable {name} is not set")
    elif kind == "file":
        try:
            value = Path(name).expanduser().read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{key}: {name} cannot be read: {error.strerror}") from error
        except (ValueError, RuntimeError):
            raise ConfigError(f"{key}: {name} is not a text file in UTF-8") from None
    else:
        raise ConfigError(f"{key}: secrets are given by reference, `env:NAME` or `file:PATH`")
    secret = value.strip()
    if not _SECRET.fullmatch(secret):
        raise ConfigError(f"{key}: {name} must hold one word of printable ASCII characters")
    return secret

"""Which files are meant, and what text do they hold? Of every kind of file that an operator writes beside headrace.toml."""

from collections.abc import Sequence
from pathlib import Path

from headrace.core.errors import ConfigError


def find(given: Sequence[str], *, folder: str, kind: str, see: str) -> list[Path]:
    """The files that are meant: those given, and all in a folder that is given; without any, all in `folder`.

    Args:
        kind, see: What such a file is called, and where it is described.

    Raises:
        ConfigError: There is none.
    """
    found: list[Path] = []
    for path in map(Path, given or [folder]):
        inside = sorted(path.glob("*.toml")) if path.is_dir() else [path]
        if not inside or not (given or path.is_dir()):
            raise ConfigError(f"{path}: no {kind} file (*.toml) there; see {see}")
        found += inside
    return found


def read(path: Path, *, bytes_max: int, says: str = "") -> str:
    """Its text. Raises ConfigError, after `says`, for one that can't be read, is larger than that, or is no text."""
    try:
        with path.open("rb") as file:
            content = file.read(bytes_max + 1)
        if len(content) > bytes_max:
            raise ConfigError(f"{says}{path} is larger than {bytes_max} bytes")
        return content.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{says}{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{says}{path}: no text in UTF-8: {error}") from error

"""What does headrace.toml say? The whole of it as a Config, or an error in the file's own words."""

from pathlib import Path
from typing import Any

from headrace.config import text
from headrace.config.ranges import check_ranges
from headrace.config.sections import Config
from headrace.core.errors import ConfigError


def load(path: Path | None) -> Config:
    """The configuration of that file, or the defaults. Raises ConfigError naming file, key and nearest known key."""
    if path is None:
        return Config()
    try:
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    return parse(text.table(content, file=str(path)), file=str(path))


def parse(raw: dict[str, Any], *, file: str) -> Config:
    """A Config from the parsed TOML; split from `load` so that tests need no file."""
    config = text.convert(raw, Config, file=file)
    check_ranges(config, file=file)
    return config

"""Which name stands for which file of the model store? One readable manifest per name, written whole or not at all."""

import re
from pathlib import Path

import msgspec

from headrace.core.errors import ConfigError
from headrace.core.fleet import Task
from headrace.stores.objects import drop_whole, write_whole

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What is on record for one name: `manifests/<name>.json`.

    Attributes:
        license: SPDX id where recognised, with `license_evidence` saying who says so.
        license_accepted: Name of the terms that someone accepted because the policy alone would have refused, else "".
        accepted_s, pulled_s: Unix seconds; `accepted_s` is 0 where nothing had to be accepted.
        catalog_name: The catalog's name for it, which the name in the store needn't be; "" for a source of one's own.
    """

    sha256: str
    size_bytes: int
    task: Task
    source: str
    license: str
    license_evidence: tuple[str, ...]
    license_accepted: str
    accepted_s: float
    pulled_s: float
    note: str
    catalog_name: str = ""


class NameTable:
    """Who changes it holds the store's lock."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "manifests"

    def names(self) -> list[str]:
        return sorted(path.stem for path in self._folder.glob("*.json") if is_name(path.stem))

    def manifests(self) -> dict[str, Manifest]:
        """All of them, by name."""
        return {name: manifest for name in self.names() if (manifest := self.read(name)) is not None}

    def read(self, name: str) -> Manifest | None:
        if not is_name(name):
            return None
        path = self._folder / f"{name}.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=Manifest)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise ConfigError(
                f"{path}: not a manifest ({error}); remove the file and pull {name} again"
            ) from error

    def write(self, name: str, manifest: Manifest) -> None:
        encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
        write_whole(self._folder / f"{name}.json", encoded + b"\n")

    def drop(self, name: str) -> None:
        drop_whole(self._folder / f"{name}.json")


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def checked(name: str) -> str:
    """The name, if it can be one. Raises ConfigError saying what can."""
    if not is_name(name):
        raise ConfigError(
            f"{name!r} can't be a model's name (accepted: lower-case letters, digits and . _ -); choose one with --as"
        )
    return name

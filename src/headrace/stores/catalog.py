"""Which models are known by name, and exactly which bytes does each name mean?"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Literal

import msgspec

from headrace.core.errors import ConfigError
from headrace.core.fleet import Task
from headrace.policies.licenses import LicenseClaim


class CatalogEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model of catalog.toml.

    Attributes:
        sha256, size_bytes: Of the file that the engine reads, after a conversion where there is one.
        archive_sha256: Of the wheel that the source names, "" for other sources.
        convert: "bert" for safetensors that become a GGUF here, else "".
    """

    task: Task
    source: str
    sha256: str
    size_bytes: int
    license: str
    license_evidence: str
    note: str
    archive_sha256: str = ""
    convert: Literal["", "bert"] = ""

    @property
    def claim(self) -> LicenseClaim:
        return LicenseClaim(self.license, self.license_evidence)


Catalog = Mapping[str, CatalogEntry]


def load() -> dict[str, CatalogEntry]:
    """The catalog that ships with the program."""
    text = resources.files("headrace.stores").joinpath("catalog.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, CatalogEntry])


def unknown_name(name: str, *, known: Iterable[str]) -> ConfigError:
    """The error for a name that is neither stored nor in the catalog, with the nearest ones."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    if not names:
        return ConfigError(f"{name}: no such model; none is stored")
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
    return ConfigError(f"{name}: no such model; {hint}")

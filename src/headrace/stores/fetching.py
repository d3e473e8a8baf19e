"""How is a file fetched from each kind of place? One way per kind, verified as far as the place allows."""

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from email.parser import HeaderParser
from pathlib import Path
from typing import assert_never

from headrace.core.errors import ConfigError, UpstreamError
from headrace.policies.licenses import LicenseClaim
from headrace.stores import downloads, hub, sources
from headrace.stores.downloads import Manners, Patience, Progress, Seal, Sha256Seal
from headrace.stores.objects import CHUNK_BYTES, sha256_of
from headrace.stores.places import Places
from headrace.stores.sources import (
    HubSource,
    MlflowSource,
    Offer,
    PathSource,
    PypiSource,
    S3Source,
    Source,
    UrlSource,
)

_PIP_FOLDER = "pip-"
# The first release whose progress a program can read.
_PIP_WITH_RAW_PROGRESS = (24, 1)
_PIP_BYTES = re.compile(r"Progress (\d+) of (\d+)")


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetcher leaves in the staging folder.

    Attributes:
        files: By their names in the source; one for every source but a wheel.
        claims: What the place itself says about the license.
    """

    files: dict[str, Path]
    claims: tuple[LicenseClaim, ...] = ()


@dataclass(frozen=True, slots=True)
class Survey:
    """What a place has, and what it says about the license of all of it."""

    offers: list[Offer]
    claims: list[LicenseClaim] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Fetches into one staging folder.

    Attributes:
        check_space: Raises ConfigError if that many bytes more don't fit.
    """

    folder: Path
    check_space: Callable[[int], None]
    progress: Progress
    patience: Patience
    places: Places

    def fetch(self, source: Source, *, archive_sha256: str = "", sha256: str = "") -> Fetched:
        """The source's files, verified as far as the source allows.

        Args:
            source: Of one file, or files of one wheel.
            archive_sha256: Digest of the wheel, where known.
            sha256: Digest of the file, where known, so that a place that states another is refused before the transfer.
        """
        match source:
            case PypiSource():
                return self._fetch_wheel(source, sha256=archive_sha256)
            case HubSource():
                return Fetched({source.file: self._fetch_hub(source, expected=sha256)})
            case UrlSource():
                self.progress.say(f"fetching {source.url}")
                return Fetched({source.url: self._download(source.url, Sha256Seal(source.sha256))})
            case PathSource():
                return Fetched({source.path.name: self._copy(source.path)})
            case S3Source():
                return Fetched({source.key: self._fetch_object(source, expected=sha256)})
            case MlflowSource():
                return Fetched({source.file: self._fetch_registered(source, expected=sha256)})
        assert_never(source)

    def pinned(self, source: Source) -> Source:
        """The same source where it can't move any more: the one place that asks what an alias means."""
        match source:
            case S3Source():
                return self.places.storage().pinned(source, patience=self.patience, progress=self.progress)
            case MlflowSource():
                return self.places.registry().pinned(source, patience=self.patience, progress=self.progress)
            case PypiSource() | HubSource() | UrlSource() | PathSource():
                return source
        assert_never(source)

    def survey(self, source: Source) -> Survey:
        """All files that a pinned source names, without their contents: what would be fetched."""
        patience, progress = self.patience, self.progress
        match source:
            case PypiSource():
                return Survey([Offer(file, replace(source, files=(file,))) for file in source.files])
            case HubSource():
                is_folder = sources.is_folder(source)  # and so has the card among its files
                claims = [] if is_folder else hub.card(source, patience=patience, progress=progress)
                return Survey(hub.offers(source, patience=patience, progress=progress), claims)
            case UrlSource():
                return Survey([Offer(sources.last_part(source), source, sha256=source.sha256)])
            case PathSource():
                return Survey(_local_offers(source))
            case S3Source():
                return Survey(self.places.storage().offers(source, patience=patience, progress=progress))
            case MlflowSource():
                registry = self.places.registry()
                claims = registry.claims(source, patience=patience, progress=progress)
                storage = registry.storage(source, patience=patience, progress=progress)
                if storage is not None:
                    return Survey(self.survey(self.pinned(storage)).offers, claims)
                return Survey(registry.offers(source, patience=patience, progress=progress), claims)
        assert_never(source)

    def _download(self, url: str, seal: Seal, manners: Manners = downloads.PLAIN) -> Path:
        return downloads.fetch(
            url,
            self.folder,
            seal=seal,
            manners=manners,
            check_space=self.check_space,
            progress=self.progress,
            patience=self.patience,
        )

    def _fetch_hub(self, source: HubSource, *, expected: str) -> Path:
        self.progress.say(f"fetching {source}")
        url = hub.url(source)
        stated = hub.seal(source, patience=self.patience, progress=self.progress)
        return self._download(url, _agreed(url, stated, expected), hub.manners())

    def _fetch_object(self, source: S3Source, *, expected: str) -> Path:
        self.progress.say(f"fetching {source}")
        storage = self.places.storage()
        stated = storage.seal(source, patience=self.patience, progress=self.progress)
        url = storage.url(source)
        return self._download(url, _agreed(url, stated, expected), storage.manners(source))

    def _fetch_registered(self, source: MlflowSource, *, expected: str) -> Path:
        self.progress.say(f"fetching {source}")
        registry = self.places.registry()
        url, stated = registry.seal(source, patience=self.patience, progress=self.progress)
        return self._download(url, _agreed(url, stated, expected), registry.manners(source))

    def _copy(self, path: Path) -> Path:
        try:
            total_bytes = path.stat().st_size
            self.check_space(total_bytes)
            self.progress.say(f"copying {path}")
            target = self.folder / "copy"
            target.unlink(missing_ok=True)  # an earlier one may be known by another name as well
            with path.open("rb") as reader, target.open("wb") as writer:
                while chunk := reader.read(CHUNK_BYTES):
                    writer.write(chunk)
                    self.progress.advance(writer.tell(), total_bytes)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be copied: {error.strerror}") from error
        return target

    def _fetch_wheel(self, source: PypiSource, *, sha256: str) -> Fetched:
        wheel = self.folder / f"{source.package}-{source.version}.whl"
        if not wheel.exists():
            _pip_download(source, wheel, progress=self.progress)
        if sha256 and (found := sha256_of(wheel)) != sha256:
            wheel.unlink()
            raise UpstreamError(
                f"{wheel.name}: SHA-256 is {found}, expected {sha256}; nothing was kept",
                reason="digest_mismatch",
            )
        self.progress.say(f"unpacking {wheel.name}")
        try:
            with zipfile.ZipFile(wheel) as archive:
                # Named by position: a path inside an archive never becomes a path on this machine.
                files = {
                    member: self._extract(archive, member, self.folder / f"member-{position}")
                    for position, member in enumerate(source.files)
                }
                claims = _wheel_claims(archive)
        except (zipfile.BadZipFile, zlib.error) as error:
            wheel.unlink()
            raise UpstreamError(f"{wheel.name}: damaged: {error}", reason="digest_mismatch") from error
        return Fetched(files, claims)

    def _extract(self, archive: zipfile.ZipFile, member: str, target: Path) -> Path:
        try:
            entry = archive.getinfo(member)
        except KeyError:
            large = sorted(archive.infolist(), key=lambda info: -info.file_size)[:5]
            names = ", ".join(info.filename for info in large)
            raise ConfigError(f"{member}: not in that wheel; its largest files are {names}") from None
        self.check_space(entry.file_size)
        target.unlink(missing_ok=True)
        with archive.open(entry) as reader, target.open("wb") as writer:
            shutil.copyfileobj(reader, writer, CHUNK_BYTES)
        return target


def _pip_download(source: PypiSource, target: Path, *, progress: Progress) -> None:
    """Downloads the wheel with pip, so that the user's index, mirrors, proxies and certificates are honoured.

    Only a wheel, only this one: no code of the package runs and none of its dependencies come along.
    """
    if importlib.util.find_spec("pip") is None:
        raise ConfigError(
            f"{sys.executable} has no pip, which fetches {source}; add it with `{sys.executable} -m ensurepip`"
        )
    version = tuple(int(part) for part in importlib.metadata.version("pip").split(".")[:2])
    bar = "raw" if version >= _PIP_WITH_RAW_PROGRESS else "off"
    requirement = f"{source.package}=={source.version}"
    progress.say(f"fetching {requirement} with pip")
    for leftover in target.parent.glob(f"{_PIP_FOLDER}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    # pip copies into its destination, so what is in there counts only once pip has ended well.
    incoming = Path(tempfile.mkdtemp(prefix=_PIP_FOLDER, dir=target.parent))
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", f"--progress-bar={bar}", "--dest", str(incoming), requirement]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as pip:
        assert pip.stdout is not None, "it is piped"
        try:
            complaint = _follow(pip.stdout, progress)
            status = pip.wait()
        except BaseException:
            pip.kill()
            raise
    wheel = next(incoming.glob("*.whl"), None)
    if status != 0 or wheel is None:
        raise UpstreamError(
            f"{requirement}: pip could not fetch it: {complaint or f'status {status}'}", reason="fetch_failed"
        )
    wheel.replace(target)


def _follow(lines: Iterable[str], progress: Progress) -> str:
    complaint = ""
    for line in lines:
        if counted := _PIP_BYTES.match(line):
            progress.advance(int(counted[1]), int(counted[2]))
        elif line.startswith("ERROR:"):
            complaint = line.removeprefix("ERROR:").strip()
    return complaint


def _wheel_claims(archive: zipfile.ZipFile) -> tuple[LicenseClaim, ...]:
    metadata = next(
        (name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)), None
    )
    if metadata is None:
        return ()
    with archive.open(metadata) as file:
        fields = HeaderParser().parsestr(file.read(CHUNK_BYTES).decode("utf-8", errors="replace"))
    label = fields.get("License-Expression") or fields.get("License") or ""
    # Some packages put the whole text into the field; its first line names it.
    return (LicenseClaim(label.strip().partition("\n")[0], "label of the package"),)


def _agreed(url: str, stated: Seal, expected: str) -> Seal:
    """The digest that is expected, or what the place states where none is. Raises UpstreamError if they contradict."""
    if not expected:
        return stated
    if isinstance(stated, Sha256Seal) and stated.sha256 != expected:
        raise UpstreamError(
            f"{url}: states SHA-256 {stated.sha256}, expected {expected}; nothing was fetched",
            reason="digest_mismatch",
        )
    return Sha256Seal(expected)


def _local_offers(source: PathSource) -> list[Offer]:
    if source.path.is_file():
        return [Offer(source.path.name, source, size_bytes=source.path.stat().st_size)]
    return [
        Offer(path.relative_to(source.path).as_posix(), PathSource(path), size_bytes=path.stat().st_size)
        for path in sorted(source.path.rglob("*"))
        if path.is_file()
    ]

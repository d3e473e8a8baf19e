"""Where can a model come from, and how is it fetched from each place? One fetcher per kind, always a fixed content."""

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
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from typing import assert_never
from urllib.parse import urlsplit

import huggingface_hub

from headrace import config
from headrace.core.errors import ConfigError, UpstreamError
from headrace.policies.licenses import LicenseClaim
from headrace.stores import downloads
from headrace.stores.downloads import Patience, Progress
from headrace.stores.objects import CHUNK_BYTES, sha256_of

_PIP_FOLDER = "pip-"
# The first release whose progress a program can read.
_PIP_WITH_RAW_PROGRESS = (24, 1)
_PIP_BYTES = re.compile(r"Progress (\d+) of (\d+)")

KINDS = "pypi:PACKAGE==VERSION!FILE, hf://ORG/REPO@COMMIT/FILE, https://...#sha256=HEX, or the path of a file"
_PYPI = re.compile(
    r"pypi:(?P<package>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.+!_-]+?)!(?P<files>.+)"
)
_HUB = re.compile(r"hf://(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<commit>[^/]+))?/(?P<file>.+)")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class PypiSource:
    """Files inside a wheel, named by their paths in it."""

    package: str
    version: str
    files: tuple[str, ...]

    def __str__(self) -> str:
        return f"pypi:{self.package}=={self.version}!{','.join(self.files)}"


@dataclass(frozen=True, slots=True)
class HubSource:
    """A file of a hub repository at one commit, 40 hex digits."""

    repository: str
    commit: str
    file: str

    def __str__(self) -> str:
        return f"hf://{self.repository}@{self.commit}/{self.file}"


@dataclass(frozen=True, slots=True)
class UrlSource:
    """A URL whose content has this digest."""

    url: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.url}#sha256={self.sha256}"


@dataclass(frozen=True, slots=True)
class PathSource:
    """A file on this machine, copied in."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


Source = PypiSource | HubSource | UrlSource | PathSource


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
class Fetcher:
    """Fetches into one staging folder.

    Attributes:
        check_space: Raises ConfigError if that many bytes more don't fit.
    """

    folder: Path
    check_space: Callable[[int], None]
    progress: Progress
    patience: Patience

    def fetch(self, source: Source, *, archive_sha256: str = "", sha256: str = "") -> Fetched:
        """The source's files, verified as far as the source allows.

        Args:
            archive_sha256: Digest of the wheel, where known.
            sha256: Digest of the file, where known, so that a hub that states another is refused before the transfer.
        """
        match source:
            case PypiSource():
                return self._fetch_wheel(source, sha256=archive_sha256)
            case HubSource():
                return Fetched({source.file: self._fetch_hub(source, expected=sha256)})
            case UrlSource():
                self.progress.say(f"fetching {source.url}")
                return Fetched({source.url: self._download(source.url, source.sha256)})
            case PathSource():
                return Fetched({source.path.name: self._copy(source.path)})
        assert_never(source)

    def _download(self, url: str, sha256: str, *, headers: dict[str, str] | None = None) -> Path:
        return downloads.fetch(
            url,
            self.folder,
            sha256=sha256,
            headers=headers or {},
            check_space=self.check_space,
            progress=self.progress,
            patience=self.patience,
        )

    def _fetch_hub(self, source: HubSource, *, expected: str) -> Path:
        endpoint = config.environment("hf_endpoint")
        url = huggingface_hub.hf_hub_url(
            source.repository, source.file, revision=source.commit, endpoint=endpoint
        )
        token = huggingface_hub.get_token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.progress.say(f"fetching {source}")
        facts = downloads.persist(
            lambda: downloads.request(url, method="HEAD", headers=headers),
            patience=self.patience,
            progress=self.progress,
        )
        if facts.status >= 400:
            raise downloads.refusal(url, facts.status)
        commit = facts.headers.get("X-Repo-Commit", "")
        if commit != source.commit:
            raise UpstreamError(
                f"{url}: the hub answers for commit {commit or '(none)'}", reason="fetch_failed"
            )
        sha256 = facts.headers.get("X-Linked-Etag", "").strip('"')
        if not _SHA256.fullmatch(sha256):
            raise ConfigError(
                f"{source}: the hub states no SHA-256 for this file, so it can't be verified; "
                f"only files in large-file storage have one"
            )
        if expected and sha256 != expected:
            raise UpstreamError(
                f"{url}: the hub states SHA-256 {sha256}, expected {expected}; nothing was fetched",
                reason="digest_mismatch",
            )
        return self._download(url, sha256, headers=headers)

    def _copy(self, path: Path) -> Path:
        try:
            total_bytes = path.stat().st_size
            self.check_space(total_bytes)
            self.progress.say(f"copying {path}")
            target = self.folder / "copy"
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
        with archive.open(entry) as reader, target.open("wb") as writer:
            shutil.copyfileobj(reader, writer, CHUNK_BYTES)
        return target


def parse(text: str) -> Source | None:
    """The source that the text writes out, or None if it looks like a name.

    Raises ConfigError if it is a source that isn't fixed, or of an unknown kind.
    """
    if text.startswith("pypi:"):
        match = _PYPI.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"{text}: expected pypi:PACKAGE==VERSION!FILE, FILE being a path inside the wheel"
            )
        return PypiSource(match["package"], match["version"], tuple(match["files"].split(",")))
    if text.startswith("hf://"):
        return _parse_hub(text)
    if text.startswith(("https://", "http://")):
        url, _, fragment = text.partition("#")
        sha256 = fragment.removeprefix("sha256=").lower()
        if not fragment.startswith("sha256=") or not _SHA256.fullmatch(sha256):
            raise ConfigError(f"{text}: a URL needs its digest, {url}#sha256=HEX (64 hex digits)")
        downloads.check_scheme(url)
        return UrlSource(url, sha256)
    if "://" in text or re.match(r"(s3|mlflow):", text):
        raise ConfigError(f"{text}: unknown kind of source; accepted: {KINDS}")
    if "/" in text or text.endswith(".gguf"):
        path = Path(text).expanduser().absolute()
        if not path.is_file():
            raise ConfigError(f"{path}: no such file")
        return PathSource(path)
    return None


def suggested_name(source: Source) -> str:
    """A name for the store, from the file's name; may not be a valid one."""
    match source:
        case PypiSource():
            name = source.files[0]
        case HubSource():
            name = source.file
        case UrlSource():
            name = urlsplit(source.url).path
        case PathSource():
            name = source.path.name
        case _:
            assert_never(source)
    return PurePosixPath(name).name.removesuffix(".gguf").lower()


def _parse_hub(text: str) -> HubSource:
    match = _HUB.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text}: expected hf://ORG/REPO@COMMIT/FILE")
    commit = match["commit"] or ""
    if not _COMMIT.fullmatch(commit):
        given = f"{commit!r} is not one" if commit else "none is given"
        raise ConfigError(
            f"{text}: a full commit (40 hex digits) is needed after the repository, and {given}. "
            "A branch or tag can move, and what runs here must not change when it does; the commit is on "
            f"https://huggingface.co/{match['repository']}/commits/main"
        )
    return HubSource(match["repository"], commit, match["file"])


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

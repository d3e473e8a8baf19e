"""What does an MLflow registry hold? Versions and aliases, and the files of a version, over its REST API.

An alias is a pointer that anybody may move at any moment: it is asked for once, and what is kept is the version that it meant
then. Source: https://mlflow.org/docs/latest/api_reference/rest-api.html, and the proxy for artifacts of the same server.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from headrace.core.errors import ConfigError, UpstreamError
from headrace.policies.licenses import LicenseClaim
from headrace.stores import downloads, sources
from headrace.stores.downloads import Answer, Authorize, Manners, Patience, Progress, Seal
from headrace.stores.sources import MlflowSource, Offer, S3Source

_BODY_BYTES_MAX = 4 << 20
_FOLDERS_MAX = 1000
_PROXY = "api/2.0/mlflow-artifacts/artifacts"

T = TypeVar("T", bound=msgspec.Struct)


class _Tag(msgspec.Struct, frozen=True):
    key: str
    value: str = ""


class _Version(msgspec.Struct, frozen=True):
    name: str
    version: str
    status: str = "READY"
    status_message: str = ""
    tags: tuple[_Tag, ...] = ()


class _VersionAnswer(msgspec.Struct, frozen=True):
    model_version: _Version


class _PlaceAnswer(msgspec.Struct, frozen=True):
    artifact_uri: str


class _File(msgspec.Struct, frozen=True):
    path: str
    is_dir: bool = False
    file_size: int = 0


class _FilesAnswer(msgspec.Struct, frozen=True):
    files: tuple[_File, ...] = ()


class _ErrorAnswer(msgspec.Struct, frozen=True):
    message: str = ""


@dataclass(frozen=True, slots=True)
class SizeSeal:
    """A file whose digest nobody states: its place, its size, and what the server tells one content from another by."""

    place: str
    size_bytes: int
    etag: str

    @property
    def name(self) -> str:
        told = f"{self.place} {self.size_bytes} {self.etag}"
        return "place-" + hashlib.sha256(told.encode()).hexdigest()[:40]

    def difference(self, path: Path, progress: Progress) -> str:
        found_bytes = path.stat().st_size
        return "" if found_bytes == self.size_bytes else f"{found_bytes} bytes, expected {self.size_bytes}"


@dataclass(frozen=True, slots=True)
class MlflowRegistry:
    """One registry.

    Attributes:
        allow_http: It may be asked without TLS, by somebody's explicit wish.
    """

    endpoint: str
    authorize: Authorize
    allow_http: bool = False

    def pinned(self, source: MlflowSource, *, patience: Patience, progress: Progress) -> MlflowSource:
        """The version that the alias points to now."""
        if source.version:
            return source
        query = {"name": source.name, "alias": source.alias}
        found = self._ask(
            source, "registered-models/alias", query, _VersionAnswer, patience=patience, progress=progress
        )
        progress.say(f"{source} is version {found.model_version.version}")
        return replace(source, version=found.model_version.version, alias="")

    def claims(self, source: MlflowSource, *, patience: Patience, progress: Progress) -> list[LicenseClaim]:
        """What the version's tag `license` says. Raises ConfigError if the version isn't ready."""
        query = {"name": source.name, "version": source.version}
        found = self._ask(
            source, "model-versions/get", query, _VersionAnswer, patience=patience, progress=progress
        ).model_version
        if found.status != "READY":
            raise ConfigError(f"{source}: its status is {found.status} {found.status_message}".rstrip())
        evidence = f"MLflow tag `license` of version {source.version}"
        return [LicenseClaim(tag.value, evidence) for tag in found.tags if tag.key == "license"]

    def offers(self, source: MlflowSource, *, patience: Patience, progress: Progress) -> list[Offer]:
        """The version's files, or those that the source names, as far as the server hands them out itself."""
        root = self.root(source, patience=patience, progress=progress)
        below, _, name = source.file.rpartition("/")
        found, folders = [], [below]
        while folders:
            folder = folders.pop()
            for file in self._files(source, root, folder, patience=patience, progress=progress):
                path = f"{folder}/{file.path}".lstrip("/")
                if file.is_dir:
                    folders += [] if name else [path]
                elif not name or path == source.file:
                    one = replace(source, file=path)
                    inside = path.removeprefix(f"{below}/") if below else path
                    found.append(Offer(inside, one, size_bytes=file.file_size))
            if len(folders) > _FOLDERS_MAX:
                raise ConfigError(f"{source}: more than {_FOLDERS_MAX} folders")
        if not found:
            raise ConfigError(f"{source}: the version has no such file")
        return found

    def storage(self, source: MlflowSource, *, patience: Patience, progress: Progress) -> S3Source | None:
        """Where the files are, if the server leaves it to its clients to get them from S3."""
        root = self.root(source, patience=patience, progress=progress)
        if not root.startswith("s3://"):
            return None
        place = sources.parse(f"{root.rstrip('/')}/{source.file}")
        assert isinstance(place, S3Source), "it starts like one"
        return place

    def seal(self, source: MlflowSource, *, patience: Patience, progress: Progress) -> tuple[str, Seal]:
        """Where one file is, and by what its content is known."""
        url = self._url(source, self.root(source, patience=patience, progress=progress), source.file)
        facts = downloads.persist(
            lambda: downloads.request(url, method="HEAD", manners=self.manners(source)),
            patience=patience,
            progress=progress,
        )
        length = facts.headers.get("Content-Length", "")
        if facts.status != 200:
            raise self._refusal(source, facts)
        if not length.isdecimal():
            raise UpstreamError(f"{source}: the server states no size", reason="fetch_failed")
        return url, SizeSeal(url, int(length), facts.headers.get("ETag", ""))

    def root(self, source: MlflowSource, *, patience: Patience, progress: Progress) -> str:
        """The address of the version's files, as the registry keeps it."""
        query = {"name": source.name, "version": source.version}
        found = self._ask(
            source,
            "model-versions/get-download-uri",
            query,
            _PlaceAnswer,
            patience=patience,
            progress=progress,
        ).artifact_uri
        if not found.startswith(("mlflow-artifacts:", "s3://")):
            raise ConfigError(
                f"{source}: its files are at {found}, which the server doesn't hand out; "
                "start MLflow with --serve-artifacts, or keep artifacts in S3"
            )
        return found

    def manners(self, source: MlflowSource) -> Manners:
        """How the registry wants to be asked."""
        return Manners(
            authorize=self.authorize,
            explain=lambda url, answer: self._refusal(source, answer),
            allow_http=self.allow_http,
        )

    def _files(
        self, source: MlflowSource, root: str, folder: str, *, patience: Patience, progress: Progress
    ) -> tuple[_File, ...]:
        query = urlencode({"path": f"{urlsplit(root).path.strip('/')}/{folder}".rstrip("/")})
        url = f"{self.endpoint.rstrip('/')}/{_PROXY}?{query}"
        return self._decoded(source, url, _FilesAnswer, patience=patience, progress=progress).files

    def _url(self, source: MlflowSource, root: str, file: str) -> str:
        path = quote(f"{urlsplit(root).path.strip('/')}/{file}", safe="/-_.~")
        return f"{self.endpoint.rstrip('/')}/{_PROXY}/{path}"

    def _ask(
        self,
        source: MlflowSource,
        what: str,
        query: Mapping[str, str],
        kind: type[T],
        *,
        patience: Patience,
        progress: Progress,
    ) -> T:
        url = f"{self.endpoint.rstrip('/')}/api/2.0/mlflow/{what}?{urlencode(query)}"
        return self._decoded(source, url, kind, patience=patience, progress=progress)

    def _decoded(
        self, source: MlflowSource, url: str, kind: type[T], *, patience: Patience, progress: Progress
    ) -> T:
        def ask() -> tuple[Answer, bytes]:
            answer = downloads.request(url, manners=self.manners(source))
            return answer, downloads.read_whole(answer, url, bytes_max=_BODY_BYTES_MAX)

        answer, body = downloads.persist(ask, patience=patience, progress=progress)
        if answer.status != 200:
            raise self._refusal(source, answer)
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.DecodeError as error:
            raise UpstreamError(f"{url}: not what MLflow answers: {error}", reason="fetch_failed") from error

    def _refusal(self, source: MlflowSource, answer: Answer) -> ConfigError:
        there = urlsplit(self.endpoint).netloc
        try:
            said = msgspec.json.decode(answer.complaint, type=_ErrorAnswer).message
        except msgspec.DecodeError:
            said = ""
        hint = "; check models.mlflow.token, or username and password" if answer.status in (401, 403) else ""
        return ConfigError(
            f"{source}: MLflow at {there} answers {answer.status}{': ' if said else ''}{said}{hint}"
        )

"""What does S3-compatible storage have, and by what is each content known? Objects and prefixes, over its REST API."""

import base64
import binascii
import hashlib
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, UpstreamError
from headrace.stores import downloads, s3_signing
from headrace.stores.downloads import Answer, Manners, Patience, Progress, Seal, Sha256Seal
from headrace.stores.s3_signing import S3Credentials
from headrace.stores.sources import Offer, S3Source

_LIST_BYTES_MAX = 8 << 20
_PAGES_MAX = 20
KEYS_A_PAGE = 1000  # as many as the protocol allows
_WITH_CHECKSUM = {"x-amz-checksum-mode": "ENABLED"}
_MD5_HEX = 32
# The version of an object that was there before its bucket kept versions, or of one that doesn't: it can be overwritten.
_NO_VERSION = ("", "null")


@dataclass(frozen=True, slots=True)
class EtagSeal:
    """An object whose digest nobody states: its entity tag, and its size.

    Attributes:
        is_md5: The tag is the MD5 of the content, as it is for one that was uploaded whole and isn't encrypted.
    """

    etag: str
    size_bytes: int
    is_md5: bool

    @property
    def name(self) -> str:
        return "etag-" + hashlib.sha256(f"{self.etag} {self.size_bytes}".encode()).hexdigest()[:40]

    def difference(self, path: Path, progress: Progress) -> str:
        if (found_bytes := path.stat().st_size) != self.size_bytes:
            return f"{found_bytes} bytes, expected {self.size_bytes}"
        if not self.is_md5:
            return ""
        found = downloads.told_digest(path, progress, algorithm="md5")
        return "" if found == self.etag else f"MD5 is {found}, expected {self.etag}"


@dataclass(frozen=True, slots=True)
class S3Storage:
    """One endpoint, asked with path-style addresses.

    Attributes:
        credentials: None asks as anybody, for what is public.
        allow_http: It may be asked without TLS, by somebody's explicit wish.
    """

    endpoint: str
    region: str
    credentials: S3Credentials | None
    clock: Clock
    allow_http: bool = False

    def pinned(self, source: S3Source, *, patience: Patience, progress: Progress) -> S3Source:
        """The object as it is now, by its version where there is one, else by its entity tag. A folder stays as it is."""
        if source.version or source.etag or not source.key or source.key.endswith("/"):
            return source
        return self._facts(source, patience=patience, progress=progress).source

    def offers(self, source: S3Source, *, patience: Patience, progress: Progress) -> list[Offer]:
        """The object, or all objects below the prefix, each pinned."""
        if source.key and not source.key.endswith("/"):
            facts = self._facts(source, patience=patience, progress=progress)
            return [facts.offer(source.key.rpartition("/")[2])]
        found = []
        for key in self._keys(source, patience=patience, progress=progress):
            one = S3Source(source.bucket, key)
            facts = self._facts(one, patience=patience, progress=progress)
            found.append(facts.offer(key.removeprefix(source.key)))
        return found

    def seal(self, source: S3Source, *, patience: Patience, progress: Progress) -> Seal:
        """By what the storage knows the content of the object."""
        return self._facts(source, patience=patience, progress=progress).seal

    def url(self, source: S3Source) -> str:
        path = quote(f"/{source.bucket}/{source.key}", safe="/-_.~")
        query = "?" + urlencode({"versionId": source.version}, quote_via=quote) if source.version else ""
        return f"{self.endpoint.rstrip('/')}{path}{query}"

    def manners(self, source: S3Source, headers: Mapping[str, str] = downloads.NO_HEADERS) -> Manners:
        """How the storage wants to be asked for that object."""
        conditions = {"If-Match": f'"{source.etag}"'} if source.etag else {}
        return Manners(
            headers=conditions,
            authorize=lambda method, url: self._proof(method, url, headers),
            explain=lambda url, answer: self._refusal(source, answer),
            allow_http=self.allow_http,
        )

    def _proof(self, method: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        if self.credentials is None:
            return headers
        return s3_signing.signed_headers(
            self.credentials,
            method=method,
            url=url,
            region=self.region,
            now_s=self.clock.wall_s(),
            headers=headers,
        )

    def _facts(self, source: S3Source, *, patience: Patience, progress: Progress) -> "_Facts":
        url, manners = self.url(source), self.manners(source, _WITH_CHECKSUM)
        answer = downloads.persist(
            lambda: downloads.request(url, method="HEAD", manners=manners),
            patience=patience,
            progress=progress,
        )
        if answer.status != 200:
            raise self._refusal(source, answer)
        return _Facts.read(source, answer)

    def _keys(self, source: S3Source, *, patience: Patience, progress: Progress) -> list[str]:
        keys: list[str] = []
        token = ""
        for _ in range(_PAGES_MAX):
            query = {"list-type": "2", "max-keys": str(KEYS_A_PAGE), "prefix": source.key}
            query |= {"continuation-token": token} if token else {}
            base = f"{self.endpoint.rstrip('/')}/{quote(source.bucket)}"
            page = f"{base}?{urlencode(query, quote_via=quote)}"
            root = self._listing(source, page, patience=patience, progress=progress)
            found = [element.text or "" for element in root.iter() if _local(element) == "Key"]
            # An empty object that ends with a slash is how some tools draw a folder.
            keys += [key for key in found if not key.endswith("/")]
            token = next((e.text or "" for e in root if _local(e) == "NextContinuationToken"), "")
            if not token:
                return keys
        raise ConfigError(f"{source}: more objects than {_PAGES_MAX} pages of a listing hold")

    def _listing(
        self, source: S3Source, page: str, *, patience: Patience, progress: Progress
    ) -> ElementTree.Element:
        manners = self.manners(source)

        def ask() -> tuple[Answer, bytes]:
            answer = downloads.request(page, manners=manners)
            return answer, downloads.read_whole(answer, page, bytes_max=_LIST_BYTES_MAX)

        answer, body = downloads.persist(ask, patience=patience, progress=progress)
        if answer.status != 200:
            raise self._refusal(source, answer)
        try:
            return ElementTree.fromstring(body)
        except ElementTree.ParseError as error:
            raise UpstreamError(f"{page}: not a listing: {error}", reason="fetch_failed") from error

    def _refusal(self, source: S3Source, answer: Answer) -> ConfigError:
        there = urlsplit(self.endpoint).netloc
        if (region := answer.headers.get("x-amz-bucket-region", self.region)) != self.region:
            return ConfigError(f"{source}: its bucket is in region {region}; set models.s3.region")
        if answer.status == 412:
            return ConfigError(
                f"{source}: the object has been replaced since it was resolved, and its bucket keeps no versions"
            )
        if answer.status in (401, 403):
            what = (
                f"{self.credentials.access_key} has no access; check models.s3.access_key, secret_key and region"
                if self.credentials
                else "it isn't public, and models.s3.access_key isn't set"
            )
        elif answer.status == 404:
            what = "no such version of it" if source.version else "no such bucket or object"
        else:
            what = "check models.s3.endpoint and the address"
        return ConfigError(f"{source}: {there} answers {answer.status}: {what}")


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the storage says about one object."""

    source: S3Source
    size_bytes: int
    sha256: str
    seal: Seal

    @classmethod
    def read(cls, source: S3Source, answer: Answer) -> "_Facts":
        version = answer.headers.get("x-amz-version-id", "")
        etag = answer.headers.get("ETag", "").removeprefix("W/").strip('"')
        length = answer.headers.get("Content-Length", "")
        if not etag or not length.isdecimal():
            raise UpstreamError(f"{source}: the storage states no ETag or no size", reason="fetch_failed")
        pinned = (
            replace(source, etag=etag, version="")
            if version in _NO_VERSION
            else replace(source, version=version, etag="")
        )
        sha256 = _checksum(answer)
        is_md5 = len(etag) == _MD5_HEX and not answer.headers.get("x-amz-server-side-encryption")
        seal = Sha256Seal(sha256) if sha256 else EtagSeal(etag, int(length), is_md5)
        return cls(pinned, int(length), sha256, seal)

    def offer(self, path: str) -> Offer:
        return Offer(path, self.source, size_bytes=self.size_bytes, sha256=self.sha256)


def _checksum(answer: Answer) -> str:
    """The SHA-256 of the whole content in hex, or "" where the storage has none, or only one of digests of parts."""
    stated = answer.headers.get("x-amz-checksum-sha256", "")
    if "-" in stated or answer.headers.get("x-amz-checksum-type", "FULL_OBJECT") != "FULL_OBJECT":
        return ""
    try:
        digest = base64.b64decode(stated, validate=True)
    except binascii.Error:
        return ""
    return digest.hex() if len(digest) == hashlib.sha256().digest_size else ""


def _local(element: ElementTree.Element) -> str:
    """The name without its namespace, which storages write differently."""
    return element.tag.rpartition("}")[2]

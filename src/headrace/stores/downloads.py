"""How do the bytes behind a URL get into a file, across lost connections, killed processes and lying servers?"""

import base64
import hashlib
import http.client
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import urljoin, urlsplit

from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError, UpstreamError
from headrace.stores.objects import CHUNK_BYTES

SOCKET_TIMEOUT_S = 30.0
TOLD_FROM_BYTES = 256 << 20
HOPS_MAX = 8
COMPLAINT_BYTES_MAX = 4096
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
NO_HEADERS: Mapping[str, str] = {}
_CONTENT_RANGE = re.compile(r"bytes (?:(?P<start>\d+)-\d+|\*)/(?P<total>\d+|\*)")

T = TypeVar("T")

# What proves to a place who asks, for one request: its method and URL to headers. No other host is ever told.
Authorize = Callable[[str, str], Mapping[str, str]]


def as_anybody(method: str, url: str) -> Mapping[str, str]:
    """For places that ask nobody who they are."""
    return {}


def with_bearer(token: str | None) -> Authorize:
    """The same bearer token with each request."""
    return lambda method, url: {"Authorization": f"Bearer {token}"} if token else {}


def with_password(username: str, password: str) -> Authorize:
    """The same name and password with each request."""
    told = base64.b64encode(f"{username}:{password}".encode()).decode("ascii")
    return lambda method, url: {"Authorization": f"Basic {told}"}


class Progress(Protocol):
    """Who is told how a pull goes on; called from the thread that pulls."""

    def say(self, line: str) -> None:
        """A step began, or something needs the reader's attention."""
        ...

    def advance(self, done_bytes: int, total_bytes: int) -> None:
        """So much of the current step is done; `total_bytes` is 0 where nobody knows."""
        ...


class Seal(Protocol):
    """By what a file's content is known before it is here."""

    @property
    def name(self) -> str:
        """A file name while it is fetched: two contents never share one."""
        ...

    def difference(self, path: Path, progress: Progress) -> str:
        """How what has arrived differs from what was promised; "" if it doesn't."""
        ...


@dataclass(frozen=True, slots=True)
class Sha256Seal:
    """The digest that everything is stored by."""

    sha256: str

    @property
    def name(self) -> str:
        return self.sha256

    def difference(self, path: Path, progress: Progress) -> str:
        found = told_digest(path, progress)
        return "" if found == self.sha256 else f"SHA-256 is {found}, expected {self.sha256}"


@dataclass(frozen=True, slots=True)
class GitBlobSeal:
    """The id that Git gives a content: what hubs state of files that are too small for large-file storage."""

    sha1: str

    @property
    def name(self) -> str:
        return f"git-{self.sha1}"

    def difference(self, path: Path, progress: Progress) -> str:
        content = path.read_bytes()
        # SHA-1 is Git's choice; what is stored afterwards is known by its SHA-256.
        found = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        return "" if found == self.sha1 else f"Git's id of it is {found}, expected {self.sha1}"


def told_digest(path: Path, progress: Progress, *, algorithm: str = "sha256") -> str:
    """The digest of what is on the disk, in hex. Of a large file it is told how far that is: reading a hundred gigabytes takes
    minutes, and who sees nothing for so long gives it up."""
    digest, size_bytes, done_bytes = hashlib.new(algorithm, usedforsecurity=False), path.stat().st_size, 0
    is_told = size_bytes >= TOLD_FROM_BYTES
    if is_told:
        progress.say(f"checking {size_bytes / 1e6:.1f} MB")
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            done_bytes += len(chunk)
            if is_told:
                progress.advance(done_bytes, size_bytes)
    return digest.hexdigest()


class Silent:
    """Progress for callers that have nobody to tell."""

    def say(self, line: str) -> None:
        pass

    def advance(self, done_bytes: int, total_bytes: int) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a failing source is tried.

    Attributes:
        attempts_max: Attempts in a row that bring no new byte; one that does starts the count again.
        pause_s, pause_max_s: First pause between two attempts, doubled with each up to the maximum.
        slow_s, slow_bytes: A transfer that brings fewer bytes than these in that time counts as one that brings none.
        sleep: Waits that many seconds.
        now_s: Monotonic seconds.
    """

    attempts_max: int = 5
    pause_s: float = 1.0
    pause_max_s: float = 30.0
    slow_s: float = 60.0
    slow_bytes: int = 64 << 10
    sleep: Callable[[float], None] = time.sleep
    now_s: Callable[[], float] = SystemClock.now_s

    def before(self, attempt: int, *, asked_s: float = 0.0) -> float:
        """Seconds to wait before attempt 2, 3, ...; what the server asks for counts, within the maximum."""
        return min(max(self.pause_s * 2.0 ** (attempt - 2), asked_s), self.pause_max_s)


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's answer; `body` is there for 2xx only, and `complaint`, its start, for others."""

    status: int
    headers: Message
    body: http.client.HTTPResponse | None
    complaint: bytes = b""


def refusal(url: str, answer: Answer) -> ConfigError:
    """What a status that no retry changes means for the operator, at a hub and at a plain URL."""
    status = answer.status
    if status in (401, 403):
        return ConfigError(
            f"{url}: status {status}: no access; a gated repository needs its terms accepted there and HF_TOKEN set here"
        )
    return ConfigError(
        f"{url}: status {status}: no such file; check the repository, the commit and the file name"
    )


@dataclass(frozen=True, slots=True)
class Manners:
    """How one kind of place wants to be asked.

    Attributes:
        headers: For every host on the way.
        authorize: For the URL's own host.
        explain: What an answer that no retry changes means for the operator.
        allow_http: The URL's own host may be asked without TLS, by somebody's explicit wish.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    authorize: Authorize = as_anybody
    explain: Callable[[str, Answer], ConfigError] = refusal
    allow_http: bool = False


PLAIN = Manners()


class Interrupted(Exception):
    """The network or the server failed in a way that may pass; what has arrived is kept.

    Attributes:
        got_bytes: New bytes that this attempt brought.
        asked_s: How long the server asked us to wait.
    """

    def __init__(self, message: str, *, got_bytes: int = 0, asked_s: float = 0.0) -> None:
        super().__init__(message)
        self.got_bytes = got_bytes
        self.asked_s = asked_s


class Pace:
    """Whether one transfer is worth waiting for: a place that sends a byte now and then would hold a start for ever.

    State: when the present stretch began, and the bytes in it.
    """

    def __init__(self, patience: Patience, url: str) -> None:
        self._patience = patience
        self._url = url
        self._since_s = patience.now_s()
        self._bytes = 0

    def passed(self, count_bytes: int) -> None:
        """So many bytes came. Raises Interrupted if it were too few."""
        self._bytes += count_bytes
        now_s = self._patience.now_s()
        if now_s - self._since_s < self._patience.slow_s:
            return
        if self._bytes < self._patience.slow_bytes:
            raise Interrupted(f"{self._url}: only {self._bytes} bytes in {self._patience.slow_s:g} s")
        self._since_s, self._bytes = now_s, 0


def fetch(
    url: str,
    folder: Path,
    *,
    seal: Seal,
    check_space: Callable[[int], None],
    progress: Progress,
    patience: Patience,
    manners: Manners = PLAIN,
) -> Path:
    """The file behind the URL, whole and verified, in `folder`; goes on where an earlier call was cut off.

    Raises UpstreamError when the source stays away or serves other bytes, ConfigError when the URL must change.
    """
    whole, part = folder / seal.name, folder / f"{seal.name}.part"
    if whole.exists():
        return whole
    is_second = False
    while True:
        was_resumed = persist(
            lambda: _transfer(
                url,
                part,
                manners=manners,
                check_space=check_space,
                progress=progress,
                pace=Pace(patience, url),
            ),
            patience=patience,
            progress=progress,
        )
        difference = seal.difference(part, progress)
        if not difference:
            return part.replace(whole)
        part.unlink()
        if not was_resumed or is_second:
            raise UpstreamError(f"{url}: {difference}; nothing was kept", reason="digest_mismatch")
        # The halves may be of different files, or a crash of the machine lost a page: only a fresh copy can tell.
        progress.say("what was resumed has a wrong digest; fetching it again from the start")
        is_second = True


def persist(step: Callable[[], T], *, patience: Patience, progress: Progress) -> T:
    """What `step` returns, repeated while it is interrupted and patience lasts."""
    attempt = 1
    while True:
        try:
            return step()
        except Interrupted as error:
            attempt = 2 if error.got_bytes else attempt + 1
            if attempt > patience.attempts_max:
                raise UpstreamError(
                    f"{error} ({patience.attempts_max} attempts); what has arrived is kept, pull again to go on",
                    reason="fetch_failed",
                ) from error
            pause_s = patience.before(attempt, asked_s=error.asked_s)
            progress.say(f"{error}; trying again in {pause_s:g} s")
            patience.sleep(pause_s)


def request(
    url: str, *, method: str = "GET", headers: Mapping[str, str] = NO_HEADERS, manners: Manners = PLAIN
) -> Answer:
    """One request, redirects followed; what authorizes it stays with the host that it was meant for.

    A HEAD stops at the redirect that states facts about the file (`X-Linked-Etag`): the storage behind it doesn't know
    them. Raises Interrupted for failures that may pass; other statuses are the caller's to judge.
    """
    origin = urlsplit(url).netloc
    for _ in range(HOPS_MAX):
        is_home = urlsplit(url).netloc == origin
        check_scheme(url, allow_http=manners.allow_http and is_home)
        proof = manners.authorize(method, url) if is_home else NO_HEADERS
        answer = _one_hop(url, method=method, headers={**manners.headers, **headers, **proof})
        location = answer.headers.get("Location")
        has_facts = method == "HEAD" and "X-Linked-Etag" in answer.headers
        if answer.status not in _REDIRECTS or location is None or has_facts:
            return answer
        url = urljoin(url, location)
    raise UpstreamError(f"{url}: more than {HOPS_MAX} redirects", reason="fetch_failed")


def check_scheme(url: str, *, allow_http: bool = False) -> None:
    """Raises ConfigError unless the URL is https, or http on this machine or by somebody's explicit wish."""
    parts = urlsplit(url)
    may_be_http = allow_http or parts.hostname in _LOOPBACK
    if parts.scheme != "https" and not (parts.scheme == "http" and may_be_http):
        raise ConfigError(f"{url}: only https:// is accepted (http:// only to this machine)")


def _one_hop(url: str, *, method: str, headers: Mapping[str, str]) -> Answer:
    # An opener of our own, because the default one hands Authorization on to whatever host it is redirected to.
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
    ):
        opener.add_handler(handler)
    # Ranges and digests are of the stored bytes, so no encoding on the way.
    fixed = {"User-Agent": "headrace", "Accept-Encoding": "identity"}
    call = urllib.request.Request(url, method=method, headers={**fixed, **headers})
    try:
        answer = opener.open(call, timeout=SOCKET_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        with error:
            if error.code not in _PASSING:
                return Answer(error.code, error.headers, None, _start_of(error))
            asked = error.headers.get("Retry-After", "")
            asked_s = float(asked) if asked.isdigit() else 0.0
            raise Interrupted(f"{url}: status {error.code}", asked_s=asked_s) from error
    except (OSError, http.client.HTTPException) as error:
        raise Interrupted(f"{url}: {getattr(error, 'reason', error)}") from error
    assert isinstance(answer, http.client.HTTPResponse), "only http and https are opened"
    return Answer(answer.status, answer.headers, answer)


def _start_of(error: urllib.error.HTTPError) -> bytes:
    try:
        return error.read(COMPLAINT_BYTES_MAX)
    except (OSError, http.client.HTTPException):
        return b""  # the status says enough


def _transfer(
    url: str,
    part: Path,
    *,
    manners: Manners,
    check_space: Callable[[int], None],
    progress: Progress,
    pace: Pace,
) -> bool:
    """Fetches what `part` lacks; returns whether it began with bytes of an earlier attempt."""
    had_bytes = part.stat().st_size if part.exists() else 0
    ranged = {"Range": f"bytes={had_bytes}-"} if had_bytes else NO_HEADERS
    answer = request(url, headers=ranged, manners=manners)
    content_range = _CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
    if answer.status == 416:
        if content_range and content_range["total"] == str(had_bytes):
            return True
        part.unlink(missing_ok=True)
        raise Interrupted(f"{url}: the part kept here is longer than the file")
    if answer.body is None:
        raise manners.explain(url, answer)
    with answer.body as body:
        if answer.status == 206 and content_range and content_range["start"] == str(had_bytes):
            total_bytes = int(content_range["total"]) if content_range["total"] != "*" else 0
        else:
            had_bytes, total_bytes = 0, body.length or 0
        check_space(total_bytes - had_bytes if total_bytes else CHUNK_BYTES)
        if had_bytes:
            progress.say(f"going on after {had_bytes / 1e6:.1f} MB")
        done_bytes = had_bytes
        with part.open("ab" if had_bytes else "wb", buffering=0) as file:
            while chunk := _read(body, url, got_bytes=done_bytes - had_bytes):
                if not total_bytes:
                    check_space(CHUNK_BYTES)
                # Unbuffered, so a disk that is almost full takes less than all and says so only at the next write.
                rest = memoryview(chunk)
                while rest:
                    rest = rest[file.write(rest) :]
                done_bytes += len(chunk)
                pace.passed(len(chunk))
                progress.advance(done_bytes, total_bytes)
    if total_bytes and done_bytes < total_bytes:
        raise Interrupted(
            f"{url}: the connection ended after {done_bytes} of {total_bytes} bytes",
            got_bytes=done_bytes - had_bytes,
        )
    return had_bytes > 0


def _read(body: http.client.HTTPResponse, url: str, *, got_bytes: int) -> bytes:
    # read1: what has arrived goes to the disk at once, so that a killed pull loses nothing.
    try:
        return body.read1(CHUNK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise Interrupted(f"{url}: {error!r}", got_bytes=got_bytes) from error


def read_whole(answer: Answer, url: str, *, bytes_max: int) -> bytes:
    """The body of a small answer; nothing for one without. Raises Interrupted if it breaks off."""
    if answer.body is None:
        return b""
    parts, got_bytes = [], 0
    with answer.body as body:
        while chunk := _read(body, url, got_bytes=0):
            got_bytes += len(chunk)
            if got_bytes > bytes_max:
                raise UpstreamError(f"{url}: answers with more than {bytes_max} bytes", reason="fetch_failed")
            parts.append(chunk)
        if body.length:
            raise Interrupted(f"{url}: the connection ended {body.length} bytes early")
    return b"".join(parts)

"""How do pictures and files behind URLs get into a request? Refused, or fetched by us from where anyone could, and inlined.

An engine never fetches: it stands inside the operator's network, and would do so for anyone who asks. Each hop is resolved
once and connected to by that address, after policies/addresses.py has allowed it; what answers is bounded in time, bytes,
kind and pixels.
"""

import asyncio
import binascii
import ssl
from collections.abc import Awaitable, Callable

import msgspec

from headrace.core.clock import Clock
from headrace.core.errors import DeadlineExceeded, HeadraceError, InvalidRequest, Saturated, UpstreamError
from headrace.core.outcome import Reason
from headrace.engines.fetch import Response, fetch
from headrace.gateway.rules import MediaRules
from headrace.policies import addresses
from headrace.policies.addresses import NotFetchable, Target
from headrace.protocols import media
from headrace.protocols.media import RemoteMedia
from headrace.protocols.openai import ParsedBody

WAITING_MAX = 64  # requests whose media is fetched, or that wait for it
BASE64_STEP = 192 * 1024  # encoded in one turn of the loop; a multiple of three
REDIRECTS = frozenset({301, 302, 303, 307, 308})
NOT_FETCHED = "nothing can be fetched from there"

Resolve = Callable[[str, int], Awaitable[list[str]]]


async def resolve(host: str, port: int) -> list[str]:
    """All addresses of a name, as the system resolves it. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=2)  # SOCK_STREAM
    return [str(address[0]) for *_, address in found]


class MediaFetcher:
    """Fetches for requests. Owner of `_waiting`, the number of requests that it works on.

    Args:
        fetches_max: Requests that are fetched for at once.
    """

    def __init__(self, fetches_max: int, *, clock: Clock, resolve: Resolve = resolve) -> None:
        self._clock = clock
        self._resolve = resolve
        self._slots = asyncio.Semaphore(fetches_max)
        self._tls: ssl.SSLContext | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._waiting = 0

    def open(self, tasks: asyncio.TaskGroup) -> None:
        """Gets the group that owns the tasks which fetch."""
        self._tasks = tasks

    def set_fetches_max(self, fetches_max: int) -> None:
        """From now on; those who have a place keep it, and it counts for nobody else."""
        self._slots = asyncio.Semaphore(fetches_max)

    async def inline(self, parsed: ParsedBody, *, rules: MediaRules, deadline_s: float) -> ParsedBody:
        """The request with its media in place of the URLs. Raises InvalidRequest, Saturated or DeadlineExceeded."""
        if not rules.may_fetch:
            at = parsed.remote_media[0].at
            raise InvalidRequest(
                f"{at}: URLs are not fetched here; send the content as a `data:` URL", param=at
            )
        if self._waiting >= WAITING_MAX:
            raise Saturated("too many requests wait for media", retry_after_s=1.0, reason=Reason.BODY_UNREAD)
        assert self._tasks is not None, "requests come after `open`"
        inlined: asyncio.Future[ParsedBody] = asyncio.get_running_loop().create_future()
        self._waiting += 1
        task = self._tasks.create_task(self._inline(parsed, inlined, rules, deadline_s - self._clock.now_s()))
        try:
            return await inlined
        finally:
            self._waiting -= 1
            task.cancel()
            if not inlined.cancel():
                inlined.exception()  # looked at, or asyncio would report what nobody awaits any more

    async def _inline(
        self, parsed: ParsedBody, inlined: "asyncio.Future[ParsedBody]", rules: MediaRules, left_s: float
    ) -> None:
        try:
            async with asyncio.timeout(left_s):
                result: ParsedBody | HeadraceError = await self._inlined(parsed, rules)
        except TimeoutError:
            result = DeadlineExceeded("the deadline passed while media was fetched")
        except HeadraceError as error:
            result = error
        if inlined.done():
            return
        if isinstance(result, HeadraceError):
            inlined.set_exception(result)
        else:
            inlined.set_result(result)

    async def _inlined(self, parsed: ParsedBody, rules: MediaRules) -> ParsedBody:
        """One after the other: a request gets one of the slots, however many URLs it has."""
        contents: list[tuple[str, bytes]] = []
        bytes_left = rules.bytes_max
        async with self._slots:
            for item in parsed.remote_media:
                content_type, data = await self._content(item, rules, bytes_max=bytes_left)
                bytes_left -= len(data)
                contents.append((content_type, await _base64(data)))
        canonical = media.inlined(parsed.canonical, parsed.remote_media, contents)
        return msgspec.structs.replace(parsed, canonical=canonical, remote_media=())

    async def _content(self, item: RemoteMedia, rules: MediaRules, *, bytes_max: int) -> tuple[str, bytes]:
        """Content type and bytes behind one URL. Raises InvalidRequest, which tells nothing of what was found inside."""
        try:
            async with asyncio.timeout(rules.time_s):
                response = await self._follow(item.url, rules, bytes_max=bytes_max)
        except NotFetchable as error:
            raise _refused(item, str(error)) from None
        except UpstreamError as error:
            what = "it is too large" if "too large" in error.message else NOT_FETCHED
            raise _refused(item, what) from None
        except TimeoutError:
            raise _refused(item, f"it did not come within {rules.time_s:g} s") from None
        if response.status != 200 or response.headers.get("content-encoding", "identity") != "identity":
            raise _refused(
                item, f"it was answered with status {response.status}, not with the content as it is"
            )
        content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        media.check_content(item.kind, content_type, response.body, at=item.at)
        return content_type, response.body

    async def _follow(self, url: str, rules: MediaRules, *, bytes_max: int) -> Response:
        """The answer at the end of the redirects. Every hop is a URL that somebody else chose, and is treated as one."""
        target = addresses.read_url(url)
        for _ in range(rules.redirects_max + 1):
            response = await self._ask(target, rules, bytes_max=bytes_max)
            if response.status not in REDIRECTS:
                return response
            target = addresses.joined(target, response.headers.get("location", ""))
        raise NotFetchable(f"it redirects more than {rules.redirects_max} times")

    async def _ask(self, target: Target, rules: MediaRules, *, bytes_max: int) -> Response:
        try:
            found = await self._resolve(target.host, target.port)
        except (OSError, UnicodeError):
            raise NotFetchable(NOT_FETCHED) from None
        # Resolved once: a name that changes its mind between the check and the connection changes nothing.
        address = addresses.pin(found, networks=rules.networks)
        return await fetch(
            target.host,
            target.port,
            "GET",
            target.path,
            headers=(("Accept", "*/*"), ("Accept-Encoding", "identity"), ("User-Agent", "headrace")),
            timeout_s=rules.time_s,
            body_bytes_max=bytes_max,
            address=address,
            tls=self._context() if target.scheme == "https" else None,
        )

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


async def _base64(data: bytes) -> bytes:
    """In steps, so that the loop can do other things in between."""
    pieces = []
    for at in range(0, len(data), BASE64_STEP):
        pieces.append(binascii.b2a_base64(data[at : at + BASE64_STEP], newline=False))
        await asyncio.sleep(0)
    return b"".join(pieces)


def _refused(item: RemoteMedia, what: str) -> InvalidRequest:
    return InvalidRequest(f"{item.at}: {what}", param=item.at)

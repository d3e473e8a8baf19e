"""Which requests need work before the walk can begin? Large bodies, which another process parses, and media to fetch."""

import asyncio

from headrace.core.request import Endpoint
from headrace.gateway.bodies import BodyReader
from headrace.gateway.media import MediaFetcher
from headrace.protocols.openai import ParsedBody


class Intake:
    """Both kinds of work, each bounded by its own part."""

    def __init__(self, bodies: BodyReader, media: MediaFetcher) -> None:
        self._bodies = bodies
        self._media = media

    def open(self, tasks: asyncio.TaskGroup) -> None:
        """Gets the group that owns the tasks of both."""
        self._bodies.open(tasks)
        self._media.open(tasks)

    @property
    def bodies_reading(self) -> int:
        return self._bodies.count

    async def parse(self, endpoint: Endpoint, body: bytes, *, deadline_s: float) -> ParsedBody:
        """As protocols.openai.parse_body, away from the event loop."""
        return await self._bodies.parse(endpoint, body, deadline_s=deadline_s)

    async def inline(self, parsed: ParsedBody, *, deadline_s: float) -> ParsedBody:
        """The request with its media in place of the URLs, if they may be fetched at all."""
        return await self._media.inline(parsed, deadline_s=deadline_s)

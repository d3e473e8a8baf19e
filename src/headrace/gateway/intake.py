"""Which requests need work before the walk can begin? Large bodies, which another process parses, and media to fetch.

This work comes before a tenant's limits, which only count what has been understood; so each tenant has a few places here.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.core.errors import ConcurrencyLimited
from headrace.core.ids import TenantId
from headrace.core.request import Endpoint
from headrace.gateway.bodies import BodyReader
from headrace.gateway.media import MediaFetcher
from headrace.gateway.rules import MediaRules
from headrace.protocols.openai import ParsedBody

TENANT_PLACES = 8  # a quarter of the bodies that may wait for the parser
RETRY_AFTER_S = 1.0


class Intake:
    """Both kinds of work, each bounded by its own part. State: `_taken` places by tenant, of those that have any."""

    def __init__(self, bodies: BodyReader, media: MediaFetcher) -> None:
        self._bodies = bodies
        self._media = media
        self._taken: dict[TenantId, int] = {}

    def open(self, tasks: asyncio.TaskGroup) -> None:
        """Gets the group that owns the tasks of both."""
        self._bodies.open(tasks)
        self._media.open(tasks)

    def set_fetches_max(self, fetches_max: int) -> None:
        """Requests that media is fetched for at once, from now on."""
        self._media.set_fetches_max(fetches_max)

    @property
    def bodies_reading(self) -> int:
        return self._bodies.count

    async def parse(
        self, endpoint: Endpoint, body: bytes, *, tenant: TenantId, deadline_s: float
    ) -> ParsedBody:
        """As protocols.openai.parse_body, away from the event loop. Raises ConcurrencyLimited."""
        with self._place(tenant):
            return await self._bodies.parse(endpoint, body, deadline_s=deadline_s)

    async def inline(
        self, parsed: ParsedBody, rules: MediaRules, *, tenant: TenantId, deadline_s: float
    ) -> ParsedBody:
        """The request with its media in place of the URLs, if they may be fetched at all. Raises ConcurrencyLimited."""
        with self._place(tenant):
            return await self._media.inline(parsed, rules=rules, deadline_s=deadline_s)

    @contextmanager
    def _place(self, tenant: TenantId) -> Iterator[None]:
        taken = self._taken.get(tenant, 0)
        if taken >= TENANT_PLACES:
            raise ConcurrencyLimited(
                f"{TENANT_PLACES} large or media requests of this tenant are being read, and no more may be",
                retry_after_s=RETRY_AFTER_S,
            )
        self._taken[tenant] = taken + 1
        try:
            yield
        finally:
            self._taken[tenant] -= 1
            if not self._taken[tenant]:
                del self._taken[tenant]

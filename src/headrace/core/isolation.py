"""Whose prompts may meet in a prefix cache? Each tenant's alone, or finer, or a named group's; told to engines as a salt."""

import base64
import hashlib
import hmac
from enum import StrEnum

import msgspec

from headrace.core.ids import KeyId, RequestId, TenantId
from headrace.core.tenant import CacheBoundary, TenantTerms

SALT_CHARACTERS = 43  # 256 bits in url-safe base64, without padding
SALT_LINE_CHARACTERS = 22  # 132 bits: where the salt is read by a model, as little of it as is safe


class CacheIsolation(StrEnum):
    """What keeps the prompts of different partitions apart in the prefix cache of one engine.

    SALT: The engine takes a salt with each request, and finds only what was stored under the same one.
    SLOTS: Its cache is cut into slots that we assign; one is reused only for the partition that filled it.
    PROMPT: The salt is the first line of the prompt, so nothing of another partition begins like it.
    OFF: Nothing is reused at all, by a word in each request.
    NONE: Nothing does.
    """

    SALT = "salt"
    SLOTS = "slots"
    PROMPT = "prompt"
    OFF = "off_per_request"
    NONE = "none"


class CachePartitions:
    """Names the partition of each caller: 43 url-safe characters, equal in all workers and after every restart.

    A name is an HMAC-SHA-256 of who may share, under a key derived from the pepper for nothing else: nobody outside can
    compute or guess one, and a name gives nothing of the pepper away. Callers never learn or choose it.

    Args:
        rotation: Another number gives other names, so whatever is cached under the old ones is never found again.
    """

    def __init__(self, pepper: bytes, *, rotation: int = 0) -> None:
        self.rotate(pepper, rotation)

    def rotate(self, pepper: bytes, rotation: int) -> None:
        """Names are those of that rotation from now on."""
        self._key = hmac.digest(
            pepper, b"headrace prefix cache partitions 1, rotation %d" % rotation, "sha256"
        )

    def of(self, tenant: TenantId, key_id: KeyId, terms: TenantTerms, *, user: str = "") -> str:
        """The name for a caller. Where nobody said which user it is, each key counts as one."""
        if terms.cache_group:  # then the boundary is the tenant: TenantTerms sees to that
            return self._name("group", terms.cache_group)
        if terms.cache_boundary is CacheBoundary.TENANT:
            return self._name("tenant", tenant)
        if terms.cache_boundary is CacheBoundary.USER and user:
            return self._name("user", tenant, user)
        return self._name("key", tenant, key_id)

    def _name(self, *parts: str) -> str:
        # As JSON, so that no two lists of parts are the same bytes.
        digest = hmac.digest(self._key, msgspec.json.encode(parts), "sha256")
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def once(partition: str, request_id: RequestId) -> str:
    """A salt that no other request has, so that nothing of it is found again. Not to be guessed from outside."""
    digest = hashlib.sha256(f"once {partition} {request_id}".encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def salt_line(partition: str) -> str:
    """What stands before a prompt of that partition. A model may repeat it to its caller, so it is not the name itself."""
    digest = hashlib.sha256(f"line {partition}".encode()).digest()
    return base64.urlsafe_b64encode(digest)[:SALT_LINE_CHARACTERS].decode("ascii") + "\n"

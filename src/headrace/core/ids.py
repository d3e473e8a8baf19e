"""Names for requests that are ours alone: never taken from a client, sortable by time."""

from typing import NewType

from headrace.core.chance import Chance

RequestId = NewType("RequestId", str)
TenantId = NewType("TenantId", str)
KeyId = NewType("KeyId", str)
ReplicaId = NewType("ReplicaId", str)
# One revision of one deployment: `chat@v3`, or the plain name where there are no versions. Keys queues, loads and paces.
TargetKey = str


def request_id(chance: Chance, *, wall_s: float) -> RequestId:
    """A UUID version 7 (RFC 9562) in hexadecimal behind `req_`: 48 bits of Unix milliseconds, 74 random bits."""
    # Two halves of 64 bits: numbers of that size are formatted much faster than one of 128.
    high = int(wall_s * 1000) << 16 | 0x7000 | chance.getrandbits(12)
    low = 1 << 63 | chance.getrandbits(62)
    return RequestId(f"req_{high:016x}{low:016x}")

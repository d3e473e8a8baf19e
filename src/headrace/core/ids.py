"""Names for requests that are ours alone: never taken from a client, sortable by time."""

from typing import NewType

from headrace.core.chance import Chance

RequestId = NewType("RequestId", str)
TenantId = NewType("TenantId", str)
KeyId = NewType("KeyId", str)
ReplicaId = NewType("ReplicaId", str)


def request_id(chance: Chance, *, wall_s: float) -> RequestId:
    """A UUID version 7 (RFC 9562) in hexadecimal behind `req_`: 48 bits of Unix milliseconds, 74 random bits."""
    bits = chance.getrandbits(74)
    value = (
        (int(wall_s * 1000) << 80) | (0x7 << 76) | ((bits >> 62) << 64) | (0b10 << 62) | (bits & (2**62 - 1))
    )
    return RequestId(f"req_{value:032x}")

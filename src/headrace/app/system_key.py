"""With which key does the service ask itself? One of the reserved tenant, made anew at each start and kept in `run/` alone."""

import os
import secrets
from pathlib import Path

from headrace.core import keys
from headrace.core.ids import KeyId
from headrace.core.isolation import CachePartitions
from headrace.core.tenant import SYSTEM_TENANT, Principal, Priority, TenantLimits, TenantShare, TenantTerms
from headrace.stores.key_ring import KeyEntry

NAME = "system.key"
KEY_ID = KeyId("system")


def renew(data: Path) -> None:
    """Makes a new one; every earlier one opens nothing any more."""
    path = data / "run" / NAME
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = keys.make(
        "live",
        id_random=secrets.token_bytes(keys.ID_RANDOM_BYTES),
        secret_random=secrets.token_bytes(keys.SECRET_RANDOM_BYTES),
    )
    draft = path.with_name(f".{NAME}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(made)
    draft.replace(path)


def read(data: Path) -> str:
    """The key in force. Raises OSError where no service has made one."""
    return (data / "run" / NAME).read_text(encoding="ascii")


def entry(data: Path, secret: bytes, partitions: CachePartitions) -> dict[bytes, KeyEntry]:
    """What a gateway holds of it: no limit, the last turn behind every customer, and a part of prefix caches of its own."""
    principal = Principal(
        SYSTEM_TENANT,
        KEY_ID,
        TenantLimits(),
        share=TenantShare(Priority.LOW),
        cache_partition=partitions.of(SYSTEM_TENANT, KEY_ID, TenantTerms()),
    )
    return {keys.digest(secret, read(data).encode("ascii")): KeyEntry(principal, None)}

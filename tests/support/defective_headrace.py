"""headrace with defects that no option of it makes. Run it instead of `headrace`: PLANTED_DEFECT names a file, which names a defect.

Each is put where it would really be: in the code that does that part of the work, of a service that is otherwise whole. What the
file says counts at that moment, so one service can have them one after the other, and none where it is empty.
"""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from headrace.__main__ import run
from headrace.core.isolation import CachePartitions
from headrace.engines import wire
from headrace.gateway.idempotency import OwnAnswers
from headrace.gateway.usage import UsageCloser
from headrace.protocols import openai
from headrace.stores.ledger import Ledger

VARIABLE = "PLANTED_DEFECT"
LEAKED_BYTES = 64 * 1024
_KEPT: list[bytearray] = []


def has(plant: Callable[[], None]) -> bool:
    """Whether this is the defect that is wanted now."""
    return Path(os.environ[VARIABLE]).read_text() == plant.__name__


def shared_cache() -> None:
    """Every tenant has the same part of the engines' prefix caches."""
    name = CachePartitions._name

    def named(self: Any, *parts: str) -> str:
        return name(self, *(("everybody",) if has(shared_cache) else parts))

    CachePartitions._name = named  # type: ignore[method-assign]


def shared_answers() -> None:
    """What is kept for an Idempotency-Key is kept for the key, whoever sends it."""
    begin, keep = OwnAnswers.begin, OwnAnswers.__init__

    def owner(tenant: str) -> str:
        return "everybody" if has(shared_answers) else tenant

    def initialised(self: Any, table: Any) -> None:
        keep(self, table)
        kept = self.keep
        self.keep = lambda tenant, key, answer: kept(owner(tenant), key, answer)

    async def begun(self: Any, tenant: Any, key: bytes, **rest: Any) -> Any:
        return await begin(self, owner(tenant), key, **rest)  # type: ignore[arg-type]

    OwnAnswers.__init__ = initialised  # type: ignore[method-assign]
    OwnAnswers.begin = begun  # type: ignore[method-assign]


def cold_cache() -> None:
    """Each request has a salt of its own, so nothing that a tenant has asked is found again."""
    encode = wire.openai.encode

    def salted(fields: Any) -> bytes:
        if isinstance(fields, dict) and wire.SALT_FIELD in fields and has(cold_cache):
            fields = {**fields, wire.SALT_FIELD: secrets.token_urlsafe(32)}
        return encode(fields)

    wire.openai.encode = salted


def no_retry_after() -> None:
    """Nobody who is refused is told when to come back."""
    header, headers = openai.retry_after_header, openai.error_headers
    openai.retry_after_header = lambda seconds: b"" if has(no_retry_after) else header(seconds)

    def without(error: Any) -> bytes:
        return headers(error).replace(b"retry-after: \r\n", b"")

    openai.error_headers = without


def double_bill() -> None:
    """A record is written a second time under another name."""
    append = Ledger.append

    def twice(self: Any, usage: Any, executions: Any) -> None:
        append(self, usage, executions)
        if not has(double_bill):
            return
        again = f"{usage.request_id[:-2]}zz"
        append(
            self,
            msgspec.structs.replace(usage, request_id=again),
            [msgspec.structs.replace(each, request_id=again) for each in executions],
        )

    Ledger.append = twice  # type: ignore[method-assign]


def memory_growth() -> None:
    """A little of every request is kept for ever."""
    close = UsageCloser.close

    def leaking(self: Any, *rest: Any, **named: Any) -> Any:
        if has(memory_growth):
            _KEPT.append(bytearray(os.urandom(LEAKED_BYTES)))
        return close(self, *rest, **named)

    UsageCloser.close = leaking  # type: ignore[method-assign]


DEFECTS: dict[str, Callable[[], None]] = {
    plant.__name__: plant
    for plant in (shared_cache, shared_answers, cold_cache, no_retry_after, double_bill, memory_growth)
}


if __name__ == "__main__":
    for plant in DEFECTS.values():
        plant()
    run()

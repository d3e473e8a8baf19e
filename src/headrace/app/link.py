"""How do the service and its workers talk? What is to be served and lent down; records, reports and questions up."""

import socket
from collections.abc import Callable

import msgspec

from headrace.app import pair
from headrace.app.pair import Line
from headrace.app.report import PlaneReport
from headrace.config import Config
from headrace.core.fleet import FleetSnapshot
from headrace.core.ids import ReplicaId, TenantId
from headrace.core.leases import (
    AskEscrow,
    AskRate,
    Deny,
    Grant,
    GrantRate,
    LentEscrow,
    QuotasRead,
    Recall,
    RecallEscrow,
    Return,
    ReturnEscrow,
    ReturnRate,
    Sated,
    Settled,
    Shadowed,
    TellQuotas,
    Want,
)
from headrace.core.load import PlaneLoad
from headrace.core.signing import KeySet
from headrace.core.usage import ExecutionRecord, UsageRecord
from headrace.gateway.idempotency import KeptAnswer
from headrace.telemetry.merging import MetricsState


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """Up: the first word of a worker."""

    version: str
    pid: int


class Opened(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """Up: the worker accepts connections, and knows that many API keys."""

    keys: int


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """Up: the worker can't serve, and the operator must act."""

    message: str


class Report(msgspec.Struct, frozen=True, array_like=True, tag=23):
    """Up: the worker as it is now, every second and when asked (`answers` is the number of the question, else 0)."""

    answers: int
    plane: PlaneReport
    metrics: MetricsState


class Load(msgspec.Struct, frozen=True, array_like=True, tag=33):
    """Up: what the worker has to do, and has done: twice a second, and when it goes by a new snapshot."""

    load: PlaneLoad


class Records(msgspec.Struct, frozen=True, array_like=True, tag=25):
    """Up: records of ended requests for the ledger, and what they have spent of the worker's escrow."""

    entries: list[tuple[UsageRecord, list[ExecutionRecord]]]
    settled: list[Settled] = []


class EncodedRecords(msgspec.Struct, frozen=True, array_like=True, tag=25):
    """The same, as who sends it has it: every record was encoded when it came."""

    entries: list[msgspec.Raw]
    settled: list[Settled] = []


class Replacement(msgspec.Struct, frozen=True, array_like=True, tag=31):
    """Up: records in the place of earlier ones of their request, if those aren't in the ledger yet."""

    entry: tuple[UsageRecord, list[ExecutionRecord]]


class Begin(msgspec.Struct, frozen=True, array_like=True, tag=27):
    """Up: may work with this Idempotency-Key be begun? The digest says what work it is, `retention_s` for how long its answer
    may be kept."""

    number: int
    tenant: TenantId
    key: bytes
    digest: bytes
    retention_s: float | None = None


class Keep(msgspec.Struct, frozen=True, array_like=True, tag=28):
    """Up: the work begun by that question was answered; None for an answer that is too large to be kept."""

    number: int
    tenant: TenantId
    key: bytes
    answer: KeptAnswer | None


class Drop(msgspec.Struct, frozen=True, array_like=True, tag=29):
    """Up: the work begun by that question was not answered."""

    number: int
    tenant: TenantId
    key: bytes


class Forget(msgspec.Struct, frozen=True, array_like=True, tag=32):
    """Up: this tenant is gone, and with it the answers that are kept for it."""

    tenant: TenantId


class KeyMissing(msgspec.Struct, frozen=True, array_like=True, tag=30):
    """Up: a token names a key that this provider hasn't published as far as we know."""

    issuer: str


class Drained(msgspec.Struct, frozen=True, array_like=True, tag=26):
    """Up: the worker has nothing in progress any more; `cut` requests it had to cut."""

    cut: int


class Start(msgspec.Struct, frozen=True, array_like=True, tag=40):
    """Down: what the worker is to serve, on which port, and which of how many it is."""

    config: Config
    data: str
    port: int
    worker: int
    workers: int
    config_version: int


class Publish(msgspec.Struct, frozen=True, array_like=True, tag=41):
    """Down: what is offered from now on."""

    snapshot: FleetSnapshot


class Reload(msgspec.Struct, frozen=True, array_like=True, tag=50):
    """Down: another version of the configuration, and what is offered by it; in force together."""

    config: Config
    version: int
    snapshot: FleetSnapshot


class Keys(msgspec.Struct, frozen=True, array_like=True, tag=48):
    """Down: a provider's keys were looked at."""

    key_set: KeySet


class Found(msgspec.Struct, frozen=True, array_like=True, tag=46):
    """Down: a probe has found a replica after it had not answered one."""

    replica: ReplicaId


class AskReport(msgspec.Struct, frozen=True, array_like=True, tag=42):
    """Down: a report is wanted now."""

    number: int


class LedgerBehind(msgspec.Struct, frozen=True, array_like=True, tag=43):
    """Down: whether new work should be refused, because its record might not reach the disk; and whether the disk refuses."""

    is_behind: bool
    is_failing: bool


class Committed(msgspec.Struct, frozen=True, array_like=True, tag=49):
    """Down: the first so many of the worker's records are in the ledger."""

    number: int


class Begun(msgspec.Struct, frozen=True, array_like=True, tag=47):
    """Down: the answer to Begin: what was answered before, or what is `known` of the key."""

    number: int
    known: str
    answer: KeptAnswer | None


class Drain(msgspec.Struct, frozen=True, array_like=True, tag=44):
    """Down: no new work; end when what is in progress has ended, or the time for it is over."""


class EndDrain(msgspec.Struct, frozen=True, array_like=True, tag=45):
    """Down: cut what is still in progress."""


Up = (
    Hello
    | Opened
    | Refused
    | Report
    | Load
    | Line
    | Records
    | Replacement
    | Begin
    | Keep
    | Drop
    | Forget
    | KeyMissing
    | Drained
    | Want
    | Return
    | AskRate
    | ReturnRate
    | Shadowed
    | TellQuotas
    | AskEscrow
    | ReturnEscrow
)
Down = (
    Start
    | Publish
    | Reload
    | Keys
    | Found
    | Begun
    | AskReport
    | LedgerBehind
    | Committed
    | Drain
    | EndDrain
    | Grant
    | Recall
    | Sated
    | Deny
    | GrantRate
    | QuotasRead
    | LentEscrow
    | RecallEscrow
)

Link = pair.Link[Up | Down | EncodedRecords]

_UP: msgspec.msgpack.Decoder[Up] = msgspec.msgpack.Decoder(Up)
_DOWN: msgspec.msgpack.Decoder[Down] = msgspec.msgpack.Decoder(Down)


async def service_end(
    end: socket.socket, *, received: Callable[[Up], None], lost: Callable[[], None]
) -> Link:
    """The service's end of a pair."""
    return await pair.linked(end, Link(_UP, received, lost))


async def worker_end(
    end: socket.socket, *, received: Callable[[Down], None], lost: Callable[[], None]
) -> Link:
    """The worker's end of a pair."""
    return await pair.linked(end, Link(_DOWN, received, lost))

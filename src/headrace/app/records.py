"""Where do a data plane's records go, and when are they there? To the ledger, through a journal that outlives this process."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from headrace.app import link as wire
from headrace.app.link import Link
from headrace.config import Config
from headrace.core.errors import ConfigError
from headrace.core.fleet import Replica
from headrace.core.leases import Settled
from headrace.core.request import InferenceRequest
from headrace.core.usage import ExecutionRecord, UsageRecord
from headrace.gateway.usage import Confirmation
from headrace.stores.journal import SUFFIX, Journal
from headrace.stores.ledger import Ledger

# Requests in progress that are marked, at most; one more that a crash cuts off is not listed.
MARKS_MAX = 8192


def journals(data: Path) -> list[Path]:
    """The journals of the processes that serve, or that have left them behind."""
    return sorted(_directory(data).glob(f"*{SUFFIX}"))


def journal_of(data: Path, pid: int) -> Path:
    """Where a process has its journal: its number is nobody else's while it lives, and afterwards the file is adopted."""
    return _directory(data) / f"{pid}{SUFFIX}"


def open_journal(data: Path, pid: int, config: Config) -> Journal:
    """Raises ConfigError where there is no room for it."""
    path = journal_of(data, pid)
    try:
        return Journal(
            path,
            records_max=config.ledger.records_max,
            marks_max=min(MARKS_MAX, config.server.connections_max),
        )
    except OSError as error:
        raise ConfigError(f"{path} can't be made: {error.strerror}") from error


def _directory(data: Path) -> Path:
    return data / "run" / "journal"


class Confirmations:
    """Who waits for the commit of which record, in their order. Owner of `_waiting`; `committed` is the number of the last
    record that is in the ledger, and `is_failing` says that nothing goes there at the moment.

    Args:
        is_lenient: While nothing goes there, a record in the journal is good enough.
    """

    def __init__(self, *, is_lenient: bool) -> None:
        self._is_lenient = is_lenient
        self._waiting: deque[tuple[int, Confirmation]] = deque()
        self.committed = 0
        self.is_failing = False

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def wait(self, number: int) -> Confirmation:
        """For the record of that number, which came after all that are waited for."""
        confirmation = Confirmation()
        self._waiting.append((number, confirmation))
        self.settle()
        return confirmation

    def settle(self) -> None:
        """Tells those whose record is committed, and if need be those whose record will wait."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= self.committed:
            waiting.popleft()[1].settle(is_good=True)
        while waiting and self.is_failing:
            waiting.popleft()[1].settle(is_good=self._is_lenient)


class OwnRecords:
    """The ledger of this very process."""

    def __init__(self, ledger: Ledger, journal: Journal, *, is_lenient: bool) -> None:
        self._ledger = ledger
        self._journal = journal
        self._confirmations = Confirmations(is_lenient=is_lenient)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.begin: Callable[[InferenceRequest, Replica, int], None] = journal.begin

    @property
    def is_behind(self) -> bool:
        return self._ledger.is_behind or self._journal.is_full

    def append(self, usage: UsageRecord, executions: Sequence[ExecutionRecord]) -> None:
        self._journal.append(usage, executions)
        self._ledger.append(usage, executions)

    def replace(self, usage: UsageRecord, executions: Sequence[ExecutionRecord]) -> None:
        self._journal.append(usage, executions)
        self._ledger.replace(usage, executions)

    def confirm(self) -> Confirmation:
        self._loop = asyncio.get_running_loop()
        confirmation = self._confirmations.wait(self._ledger.appended)
        # After it waits: the ledger's thread tells only those that it sees waiting, and may have done so in between.
        self._look()
        return confirmation

    def committed(self, settled: int) -> None:
        """Called by the ledger's thread."""
        self._journal.committed(settled)
        self.changed()

    def changed(self) -> None:
        """Called by the ledger's thread: it fails, or is well again, or has got further."""
        # Whoever is not seen waiting looks at the ledger itself afterwards.
        if self._confirmations and self._loop is not None:
            self._loop.call_soon_threadsafe(self._look)

    def close(self) -> None:
        """After the ledger's thread has ended."""
        self._journal.close()

    def _look(self) -> None:
        self._confirmations.committed = self._ledger.committed
        self._confirmations.is_failing = self._ledger.failed is not None
        self._confirmations.settle()


class LinkRecords:
    """The ledger as a worker sees it: records go to the service, a few milliseconds' worth at a time.

    State: `_entries`, those not sent yet, as msgpack, and `_settled`, what they have spent of our escrow; `_appended` counts
    all; `ledger_is_behind`, as the service last said.
    """

    FLUSH_S = 0.01
    # About as many records as the ledger itself takes before it counts as behind.
    UNSENT_BYTES_MAX = 4 * 1024 * 1024

    def __init__(self, link: Link, journal: Journal, *, is_lenient: bool) -> None:
        self._link = link
        self._journal = journal
        self._confirmations = Confirmations(is_lenient=is_lenient)
        self._entries: list[msgspec.Raw] = []
        self._settled: list[Settled] = []
        self._appended = 0
        self.begin: Callable[[InferenceRequest, Replica, int], None] = journal.begin
        self.ledger_is_behind = False

    @property
    def is_behind(self) -> bool:
        return (
            self.ledger_is_behind or self._journal.is_full or self._link.unsent_bytes > self.UNSENT_BYTES_MAX
        )

    def append(
        self,
        usage: UsageRecord,
        executions: Sequence[ExecutionRecord],
        settled: Sequence[Settled] = (),
    ) -> None:
        if not self._entries:
            asyncio.get_running_loop().call_later(self.FLUSH_S, self.flush)
        self._entries.append(msgspec.Raw(self._journal.append(usage, executions)))
        self._settled += settled
        self._appended += 1

    def replace(self, usage: UsageRecord, executions: Sequence[ExecutionRecord]) -> None:
        self._journal.append(usage, executions)
        self._appended += 1
        self.flush()
        self._link.send(wire.Replacement((usage, list(executions))))

    def confirm(self) -> Confirmation:
        self.flush()
        return self._confirmations.wait(self._appended)

    def flush(self) -> None:
        entries, self._entries = self._entries, []
        settled, self._settled = self._settled, []
        if entries:
            self._link.send(wire.EncodedRecords(entries, settled))

    def committed(self, number: int) -> None:
        """The service says that the first so many of our records are in the ledger."""
        self._journal.committed(number)
        self._confirmations.committed = number
        self._confirmations.settle()

    def ledger_said(self, *, is_behind: bool, is_failing: bool) -> None:
        self.ledger_is_behind = is_behind
        self._confirmations.is_failing = is_failing
        self._confirmations.settle()

    def close(self) -> None:
        self._journal.close()

"""headrace that forgets what was used: the other side of benchmarks/ledger_price.py. No option of the service does this."""

from collections.abc import Sequence

from headrace.__main__ import run
from headrace.app.records import OwnRecords
from headrace.core.fleet import Replica
from headrace.core.request import InferenceRequest
from headrace.core.usage import ExecutionRecord, UsageRecord
from headrace.stores.journal import Journal


def _begin(self: Journal, request: InferenceRequest, replica: Replica, attempt: int) -> None:
    pass


def _append(self: OwnRecords, usage: UsageRecord, executions: Sequence[ExecutionRecord]) -> None:
    pass


if __name__ == "__main__":
    Journal.begin = _begin  # type: ignore[method-assign]
    OwnRecords.append = _append  # type: ignore[method-assign]
    run()

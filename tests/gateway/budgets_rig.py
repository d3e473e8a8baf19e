"""Reservations for tests that need none, or their own: what is assumed of requests, and where records go."""

import io
from collections.abc import Callable, Sequence

from headrace.core.clock import Clock
from headrace.core.fleet import Replica
from headrace.core.leases import Asking, Settled
from headrace.core.request import InferenceRequest
from headrace.core.usage import ExecutionRecord, UsageRecord
from headrace.gateway.budgets import Estimator
from headrace.gateway.leased_budgets import LeasedReservations
from headrace.gateway.usage import Confirmation
from headrace.policies.spending import Assumptions
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics

ASSUMED = Assumptions(output_tokens_max_assumed=100, template_tokens_max_assumed=0)


class KeptRecords:
    """Records, as they came, with what they have settled."""

    def __init__(self, tell: Callable[[UsageRecord, Sequence[Settled]], None] = lambda *_: None) -> None:
        self._tell = tell
        self.usage: list[UsageRecord] = []

    def begin(self, request: InferenceRequest, replica: Replica, attempt: int) -> None:
        """Nobody asks for marks."""

    def replace(self, usage: UsageRecord, executions: Sequence[ExecutionRecord]) -> None:
        """Nothing is."""

    def confirm(self) -> Confirmation:
        return Confirmation()

    def append(
        self,
        usage: UsageRecord,
        executions: Sequence[ExecutionRecord],
        settled: Sequence[Settled] = (),
    ) -> None:
        self.usage.append(usage)
        self._tell(usage, settled)


def leased_reservations(
    send: Callable[[Asking], None], *, clock: Clock, records: KeptRecords | None = None
) -> LeasedReservations:
    """A worker's. A token costs 10 pico-units."""
    return LeasedReservations(
        records or KeptRecords(),
        Estimator(ASSUMED, lambda request, prompt, output: 10 * (prompt + output)),
        send,
        metrics=Metrics(),
        log=Log(io.StringIO(), clock),
        clock=clock,
    )

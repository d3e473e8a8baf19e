"""Budgets, put together: their owner in the service, what each data plane reserves from, and the quotas that both go by."""

import io
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path

from headrace.config import Config
from headrace.control.budgets import BudgetAuthority
from headrace.core.clock import Clock
from headrace.core.ids import KeyId, RequestId, TenantId
from headrace.core.quotas import BudgetKey, Limits, Quota, Span
from headrace.core.tenant import TenantTerms
from headrace.gateway.budgets import Estimator
from headrace.policies import spending as estimates
from headrace.policies.prices import PriceBook
from headrace.policies.spending import Assumptions
from headrace.stores import spending, tenants
from headrace.stores.ledger import Ledger
from headrace.stores.opening import open_database, open_local
from headrace.stores.spending import Before, Corrected
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics


def limits_of(
    agreed: Iterable[tuple[TenantId, TenantTerms]],
    keys: Iterable[tuple[TenantId, KeyId, Sequence[Quota]]],
    *,
    hosts: int,
) -> Limits:
    """What every budget may reach here, of tenants with these terms and keys with these quotas: an even part for each of so
    many hosts, rounded down."""
    limits = {
        BudgetKey(tenant, KeyId(""), quota.unit, quota.period): quota.amount // hosts
        for tenant, terms in dict(agreed).items()
        if terms.quotas or terms.budgets
        for quota in terms.all_quotas()
    }
    for tenant, key_id, quotas in keys:
        for quota in quotas:
            limits[BudgetKey(tenant, key_id, quota.unit, quota.period)] = quota.amount // hosts
    return limits


def begin_budgets(
    config: Config, data: Path, ledger: Ledger, *, metrics: Metrics, log: Log, clock: Clock
) -> BudgetAuthority:
    """The owner of all budgets, which knows what was spent of them so far. Nothing may be recorded before it is there.

    Raises ConfigError where the database can't be read.
    """
    store = tenants.open_served(data, clock=clock)
    try:
        keys = [key for key in store.keys(None) if key.revoked_s is None]
        limits = limits_of(
            ((tenant.name, tenant.agreement.terms) for tenant in store.tenants()),
            ((key.tenant, key.id, key.terms.all_quotas()) for key in keys),
            hosts=config.limits.hosts_max,
        )
    finally:
        store.close()
    authority = BudgetAuthority(
        _Reader(data),
        ledger,
        workers=config.server.workers,
        metrics=metrics,
        log=log,
        clock=clock,
    )
    authority.begin(limits)
    return authority


class _NoLedger:
    """Nothing was spent, and nothing waits to be written."""

    appended = committed = 0

    def spending(
        self,
        wanted: Sequence[tuple[BudgetKey, Span]],
        recorded: Callable[[BudgetKey], Iterable[RequestId]],
    ) -> Before:
        return Before([(0, []) for _ in wanted], 0)

    def corrections(self, *, after: int) -> list[Corrected]:
        return []


def no_budgets(clock: Clock) -> BudgetAuthority:
    """The owner where there is no ledger to read from, such as for a measurement."""
    nothing, log = _NoLedger(), Log(io.StringIO(), clock)
    return BudgetAuthority(nothing, nothing, workers=1, metrics=Metrics(), log=log, clock=clock)


class _Reader:
    """Reads on a connection for each time: rarely, and in another thread than who serves."""

    def __init__(self, data: Path) -> None:
        self._data = data

    def spending(
        self,
        wanted: Sequence[tuple[BudgetKey, Span]],
        recorded: Callable[[BudgetKey], Iterable[RequestId]],
    ) -> Before:
        if not wanted:
            return Before([], 0)
        with closing(open_local(self._data)) as database:
            return spending.read_spending(database, wanted, recorded)

    def corrections(self, *, after: int) -> list[Corrected]:
        with closing(open_database(self._data)) as database:
            return spending.read_corrections(database, after=after)


def estimator(assumed: Assumptions, prices: Callable[[], PriceBook]) -> Estimator:
    """How much a request may use at most, by the configuration and the prices in force."""
    return Estimator(
        assumed,
        lambda request, prompt, output: estimates.price_most(prices(), request, prompt, output),
    )

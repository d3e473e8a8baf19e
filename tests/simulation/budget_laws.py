"""The laws of quotas, as an observer beside the gateway can check them."""

from collections.abc import Callable, Mapping

from headrace.core.usage import UsageRecord
from headrace.policies import spending
from headrace.policies.budgets import Budgets
from headrace.telemetry.metrics import Metrics
from tests.simulation.history import History


class BudgetLaws:
    """Checks one run; `records` are those of the ledger, by request."""

    def __init__(
        self,
        budgets: Budgets,
        records: Callable[[], Mapping[str, UsageRecord]],
        *,
        metrics: Metrics,
        history: History,
    ) -> None:
        self._budgets = budgets
        self._records = records
        self._metrics = metrics
        self._history = history

    def at_each_step(self) -> None:
        """What is charged and what may still be, of each quota: never more than it is, but for engines that keep to no bound."""
        overshoots = sum(value.value for _, value in self._metrics.budget_overshoots.series())
        for book in self._budgets.agreed():
            budget = book.newest
            self._history.require(
                overshoots > 0 or budget.spent + budget.lent <= budget.limit,
                f"{budget.spent} spent and {budget.lent} reserved of {budget.limit} of {budget.key}",
            )

    def at_the_end(self) -> None:
        """Nothing stays reserved, and spent is what records are billed for."""
        for book in self._budgets.agreed():
            budget = book.newest
            self._history.require(budget.lent == 0, f"{budget.lent} of {budget.key} stay reserved")
            charged = sum(
                spending.used(record).of(budget.key.unit)
                for record in self._records().values()
                if record.tenant == budget.key.tenant
            )
            self._history.require(
                budget.spent == charged, f"{budget.spent} of {budget.key} are spent, and {charged} charged"
            )

"""Which price holds for this tenant, model and moment? The most specific one that had begun when the request arrived."""

from collections.abc import Iterable, Sequence

from headrace.core.prices import EVERY_MODEL, EVERY_TENANT, Price
from headrace.core.tenant import SYSTEM_TENANT

_TIMELINES_MAX = 65_536

Timeline = tuple[tuple[float, Price | None], ...]
"""From when (Unix seconds) which price holds, the latest first; None where nothing is priced."""


class PriceBook:
    """All versions. A price for the tenant goes before one for everybody, and then one for the model before one for all.

    State: `_timelines`, what was asked for before, worked out. A book never changes otherwise: a new version makes a new book.
    """

    def __init__(self, prices: Iterable[Price] = ()) -> None:
        """`prices` in the order in which they were entered: of two for the same moment the later one holds."""
        self._versions: dict[tuple[str, str], list[Price]] = {}
        self._by_name: dict[str, Price] = {}
        for price in prices:
            self._versions.setdefault((price.tenant, price.model), []).append(price)
            self._by_name[price.version] = price
        self._timelines: dict[tuple[str, str], Timeline] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def find(self, tenant: str, model: str, *, wall_s: float) -> Price | None:
        """The price of a request that arrived at that Unix time; None where none is set, and for our own requests."""
        timeline = self._timelines.get((tenant, model))
        if timeline is None:
            timeline = self._work_out(tenant, model)
        for from_s, price in timeline:
            if wall_s >= from_s:
                return price
        return None

    def version(self, name: str) -> Price | None:
        """The version of that name, as records hold it."""
        return self._by_name.get(name)

    def _work_out(self, tenant: str, model: str) -> Timeline:
        levels = [
            self._versions.get(selector, ())
            for selector in (
                (tenant, model),
                (tenant, EVERY_MODEL),
                (EVERY_TENANT, model),
                (EVERY_TENANT, EVERY_MODEL),
            )
        ]
        if tenant == SYSTEM_TENANT:
            levels = []
        moments = sorted({price.valid_from_s for level in levels for price in level}, reverse=True)
        timeline = tuple((moment_s, _best(levels, moment_s)) for moment_s in moments)
        if len(self._timelines) >= _TIMELINES_MAX:
            self._timelines.clear()
        self._timelines[(tenant, model)] = timeline
        return timeline


def _best(levels: Sequence[Sequence[Price]], wall_s: float) -> Price | None:
    for level in levels:
        begun = [price for price in level if price.valid_from_s <= wall_s]
        if begun:
            latest_s = max(price.valid_from_s for price in begun)
            price = [price for price in begun if price.valid_from_s == latest_s][-1]
            if price.rates is not None:
                return price
    return None

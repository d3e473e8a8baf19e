"""What does a tenant use of what it may? Its limits in force, level by level, and what is left of them."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headrace.config import TenantDefaults
from headrace.control.admin_reading import existing
from headrace.control.admin_routes import AdminRoute, Asked, Reply, Turn, reply
from headrace.core.clock import Clock
from headrace.core.ids import KeyId
from headrace.core.roles import Role
from headrace.core.tenant import Principal, TenantLimits
from headrace.policies.levels import Level, levels_of
from headrace.policies.limits import LevelUse
from headrace.policies.shadow import ShadowView
from headrace.stores.keys import KeyRecord
from headrace.stores.tenant_rows import TenantRecord
from headrace.stores.tenants import TenantStore


class LimitsInForce:
    """Of one tenant, with those of its keys that are active.

    Attributes:
        levels: The tenant's own first, then its keys', then single models'.
        shadow: The same of the limits on trial.
    """

    def __init__(
        self,
        record: TenantRecord,
        keys: Sequence[KeyRecord],
        *,
        defaults: TenantLimits,
        shadow: TenantLimits,
        wall_s: float,
    ) -> None:
        agreement = record.agreement
        limits, terms = agreement.limits_over(defaults), agreement.terms_over(shadow)
        callers = [Principal(record.name, KeyId(""), limits, terms=terms)]
        callers += [
            Principal(record.name, key.id, limits, terms=terms, key_limits=key.terms.limits(defaults))
            for key in keys
            if key.state(wall_s) == "active"
        ]
        self.name = record.name
        self.levels = _of_all(callers)
        self.shadow = _of_all([caller.shadow for caller in callers if caller.shadow is not None])

    def shown(self, uses: Sequence[LevelUse], shadow: ShadowView) -> dict[str, Any]:
        """As JSON; `uses` are those of `levels`, in their order."""
        return {
            "tenant": self.name,
            "levels": [
                {**_facts(level), **msgspec.to_builtins(use)}
                for level, use in zip(self.levels, uses, strict=True)
            ],
            "shadow": {
                "levels": [_facts(level) for level in self.shadow],
                "requests_last_hour": shadow.requests,
                "refused_last_hour": shadow.refused,
            },
        }


def _of_all(callers: Sequence[Principal]) -> list[Level]:
    """Every level once; who has no key is no level."""
    found: dict[str, Level] = {}
    for caller in callers:
        for model in ("", *caller.terms.model_limits):
            found.update((level.subject, level) for level in levels_of(caller, model))
    order = list(dict.fromkeys(level.kind for level in found.values()))
    return sorted(found.values(), key=lambda level: order.index(level.kind))


def _facts(level: Level) -> dict[str, Any]:
    limits = level.limits
    return {
        "level": level.kind.value,
        "name": level.name,
        "limits": {name: getattr(limits, name) for name in limits.__struct_fields__},
    }


AskUse = Callable[[LimitsInForce], dict[str, Any]]


def route(
    store: TenantStore, in_force: Callable[[], TenantDefaults], *, ask: AskUse, clock: Clock
) -> AdminRoute:
    """Where an operator asks. `ask` waits for the service's loop."""

    def answer(asked: Asked) -> Reply:
        record, defaults = existing(store.tenant, asked.named["tenant"]), in_force()
        limits = LimitsInForce(
            record,
            store.keys(record.name),
            defaults=defaults.limits,
            shadow=defaults.shadow,
            wall_s=clock.wall_s(),
        )
        return reply(ask(limits))

    return AdminRoute("GET", "/admin/v1/tenants/{tenant}/use", Role.VIEWER, answer, turn=Turn.GATEWAY)

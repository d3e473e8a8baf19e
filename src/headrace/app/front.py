"""What serves the public port, as the rest of the service sees it."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from headrace.app.report import PlaneReport
from headrace.config import Config
from headrace.core.fleet import FleetSnapshot
from headrace.core.ids import ReplicaId, TenantId
from headrace.core.load import PlaneLoad
from headrace.core.signing import KeySet
from headrace.policies.levels import Level
from headrace.policies.limits import LevelUse
from headrace.policies.shadow import ShadowView
from headrace.telemetry.merging import MetricsState


class Front(Protocol):
    """What serves the public port: a data plane in this process, or workers with one each."""

    @property
    def key_count(self) -> int:
        """API keys that every one of them knows."""
        ...

    @property
    def ticked_s(self) -> float:
        """When its loop last turned, by the clock."""
        ...

    async def run(self, *, opened: Callable[[int], None]) -> None:
        """Serves until cancelled; `opened` gets the port. Raises ConfigError where the port can't be had."""
        ...

    def publish(self, snapshot: FleetSnapshot) -> None: ...

    def reload(self, config: Config, version: int, snapshot: FleetSnapshot) -> None:
        """That version of the configuration, with what is offered by it, is to be in force; `reports` say where it is."""
        ...

    def take_keys(self, key_set: KeySet) -> None:
        """An identity provider's keys were looked at."""
        ...

    def found(self, replica: ReplicaId) -> None:
        """A probe has found a replica after it had not answered one."""
        ...

    async def drain(self) -> int:
        """No new work; waits for what is in progress, cuts what lasts too long, and returns how many were cut."""
        ...

    def end_drain(self) -> None: ...

    def close(self) -> None: ...

    async def reports(self) -> list[PlaneReport]:
        """One for each data plane that serves."""
        ...

    def load(self) -> PlaneLoad:
        """What all data planes together have to do, by target and by replica, and how it fared so far."""
        ...

    async def counted(self) -> Sequence[MetricsState]:
        """What other processes have counted."""
        ...

    def rows(self) -> list[dict[str, Any]]:
        """The workers as status shows them."""
        ...

    async def limit_uses(self, levels: Sequence[Level]) -> list[LevelUse]:
        """How much of each is in use now."""
        ...

    def shadow_view(self, tenant: TenantId) -> ShadowView:
        """What a tenant's shadow limits would have refused."""
        ...

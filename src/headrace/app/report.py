"""What does a data plane say of itself? Plain values, so that it may run in another process than who asks."""

import msgspec

from headrace.core.ids import ReplicaId, TargetKey
from headrace.policies.deployment import QueueView
from headrace.policies.health import Circuit
from headrace.policies.pressure import Level


class LoadReport(msgspec.Struct, frozen=True, gc=False):
    """One replica as this data plane uses it.

    Attributes:
        model: The name that callers use.
        slots: Requests that it may run there now, of the `slots_max` that it was given, for all models of the replica;
            outstanding: that it runs for this one.
        rest_s: For how long it wants to be left alone.
        silent_s: For how long it has said nothing although it has work; 0 while that is too short to matter.
    """

    model: str
    target: TargetKey
    replica: ReplicaId
    slots: int
    slots_max: int
    outstanding: int
    circuit: Circuit
    rest_s: float
    silent_s: float


class PlaneReport(msgspec.Struct, frozen=True):
    """One data plane at one moment.

    Attributes:
        in_progress: Requests that have an account, `waiting` of them in a queue.
        queues: By target.
        keys_revision: Which state of tenants and keys it goes by; see stores.tenants.
        config_version: Which version of the configuration new requests go by.
        busy_subjects: Requests in progress by the subject of a limit, where several data planes share them.
        pressure, pressure_reason: What it has given up, and what it is short of; see policies.pressure.
    """

    is_ready: bool
    connections: int
    in_progress: int
    waiting: int
    queues: dict[str, QueueView]
    loads: list[LoadReport]
    key_count: int
    keys_revision: int
    pressure: Level
    pressure_reason: str
    busy_subjects: dict[str, int] = {}
    config_version: int = 0

"""How do the service and its controller talk? Snapshots, statuses, lines and counts up; what is configured and known down."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from headrace.app import pair
from headrace.app.pair import Line
from headrace.config import Config
from headrace.control.status import ReplicaStatus
from headrace.control.upstreams import Remembered
from headrace.core.fleet import FleetSnapshot
from headrace.core.ids import ReplicaId
from headrace.core.load import PlaneLoad
from headrace.stores.registry import StoredModel
from headrace.telemetry.merging import MetricsState


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=60):
    """Up: the first word of a controller."""

    version: str
    pid: int


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=61):
    """Up: the controller can't work as it is told to, and the operator must act."""

    message: str


class Published(msgspec.Struct, frozen=True, array_like=True, tag=62):
    """Up: what is offered from now on."""

    snapshot: FleetSnapshot


class Found(msgspec.Struct, frozen=True, array_like=True, tag=63):
    """Up: a probe has found a replica after it had not answered one."""

    replica: ReplicaId


class Tell(msgspec.Struct, frozen=True, array_like=True, tag=64):
    """Up: a line for the person who started the service."""

    text: str


class Report(msgspec.Struct, frozen=True, array_like=True, tag=65):
    """Up: the controller as it is now, after each change and every second. `upstreams` is what it knows of servers that others
    run, which the next controller goes on from; `problem` is what it can't do at the moment."""

    replicas: list[ReplicaStatus]
    upstreams: dict[ReplicaId, Remembered]
    metrics: MetricsState
    deployments: list[dict[str, Any]]
    epoch: int
    problem: str


class Reconfigured(msgspec.Struct, frozen=True, array_like=True, tag=66):
    """Up: upstreams are as that version of the configuration has them. `silent` are those that have not answered yet, `problem` says
    why all stays as it was."""

    version: int
    snapshot: FleetSnapshot
    silent: list[str]
    problem: str


class Start(msgspec.Struct, frozen=True, array_like=True, tag=70):
    """Down: what to keep true; and what an earlier controller has published, which is in force, and has reported."""

    config: Config
    data: Path
    models: list[StoredModel]
    lifeline_fd: int
    is_first: bool
    snapshot: FleetSnapshot
    replicas: list[ReplicaStatus]
    upstreams: dict[ReplicaId, Remembered]
    metrics: MetricsState


class Load(msgspec.Struct, frozen=True, array_like=True, tag=72):
    """Down: what all data planes together have to do, and how it fared so far."""

    load: PlaneLoad


class Stop(msgspec.Struct, frozen=True, array_like=True, tag=71):
    """Down: the service ends: end every engine, then yourself."""


class Reconfigure(msgspec.Struct, frozen=True, array_like=True, tag=73):
    """Down: another version of the configuration."""

    version: int
    config: Config


Up = Hello | Refused | Published | Found | Tell | Report | Reconfigured | Line
Down = Start | Load | Reconfigure | Stop

ControllerLink = pair.Link[Up | Down]

_UP: msgspec.msgpack.Decoder[Up] = msgspec.msgpack.Decoder(Up, dec_hook=pair.path_of)
_DOWN: msgspec.msgpack.Decoder[Down] = msgspec.msgpack.Decoder(Down, dec_hook=pair.path_of)


async def service_end(
    end: socket.socket, *, received: Callable[[Up], None], lost: Callable[[], None]
) -> ControllerLink:
    """The service's end of a pair."""
    return await pair.linked(end, ControllerLink(_UP, received, lost))


async def controller_end(
    end: socket.socket, *, received: Callable[[Down], None], lost: Callable[[], None]
) -> ControllerLink:
    """The controller's end of a pair."""
    return await pair.linked(end, ControllerLink(_DOWN, received, lost))

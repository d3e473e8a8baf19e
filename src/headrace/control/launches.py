"""Which number has this launch, and which engine of an earlier controller is gone on with?"""

import secrets
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from headrace.control.launchers import EngineHandle
from headrace.control.status import ReplicaStatus
from headrace.core.fleet import Deployment
from headrace.core.ids import ReplicaId


class Launches(Protocol):
    """Numbers launches, and remembers them longer than this process lives."""

    async def next(self, replica: ReplicaId) -> tuple[int, str]:
        """Generation and token of the launch that begins now; no other one has them. Raises OSError where they can't be kept."""
        ...


class CountedLaunches:
    """For who doesn't outlive his engines."""

    def __init__(self) -> None:
        self._generations: Counter[ReplicaId] = Counter()

    async def next(self, replica: ReplicaId) -> tuple[int, str]:
        generation = self._generations[replica]
        self._generations[replica] += 1
        return generation, secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class Adopted:
    """An engine that an earlier controller has launched.

    Attributes:
        offered: As it is offered at this moment, with this replica alone; None where it isn't.
        status: As it was last told; None where it wasn't.
    """

    engine: EngineHandle
    offered: Deployment | None
    status: ReplicaStatus | None

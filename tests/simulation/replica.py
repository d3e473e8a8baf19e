"""A simulated replica: an HTTP server in the same loop that follows the plans of tests/simulation/plans.py.

It knows the truth that the gateway is judged by: which requests it got, what text each execution sent, and when the
gateway let go of it.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, cast

from headrace.core.fleet import EngineTraits, Replica
from headrace.core.ids import ReplicaId
from headrace.core.isolation import CacheIsolation
from tests.simulation import plans
from tests.simulation.history import History, Violation
from tests.simulation.network import Endpoint, Listener, Network
from tests.simulation.plans import End, Fault, Plan, Question, Step

HOST = "replica"


@dataclass(eq=False)
class Execution:
    """One request that a replica began to work on.

    Attributes:
        question: What the caller asked, by which the caller is known.
        text: What was sent so far.
        whole: The text of the complete answer.
        is_over: The replica has nothing more to say.
    """

    name: str
    request_id: str
    question: dict[str, Any]
    replica: str
    fault: Fault
    started_s: float
    transport: Endpoint
    text: str = ""
    whole: str = ""
    tokens: int = 0
    is_over: bool = False
    slot: int | None = None

    @property
    def is_running(self) -> bool:
        """Whether it still works, and for a gateway that still holds the connection."""
        return not self.is_over and not self.transport.is_peer_closing


class Fleet:
    """Everything that all replicas share: faults and pace of this run, and the book of executions."""

    def __init__(
        self,
        *,
        network: Network,
        history: History,
        faults: Sequence[Fault],
        fault_share: float,
        pace_s: float,
    ) -> None:
        self.network = network
        self.history = history
        self.faults = faults
        self.fault_share = fault_share
        self.pace_s = pace_s
        self.executions: list[Execution] = []
        self.salts: dict[str, str] = {}  # by tenant
        self._active: list[Execution] = []

    def begin(self, execution: Execution) -> None:
        self.executions.append(execution)
        self._active.append(execution)

    def running(self) -> list[Execution]:
        """What the replicas are at work on, for a gateway that still waits for it."""
        if any(each.is_over for each in self._active):
            self._active = [each for each in self._active if not each.is_over]
        return [each for each in self._active if each.is_running]


class SimulatedReplica:
    """One server. `start` and `stop` are what happens to its process; both may happen again and again."""

    def __init__(
        self, fleet: Fleet, name: str, port: int, chance: Random, *, slots: int, traits: EngineTraits
    ) -> None:
        self.fleet = fleet
        self.name = name
        self.port = port
        self.chance = chance
        self.slots = slots
        self.traits = traits
        self.generation = 0
        self.idle_close_s = chance.choice((0.3, 2.0, 5.0, 60.0))
        self.answers_faults = True
        self._listener: Listener | None = None
        self._connections: dict[_Connection, None] = {}
        self._slot_owner: dict[int, str] = {}

    @property
    def is_up(self) -> bool:
        return self._listener is not None

    def value(self) -> Replica:
        return Replica(
            ReplicaId(self.name), HOST, self.port, self.slots, traits=self.traits, generation=self.generation
        )

    def start(self) -> None:
        if self._listener is None:
            self._listener = self.fleet.network.listen(lambda: _Connection(self), HOST, self.port)
            self.fleet.history.add("replica.up", self.name, self.generation)

    def stop(self) -> None:
        """The process ends: its port closes and the kernel resets what is open."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            self._slot_owner.clear()
            for connection in list(self._connections):
                connection.transport.reset()
            self.fleet.history.add("replica.down", self.name)

    def set_deaf(self, is_deaf: bool, /) -> None:
        if self._listener is not None:
            self._listener.is_deaf = is_deaf

    def opened(self, connection: "_Connection") -> None:
        self._connections[connection] = None

    def closed(self, connection: "_Connection") -> None:
        self._connections.pop(connection, None)

    def execute(
        self, connection: "_Connection", request_id: str, body: dict[str, Any], path: str
    ) -> tuple[Execution, Plan]:
        fleet, chance = self.fleet, self.chance
        prompt = body["input"] if "input" in body else body["messages"][0]["content"]
        question = json.loads(prompt)
        has_fault = self.answers_faults and fleet.faults and chance.random() < fleet.fault_share
        fault = chance.choice(fleet.faults) if has_fault else Fault.NONE
        execution = Execution(
            name=f"e{len(fleet.executions)}",
            request_id=request_id,
            question=question,
            replica=self.name,
            fault=fault,
            started_s=fleet.network.loop.time(),
            transport=connection.transport,
        )
        self._check_slot(body, execution)
        self._check_salt(body, question["tenant"])
        fleet.begin(execution)
        options = body.get("stream_options") or {}
        asked = Question(
            is_streamed=body.get("stream") is True,
            wants_usage=bool(options.get("include_usage")),
            prompt=prompt,
            is_embedding=path.endswith("embeddings"),
        )
        fleet.history.add(
            "execute", execution.name, self.name, request_id, fault.name, execution.slot, question["tenant"]
        )
        plan = plans.make(asked, execution.name, chance, fault=fault, pace_s=fleet.pace_s)
        execution.whole = plan.text
        return execution, plan

    def _check_slot(self, body: dict[str, Any], execution: Execution) -> None:
        """Law: two executions never share a slot, and a slot's cache is reused for the same tenant only.

        What the gateway has let go of while it was on its way no longer holds its slot.
        """
        slot = body.get("id_slot")
        if slot is None or execution.transport.is_peer_closing:
            return
        execution.slot = slot
        if any(each.slot == slot and each.replica == self.name for each in self.fleet.running()):
            raise Violation(f"slot {slot} of {self.name} is used twice")
        tenant = execution.question["tenant"]
        if body["cache_prompt"] and self._slot_owner.get(slot) not in (None, tenant):
            raise Violation(f"slot {slot} of {self.name}: {tenant} may look into another tenant's cache")
        self._slot_owner[slot] = tenant

    def _check_salt(self, body: dict[str, Any], tenant: str) -> None:
        """Law: an engine that takes a salt gets one with each request, of a tenant always the same, and of no two the same."""
        if self.traits.isolation is not CacheIsolation.SALT:
            return
        salt, salts = body["cache_salt"], self.fleet.salts
        if salts.setdefault(tenant, salt) != salt or list(salts.values()).count(salt) > 1:
            raise Violation(f"{tenant} may look into another tenant's cache, or not into its own")


class _Connection(asyncio.Protocol):
    """One connection of the gateway to a replica; one request at a time."""

    transport: Endpoint

    def __init__(self, replica: SimulatedReplica) -> None:
        self._replica = replica
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._execution: Execution | None = None
        self._steps: list[Step] = []
        self._end = End.KEEP
        self._timer: asyncio.TimerHandle | None = None
        self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(Endpoint, transport)
        self.transport.set_write_buffer_limits(high=16 * 1024)
        self._replica.opened(self)
        self._await_request()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._execution is not None and (not self._execution.is_over or self._end is End.HANG):
            raise Violation("the gateway sends a request on a connection whose answer isn't over")
        self._read_request()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._replica.closed(self)
        if self._timer is not None:
            self._timer.cancel()
        execution = self._execution
        if execution is not None and not execution.is_over:
            execution.is_over = True
            self._replica.fleet.history.add("abort", execution.name)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._execution is not None and self._timer is None:
            self._next()

    def _await_request(self) -> None:
        self._timer = self._loop.call_later(self._replica.idle_close_s, self.transport.close)

    def _read_request(self) -> None:
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        line, *headers = head.decode("ascii").split("\r\n")
        values = dict(header.lower().split(": ", 1) for header in headers)
        length = int(values["content-length"])
        if len(rest) < length:
            return
        self._received = rest[length:]
        if self._received:
            raise Violation("the gateway sends more than one request at once")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        path = line.split(" ")[1]
        execution, plan = self._replica.execute(self, values["x-request-id"], json.loads(rest), path)
        self._execution, self._steps, self._end = execution, list(plan.steps), plan.end
        self._next()

    def _next(self) -> None:
        if self._is_paused or self.transport.is_closing():
            return
        if self._steps:
            self._timer = self._loop.call_later(self._steps[0].wait_s, self._step)
        else:
            self._finish()

    def _step(self) -> None:
        self._timer = None
        execution, step = self._execution, self._steps.pop(0)
        assert execution is not None
        execution.text += step.token
        execution.tokens += bool(step.token)
        if step.is_last:
            execution.is_over = True
            self._replica.fleet.history.add("answered", execution.name)
        if step.more:
            self.transport.glue(len(step.data))
        self.transport.write(step.data + step.more)
        self._next()

    def _finish(self) -> None:
        match self._end:
            case End.KEEP:
                self._await_request()
            case End.CLOSE:
                self.transport.close()
            case End.RESET:
                self.transport.reset()
            case End.HANG:
                pass  # until the gateway has had enough

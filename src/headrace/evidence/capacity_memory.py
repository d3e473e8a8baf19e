"""How many requests does a replica of a plan run at once? What is stated, what fits its memory, and what the promise leaves."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.core.capacity_plan import CapacityPlan, LoadTerms, MemoryTerms, ReplicaTerms
from headrace.core.errors import ConfigError
from headrace.evidence.simulate_load import has_pace
from headrace.policies import memory_room
from headrace.policies.memory_plan import MIB, Architecture
from headrace.policies.memory_room import Device, Room
from headrace.policies.planning import mib
from headrace.stores import architectures, formats
from headrace.stores.registry import ModelStore

FIRST = "as planned"
_STATED, _BY_MEMORY, _BY_TPOT = "stated", "memory", "time per token"


class Weights(NamedTuple):
    """A model, as far as memory goes."""

    architecture: Architecture
    weights_bytes: float
    parameters: float


class Fitting(NamedTuple):
    """One way to carry the load, and what its memory holds.

    Attributes:
        name: FIRST, or that of a choice.
        at_once: Requests that it runs; 0 where the model doesn't fit.
        bound: By what: the least of all.
    """

    name: str
    memory: MemoryTerms
    room: Room
    at_once: int
    bound: str

    @property
    def lacks(self) -> str:
        """What it would take; "" where it fits."""
        if self.room.requests:
            return ""
        least = self.room.devices_min
        helps = f"it takes {least} devices at least" if least else "no number of such devices helps"
        return (
            f"{mib(self.room.fixed_bytes)} before the first request, {mib(self.room.request_bytes)} for one, and"
            f" {mib(self.room.usable_bytes)} may be used: {helps}"
        )


def resolve(
    plan: CapacityPlan, models: ModelStore, *, tpot_s: float | None, is_measured: bool = False
) -> tuple[CapacityPlan, tuple[Fitting, ...]]:
    """The plan with every `at_once` that is known, and how each that has a memory came to its own. Choices that don't fit keep 0.

    Args:
        tpot_s: What is promised for each further token.
        is_measured: A record takes the place of the first replica, whose memory is asked for its model alone.

    Raises:
        ConfigError: A model isn't here, or the first one doesn't fit.
    """
    terms = plan.replica.memory
    first = None if terms is None else _weights("replica.memory", terms, models, first=None)
    found: list[Fitting] = []
    replica = plan.replica
    if terms is not None and first is not None and not is_measured:
        found.append(_fitting(FIRST, replica, terms, first, plan.load, tpot_s=tpot_s))
        if found[0].lacks:
            raise ConfigError(f"`replica.memory`: the model does not fit: {found[0].lacks}")
        replica = msgspec.structs.replace(replica, at_once=found[0].at_once)
    choices = []
    for number, choice in enumerate(plan.choices):
        if (memory := choice.replica.memory) is not None:
            weights = _weights(f"choices[{number}].replica.memory", memory, models, first=first)
            found.append(_fitting(choice.name, choice.replica, memory, weights, plan.load, tpot_s=tpot_s))
            fitted = msgspec.structs.replace(choice.replica, at_once=found[-1].at_once)
            choice = msgspec.structs.replace(choice, replica=fitted)
        choices.append(choice)
    return msgspec.structs.replace(plan, replica=replica, choices=tuple(choices)), tuple(found)


def _fitting(
    name: str,
    replica: ReplicaTerms,
    memory: MemoryTerms,
    weights: Weights,
    load: LoadTerms,
    *,
    tpot_s: float | None,
) -> Fitting:
    device = Device(
        memory.device_mib * MIB, memory.devices, memory.used_share,
        None if memory.reserved_mib is None else memory.reserved_mib * MIB,
    )  # fmt: skip
    held = (
        memory_room.reserved(memory.context_tokens)
        if memory.context_tokens
        else memory_room.paged(
            input_tokens=load.input_tokens, output_tokens=load.output_tokens, spread=load.spread
        )
    )
    room = memory_room.room(
        weights.architecture, weights_bytes=round(weights.weights_bytes), device=device, held=held,
        batch_tokens=memory.batch_tokens, kv_cache_type=memory.kv_cache_type,
    )  # fmt: skip
    bounds = dict(_bounds(replica, room, tpot_s=tpot_s))
    bound = min(bounds, key=lambda each: bounds[each])
    return Fitting(name, memory, room, bounds[bound], bound)


def _bounds(replica: ReplicaTerms, room: Room, *, tpot_s: float | None) -> Iterator[tuple[str, int]]:
    """How many by each of what is known."""
    yield _BY_MEMORY, room.requests
    if replica.at_once:
        yield _STATED, replica.at_once
    if room.requests and tpot_s is not None and has_pace(replica) and replica.step_per_active_s:
        # One request alone may already take too long: that is for the simulation to say.
        yield _BY_TPOT, max(1, math.floor((tpot_s - replica.step_s) / replica.step_per_active_s + 1e-9))


def _weights(where: str, memory: MemoryTerms, models: ModelStore, *, first: Weights | None) -> Weights:
    if memory.architecture is not None:
        facts = msgspec.structs.asdict(memory.architecture)
        found = Weights(Architecture(**facts), 0.0, memory.parameters)
    elif memory.model:
        found = _of_model(where, memory.model, models)
    else:
        assert first is not None, "a plan without it is refused as it is read"
        found = first
    parameters = memory.parameters or found.parameters
    weights_bytes = parameters * memory.weights_bits / 8 or found.weights_bytes
    if not weights_bytes:
        raise ConfigError(
            f"`{where}`: nothing says how large the weights are: give `parameters` and `weights_bits`"
        )
    return Weights(found.architecture, weights_bytes, parameters)


def _of_model(where: str, named: str, models: ModelStore) -> Weights:
    """Of weights that are here; of a folder with nothing but a config.json, its architecture."""
    stored = models.get(named)
    path = Path(named) if stored is None else stored.path
    if not path.exists():
        raise ConfigError(
            f"`{where}.model`: {named!r} is neither a model that is here (`headrace models list`) nor a path: pull it, or give"
            f" `[{where}.architecture]`"
        )
    architecture = architectures.read(path)
    if architecture is None:
        raise ConfigError(
            f"`{where}.model`: {path} doesn't say what a memory plan needs; give `[{where}.architecture]`"
        )
    files = (
        {each.relative_to(path).as_posix(): each for each in path.rglob("*") if each.is_file()}
        if path.is_dir()
        else {path.name: path}
    )
    facts = formats.read(files)
    of_weights = (file for name, file in files.items() if file == path or name.endswith(".safetensors"))
    return Weights(architecture, sum(file.stat().st_size for file in of_weights), facts.parameters)

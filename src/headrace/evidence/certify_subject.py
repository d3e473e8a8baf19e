"""What is certified? A deployment file, in a service of its own that may be broken; or the URL of one that may only be asked."""

import asyncio
import json
import tomllib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from headrace.config.deployments import DeploymentFile
from headrace.core.clock import Clock
from headrace.core.errors import UpstreamError
from headrace.engines import fetch, gauges
from headrace.engines.kinds import KINDS
from headrace.evidence import drill_watch
from headrace.evidence.certify_caller import Address, Caller
from headrace.evidence.drill_instance import CONFIG, HEADRACE, DrillError, Instance, instance
from headrace.evidence.drill_watch import Watch
from headrace.policies.certification import Asked

START_LIMIT_S = 300.0
OWNER, OTHER, LIMITED, JUDGED = "certify-a", "certify-b", "certify-limited", "certify-cases"
LIMITED_REQUESTS = 3
_LOOK_S = 0.02
_METRICS_BYTES_MAX = 1024 * 1024
# Engines' counters are compared with the ledger within minutes instead of after them.
_BOOKS = "\n[ledger]\ncounters_every_s = 1.0\n"


@dataclass(frozen=True, slots=True)
class EngineSeen:
    """One engine's own account. `output_tokens` is None where it doesn't count."""

    replica: str
    pid: int
    in_work: float
    output_tokens: float | None


@dataclass
class Subject:
    """What is asked, and what may be done with it.

    Attributes:
        owner, other: Two tenants without limits; at a URL there is one key, and nobody else.
        limited: A tenant that may send LIMITED_REQUESTS at once.
        running: None at a URL.
        judge: A tenant whose requests are the cases of a set, of which there are `judged`; so many were `answered`.
        ca_file: As a target has it.
        spoilt: The reason why later steps can't be made, after one that left something broken.
        is_cut: A step was ended amid its requests: what became of them nobody knows.
    """

    model: str
    clock: Clock
    owner: Caller
    other: Caller | None = None
    limited: Caller | None = None
    judge: Caller | None = None
    file: DeploymentFile | None = None
    running: Instance | None = None
    watch: Watch | None = None
    history: list[Asked] = field(default_factory=list)
    judged: int = 0
    answered: int = 0
    ca_file: str = ""
    spoilt: str = ""
    is_cut: bool = False

    @property
    def here(self) -> "Owned":
        """The parts that only a service of its own has."""
        assert self.running is not None
        assert self.file is not None
        assert self.watch is not None
        assert self.other is not None
        assert self.limited is not None
        return Owned(self.running, self.file, self.watch, self.other, self.limited)


@dataclass(frozen=True, slots=True)
class Owned:
    """A service of its own: its processes, its file, what an operator sees of it, and the other tenants."""

    running: Instance
    file: DeploymentFile
    watch: Watch
    other: Caller
    limited: Caller

    async def engines(self) -> list[EngineSeen]:
        """Of each that is ready, as it says itself. Raises DrillError where one doesn't say."""
        await self.watch.once()
        return [await self._engine(each.id) for each in self.watch.look.ready()]

    async def idle_after_s(self, clock: Clock, *, since_s: float, limit_s: float) -> float | None:
        """Seconds from that moment until no engine works on anything; None where that takes longer than the limit."""
        replicas = [each.id for each in self.watch.look.ready()]
        while True:
            seen = [await self._engine(replica) for replica in replicas]
            now_s = clock.now_s()
            if not any(each.in_work for each in seen):
                return now_s - since_s
            if now_s - since_s > limit_s:
                return None
            await asyncio.sleep(_LOOK_S)

    async def until_ready(self, clock: Clock, *, limit_s: float, but: Sequence[int] = ()) -> None:
        """As many as the file wants at least, none of them with a pid of `but`. Raises DrillError."""
        wanted = max(1, self.file.spec.scale.min)
        await drill_watch.until_ready(self.watch, wanted, clock=clock, limit_s=limit_s, but=but)

    async def _engine(self, replica: str) -> EngineSeen:
        folder = self.running.data / "run" / "replicas" / replica
        try:
            want = msgspec.json.decode((folder / "want.json").read_bytes())
            state = msgspec.json.decode((folder / "state.json").read_bytes())
            answer = await fetch.fetch(
                "127.0.0.1",
                state["port"],
                "GET",
                "/metrics",
                headers=[("Authorization", want["authorization"])],
                timeout_s=10.0,
                body_bytes_max=_METRICS_BYTES_MAX,
            )
        except (OSError, UpstreamError, msgspec.DecodeError, KeyError) as error:
            raise DrillError(f"engine {replica} says nothing of itself: {error}") from error
        said = gauges.read(
            answer.body.decode(errors="replace"), KINDS[self.file.spec.deployment.engine].dialect
        )
        if answer.status != 200 or "requests_processing" not in said:
            raise DrillError(f"engine {replica} doesn't say what it works on")
        in_work = said["requests_processing"] + said.get("requests_deferred", 0.0)
        return EngineSeen(replica, state["engine"]["pid"], in_work, said.get("tokens_predicted_total"))


@asynccontextmanager
async def deployed(
    file: DeploymentFile,
    *,
    clock: Clock,
    models: Path | None,
    program: Sequence[str] = HEADRACE,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Subject]:
    """The deployment in a service of its own, with all replicas that its file wants ready.

    Args:
        models: A model store that its engines are started from.
        program: What runs as `headrace`, for tests of a service with a defect.
        environment: Added to what its processes inherit.
    """
    extra = dict(environment or {})
    async with instance(
        clock,
        config_text=CONFIG + _BOOKS,
        models=models,
        environment=lambda _: extra,
        program=program,
    ) as running:
        for name, template in file.templates.items():
            (running.folder / name).write_text(template)
        address = Address("127.0.0.1", running.port)
        history: list[Asked] = []
        model = file.spec.name
        callers = {}
        for tenant, flags in (
            (OWNER, ()),
            (OTHER, ()),
            (JUDGED, ()),
            (LIMITED, ("--requests-per-minute", "1", "--requests-burst", str(LIMITED_REQUESTS))),
        ):
            await running.command("tenants", "create", tenant, *flags)
            key = (await running.command("keys", "create", "--tenant", tenant)).strip()
            callers[tenant] = Caller(
                address, model=model, key=key, tenant=tenant, clock=clock, history=history
            )
        await running.command(
            *("prices", "set", "--model", model, "--currency", "EUR"),
            *("--input", "0.10", "--output", "0.40"),
        )
        await running.apply(file.text)
        watch = Watch(running, model, clock)
        subject = Subject(
            model,
            clock,
            callers[OWNER],
            callers[OTHER],
            callers[LIMITED],
            callers[JUDGED],
            file=file,
            running=running,
            watch=watch,
            history=history,
        )
        await subject.here.until_ready(clock, limit_s=START_LIMIT_S)
        yield subject


def as_toml(sections: Mapping[str, Any]) -> str:
    """A file of nested tables; top-level values first, tables inline below their section."""
    lines = [f"{key} = {_value(value)}" for key, value in sections.items() if not isinstance(value, dict)]
    for key, value in sections.items():
        if isinstance(value, dict):
            lines += [f"[{key}]", *(f"{name} = {_value(each)}" for name, each in value.items())]
    return "\n".join(lines) + "\n"


def read_toml(text: str) -> dict[str, Any]:
    """Of a file that was read before."""
    return tomllib.loads(text)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    return key if key.replace("-", "_").isidentifier() else json.dumps(key, ensure_ascii=False)

"""What would these deployment files do here, and then do it: plan, apply, roll back, remove.

The same code answers the command line, on the data directory of a service that doesn't run, and the admin port of one that
does. It starts and stops nothing: it says what is wanted, and the controller makes that true.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.app import gates
from headrace.app.resolving import Resolved, exact_args, path_of, resolve, template_text
from headrace.config import Config
from headrace.config.deployments import DeploymentFile
from headrace.core.clock import Clock
from headrace.core.deployments import (
    AppliedVersion,
    DeploymentSpec,
    EngineArgs,
    EngineKind,
    Revision,
)
from headrace.core.fleet import Task
from headrace.engines import embedded
from headrace.policies import cold_start, memory_plan, planning
from headrace.policies.memory_plan import MIB, Architecture, Fit, MemoryPlan, Tenant
from headrace.policies.planning import Machine, Plan
from headrace.stores import architectures, fleet, opening, service_times, templates
from headrace.stores.capacity import CapacityStore
from headrace.stores.deployments import REMOVED, DeploymentStore, Meant
from headrace.stores.downloads import Progress
from headrace.stores.objects import write_whole
from headrace.stores.registry import open_store
from headrace.telemetry import hardware

SERVICE_BYTES = 256 * MIB
"""What gateway and controller take for themselves: measured 90 MiB and 60 MiB at rest, and room for requests."""
LOCKS = "deployments"
DEFAULT_SLOTS = 64  # of servers that others run
DEFAULT_BATCH_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of one file."""

    plan: Plan
    version: AppliedVersion
    is_new: bool


class Planner:
    """Plans against one data directory and one configuration.

    Args:
        data: The data directory.
        config: Of the service that runs, or will run, there.
        machine: What there is to put replicas on; None looks.
    """

    def __init__(
        self,
        data: Path,
        config: Config,
        store: DeploymentStore,
        *,
        clock: Clock,
        progress: Progress,
        machine: Machine | None = None,
    ) -> None:
        self._data = data
        self._config = config
        self._store = store
        self._clock = clock
        self._progress = progress
        self._models = open_store(data, config.models, clock=clock)
        self._machine = machine

    def plan(self, files: Sequence[DeploymentFile]) -> list[Plan]:
        """What applying all of them would do, in their order. Nothing is changed, but what must be read may be fetched."""
        wanted = self._store.wanted()
        exact = {file.spec.name: self._resolve(file) for file in files}
        planned = {
            file.spec.name: (file.spec, found.revision)
            for file in files
            if (found := exact[file.spec.name]).revision is not None
        }
        others = {
            name: (version.spec, version.revision) for name, version in wanted.items() if name not in planned
        }
        return [self._plan(file, exact[file.spec.name], wanted, {**others, **planned}) for file in files]

    def apply(self, files: Sequence[DeploymentFile]) -> tuple[list[Plan], list[Applied]]:
        """Applies all of them or, where one is refused, none: then only the plans come back."""
        plans = self.plan(files)
        if any(plan.is_refused for plan in plans):
            return plans, []
        meant = []
        for file, plan in zip(files, plans, strict=True):
            assert plan.revision is not None, "a plan without one is refused"
            meant.append(Meant(file.spec, plan.revision, file.text, template_text(file)))
            self._keep(plan.revision, meant[-1].template_text)  # before anybody may start it
        applied = []
        for plan, (version, is_new) in zip(plans, self._store.apply_all(meant), strict=True):
            self.write_lock(version)
            applied.append(Applied(plan, version, is_new))
        return plans, applied

    def rollback(self, name: str, version: int | None = None) -> tuple[AppliedVersion, bool]:
        """An older version is wanted again: that one, or the one before the present; and whether that changes anything."""
        target = self._store.rollback_target(name) if version is None else self._store.version(name, version)
        self._keep(target.revision, target.template_text)
        is_new = self._store.want(name, target.version)
        self.write_lock(target)
        return target, is_new

    def memory(self, name: str) -> MemoryPlan | None:
        """Of one replica of what runs under that name; None where nothing here is known of it."""
        if (applied := self._store.wanted().get(name)) is not None:
            return self._memory_of(applied.spec, applied.revision)
        engine = self._config.engine
        if self._config.upstreams or name not in (engine.chat_model, engine.embedding_model):
            return None
        return self._memory_of_file(name, Task.CHAT if name == engine.chat_model else Task.EMBEDDINGS)

    def remove(self, name: str) -> bool:
        """Nothing of that name is wanted any more; whether anything was."""
        was_wanted = self._store.remove(name)
        self.lock_path(name).unlink(missing_ok=True)
        return was_wanted

    def lock_path(self, name: str) -> Path:
        """Where people read what a deployment was resolved to; the database is what counts."""
        return self._data / LOCKS / f"{name}.lock.json"

    def write_lock(self, version: AppliedVersion) -> None:
        """Where the file says something else. What can't be written is told by no file, never by one of another version:
        the version is applied all the same."""
        facts = {
            "deployment": version.name,
            "version": version.version,
            "digest": version.revision.digest,
            "actor": version.actor,
            "applied_s": version.applied_s,
            "revision": version.revision,
        }
        encoded = msgspec.json.format(msgspec.json.encode(facts), indent=2)
        path, content = self.lock_path(version.name), encoded + b"\n"
        try:
            if not path.exists() or path.read_bytes() != content:
                write_whole(path, content)
        except OSError:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def _keep(self, revision: Revision, template: str) -> None:
        if revision.template is not None:
            root = self._data / "models"
            templates.keep(self._models.artifacts, revision.template, template, root=root)

    # The parts of a plan

    def _resolve(self, file: DeploymentFile) -> Resolved:
        return resolve(file, models=self._models, defaults=self._config.engine, progress=self._progress)

    def _plan(
        self,
        file: DeploymentFile,
        exact: Resolved,
        wanted: dict[str, AppliedVersion],
        all_specs: dict[str, tuple[DeploymentSpec, Revision | None]],
    ) -> Plan:
        spec, current = file.spec, wanted.get(file.spec.name)
        revision = exact.revision
        if current is not None and (current.spec, current.revision) == (spec, revision):
            return self._unchanged(file, current)
        refusals = list(exact.refusals)
        machine, architecture = self._machine_seen(), exact.architecture
        args = exact_args(spec, self._config.engine, architecture)
        memory = fit = None
        refusals += planning.refuse_place(spec, machine)
        refusals += planning.refuse_deadline(spec, deadline_max_s=self._config.request.deadline_max_s)
        refusals += planning.refuse_context(architecture, args.context_tokens or 0)
        refusals += gates.refusals(spec, self._data)
        if revision is not None and not spec.shape.gpus:
            memory = self._memory(spec, revision, architecture)
            fit = self._fit(spec, memory, current, all_specs, machine)
            refusals += planning.refuse_memory(spec, memory, fit, is_replacing=current is not None)
        start = self._cold_start(spec, revision)
        newest = max((each.version for each in self._store.versions(spec.name)), default=0)
        return Plan(
            file=file.name,
            name=spec.name,
            action=planning.CREATE if current is None else planning.CHANGE,
            version=newest + 1,
            replaces=REMOVED if current is None else current.version,
            digest="" if revision is None else revision.digest,
            changes=planning.differences(current, spec, revision),
            revision=revision,
            memory=memory,
            fit=fit,
            capacity=self._capacity(spec, revision, args),
            cost=planning.cost(spec),
            start=start,
            warnings=(
                *file.warnings,
                *planning.warn(spec, fit, memory, cold_start_s=None if start is None else start.p95_s),
                *gates.warnings(spec, self._data),
            ),
            refusals=tuple(refusals),
        )

    def _unchanged(self, file: DeploymentFile, current: AppliedVersion) -> Plan:
        """It was planned when it was applied."""
        slots = current.revision.args.slots or DEFAULT_SLOTS
        return Plan(
            file=file.name,
            name=current.name,
            action=planning.UNCHANGED,
            version=current.version,
            replaces=current.version,
            digest=current.revision.digest,
            changes=(),
            revision=current.revision,
            memory=None,
            fit=None,
            capacity=planning.capacity(current.spec, slots=slots, service_s=None),
            cost=planning.cost(current.spec),
            start=None,
            warnings=(),
            refusals=(),
        )

    def _machine_seen(self) -> Machine:
        if self._machine is None:
            memory_bytes = hardware.memory_bytes()
            self._machine = Machine(max(0, memory_bytes - SERVICE_BYTES), len(hardware.gpu_memory_bytes()))
        return self._machine

    def _memory(
        self, spec: DeploymentSpec, revision: Revision, architecture: Architecture | None
    ) -> MemoryPlan:
        """One replica of it. Engines without weights of ours have a process of a few megabytes, or none here."""
        args, task = revision.args, revision.task
        if revision.weights is None:
            is_here = spec.deployment.engine is EngineKind.SCRIPTED
            return MemoryPlan(kv_bytes=0, process_bytes=memory_plan.PROCESS_BYTES if is_here else 0)
        draft_bytes = 0 if revision.draft is None else revision.draft.size_bytes
        return memory_plan.of_replica(
            architecture,
            weights_bytes=revision.weights.size_bytes + draft_bytes,
            slots=args.slots or DEFAULT_SLOTS,
            context_tokens=args.context_tokens or (architecture.context_tokens_max if architecture else 0),
            batch_tokens=_batch_tokens(spec, args),
            has_kv_cache=task is not Task.EMBEDDINGS,
            kv_cache_type=args.kv_cache_type or "f16",
        )

    def _fit(
        self,
        spec: DeploymentSpec,
        memory: MemoryPlan,
        current: AppliedVersion | None,
        all_specs: dict[str, tuple[DeploymentSpec, Revision | None]],
        machine: Machine,
    ) -> Fit:
        usable = round(machine.memory_bytes * (1 - spec.shape.headroom))
        planned = _tenant(spec, memory)
        others = [
            _tenant(other, self._memory_of(other, revision))
            for name, (other, revision) in all_specs.items()
            if name != spec.name and revision is not None and not other.shape.gpus
        ]
        others += self._implicit(all_specs.keys() | {spec.name})
        replaced = None
        if current is not None and not current.spec.shape.gpus:
            replaced = _tenant(current.spec, self._memory_of(current.spec, current.revision))
        return memory_plan.fit(usable, planned=planned, others=others, replaced=replaced)

    def _memory_of(self, spec: DeploymentSpec, revision: Revision) -> MemoryPlan:
        path = None if revision.weights is None else path_of(self._models, revision.weights)
        return self._memory(spec, revision, None if path is None else architectures.read(path))

    def _implicit(self, taken: Iterable[str]) -> list[Tenant]:
        """The embedded engines of headrace.toml, where no deployment has taken their name."""
        engine, names = self._config.engine, set(taken)
        found = []
        for name, task in ((engine.chat_model, Task.CHAT), (engine.embedding_model, Task.EMBEDDINGS)):
            if name and name not in names and not self._config.upstreams:
                memory = self._memory_of_file(name, task)
                found += [Tenant(name, memory.replica_bytes, 1, 1)] if memory is not None else []
        return found

    def _memory_of_file(self, name: str, task: Task) -> MemoryPlan | None:
        """Of an embedded engine as headrace.toml has it; None where its model isn't here."""
        engine, model = self._config.engine, self._models.get(name)
        if model is None:
            return None
        return memory_plan.of_replica(
            architectures.read(model.path),
            weights_bytes=model.size_bytes,
            slots=engine.slots,
            context_tokens=embedded.request_tokens_max(task, engine.context_tokens),
            batch_tokens=embedded.CHAT_BATCH_TOKENS,
            has_kv_cache=task is Task.CHAT,
        )

    def _cold_start(self, spec: DeploymentSpec, revision: Revision | None) -> planning.Start | None:
        """What its starts took, or those of what is most like it; None where nothing like it ever started."""
        with closing(fleet.open_fleet(self._data, clock=self._clock)) as kept:
            starts = kept.all_starts()
        found = cold_start.figures(
            starts,
            deployment=spec.name,
            digest="" if revision is None else revision.digest,
            hardware=hardware.in_words(),
        )
        if found is None:
            return None
        stages = {stage.name: stage.p95_s for stage in found.stages}
        return planning.Start(found.p95_s, stages, len(found.totals_s), found.is_like)

    def _capacity(
        self, spec: DeploymentSpec, revision: Revision | None, args: EngineArgs
    ) -> planning.Capacity:
        """From what was measured of this revision; else from what requests took so far, or for the scripted engine, from its
        script."""
        slots = args.slots or DEFAULT_SLOTS
        if revision is not None:
            with closing(CapacityStore(opening.open_local(self._data))) as records:
                kept = records.newest(model=spec.name, digest=revision.digest)
            if kept is not None and (per_s := kept.record.requests_per_s):
                basis = f"measured, record {kept.number}: {kept.record.saturation[0].shape}"
                return planning.capacity(spec, slots=slots, service_s=slots / per_s, basis=basis)
        if spec.deployment.engine is EngineKind.SCRIPTED:
            tokens = args.tokens if args.tokens is not None else 20
            service_s = ((args.ttft_ms or 0.0) + tokens * (args.itl_ms or 0.0)) / 1000
            return planning.capacity(spec, slots=slots, service_s=service_s, basis="as scripted")
        with closing(opening.open_local(self._data)) as database:
            measured = service_times.measured(
                database, spec.name, "" if revision is None else revision.digest
            )
        if measured is None:
            return planning.capacity(spec, slots=slots, service_s=None)
        return planning.capacity(spec, slots=slots, service_s=measured.service_s, basis=measured.basis)


def _tenant(spec: DeploymentSpec, memory: MemoryPlan) -> Tenant:
    return Tenant(spec.name, memory.replica_bytes, spec.scale.min, spec.scale.max)


def _batch_tokens(spec: DeploymentSpec, args: EngineArgs) -> int:
    if args.batch_tokens is not None:
        return args.batch_tokens
    if spec.deployment.engine is not EngineKind.EMBEDDED:
        return DEFAULT_BATCH_TOKENS
    is_embedding = spec.deployment.task is Task.EMBEDDINGS
    return embedded.EMBEDDING_TOKENS_MAX if is_embedding else embedded.CHAT_BATCH_TOKENS

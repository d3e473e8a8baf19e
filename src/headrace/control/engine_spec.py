"""What should run as one replica? The engine, its files, its terms, and the command that they become."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.control import ports
from headrace.control.launchers import Launcher
from headrace.control.replica_files import Want
from headrace.core.deployment_terms import LifecycleTerms
from headrace.core.deployments import AppliedVersion, Artifact, EngineArgs, EngineKind
from headrace.core.fleet import Task
from headrace.core.ids import ReplicaId
from headrace.engines import embedded
from headrace.engines.kinds import KINDS
from headrace.engines.starting import Asked, Kind


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine that should run.

    Attributes:
        deployment: Model name offered.
        model_path: Where the weights lie; None where they are to be fetched, or the engine has none.
        model_sha256: Of that file, which is checked before it is used; "" where nobody knows it.
        context_tokens: Prompt plus output of one request.
        threads: 0 means all cores but one.
        location: Where it runs; it makes no answer another one.
        engine: A kind of engines/kinds.py.
        version, digest: Of the applied version; 0 and "" for what headrace.toml offers.
        args: What the deployment's file says in `revision.args` beyond these.
        artifacts: What is fetched before it starts, by what it is for (core.deployments.Revision.artifacts).
        program: Of an engine that is a command, where it isn't found by its usual name.
        terms: How long each stage of its life may take.
        url, api_key: Of a server that others run, for engine "remote"; the key by reference.
    """

    deployment: str
    model_path: Path | None
    model_sha256: str
    task: Task
    slots: int
    context_tokens: int
    threads: int
    location: str = ""
    engine: str = "embedded"
    version: int = 0
    digest: str = ""
    args: EngineArgs = field(default_factory=EngineArgs)
    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    program: str = ""
    terms: LifecycleTerms = field(default_factory=LifecycleTerms)
    url: str = ""
    api_key: str = ""

    def revision(self) -> str:
        """Digest of everything that makes this engine's answers; equal specs on equal software have equal ones."""
        if self.digest:
            return self.digest
        parts = {
            "weights": self.model_sha256,
            "engine": embedded.engine_version(),
            "context_tokens": self.context_tokens,
            "slots": self.slots,
            "embedding": self.task is Task.EMBEDDINGS,
            "chat_template": "from weights",
        }
        return "sha256:" + hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()

    @property
    def tokens_max(self) -> int:
        """What one request may use, as far as that is known before the engine says it."""
        if self.engine == "embedded":
            return embedded.request_tokens_max(self.task, self.context_tokens)
        return self.context_tokens


def of_applied(applied: AppliedVersion, *, location: str = "", slots: int, context_tokens: int) -> EngineSpec:
    """The engine of an applied version that isn't served by others.

    Args:
        location: Where the service runs, for a deployment that names no place of its own.
        slots, context_tokens: Of the embedded engine, where its file doesn't say.
    """
    spec, revision = applied.spec, applied.revision
    args = revision.args
    is_embedded = revision.engine is EngineKind.EMBEDDED
    return EngineSpec(
        deployment=applied.name,
        model_path=None,
        model_sha256="",
        task=revision.task,
        slots=args.slots or (slots if is_embedded else KINDS[revision.engine].slots),
        context_tokens=args.context_tokens or (context_tokens if is_embedded else 0),
        threads=args.threads or 0,
        location=spec.deployment.location or location,
        engine=revision.engine,
        version=applied.version,
        digest=revision.digest,
        args=args,
        artifacts=revision.artifacts(),
        program=spec.revision.runtime.command,
        terms=spec.lifecycle,
    )


def asked(spec: EngineSpec, paths: Mapping[str, Path]) -> Asked:
    """What is asked of the engine, with its files where they lie now, by what they are for."""
    weights = paths.get("weights", spec.model_path)
    return Asked(
        model_name=spec.deployment,
        model_path="" if weights is None else str(weights),
        task=spec.task,
        slots=spec.slots,
        context_tokens=spec.context_tokens,
        threads=spec.threads,
        draft_path=str(paths.get("draft", "")),
        tokenizer_path=str(paths.get("tokenizer", "")),
        template_path=str(paths.get("template", "")),
        program=spec.program,
        args=spec.args,
    )


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a replica: its number, and the token that no other has."""

    replica: ReplicaId
    generation: int
    token: str


def want(
    launch: Launch, spec: EngineSpec, kind: Kind, paths: Mapping[str, Path], *, launcher: Launcher
) -> Want:
    """What is written down before the launch. Raises ConfigError for what the engine can't do, OSError without a free port."""
    key = kind.new_key()
    port = 0 if kind.speaks_reports else ports.free_port()
    command = kind.command(asked(spec, paths), port, key)
    return Want(
        replica=launch.replica,
        token=launch.token,
        deployment=spec.deployment,
        revision=spec.revision(),
        generation=launch.generation,
        command=command.arguments,
        settings=command.settings,
        environment=dict(command.environment),
        speaks_reports=kind.speaks_reports,
        port=port,
        authorization=f"Bearer {key}" if key else "",
        log=str(launcher.log_of(launch.replica)),
        grace_s=spec.terms.stop_grace_s,
    )

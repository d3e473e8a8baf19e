"""How does a version become something that can be started? What headrace.toml names is here; the rest is fetched by its digest."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headrace.app import runtimes
from headrace.config import Config, resolve_secret
from headrace.control.engine_spec import EngineSpec, of_applied
from headrace.control.remote import REMOTE_SLOTS
from headrace.control.upstreams import Upstream
from headrace.control.weights import File, Weights
from headrace.core.deployments import (
    AppliedVersion,
    Artifact,
    DeploymentSpec,
    EngineArgs,
    EngineKind,
    Identity,
)
from headrace.core.deployments import Revision as FixedRevision
from headrace.core.errors import ConfigError
from headrace.engines.kinds import KINDS
from headrace.stores import templates
from headrace.stores.collection import Gone
from headrace.stores.downloads import Progress
from headrace.stores.registry import StoredModel, open_store
from headrace.telemetry.logs import Log


def server_of(spec: EngineSpec) -> Upstream:
    """The server that others run for that replica. Raises ConfigError for a key that isn't there."""
    key = spec.api_key
    return Upstream(
        spec.url,
        spec.slots,
        f"Bearer {resolve_secret(key, key='revision.api_key')}" if key else "",
        location=spec.location,
    )


class ModelSupplier:
    """Engines of headrace.toml by what was stored at the start, applied ones by the artifacts of their revision.

    State: `_models`, by name; `_templates`, text by digest, of versions that were asked for. `weights` brings all files.
    """

    def __init__(self, config: Config, data: Path, models: Sequence[StoredModel], log: Log) -> None:
        self._config = config
        self._log = log
        self._root = data / "models"
        self._store = open_store(data, config.models, note_removal=self._note_removal)
        self._templates: dict[str, str] = {}
        self.weights = Weights(data / "models", self._fetch, note_damage=self._note_damage)
        self._models = {model.name: model for model in models}

    def implicit(self) -> dict[str, AppliedVersion]:
        """What headrace.toml offers, as versions that nobody applied."""
        return {model.name: self._implicit(model) for model in self._models.values()}

    async def prepare(self, applied: AppliedVersion) -> EngineSpec:
        """What is to run; its files are fetched by each replica. Raises ConfigError, also where its file pins another version of
        the engine than is installed."""
        if applied.version == 0:
            return self._engine_spec(self._models[applied.name])
        if applied.revision.engine is EngineKind.REMOTE:
            return self._remote(applied)
        if applied.revision.engine not in KINDS:
            raise ConfigError(f"engine {applied.revision.engine}: nothing here starts it")
        if applied.spec.revision.runtime.package:  # another one may have been installed since it was applied
            await asyncio.to_thread(runtimes.runtime, applied.spec)
        if (template := applied.revision.template) is not None:
            self._templates[template.sha256] = applied.template_text
        engine = self._config.engine
        return of_applied(
            applied,
            location=self._config.server.location,
            slots=engine.slots,
            context_tokens=engine.context_tokens,
        )

    def _remote(self, applied: AppliedVersion) -> EngineSpec:
        """Raises ConfigError for a URL that can't be served, or a key that isn't there."""
        args = applied.revision.args
        spec = EngineSpec(
            deployment=applied.name,
            model_path=None,
            model_sha256="",
            task=applied.revision.task,
            slots=args.slots or REMOTE_SLOTS,
            context_tokens=args.context_tokens or 0,
            threads=0,
            location=applied.spec.deployment.location or self._config.server.location,
            engine=applied.revision.engine,
            version=applied.version,
            digest=applied.revision.digest,
            args=args,
            api_key=applied.spec.revision.api_key,
        )
        for url in applied.revision.urls:
            server_of(replace(spec, url=url)).address()
        return spec

    def _note_removal(self, gone: Gone) -> None:
        self._log.event("artifact.removed", sha256=gone.sha256, used_s=gone.used_s)

    def _note_damage(self, file: File) -> None:
        self._log.event("artifact.damaged", sha256=file.sha256, path=str(file.path))

    def _fetch(self, artifact: Artifact, progress: Progress) -> Path:
        if (text := self._templates.get(artifact.sha256)) is not None:
            return templates.keep(self._store.artifacts, artifact, text, root=self._root)
        return self._store.fetch(artifact, progress=progress)

    def _implicit(self, model: StoredModel) -> AppliedVersion:
        engine = self._config.engine
        return AppliedVersion(
            name=model.name,
            version=0,
            spec=DeploymentSpec(
                Identity(
                    model.name,
                    EngineKind.EMBEDDED,
                    task=model.task,
                    location=engine.location or self._config.server.location,
                )
            ),
            revision=FixedRevision(
                model.task,
                EngineKind.EMBEDDED,
                weights=Artifact(model.source, sha256=model.sha256, size_bytes=model.size_bytes),
                args=EngineArgs(slots=engine.slots, context_tokens=engine.context_tokens),
            ),
            applied_s=0.0,
            actor="headrace.toml",
        )

    def _engine_spec(self, model: StoredModel) -> EngineSpec:
        engine = self._config.engine
        return EngineSpec(
            deployment=model.name,
            model_path=model.path,
            model_sha256=model.sha256,
            task=model.task,
            slots=engine.slots,
            context_tokens=engine.context_tokens,
            threads=engine.threads,
            location=engine.location or self._config.server.location,
        )

"""What exactly does a deployment file mean, here and now? Every name that moves is looked up once, and becomes bytes."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.app import runtimes
from headrace.config import EngineConfig
from headrace.config.deployments import DeploymentFile
from headrace.core.deployments import Artifact, DeploymentSpec, EngineArgs, EngineKind, ModelTerms, Revision
from headrace.core.errors import ConfigError, UpstreamError
from headrace.engines import embedded
from headrace.engines.kinds import KINDS
from headrace.engines.starting import Asked
from headrace.policies.memory_plan import Architecture
from headrace.policies.planning import refuse_license
from headrace.stores import architectures
from headrace.stores.downloads import Progress
from headrace.stores.registry import ModelStore

TEMPLATES = "template:"
_GGUF = (EngineKind.EMBEDDED, EngineKind.LLAMACPP)


@dataclass(slots=True)
class Resolved:
    """One file, made exact.

    Attributes:
        revision: None where something could not be resolved; `refusals` says what.
        architecture: What the header of the weights says, if they are here.
    """

    revision: Revision | None = None
    architecture: Architecture | None = None
    refusals: list[str] = field(default_factory=list)


def resolve(
    file: DeploymentFile, *, models: ModelStore, defaults: EngineConfig, progress: Progress
) -> Resolved:
    """Everything that the file names. What is wrong with it is told as refusals, all of them."""
    spec, terms = file.spec, file.spec.revision
    resolved = Resolved()
    refusals = resolved.refusals

    def model(key: str, wanted: ModelTerms) -> Artifact | None:
        try:
            return models.resolve(
                wanted.uri,
                rev=wanted.rev,
                sha256=wanted.sha256,
                progress=progress,
                only_tokenizer=key == "tokenizer",
            )
        except (ConfigError, UpstreamError) as error:
            refusals.append(f"`revision.{key}`: {error.message}")
            return None

    weights = None
    if terms.weights is not None:
        weights = model("weights", terms.weights)
        if weights is not None:
            weights = msgspec.structs.replace(weights, built_for=terms.weights.built_for)
    elif terms.source:
        weights = model("source", ModelTerms(terms.source))
    tokenizer = model("tokenizer", terms.tokenizer) if terms.tokenizer is not None else None
    speculation, draft = terms.args.speculation, None
    if speculation is not None and speculation.draft:
        draft = model("args.speculation.draft", ModelTerms(speculation.draft))
    template = _template(file, refusals)
    software = ""
    try:
        software = runtimes.runtime(spec)
    except ConfigError as error:
        refusals.append(error.message)
    if weights is not None:
        refusals += refuse_license(
            terms.license.id, weights.license, terms.license.allow, accepted=_accepted(models, weights)
        )
        path = path_of(models, weights)
        resolved.architecture = None if path is None else architectures.read(path)
    if refusals:
        return resolved
    revision = Revision(
        task=spec.deployment.task,
        engine=spec.deployment.engine,
        runtime=software,
        image=terms.runtime.image,
        weights=weights,
        draft=draft,
        tokenizer=tokenizer,
        template=template,
        args=exact_args(spec, defaults, resolved.architecture),
        urls=terms.urls,
        source=f"{terms.source} = {weights.uri}" if terms.source and weights is not None else "",
    )
    refusals += _suits(revision, spec)
    if not refusals:
        resolved.revision = revision
    return resolved


def exact_args(spec: DeploymentSpec, defaults: EngineConfig, architecture: Architecture | None) -> EngineArgs:
    """With the defaults of today written down, so that they may change without changing what was applied."""
    args, kind = spec.revision.args, KINDS.get(spec.deployment.engine)
    if kind is None:
        return args
    if spec.deployment.engine is not EngineKind.EMBEDDED:
        return msgspec.structs.replace(args, slots=args.slots or kind.slots)
    trained = architecture.context_tokens_max if architecture is not None else 0
    default = min(defaults.context_tokens, trained or defaults.context_tokens)
    context_tokens = args.context_tokens or default
    return msgspec.structs.replace(
        args,
        slots=args.slots or defaults.slots,
        context_tokens=embedded.request_tokens_max(spec.deployment.task, context_tokens),
    )


def _suits(revision: Revision, spec: DeploymentSpec) -> Iterator[str]:
    """What its engine lacks of what is asked of it."""
    kind = KINDS.get(revision.engine)
    if kind is None:
        return
    weights = revision.weights
    built_for = weights.built_for if weights is not None else ""
    if built_for and revision.runtime and built_for != revision.runtime.replace(" ", "=="):
        yield f"`revision.weights.built_for`: built for {built_for}, and {revision.runtime} would run it"
    if kind.name in _GGUF and weights is not None and weights.files:
        yield (
            f"`revision.weights`: the engine {kind.name!r} reads one GGUF file, and {weights.uri} is a folder of"
            f" {len(weights.files)}; name the file in it"
        )
    here = "/"  # what is refused doesn't depend on where anything lies
    asked = Asked(
        model_name=spec.name,
        model_path=here if weights is not None else "",
        task=revision.task,
        slots=revision.args.slots or kind.slots,
        context_tokens=revision.args.context_tokens or 0,
        threads=revision.args.threads or 0,
        draft_path=here if revision.draft is not None else "",
        tokenizer_path=here if revision.tokenizer is not None else "",
        template_path=here if revision.template is not None else "",
        program=spec.revision.runtime.command,
        args=revision.args,
    )
    try:
        kind.refuse_unsuitable(asked)
    except ConfigError as error:
        yield error.message


def template_text(file: DeploymentFile) -> str:
    """The prompt template that the file names, "" where it names none."""
    terms = file.spec.revision.template
    return "" if terms is None else file.templates[terms.file]


def path_of(models: ModelStore, artifact: Artifact) -> Path | None:
    """Where it lies, if it is here."""
    found = models.artifacts.path(artifact)
    if found is not None:
        return found
    return next((each.path for each in models.models() if each.sha256 == artifact.sha256), None)


def _template(file: DeploymentFile, refusals: list[str]) -> Artifact | None:
    terms, content = file.spec.revision.template, template_text(file).encode()
    if terms is None:
        return None
    sha256 = hashlib.sha256(content).hexdigest()
    if terms.sha256 not in ("", sha256):
        refusals.append(
            f"`revision.template`: SHA-256 of {terms.file} is {sha256}, and the file says {terms.sha256}"
        )
    return Artifact(f"{TEMPLATES}{Path(terms.file).name}", sha256=sha256, size_bytes=len(content))


def _accepted(models: ModelStore, artifact: Artifact) -> str:
    """The terms that somebody accepted by name when these bytes were pulled."""
    return next((each.license_accepted for each in models.models() if each.sha256 == artifact.sha256), "")

"""What is a deployment, as somebody wrote it down and as it was made exact? A file's sections, and the revision made of them.

A file says what is wanted, often by names that move: a catalog's name, an alias, whatever version is installed. `plan`
resolves each of them once, into a `Revision`: the bytes and the software that make the answers, and a digest of them. What
was applied is kept as an `AppliedVersion`, whose number stands behind the deployment's name: `chat-small@v3`.

Sections are structs whose fields have the file's names, and the file's defaults. docs/reference/deployment-file.md is the
same for people.
"""

import hashlib
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Literal

import msgspec

from headrace.core.deployment_terms import (
    BudgetTerms,
    LifecycleTerms,
    Milliseconds,
    RolloutTerms,
    ScaleTerms,
    Seconds,
    Section,
    ShapeTerms,
    Share,
    SloTerms,
)
from headrace.core.fleet import Task, target_key
from headrace.core.ids import TargetKey
from headrace.core.tenant import NameOrNone

NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,62}\Z"

Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")]


class EngineKind(StrEnum):
    """What runs the model.

    EMBEDDED: llama.cpp in a process of ours, from a GGUF file. SCRIPTED: the deterministic engine of tests and demos.
    LLAMACPP, VLLM, SGLANG, TGI, TRITON: that program, started by us as a command. REMOTE: servers that others run.
    """

    EMBEDDED = "embedded"
    SCRIPTED = "scripted"
    LLAMACPP = "llamacpp"
    VLLM = "vllm"
    SGLANG = "sglang"
    TGI = "tgi"
    TRITON = "triton"
    REMOTE = "remote"


# Which


class Identity(Section, frozen=True):
    """Which deployment it is.

    Attributes:
        name: What callers ask for. It names directories and metrics too, so it has no slash and no `@`.
        location: Where it runs; "" for `server.location` of the service.
    """

    name: Name
    engine: EngineKind
    task: Task = Task.CHAT
    location: NameOrNone = ""


# What makes the answers, in the words of the file


Pinned = Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.+!_-]*)?\Z")]
"""A package at one version, `NAME==VERSION`, or ""."""


class ModelTerms(Section, frozen=True):
    """Where weights or a tokenizer come from.

    Attributes:
        uri: A source of the model store, or a name that it or its catalog knows.
        rev: Commit of the repository, 40 hexadecimal digits; never a branch or a tag, which move.
        sha256: What the bytes must be; "" takes what the source has now, and holds on to it.
    """

    uri: str
    rev: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{40})?\Z")] = ""
    sha256: Sha256 = ""


class WeightsTerms(ModelTerms, frozen=True):
    """Where the weights come from.

    Attributes:
        built_for: Of weights that one engine alone can read, such as a compiled plan: that engine, `NAME==VERSION`. They are
            refused where another one would run them.
    """

    built_for: Pinned = ""


class TemplateTerms(Section, frozen=True):
    """The prompt template, as a file beside the deployment's. Without it the weights' own is used."""

    file: str
    sha256: Sha256 = ""


class RuntimeTerms(Section, frozen=True):
    """The software that runs the model.

    Attributes:
        package: `NAME==VERSION` of the Python package that must be installed; "" takes the one that is, and pins it.
        image: Container image by digest, `REPOSITORY@sha256:...`; "" for a process without one.
        command: The engine's program, where it isn't found by its usual name.
    """

    package: Pinned = ""
    image: Annotated[str, msgspec.Meta(pattern=r"^(\S+@sha256:[0-9a-f]{64})?\Z")] = ""
    command: str = ""


class LicenseTerms(Section, frozen=True):
    """What is allowed.

    Attributes:
        id: The license of the weights, where their source doesn't say; SPDX.
        allow: Licenses that this deployment may have; none given means those that need nobody's acceptance.
    """

    id: str = ""
    allow: tuple[str, ...] = ()


class Speculation(Section, frozen=True):
    """Tokens guessed ahead and verified together.

    Attributes:
        draft: Source or name of the small model that guesses; "" guesses from the prompt itself (n-grams).
        tokens: Guessed at once.
    """

    draft: str = ""
    tokens: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4


class EngineArgs(Section, frozen=True, omit_defaults=True):
    """How the engine works, in our words. None leaves it to the engine; what an engine lacks, `plan` refuses.

    Attributes:
        slots: Requests that one replica runs at once.
        context_tokens: Prompt plus output of one request.
        threads: CPU threads; 0 means all cores but one.
        batch_tokens: Tokens that one step of the engine computes at most (continuous batching).
        prefix_cache: Whether what prompts have in common is computed once.
        quantization: Of weights that are stored whole, in the engine's words: "fp8", "awq", "gptq".
        kv_cache_type: Number format of the KV cache: "f16", "q8_0", "fp8".
        speculation: Speculative decoding.
        tensor_parallel, pipeline_parallel, data_parallel: Devices that share layers, stages, or copies.
        gpu_layers: Layers on the GPU, for llama.cpp; -1 is all.
        gpu_memory_share: Of each GPU's memory, that the engine may take.
        flags: Further options, handed to the engine's command as they are.
        ttft_ms, itl_ms, tokens, prefill_tokens_per_s, fault, answer, seed: Of the scripted engine: its pace, the length of
            its answers, what goes wrong and when, and its answers' text.
        answers: Of the scripted engine: what it says, by what stands in the prompt.
        load_s, ready_after_s: Of the scripted engine: how long it takes to open its port, and then to answer anything but
            503.
        load_fault: Of the scripted engine: what goes wrong at the end of its load.
        lives_s: Of the scripted engine: how long after that it dies.
    """

    slots: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None
    context_tokens: Annotated[int, msgspec.Meta(ge=16, le=100_000_000)] | None = None
    threads: Annotated[int, msgspec.Meta(ge=0, le=4096)] | None = None
    batch_tokens: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] | None = None
    prefix_cache: bool | None = None
    quantization: str | None = None
    kv_cache_type: str | None = None
    speculation: Speculation | None = None
    tensor_parallel: Annotated[int, msgspec.Meta(ge=1, le=4096)] | None = None
    pipeline_parallel: Annotated[int, msgspec.Meta(ge=1, le=4096)] | None = None
    data_parallel: Annotated[int, msgspec.Meta(ge=1, le=4096)] | None = None
    gpu_layers: Annotated[int, msgspec.Meta(ge=-1, le=100_000)] | None = None
    gpu_memory_share: Share | None = None
    flags: tuple[str, ...] = ()
    ttft_ms: Milliseconds | None = None
    itl_ms: Milliseconds | None = None
    tokens: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None
    prefill_tokens_per_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    fault: str | None = None
    load_s: Seconds | None = None
    ready_after_s: Seconds | None = None
    load_fault: Literal["failed", "out_of_memory", "crash", "hang"] | None = None
    lives_s: Seconds | None = None
    answer: str | None = None
    answers: dict[str, str] | None = None
    seed: int | None = None


class RevisionTerms(Section, frozen=True):
    """What makes the answers, as the file names it.

    Attributes:
        weights: None only for engines without weights of ours: scripted and remote.
        tokenizer, template: None for those inside the weights.
        source: An alias of a registry, `mlflow:models:/NAME@ALIAS`, that `weights` are resolved from when they are planned;
            a later move of the alias is another revision, and changes nothing that runs.
        urls: Of the servers, for engine "remote".
        api_key: Reference to the key of those servers, `env:NAME` or `file:PATH`.
    """

    weights: WeightsTerms | None = None
    tokenizer: ModelTerms | None = None
    template: TemplateTerms | None = None
    runtime: RuntimeTerms = RuntimeTerms()
    args: EngineArgs = EngineArgs()
    license: LicenseTerms = LicenseTerms()
    source: str = ""
    urls: tuple[str, ...] = ()
    api_key: str = ""


# The whole of it, and what was made exact


class DeploymentSpec(Section, frozen=True):
    """The whole of one file in `deployments/`."""

    deployment: Identity
    api: Literal["v1"] = "v1"
    revision: RevisionTerms = RevisionTerms()
    shape: ShapeTerms = ShapeTerms()
    slo: SloTerms = SloTerms()
    scale: ScaleTerms = ScaleTerms()
    budget: BudgetTerms = BudgetTerms()
    lifecycle: LifecycleTerms = LifecycleTerms()
    rollout: RolloutTerms = RolloutTerms()

    @property
    def name(self) -> str:
        return self.deployment.name


class ArtifactFile(msgspec.Struct, frozen=True):
    """One file of an artifact that has several.

    Attributes:
        path: Below the artifact's folder, with `/` between its parts.
        uri: Where this file alone can be had again.
    """

    path: str
    sha256: str
    size_bytes: int
    uri: str = ""


class Artifact(msgspec.Struct, frozen=True):
    """One thing that a revision is made of, as exact bytes.

    Attributes:
        uri: Where it can be had again, without anything that moves.
        rev: Commit of the repository or version of the registry; "" where the source has none.
        sha256: Of the bytes; "" for what others keep and we can't read. Of a folder, `folder_digest` of its files.
        license: As found; SPDX where recognised, "" where nothing says. Where places disagree, all that somebody must accept.
        files: All files of a folder, by path; none for a single file.
        built_for: The one engine that can read it, `NAME==VERSION`; "" for formats that many read.
    """

    uri: str
    rev: str = ""
    sha256: str = ""
    size_bytes: int = 0
    license: str = ""
    files: tuple[ArtifactFile, ...] = ()
    built_for: str = ""

    @property
    def identity(self) -> str:
        """What tells it from others: its bytes, wherever they lie; else its fixed place."""
        return self.sha256 or f"{self.uri}@{self.rev}"


def folder_digest(files: Iterable[ArtifactFile]) -> str:
    """One digest for many files: the SHA-256 of what `sha256sum` prints for them, in the byte order of their paths."""
    ordered = sorted(files, key=lambda file: file.path.encode())
    lines = "".join(f"{file.sha256}  {file.path}\n" for file in ordered)
    return hashlib.sha256(lines.encode()).hexdigest()


class Revision(msgspec.Struct, frozen=True):
    """Everything that makes the answers, with nothing in it that moves.

    Attributes:
        runtime: Name and version of the software that was really there.
        draft: The model that guesses ahead.
        source: The alias that the weights were resolved from, with the version that it meant.
    """

    task: Task
    engine: EngineKind
    runtime: str = ""
    image: str = ""
    weights: Artifact | None = None
    draft: Artifact | None = None
    tokenizer: Artifact | None = None
    template: Artifact | None = None
    args: EngineArgs = EngineArgs()
    urls: tuple[str, ...] = ()
    source: str = ""

    @property
    def digest(self) -> str:
        """`sha256:...`, equal for equal answers: where the bytes came from, and what their alias is, is left out."""
        parts = {
            "task": self.task,
            "engine": self.engine,
            "runtime": self.runtime,
            "image": self.image,
            "artifacts": {name: artifact.identity for name, artifact in self.artifacts().items()},
            "args": self.args,
            "urls": self.urls,
        }
        return "sha256:" + hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()

    def artifacts(self) -> dict[str, Artifact]:
        """All that it has, by what they are for."""
        named = {
            "weights": self.weights,
            "draft": self.draft,
            "tokenizer": self.tokenizer,
            "template": self.template,
        }
        return {name: artifact for name, artifact in named.items() if artifact is not None}


class AppliedVersion(msgspec.Struct, frozen=True):
    """What was applied once, and is kept for good.

    Attributes:
        version: Counts from 1 for each name; 0 stands for what headrace.toml offers, without a file.
        applied_s: Unix seconds.
        actor: Who did it, as the audit log says it.
        file_text: The file, byte for byte.
        template_text: The prompt template that it names, "" where it names none.
    """

    name: str
    version: int
    spec: DeploymentSpec
    revision: Revision
    applied_s: float
    actor: str
    file_text: str = ""
    template_text: str = ""

    @property
    def key(self) -> TargetKey:
        """The target's name in snapshots, records and metrics: `chat-small@v3`, and the plain name for version 0."""
        return target_key(self.name, self.version)

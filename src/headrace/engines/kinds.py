"""Which engines can be started, and how? One row for each kind that a deployment can name."""

import sys

import msgspec

from headrace.core.deployments import EngineKind
from headrace.core.errors import ConfigError
from headrace.engines import commands, embedded, scripted_faults
from headrace.engines.scripted_child import ChildSettings
from headrace.engines.starting import Asked, Command, Kind, Words

# `-P`: a folder named headrace in the current directory must not be run in our place.
_OURS = (sys.executable, "-P", "-m")
EMBEDDED_ENGINE = (*_OURS, "headrace.engines.embedded")
SCRIPTED_ENGINE = (*_OURS, "headrace.engines.scripted_child")

_GPUS = 'it runs on CPUs; use engine = "llamacpp" with a llama-server for this machine\'s GPUs'

# Only what it lacks is said: the rest goes to it in a line of settings.
_EMBEDDED = Words(
    "embedded",
    flags={
        name: lambda _: ()
        for name in (
            "slots",
            "context_tokens",
            "threads",
            "batch_tokens",
            "prefix_cache",
            "kv_cache_type",
            "speculation",
        )
    },
    lacks={
        "quantization": "weights are quantized in their file: choose another GGUF file",
        "tensor_parallel": _GPUS,
        "pipeline_parallel": _GPUS,
        "data_parallel": "copies of the model are replicas here: raise scale.max",
        "gpu_layers": _GPUS,
        "gpu_memory_share": _GPUS,
    },
)


def _embedded(asked: Asked, port: int, key: str) -> Command:
    _EMBEDDED.said(asked.args)
    args = asked.args
    if args.flags:
        raise ConfigError("revision.args.flags: embedded: it isn't started by a command with options")
    if asked.tokenizer_path:
        raise ConfigError("revision.tokenizer: embedded: the tokenizer stands in the GGUF file")
    kv_type = args.kv_cache_type or "f16"
    if kv_type not in embedded.KV_TYPES:
        known = ", ".join(embedded.KV_TYPES)
        raise ConfigError(f"revision.args.kv_cache_type: embedded: {kv_type!r} is none of {known}")
    settings = embedded.EngineSettings(
        model_path=asked.model_path,
        model_name=asked.model_name,
        task=asked.task,
        slots=asked.slots,
        context_tokens=asked.context_tokens,
        threads=asked.threads or embedded.default_threads(),
        api_key=key,
        batch_tokens=args.batch_tokens or 0,
        has_prefix_cache=args.prefix_cache is not False,
        kv_type=kv_type,
        template_path=asked.template_path,
        draft_path=asked.draft_path,
        draft_tokens=args.speculation.tokens if args.speculation is not None else 0,
    )
    return Command(EMBEDDED_ENGINE, settings=msgspec.json.encode(settings).decode())


_SCRIPTED_ONLY = (
    "ttft_ms",
    "itl_ms",
    "tokens",
    "prefill_tokens_per_s",
    "fault",
    "load_s",
    "ready_after_s",
    "load_fault",
    "lives_s",
    "answers",
    "seed",
)
_NO_MODEL = "it has no model"
_SCRIPTED = Words(
    "scripted",
    flags={
        name: lambda _: ()
        for name in (*_SCRIPTED_ONLY, "answer", "slots", "context_tokens", "threads", "prefix_cache")
    },
    lacks=dict.fromkeys(
        (
            "batch_tokens",
            "quantization",
            "kv_cache_type",
            "speculation",
            "tensor_parallel",
            "pipeline_parallel",
            "data_parallel",
            "gpu_layers",
            "gpu_memory_share",
        ),
        _NO_MODEL,
    ),
)
_PREFIX_CACHE_TOKENS = 100_000


def _scripted(asked: Asked, port: int, key: str) -> Command:
    _SCRIPTED.said(asked.args)
    args = asked.args
    scripted_faults.parse(args.fault or "")
    given = {name: getattr(args, name) for name in _SCRIPTED_ONLY if getattr(args, name) is not None}
    if args.answer is not None:
        given["answers"] = {**given.get("answers", {}), "": args.answer}
    settings = ChildSettings(
        model_name=asked.model_name,
        api_key=key,
        slots=asked.slots,
        prefix_cache_tokens=_PREFIX_CACHE_TOKENS if args.prefix_cache else 0,
        **given,
    )
    return Command(SCRIPTED_ENGINE, settings=msgspec.json.encode(settings).decode())


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(EngineKind.EMBEDDED, "embedded", _embedded, speaks_reports=True),
        Kind(EngineKind.SCRIPTED, "scripted", _scripted, speaks_reports=True, slots=64),
        Kind(EngineKind.LLAMACPP, "llama.cpp", commands.llamacpp),
        Kind(EngineKind.VLLM, "vllm", commands.vllm, slots=256),
        Kind(EngineKind.SGLANG, "sglang", commands.sglang, takes_key=False, slots=256),
        Kind(EngineKind.TGI, "openai", commands.tgi, takes_name=False, slots=128),
        Kind(EngineKind.TRITON, "openai", commands.triton),
    )
}

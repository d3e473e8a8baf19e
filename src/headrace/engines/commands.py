"""How are the engines started that others make? For each of them its options for what a deployment's file says.

What an engine can't do it refuses, with the reason: an option that is silently ignored would make the file a lie. Options were
read in each engine's own reference: docs/reference/engines.md says in which, and when.
"""

import json
import sys
from collections.abc import Sequence

from headrace.core.deployments import Speculation
from headrace.core.errors import ConfigError
from headrace.core.fleet import Task
from headrace.engines.starting import Asked, Command, Words, flag, one_of

HOST = "127.0.0.1"
_MORE_REPLICAS = "copies of the model are replicas here: raise scale.max"
_NO_THREADS = "it takes as many threads as it likes; limit the process instead"

# --- llama.cpp ---

_LLAMA_TYPES = one_of(
    f32="f32", f16="f16", bf16="bf16", q8_0="q8_0", q4_0="q4_0", q4_1="q4_1", iq4_nl="iq4_nl", q5_0="q5_0", q5_1="q5_1"
)  # fmt: skip


def _llama_spread(mode: str, devices: int) -> Sequence[str]:
    return ("--split-mode", mode, "--tensor-split", ",".join("1" * devices)) if devices > 1 else ()


def _llama_speculation(how: Speculation) -> Sequence[str]:
    if how.draft:
        return ("--spec-type", "draft-simple", "--spec-draft-n-max", str(how.tokens))
    return ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-m", str(how.tokens))


_LLAMA = Words(
    "llamacpp",
    flags={
        "slots": lambda _: (),
        "context_tokens": lambda _: (),
        "threads": lambda threads: ("--threads", str(threads)) if threads else (),
        "batch_tokens": lambda tokens: ("--batch-size", str(tokens), "--ubatch-size", str(tokens)),
        "prefix_cache": lambda is_on: ("--cache-prompt" if is_on else "--no-cache-prompt",),
        "kv_cache_type": lambda ours: (
            "--cache-type-k",
            _LLAMA_TYPES(ours),
            "--cache-type-v",
            _LLAMA_TYPES(ours),
        ),
        "speculation": _llama_speculation,
        "tensor_parallel": lambda devices: _llama_spread("row", devices),
        "pipeline_parallel": lambda devices: _llama_spread("layer", devices),
        "gpu_layers": lambda layers: ("--n-gpu-layers", "all" if layers < 0 else str(layers)),
    },
    lacks={
        "quantization": "weights are quantized in their file: choose another GGUF file",
        "data_parallel": _MORE_REPLICAS,
        "gpu_memory_share": "it takes what the model and its context need; lower those, or gpu_layers",
    },
)


def llamacpp(asked: Asked, port: int, key: str) -> Command:
    """llama-server. `--ctx-size` is the total over all slots, which must not share a cache or a context."""
    said = _LLAMA.said(asked.args)
    arguments = [
        asked.program or "llama-server",
        *("--model", asked.model_path, "--alias", asked.model_name, "--host", HOST, "--port", str(port)),
        *("--parallel", str(asked.slots), "--ctx-size", str(asked.slots * asked.context_tokens)),
        *("--no-kv-unified", "--cache-ram", "0", "--fit", "off", "--metrics", "--no-slots", "--no-ui"),
    ]
    if asked.task is Task.EMBEDDINGS:
        arguments.append("--embeddings")
    if asked.draft_path:
        arguments += ["--spec-draft-model", asked.draft_path]
    if asked.template_path:
        arguments += ["--jinja", "--chat-template-file", asked.template_path]
    if asked.tokenizer_path:
        raise ConfigError("revision.tokenizer: llamacpp: the tokenizer stands in the GGUF file")
    return Command((*arguments, *said), environment={"LLAMA_API_KEY": key})


# --- vLLM ---

_VLLM_TYPES = one_of(
    auto="auto", f16="float16", bf16="bfloat16", fp8="fp8", fp8_e4m3="fp8_e4m3", fp8_e5m2="fp8_e5m2"
)  # fmt: skip

_VLLM = Words(
    "vllm",
    flags={
        "slots": flag("--max-num-seqs"),
        "context_tokens": flag("--max-model-len"),
        "batch_tokens": flag("--max-num-batched-tokens"),
        "prefix_cache": lambda is_on: ("--enable-prefix-caching" if is_on else "--no-enable-prefix-caching",),
        "quantization": flag("--quantization"),
        "kv_cache_type": lambda ours: ("--kv-cache-dtype", _VLLM_TYPES(ours)),
        "speculation": lambda _: (),
        "tensor_parallel": flag("--tensor-parallel-size"),
        "pipeline_parallel": flag("--pipeline-parallel-size"),
        "data_parallel": flag("--data-parallel-size"),
        "gpu_memory_share": flag("--gpu-memory-utilization"),
    },
    lacks={
        "threads": _NO_THREADS,
        "gpu_layers": "all layers are on the GPU",
    },
)


def _vllm_speculation(how: Speculation, draft_path: str) -> dict[str, object]:
    if draft_path:
        return {"model": draft_path, "num_speculative_tokens": how.tokens}
    return {"method": "ngram", "num_speculative_tokens": how.tokens, "prompt_lookup_max": 4}


def vllm(asked: Asked, port: int, key: str) -> Command:
    """`vllm serve`. The weights are here, so it needs nothing from a hub, and tells nobody of its use."""
    said = _VLLM.said(asked.args)
    arguments = [asked.program or "vllm", "serve", asked.model_path, "--served-model-name", asked.model_name]
    arguments += ["--host", HOST, "--port", str(port)]
    if asked.task is Task.EMBEDDINGS:
        arguments += ["--runner", "pooling"]
    if asked.tokenizer_path:
        arguments += ["--tokenizer", asked.tokenizer_path]
    if asked.template_path:
        arguments += ["--chat-template", asked.template_path]
    if (how := asked.args.speculation) is not None:
        arguments += ["--speculative-config", json.dumps(_vllm_speculation(how, asked.draft_path))]
    environment = {"VLLM_API_KEY": key, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    return Command((*arguments, *said), environment=environment)


# --- SGLang ---

_SGLANG_TYPES = one_of(auto="auto", fp8="fp8_e4m3", fp8_e4m3="fp8_e4m3", fp8_e5m2="fp8_e5m2", bf16="bf16")


def _sglang_speculation(how: Speculation) -> Sequence[str]:
    algorithm = "STANDALONE" if how.draft else "NGRAM"
    return ("--speculative-algorithm", algorithm, "--speculative-num-draft-tokens", str(how.tokens))


_SGLANG = Words(
    "sglang",
    flags={
        "slots": flag("--max-running-requests"),
        "context_tokens": flag("--context-length"),
        "batch_tokens": flag("--chunked-prefill-size"),
        "prefix_cache": lambda is_on: () if is_on else ("--disable-radix-cache",),
        "quantization": flag("--quantization"),
        "kv_cache_type": lambda ours: ("--kv-cache-dtype", _SGLANG_TYPES(ours)),
        "speculation": _sglang_speculation,
        "tensor_parallel": flag("--tensor-parallel-size"),
        "pipeline_parallel": flag("--pipeline-parallel-size"),
        "data_parallel": flag("--data-parallel-size"),
        "gpu_memory_share": flag("--mem-fraction-static"),
    },
    lacks={
        "threads": _NO_THREADS,
        "gpu_layers": "all layers are on the GPU",
    },
)


def sglang(asked: Asked, port: int, key: str) -> Command:
    """`sglang.launch_server`. Its only way to be told a key is a word of its command, which everybody can read: it gets none."""
    said = _SGLANG.said(asked.args)
    arguments = [asked.program or sys.executable, "-m", "sglang.launch_server"]
    arguments += ["--model-path", asked.model_path, "--served-model-name", asked.model_name]
    arguments += ["--host", HOST, "--port", str(port), "--enable-metrics"]
    if asked.task is Task.EMBEDDINGS:
        arguments.append("--is-embedding")
    if asked.tokenizer_path:
        arguments += ["--tokenizer-path", asked.tokenizer_path]
    if asked.template_path:
        arguments += ["--chat-template", asked.template_path]
    if asked.draft_path:
        arguments += ["--speculative-draft-model-path", asked.draft_path]
    return Command((*arguments, *said), environment={"HF_HUB_OFFLINE": "1"})


# --- Text Generation Inference ---

_TGI_TYPES = one_of(fp8="fp8_e4m3fn", fp8_e4m3="fp8_e4m3fn", fp8_e5m2="fp8_e5m2")


def _tgi_speculation(how: Speculation) -> Sequence[str]:
    if how.draft:
        raise ValueError("it guesses by n-grams alone: leave `draft` out")
    return ("--speculate", str(how.tokens))


_TGI = Words(
    "tgi",
    flags={
        "slots": flag("--max-concurrent-requests"),
        "context_tokens": lambda tokens: (
            *("--max-total-tokens", str(tokens), "--max-input-tokens", str(tokens - 1)),
        ),
        "batch_tokens": flag("--max-batch-prefill-tokens"),
        "prefix_cache": lambda _: (),
        "quantization": flag("--quantize"),
        "kv_cache_type": lambda ours: ("--kv-cache-dtype", _TGI_TYPES(ours)),
        "speculation": _tgi_speculation,
        "tensor_parallel": flag("--num-shard"),
        "gpu_memory_share": flag("--cuda-memory-fraction"),
    },
    lacks={
        "threads": _NO_THREADS,
        "gpu_layers": "all layers are on the GPU",
        "pipeline_parallel": "it shards layers (tensor_parallel) and has no stages",
        "data_parallel": _MORE_REPLICAS,
    },
)


def tgi(asked: Asked, port: int, key: str) -> Command:
    """`text-generation-launcher`, which answers to whatever name and says its own."""
    said = _TGI.said(asked.args)
    if asked.task is Task.EMBEDDINGS:
        raise ConfigError('deployment.task: tgi: it generates text alone; use engine = "vllm" or "embedded"')
    for name, path in (("tokenizer", asked.tokenizer_path), ("template", asked.template_path)):
        if path:
            raise ConfigError(f"revision.{name}: tgi: it takes the one in the folder of the weights")
    arguments = [asked.program or "text-generation-launcher", "--model-id", asked.model_path]
    arguments += ["--hostname", HOST, "--port", str(port)]
    environment = {"API_KEY": key, "HF_HUB_OFFLINE": "1"}
    if asked.args.prefix_cache is not None:
        environment["PREFIX_CACHING"] = "1" if asked.args.prefix_cache else "0"
    return Command((*arguments, *said), environment=environment)


def triton(asked: Asked, port: int, key: str) -> Command:
    """Not yet: its own protocol is not OpenAI's, and the gateway doesn't speak it."""
    raise ConfigError(
        'deployment.engine: triton: the gateway speaks no KServe yet; front it with an OpenAI-compatible server, engine = "remote"'
    )

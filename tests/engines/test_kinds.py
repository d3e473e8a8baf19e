"""With which command is each kind of engine started, and what does it refuse? C4: never an option that is silently ignored."""

import json
from typing import Any

import msgspec
import pytest

from headrace.core.deployments import EngineArgs, EngineKind, Speculation
from headrace.core.errors import ConfigError
from headrace.core.fleet import Task
from headrace.engines.kinds import KINDS
from headrace.engines.openai_compatible import DIALECTS
from headrace.engines.starting import Asked

COMMANDS = ("llamacpp", "vllm", "sglang", "tgi")


def asked(task: Task = Task.CHAT, **fields: Any) -> Asked:
    paths = {
        name: fields.pop(name, "") for name in ("draft_path", "tokenizer_path", "template_path", "program")
    }
    return Asked("chat", "/models/weights", task, 2, 1024, **paths, args=EngineArgs(**fields))


def options(kind: str, **fields: Any) -> str:
    return " ".join(KINDS[kind].command(asked(**fields), 4711, "secret").arguments)


EVERYTHING: dict[str, Any] = {
    "slots": 2,
    "context_tokens": 1024,
    "batch_tokens": 512,
    "prefix_cache": False,
    "tensor_parallel": 2,
}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "llamacpp",
            "llama-server --model /models/weights --alias chat --host 127.0.0.1 --port 4711 --parallel 2 "
            "--ctx-size 2048 --no-kv-unified --cache-ram 0 --fit off --metrics --no-slots --no-ui "
            "--batch-size 512 --ubatch-size 512 --no-cache-prompt --split-mode row --tensor-split 1,1",
        ),
        (
            "vllm",
            "vllm serve /models/weights --served-model-name chat --host 127.0.0.1 --port 4711 --max-num-seqs 2 "
            "--max-model-len 1024 --max-num-batched-tokens 512 --no-enable-prefix-caching --tensor-parallel-size 2",
        ),
        (
            "sglang",
            "python -m sglang.launch_server --model-path /models/weights --served-model-name chat "
            "--host 127.0.0.1 --port 4711 --enable-metrics --max-running-requests 2 --context-length 1024 "
            "--chunked-prefill-size 512 --disable-radix-cache --tensor-parallel-size 2",
        ),
        (
            "tgi",
            "text-generation-launcher --model-id /models/weights --hostname 127.0.0.1 --port 4711 "
            "--max-concurrent-requests 2 --max-total-tokens 1024 --max-input-tokens 1023 "
            "--max-batch-prefill-tokens 512 --num-shard 2",
        ),
    ],
)
def test_a_deployments_arguments_become_the_engines_own_options(kind: str, expected: str) -> None:
    program = {"program": "python"} if kind == "sglang" else {}
    assert options(kind, **EVERYTHING, **program) == expected


@pytest.mark.parametrize(
    ("kind", "fields", "part"),
    [
        ("llamacpp", {"kv_cache_type": "q8_0"}, "--cache-type-k q8_0 --cache-type-v q8_0"),
        ("llamacpp", {"gpu_layers": -1}, "--n-gpu-layers all"),
        ("llamacpp", {"gpu_layers": 12}, "--n-gpu-layers 12"),
        ("llamacpp", {"threads": 3}, "--threads 3"),
        ("llamacpp", {"pipeline_parallel": 3}, "--split-mode layer --tensor-split 1,1,1"),
        ("llamacpp", {"speculation": Speculation(tokens=8)}, "--spec-type ngram-simple --spec-ngram-simple-size-m 8"),
        (
            "llamacpp",
            {"speculation": Speculation("small", 8), "draft_path": "/d"},
            "--spec-draft-model /d --spec-type draft-simple --spec-draft-n-max 8",
        ),
        ("llamacpp", {"template_path": "/t"}, "--jinja --chat-template-file /t"),
        ("llamacpp", {"task": Task.EMBEDDINGS}, "--embeddings"),
        ("vllm", {"kv_cache_type": "fp8"}, "--kv-cache-dtype fp8"),
        ("vllm", {"quantization": "awq"}, "--quantization awq"),
        ("vllm", {"gpu_memory_share": 0.85}, "--gpu-memory-utilization 0.85"),
        ("vllm", {"pipeline_parallel": 2, "data_parallel": 4}, "--pipeline-parallel-size 2 --data-parallel-size 4"),
        ("vllm", {"prefix_cache": True}, "--enable-prefix-caching"),
        ("vllm", {"tokenizer_path": "/k", "template_path": "/t"}, "--tokenizer /k --chat-template /t"),
        ("vllm", {"task": Task.EMBEDDINGS}, "--runner pooling"),
        ("vllm", {"flags": ("--enforce-eager",)}, "--enforce-eager"),
        ("sglang", {"speculation": Speculation(tokens=8)}, "--speculative-algorithm NGRAM --speculative-num-draft-tokens 8"),
        (
            "sglang",
            {"speculation": Speculation("small", 8), "draft_path": "/d"},
            "--speculative-draft-model-path /d --speculative-algorithm STANDALONE --speculative-num-draft-tokens 8",
        ),
        ("sglang", {"kv_cache_type": "fp8"}, "--kv-cache-dtype fp8_e4m3"),
        ("sglang", {"gpu_memory_share": 0.7}, "--mem-fraction-static 0.7"),
        ("sglang", {"task": Task.EMBEDDINGS, "tokenizer_path": "/k", "template_path": "/t"}, "--is-embedding"),
        ("tgi", {"speculation": Speculation(tokens=3)}, "--speculate 3"),
        ("tgi", {"kv_cache_type": "fp8"}, "--kv-cache-dtype fp8_e4m3fn"),
        ("tgi", {"quantization": "awq"}, "--quantize awq"),
    ],
)  # fmt: skip
def test_each_argument_has_an_option_of_its_own(kind: str, fields: dict[str, Any], part: str) -> None:
    assert f" {part}" in options(kind, **fields)


@pytest.mark.parametrize(("draft_path", "method"), [("/d", None), ("", "ngram")])
def test_vllm_is_told_of_speculation_in_json(draft_path: str, method: str | None) -> None:
    arguments = (
        KINDS["vllm"]
        .command(
            asked(speculation=Speculation("small" if draft_path else "", 5), draft_path=draft_path),
            4711,
            "secret",
        )
        .arguments
    )
    said = json.loads(arguments[arguments.index("--speculative-config") + 1])
    assert said["num_speculative_tokens"] == 5
    assert (said.get("model"), said.get("method")) == (draft_path or None, method)


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_key_stands_in_no_command_that_everybody_can_read(kind: str) -> None:
    command = KINDS[kind].command(asked(), 4711, "secret")
    assert "secret" not in " ".join(command.arguments)
    assert "secret" not in repr(command)
    assert ("secret" in command.environment.values()) == KINDS[kind].takes_key
    assert bool(KINDS[kind].new_key()) == KINDS[kind].takes_key


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        ("embedded", {"quantization": "awq"}, "revision.args.quantization: embedded: weights are quantized in their file"),
        ("embedded", {"tensor_parallel": 2}, "revision.args.tensor_parallel: embedded: it runs on CPUs"),
        ("embedded", {"kv_cache_type": "fp8"}, "revision.args.kv_cache_type: embedded: 'fp8' is none of f32, f16"),
        ("embedded", {"flags": ("--verbose",)}, "revision.args.flags: embedded"),
        ("embedded", {"ttft_ms": 3.0}, "revision.args.ttft_ms: embedded: only the scripted engine has it"),
        ("embedded", {"tokenizer_path": "/k"}, "revision.tokenizer: embedded"),
        ("llamacpp", {"gpu_memory_share": 0.5}, "revision.args.gpu_memory_share: llamacpp"),
        ("llamacpp", {"kv_cache_type": "fp8"}, "revision.args.kv_cache_type: llamacpp: 'fp8' is none of"),
        ("llamacpp", {"data_parallel": 2}, "raise scale.max"),
        ("llamacpp", {"tokenizer_path": "/k"}, "revision.tokenizer: llamacpp"),
        ("vllm", {"gpu_layers": 3}, "revision.args.gpu_layers: vllm: all layers are on the GPU"),
        ("vllm", {"kv_cache_type": "q8_0"}, "revision.args.kv_cache_type: vllm: 'q8_0' is none of"),
        ("vllm", {"threads": 3}, "revision.args.threads: vllm"),
        ("vllm", {"flags": ("--port=1",)}, "revision.args.flags: --port is ours to say"),
        ("sglang", {"flags": ("--api-key", "x")}, "revision.args.flags: --api-key is ours to say"),
        ("tgi", {"speculation": Speculation("small")}, "revision.args.speculation: tgi: it guesses by n-grams alone"),
        ("tgi", {"task": Task.EMBEDDINGS}, "deployment.task: tgi"),
        ("tgi", {"template_path": "/t"}, "revision.template: tgi"),
        ("tgi", {"pipeline_parallel": 2}, "revision.args.pipeline_parallel: tgi"),
        ("triton", {}, "deployment.engine: triton: the gateway speaks no KServe yet"),
        ("scripted", {"gpu_layers": 2}, "revision.args.gpu_layers: scripted: it has no model"),
        ("scripted", {"fault": "explode"}, "explode"),
    ],
)  # fmt: skip
def test_what_an_engine_lacks_is_refused_with_the_reason(
    kind: str, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        KINDS[kind].refuse_unsuitable(asked(**fields))
    assert reason in str(refusal.value)


def test_every_argument_is_known_to_every_kind_as_a_translation_or_a_refusal() -> None:
    """A new argument can't be forgotten: a kind that doesn't know it refuses it."""
    samples: dict[str, Any] = {
        "prefix_cache": True,
        "quantization": "awq",
        "kv_cache_type": "f16",
        "speculation": Speculation(),
        "gpu_memory_share": 0.5,
        "flags": (),
        "fault": "",
        "load_fault": "crash",
        "answer": "yes",
        "answers": {"q": "a"},
    }
    for known in msgspec.structs.fields(EngineArgs):
        for kind in set(EngineKind) - {EngineKind.REMOTE}:
            refused = refusal(kind, asked(**{known.name: samples.get(known.name, 1)}))
            assert refused is None or str(kind) in refused


def refusal(kind: str, what: Asked) -> str | None:
    try:
        KINDS[kind].refuse_unsuitable(what)
    except ConfigError as error:
        return str(error)
    return None


def test_the_gateway_knows_how_to_speak_to_every_kind() -> None:
    assert {kind.dialect for kind in KINDS.values()} <= DIALECTS.keys()
    assert KINDS.keys() == set(EngineKind) - {EngineKind.REMOTE}


def test_settings_of_our_own_engines_hold_the_key_where_nobody_can_read_it() -> None:
    for kind in (EngineKind.EMBEDDED, EngineKind.SCRIPTED):
        command = KINDS[kind].command(asked(answer="yes") if kind == "scripted" else asked(), 0, "secret")
        assert json.loads(command.settings)["api_key"] == "secret"
        assert "secret" not in " ".join(command.arguments) + repr(command)
        assert not command.environment

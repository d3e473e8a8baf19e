"""What runs a model on this machine without anything to install: llama.cpp (through xllamacpp) in a child process.

    python -m headrace.engines.embedded     one line of settings on standard input, reports on standard output

The child speaks the OpenAI-compatible HTTP of llama.cpp on a loopback port that it picks itself. Its key arrives on
standard input, which neither `ps` nor `/proc/PID/environ` shows. The end of standard input ends the child.
"""

import importlib.metadata
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from headrace.core.fleet import Task
from headrace.engines import child

ENGINE = "xllamacpp"
CHAT_BATCH_TOKENS = 256
EMBEDDING_TOKENS_MAX = 512
WARNINGS_AND_ERRORS = 2
# Our word for each number format, and the library's.
KV_TYPES = {
    "f32": "F32",
    "f16": "F16",
    "bf16": "BF16",
    "q8_0": "Q8_0",
    "q5_1": "Q5_1",
    "q5_0": "Q5_0",
    "q4_1": "Q4_1",
    "q4_0": "Q4_0",
    "iq4_nl": "IQ4_NL",
}


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """All that the child needs to know; travels to it as one line of JSON.

    Attributes:
        model_name: The name that it answers to.
        slots: Requests that it runs at once.
        context_tokens: Prompt plus output of one request.
        api_key: What callers must present.
        batch_tokens: Tokens that one step computes at most; 0 for ours.
        has_prefix_cache: A slot keeps its last prompt, and what the next one begins with like it isn't computed again.
        kv_type: Number format of the KV cache, of KV_TYPES.
        template_path: The chat template's file; "" for the one in the weights.
        draft_path, draft_tokens: The small model that guesses so many tokens ahead; without one they are guessed from the
            prompt itself. 0 tokens: nothing is guessed.
    """

    model_path: str
    model_name: str
    task: Task
    slots: int
    context_tokens: int
    threads: int
    api_key: str = field(repr=False)
    batch_tokens: int = 0
    has_prefix_cache: bool = True
    kv_type: str = "f16"
    template_path: str = ""
    draft_path: str = ""
    draft_tokens: int = 0


def engine_version() -> str:
    """Name and version of the engine, without loading it; part of a revision's digest."""
    return f"{ENGINE} {importlib.metadata.version(ENGINE)}"


def default_threads() -> int:
    """All cores of ours but one: two busy threads on two cores wait for each other whenever the gateway needs one."""
    return max(1, len(os.sched_getaffinity(0)) - 1)


def request_tokens_max(task: Task, context_tokens: int) -> int:
    """Tokens that one request may use. An embedding is computed in one batch, which bounds its input."""
    return min(context_tokens, EMBEDDING_TOKENS_MAX) if task is Task.EMBEDDINGS else context_tokens


def common_parameters(settings: EngineSettings) -> dict[str, Any]:
    """The settings as `xllamacpp.CommonParams` fields, by dotted name.

    What is not the library's default, and why:
        n_ctx is the total over all slots.
        kv_unified, cache_ram_mib, cache_idle_slots: off, so that nothing of one slot's prompt can reappear in another.
        n_batch bounds how long one prompt may hold up the tokens of the others.
        fit_params off: it would shrink the context to fit memory, and the revision would no longer say what runs.
        n_threads_http: a kept-alive connection occupies one of these, and probes must always find one free.
        cors_origins, ui, endpoint_slots, endpoint_props: off; the gateway is the only caller.
        verbosity: warnings and errors, while loading; later the log is closed, see `main`.
    """
    tokens = request_tokens_max(settings.task, settings.context_tokens)
    is_embedding = settings.task is Task.EMBEDDINGS
    batch = EMBEDDING_TOKENS_MAX if is_embedding else settings.batch_tokens or CHAT_BATCH_TOKENS
    return {
        "model.path": settings.model_path,
        "model_alias": {settings.model_name},
        "embedding": is_embedding,
        "n_parallel": settings.slots,
        "n_ctx": settings.slots * tokens,
        "kv_unified": False,
        "cache_ram_mib": 0,
        "cache_prompt": settings.has_prefix_cache,
        "cache_idle_slots": False,
        "n_batch": batch,
        "n_ubatch": batch,
        "cpuparams.n_threads": settings.threads,
        "cpuparams_batch.n_threads": settings.threads,
        "n_threads_http": 2 * settings.slots + 8,
        "fit_params": False,
        "hostnames": ["127.0.0.1"],
        "port": 0,
        "api_keys": [settings.api_key],
        "cors_origins": "",
        "cors_credentials": False,
        "ui": False,
        "endpoint_slots": False,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "verbosity": WARNINGS_AND_ERRORS,
    }


def main() -> int:
    """Loads, reports the port, serves until standard input ends; returns 1 when loading failed.

    SIGTERM keeps its default and ends the process at once, also while loading: nothing here needs saving, and the
    gateway has let requests finish before anyone sends it.
    """
    reports = child.Reports()
    settings = msgspec.json.decode(child.settings_line(), type=EngineSettings)
    reports.loading()
    try:
        server = _start(settings)
    except (OSError, ImportError, RuntimeError, ValueError) as error:
        reports.failed(str(error))
        return 1
    # Errors of single requests quote what the caller sent, so nothing is logged once there are callers.
    _send_to_nowhere(1, 2)
    reports.listening(urlsplit(server.listening_address).port or 0)
    while os.read(0, 4096):
        pass
    # Not a normal exit: destroying the server would wait for requests that nobody reads any more.
    os._exit(0)


def _start(settings: EngineSettings) -> Any:
    with Path(settings.model_path).open("rb"):  # a missing or unreadable file is told by its own error
        pass
    # Only the child loads the native library: a supervisor that imported it would share its faults and its memory.
    import xllamacpp  # noqa: PLC0415

    parameters = xllamacpp.CommonParams()
    for name, value in common_parameters(settings).items():
        *path, field = name.split(".")
        target = parameters
        for step in path:
            target = getattr(target, step)
        setattr(target, field, value)
    parameters.cache_type_k = parameters.cache_type_v = _named(
        xllamacpp.ggml_type, KV_TYPES[settings.kv_type]
    )
    if settings.template_path:
        parameters.chat_template = Path(settings.template_path).read_text(encoding="utf-8")
    if settings.draft_tokens:
        _speculate(parameters.speculative, settings, kinds=xllamacpp.common_speculative_type)
    return xllamacpp.Server(parameters)


def _speculate(speculative: Any, settings: EngineSettings, *, kinds: Any) -> None:
    if settings.draft_path:
        speculative.types = [_named(kinds, "DRAFT_SIMPLE")]
        speculative.draft.mparams.path = settings.draft_path
        speculative.draft.n_max = settings.draft_tokens
    else:
        speculative.types = [_named(kinds, "NGRAM_SIMPLE")]
        speculative.ngram_simple.size_m = settings.draft_tokens


def _named(members: Any, ending: str) -> Any:
    """The library's member whose long name ends so."""
    return next(each for each in members if each.name.endswith(f"_TYPE_{ending}"))


def _send_to_nowhere(*descriptors: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())

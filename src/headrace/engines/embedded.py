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


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """All that the child needs to know; travels to it as one line of JSON.

    Attributes:
        model_name: The name that it answers to.
        slots: Requests that it runs at once.
        context_tokens: Prompt plus output of one request.
        api_key: What callers must present.
    """

    model_path: str
    model_name: str
    task: Task
    slots: int
    context_tokens: int
    threads: int
    api_key: str = field(repr=False)


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
    batch = EMBEDDING_TOKENS_MAX if is_embedding else CHAT_BATCH_TOKENS
    return {
        "model.path": settings.model_path,
        "model_alias": {settings.model_name},
        "embedding": is_embedding,
        "n_parallel": settings.slots,
        "n_ctx": settings.slots * tokens,
        "kv_unified": False,
        "cache_ram_mib": 0,
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
    return xllamacpp.Server(parameters)


def _send_to_nowhere(*descriptors: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())

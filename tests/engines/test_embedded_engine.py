"""The real embedded engine under the real reconciler: answers, isolation, death, and models that don't load."""

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.control.engine_spec import EngineSpec
from headrace.core.fleet import Replica, ReplicaState, Task
from headrace.core.ids import ReplicaId
from headrace.engines.fetch import Response, fetch
from headrace.policies.replica_life import Restarts
from tests.control.rig import Engines, Record, eventually, is_running, parent_of, reconciling, until
from tests.support.models import shared_store

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(300)]

AT_ONCE = Restarts(quick_s=0.01, first_s=0.01, ceiling_s=0.01)
PING = {"messages": [{"role": "user", "content": "ping"}], "max_tokens": 1}


def model_path(name: str) -> Path:
    model = shared_store().get(name)
    assert model is not None
    return model.path


def chat_spec(path: Path | None = None) -> EngineSpec:
    return EngineSpec(
        deployment="chat",
        model_path=path or model_path("smollm2-135m-instruct"),
        model_sha256="",
        task=Task.CHAT,
        slots=2,
        context_tokens=512,
        threads=0,
    )


def embedding_spec() -> EngineSpec:
    return EngineSpec(
        deployment="embeddings",
        model_path=model_path("all-minilm-l6-v2"),
        model_sha256="",
        task=Task.EMBEDDINGS,
        slots=2,
        context_tokens=4096,
        threads=0,
    )


async def ask(replica: Replica, path: str, question: dict[str, Any], *, authorization: str) -> Response:
    return await fetch(
        replica.host,
        replica.port,
        "POST",
        path,
        headers=[("Authorization", authorization)],
        body=json.dumps(question).encode(),
        timeout_s=60,
        body_bytes_max=1_000_000,
    )


async def answer(replica: Replica, path: str, question: dict[str, Any]) -> dict[str, Any]:
    response = await ask(replica, path, question, authorization=replica.authorization)
    assert response.status == 200, response.body
    found: dict[str, Any] = json.loads(response.body)
    return found


def test_chat_and_embeddings_are_ready_answer_under_their_names_and_only_with_the_key(tmp_path: Path) -> None:
    async def scenario() -> None:
        record = Record()
        specs = [chat_spec(), embedding_spec()]
        launcher = Engines(tmp_path)
        async with reconciling(record, engines=specs, launcher=launcher) as reconciler:
            (chat,) = await eventually(lambda: record.replicas("chat"), within_s=120)
            (embeddings,) = await eventually(lambda: record.replicas("embeddings"), within_s=120)

            question = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
            said = await answer(chat, "/v1/chat/completions", question)
            assert said["model"] == "chat"
            assert said["usage"]["completion_tokens"] == 4
            path = "/v1/chat/completions"
            assert (await ask(chat, path, question, authorization="Bearer guess")).status == 401

            found = await answer(embeddings, "/v1/embeddings", {"input": ["one", "two"]})
            assert [len(row["embedding"]) for row in found["data"]] == [384, 384]
            assert record.snapshots[-1].deployments["embeddings"].context_tokens <= 512

            await eventually(lambda: reconciler.status()[0].gauges.get("tokens_predicted_total", 0) >= 4)
            cold_start = reconciler.status()[0].cold_start
            assert cold_start is not None
            assert min(cold_start.launch_s, cold_start.load_s, cold_start.warm_s) > 0

    asyncio.run(scenario())


def test_a_slot_that_the_gateway_names_reuses_its_own_prompt_and_nothing_of_another_slot(
    tmp_path: Path,
) -> None:
    """What `partitions_slots` promises: caches are kept per slot, and the caller decides whether one is used."""

    async def scenario() -> None:
        record = Record()
        async with reconciling(record, engines=[chat_spec()], launcher=Engines(tmp_path)):
            (replica,) = await eventually(lambda: record.replicas("chat"), within_s=120)
            text = "The ferry leaves at nine. " * 12
            question = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}

            async def cached_tokens(slot: int, *, reuse: bool) -> int:
                asked = question | {"id_slot": slot, "cache_prompt": reuse}
                said = await answer(replica, "/v1/chat/completions", asked)
                count: int = said["timings"]["cache_n"]
                return count

            assert await cached_tokens(0, reuse=True) < 40, "a template's own tokens at most"
            assert await cached_tokens(0, reuse=True) > 60
            assert await cached_tokens(1, reuse=False) == 0
            assert await cached_tokens(0, reuse=False) == 0

    asyncio.run(scenario())


def test_nothing_that_a_caller_sends_reaches_the_log(tmp_path: Path) -> None:
    """T47, the engine's part: llama.cpp quotes bad tools, schemas and grammars in its error lines."""
    marker = "canary-in-the-prompt"
    questions: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", PING | {"messages": [{"role": "user", "content": f"{marker} " * 600}]}),
        ("/v1/chat/completions", PING | {"tools": marker}),
        (
            "/v1/chat/completions",
            PING
            | {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": marker}},
                }
            },
        ),
        ("/v1/completions", {"prompt": marker, "grammar": marker}),
    ]

    async def scenario() -> None:
        record = Record()
        async with reconciling(record, engines=[chat_spec()], launcher=Engines(tmp_path)):
            (replica,) = await eventually(lambda: record.replicas("chat"), within_s=120)
            for path, question in questions:
                refused = await ask(replica, path, question, authorization=replica.authorization)
                assert refused.status >= 400

    asyncio.run(scenario())
    assert marker not in "".join(log.read_text() for log in tmp_path.iterdir() if log.is_file())


def test_a_killed_engine_is_out_within_a_second_and_ready_again_as_a_new_generation(tmp_path: Path) -> None:
    """T1, the fleet's part, on the real engine."""

    async def scenario() -> None:
        record = Record()
        launcher = Engines(tmp_path)
        async with reconciling(
            record, engines=[chat_spec()], launcher=launcher, restarts=AT_ONCE
        ) as reconciler:
            (before,) = await eventually(lambda: record.replicas("chat"), within_s=120)
            pid = reconciler.status()[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            killed_s = time.monotonic()
            await eventually(lambda: not record.replicas("chat"))
            assert record.published_s[-1] - killed_s < 5.0  # a second, and a machine that others use
            (after,) = await eventually(lambda: record.replicas("chat"), within_s=120)
            assert (before.generation, after.generation) == (0, 1)
            assert (await answer(after, "/v1/chat/completions", PING))["choices"]

    asyncio.run(scenario())


def test_an_engine_without_a_lifeline_ends_when_its_input_ends() -> None:
    """Lifeline and supervisor may be killed one after the other: then nobody but the engine itself can notice."""
    settings = {
        "model_path": str(model_path("smollm2-135m-instruct")),
        "model_name": "chat",
        "task": "chat",
        "slots": 1,
        "context_tokens": 512,
        "threads": 1,
        "api_key": "key",
    }
    command = [sys.executable, "-m", "headrace.engines.embedded"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
        assert engine.stdin is not None
        assert engine.stdout is not None
        engine.stdin.write(json.dumps(settings).encode() + b"\n")
        engine.stdin.flush()
        states = [json.loads(engine.stdout.readline())["state"] for _ in range(2)]
        assert states == ["loading", "listening"]
        engine.stdin.close()
        assert engine.wait(60) == 0


SUPERVISOR = """
import asyncio, random, sys
from pathlib import Path
from headrace.control.launchers import Launcher, Lifeline
from headrace.control.reconciler import Reconciler
from headrace.control.engine_spec import EngineSpec
from headrace.core.clock import SystemClock
from headrace.core.fleet import Task

spec = EngineSpec("chat", Path(sys.argv[1]), "", Task.CHAT, slots=1, context_tokens=512, threads=1)
asyncio.run(
    Reconciler(
        [spec],
        [],
        launcher=Launcher(
            run=Path(sys.argv[2]) / "replicas",
            logs=Path(sys.argv[2]),
            lifeline_fd=Lifeline().reading_fd,
            clock=SystemClock(),
        ),
        clock=SystemClock(),
        chance=random.Random(),
        publish=lambda snapshot: None,
        observe=lambda status: print(status.state.value, status.pid, flush=True),
    ).run()
)
"""


@pytest.mark.parametrize("when", ["warming", "ready"])
def test_kill_9_of_the_supervisor_leaves_no_engine(tmp_path: Path, when: str) -> None:
    command = [
        sys.executable,
        "-c",
        SUPERVISOR,
        str(model_path("smollm2-135m-instruct")),
        str(tmp_path),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        state, pid = "", ""
        while state != when:
            state, pid = supervisor.stdout.readline().split()
        engine = int(pid)
        lifeline = parent_of(engine)
        supervisor.kill()
    until(lambda: not is_running(engine) and not is_running(lifeline), within_s=60)


@pytest.mark.parametrize("kind", ["garbage", "truncated", "missing"])
def test_a_model_that_does_not_load_is_failed_with_the_cause_and_tried_again(
    tmp_path: Path, kind: str
) -> None:
    """The operator reads what is wrong with the file, not that some process ended."""
    path = tmp_path / "model.gguf"
    match kind:
        case "garbage":
            path.write_bytes(hashlib.sha256(b"garbage").digest() * 1000)
        case "truncated":
            path.write_bytes(model_path("smollm2-135m-instruct").read_bytes()[:5_000_000])
    cause = {"garbage": "magic", "truncated": "data is not within the file bounds", "missing": "No such file"}

    async def scenario() -> None:
        record = Record()
        launcher = Engines(tmp_path / "logs")
        async with reconciling(
            record, engines=[chat_spec(path)], launcher=launcher, restarts=AT_ONCE
        ) as reconciler:
            await eventually(lambda: reconciler.status()[0].restarts >= 2, within_s=60)
        failed = [status for status in record.statuses if status.state is ReplicaState.FAILED]
        assert failed
        assert cause[kind] in failed[0].reason, failed[0].reason
        assert record.replicas("chat") == ()
        assert "chat" in record.snapshots[-1].deployments

    asyncio.run(scenario())


@pytest.mark.parametrize("path", ["", "draft"], ids=["from the prompt", "by a small model"])
def test_speculation_a_smaller_kv_cache_and_a_template_of_its_own_are_switched_on_by_the_file(
    tmp_path: Path, path: str
) -> None:
    """C4, on the real engine: what it was told shows in what it answers and says of itself."""
    template = tmp_path / "shout.jinja"
    template.write_text("{% for m in messages %}{{ m.content | upper }}{% endfor %}")
    weights = model_path("smollm2-135m-instruct")
    settings = {
        "model_path": str(weights),
        "model_name": "chat",
        "task": "chat",
        "slots": 1,
        "context_tokens": 512,
        "threads": 1,
        "api_key": "key",
        "batch_tokens": 128,
        "has_prefix_cache": False,
        "kv_type": "q8_0",
        "template_path": str(template),
        "draft_path": str(weights) if path else "",
        "draft_tokens": 4,
    }

    async def said(port: int) -> dict[str, Any]:
        question = {
            "messages": [{"role": "user", "content": "one two three one two three one two three"}],
            "max_tokens": 24,
            "temperature": 0,
        }
        replica = Replica(ReplicaId("chat-0"), "127.0.0.1", port, 1, authorization="Bearer key")
        await answer(replica, "/v1/chat/completions", question)
        return await answer(replica, "/v1/chat/completions", question)

    command = [sys.executable, "-m", "headrace.engines.embedded"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
        assert engine.stdin is not None
        assert engine.stdout is not None
        engine.stdin.write(json.dumps(settings).encode() + b"\n")
        engine.stdin.flush()
        reports = [json.loads(engine.stdout.readline()) for _ in range(2)]
        assert reports[1]["state"] == "listening", reports
        found = asyncio.run(said(reports[1]["port"]))
        engine.kill()
    assert found["timings"]["cache_n"] == 0
    assert found["usage"]["completion_tokens"] > 0
    if path:
        assert found["timings"]["draft_n"] > 0

"""Servers that others run: what they offer, when they are taken out, and which URLs are refused."""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace.control import probes
from headrace.control.upstreams import Upstream, UpstreamLimits, tasks_of
from headrace.core.errors import ConfigError
from headrace.core.fleet import ReplicaState, Task
from headrace.core.isolation import CacheIsolation
from tests.control.rig import Record, eventually, reconciling
from tests.support.raw_replica import raw_replica

QUICKLY = UpstreamLimits(every_s=0.02, probe_s=0.2)


class Server:
    """Lists models on a port of its own; counts probes, and can be slow or say nonsense."""

    def __init__(self, *models: dict[str, Any]) -> None:
        self.models = list(models)
        self.slots = 0  # as a server of llama.cpp tells them
        self.status = 200
        self.is_slow = False
        self.probes = 0
        self.authorizations: list[str] = []
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._answer, "127.0.0.1", self.port)
        try:
            yield
        finally:
            server.close()
            await server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.probes += 1
        self.authorizations += [
            line.partition(": ")[2] for line in head.split("\r\n") if "Authorization" in line
        ]
        answers: dict[str, Any] = {
            "/v1/models": {"object": "list", "data": self.models},
            "/props": {"total_slots": self.slots, "chat_template": ""},
        }
        method, path, _ = head.split("\r\n")[0].split(" ")
        assert method == "GET"
        if not self.is_slow:
            body = json.dumps(answers[path])
            writer.write(f"HTTP/1.1 {self.status} X\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        else:
            await reader.read()  # until the probe gives up
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def upstream(server: Server, *, path: str = "") -> Upstream:
    return Upstream(server.url + path, slots=8)


def test_replicas_of_one_model_are_offered_together() -> None:
    """Two servers that list the same model are two replicas of it; what only one lists has one."""

    async def scenario() -> None:
        first = Server({"id": "shared", "max_model_len": 4096}, {"id": "own"})
        second = Server({"id": "shared", "max_model_len": 2048})
        record = Record()
        async with first.running(), second.running():
            upstreams = [upstream(first), upstream(second, path="/v1/")]
            async with reconciling(record, upstreams=upstreams, upstream_limits=QUICKLY):
                await eventually(lambda: len(record.replicas("shared")) == 2)
                assert [replica.port for replica in record.replicas("own")] == [first.port]
                shared = record.snapshots[-1].deployments["shared"]
                assert shared.context_tokens == 2048, "what every replica can do"
                assert {replica.slots for replica in shared.replicas} == {8}
                assert shared.revision == "unpinned"

    asyncio.run(scenario())


def test_a_server_that_refuses_twice_is_out_and_two_good_probes_bring_it_back() -> None:
    """T22: out after two refusals in a row; its model stays known; back as a new generation."""

    async def scenario() -> None:
        server = Server({"id": "model"})
        record = Record()
        async with contextlib.AsyncExitStack() as stack:
            async with server.running():
                await stack.enter_async_context(
                    reconciling(record, upstreams=[upstream(server)], upstream_limits=QUICKLY)
                )
                await eventually(lambda: record.replicas("model"))
            await eventually(lambda: not record.replicas("model"))
            assert "model" in record.snapshots[-1].deployments
            assert record.statuses[-1].state is ReplicaState.FAILED
            assert "no connection" in record.statuses[-1].reason
            seen = server.probes
            async with server.running():
                (replica,) = await eventually(lambda: record.replicas("model"))
                assert replica.generation == 1
                assert server.probes >= seen + 2
                await stack.aclose()

    asyncio.run(scenario())


def test_a_server_that_says_it_is_not_ready_is_out_until_it_is() -> None:
    """REPORTS 86: it was started again behind our back, and loads its weights."""

    async def scenario() -> None:
        server = Server({"id": "model"})
        record = Record()
        async with server.running():
            async with reconciling(record, upstreams=[upstream(server)], upstream_limits=QUICKLY):
                await eventually(lambda: record.replicas("model"))
                server.status = 503
                await eventually(lambda: not record.replicas("model"))
                server.status = 200
                (replica,) = await eventually(lambda: record.replicas("model"))
                assert replica.generation == 1

    asyncio.run(scenario())


def test_a_server_whose_packets_vanish_is_out_and_comes_back_as_the_same() -> None:
    """T22, T27, REPORTS 82: nobody takes its connections any more. Its process may live, and so may what runs on it: the
    count of that belongs to its generation."""

    async def scenario() -> None:
        with raw_replica(backlog=1) as silent:
            record, found = Record(), list[str]()
            given, limits = Upstream(silent.url, slots=8), UpstreamLimits(every_s=0.02, probe_s=0.5)
            async with reconciling(record, upstreams=[given], upstream_limits=limits, found=found.append):
                await eventually(lambda: record.replicas("scripted"))
                silent.stop_accepting(8)
                await eventually(lambda: not record.replicas("scripted"))
                assert "no connection within 0.5 s" in record.statuses[-1].reason
                assert not found
                silent.accept_again()
                (replica,) = await eventually(lambda: record.replicas("scripted"))
                assert replica.generation == 0
                assert found == [replica.id]

    asyncio.run(scenario())


def test_names_that_no_label_or_terminal_should_hold_are_not_offered() -> None:
    """T45, T59: nor is more than a bounded number of them."""

    async def scenario() -> None:
        names = ["good/name:1 b", "x" * 201, "", "line\nbreak", "\x1b[31mred", " padded ", "caf\u00e9"]
        server = Server(
            *({"id": name} for name in [*names, *(f"m{n}" for n in range(2 * probes.MODELS_MAX))])
        )
        record = Record()
        async with server.running():
            async with reconciling(record, upstreams=[upstream(server)], upstream_limits=QUICKLY):
                await eventually(lambda: record.replicas("m0"))
        offered = record.snapshots[-1].deployments.keys()
        assert offered & set(names) == {"good/name:1 b", "caf\u00e9"}
        assert len(offered) <= probes.MODELS_MAX

    asyncio.run(scenario())


@pytest.mark.parametrize("trouble", ["slow", "error", "nonsense"])
def test_a_server_that_answers_badly_is_not_taken_out(trouble: str) -> None:
    """T21: a probe that is slow or wrong proves nothing about the streams that flow."""

    async def scenario() -> None:
        server = Server({"id": "model"})
        record = Record()
        limits = UpstreamLimits(every_s=0.01, probe_s=0.05)
        async with server.running():
            async with reconciling(record, upstreams=[upstream(server)], upstream_limits=limits):
                await eventually(lambda: record.replicas("model"))
                match trouble:
                    case "slow":
                        server.is_slow = True
                    case "error":
                        server.status = 500
                    case _:
                        server.models = [{"name": "no id"}]
                seen = server.probes
                await eventually(lambda: server.probes > seen + 4)
                assert record.replicas("model")
                assert record.statuses[-1].reason
        assert all(status.state is not ReplicaState.FAILED for status in record.statuses)

    asyncio.run(scenario())


@pytest.mark.slow
def test_models_of_a_real_server_process_are_offered_until_it_is_killed() -> None:
    command = [sys.executable, "-m", "headrace", "engine", "scripted", "--port", "0", "--model", "a", "b"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]

        async def scenario() -> None:
            record = Record()
            given = Upstream(url + "/v1", slots=4)
            async with reconciling(record, upstreams=[given], upstream_limits=QUICKLY) as reconciler:
                await eventually(lambda: record.replicas("a") and record.replicas("b"))
                assert record.replicas("a")[0].traits.name == "scripted"
                assert [status.deployment for status in reconciler.status()] == ["a", "b"]
                server.kill()
                await eventually(lambda: not record.replicas("a"))
                assert record.snapshots[-1].deployments.keys() == {"a", "b"}

        try:
            asyncio.run(scenario())
        finally:
            server.kill()


def test_an_unchanged_fleet_is_not_published_again() -> None:
    async def scenario() -> None:
        server = Server({"id": "model"})
        record = Record()
        async with server.running():
            async with reconciling(record, upstreams=[upstream(server)], upstream_limits=QUICKLY):
                await eventually(lambda: server.probes > 5)
        assert len([snapshot for snapshot in record.snapshots if snapshot.deployments]) == 1

    asyncio.run(scenario())


def test_a_model_that_is_no_longer_listed_is_no_longer_offered() -> None:
    """Its name stays known, without a replica, and its replica is told to have stopped."""

    async def scenario() -> None:
        server = Server({"id": "kept"}, {"id": "dropped"})
        record = Record()
        async with server.running():
            async with reconciling(record, upstreams=[upstream(server)], upstream_limits=QUICKLY):
                await eventually(lambda: record.replicas("dropped"))
                server.models = [{"id": "kept"}]
                await eventually(lambda: not record.replicas("dropped"))
                assert "dropped" in record.snapshots[-1].deployments
                assert len(record.replicas("kept")) == 1
                states = {status.deployment: status.state for status in record.statuses}
                assert states == {"kept": ReplicaState.READY, "dropped": ReplicaState.STOPPED}

    asyncio.run(scenario())


def test_a_new_context_is_offered_and_a_new_time_alone_is_not_published() -> None:
    async def scenario() -> None:
        server = Server({"id": "model", "max_model_len": 4096, "created": 1})
        record = Record()
        async with server.running():
            async with reconciling(record, upstreams=[upstream(server)], upstream_limits=QUICKLY):
                await eventually(lambda: record.replicas("model"))
                versions = len(record.snapshots)
                server.models = [{"id": "model", "max_model_len": 4096, "created": 2}]
                seen = server.probes
                await eventually(lambda: server.probes > seen + 3)
                assert len(record.snapshots) == versions
                server.models = [{"id": "model", "max_model_len": 8192, "created": 3}]
                await eventually(lambda: record.snapshots[-1].deployments["model"].context_tokens == 8192)

    asyncio.run(scenario())


def test_a_model_listed_twice_by_one_server_is_one_replica() -> None:
    async def scenario() -> None:
        server = Server({"id": "model"}, {"id": "model"})
        record = Record()
        async with server.running():
            async with reconciling(record, upstreams=[upstream(server)], upstream_limits=QUICKLY):
                assert len(await eventually(lambda: record.replicas("model"))) == 1

    asyncio.run(scenario())


def test_the_authorization_is_sent_and_never_shown() -> None:
    async def scenario() -> None:
        server = Server({"id": "model"})
        record = Record()
        given = Upstream(server.url, slots=1, authorization="Bearer secret-of-the-server")
        async with server.running():
            async with reconciling(record, upstreams=[given], upstream_limits=QUICKLY):
                (replica,) = await eventually(lambda: record.replicas("model"))
        assert server.authorizations[0] == replica.authorization == "Bearer secret-of-the-server"
        assert "secret" not in repr(record.snapshots) + repr(record.statuses) + repr(given)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("row", "dialect", "streams_only", "context_tokens"),
    [
        ({"owned_by": "vllm", "max_model_len": 32768}, "vllm", False, 32768),
        ({"owned_by": "llamacpp", "meta": {"n_ctx": 4096, "n_vocab": 9}}, "llama.cpp", True, 4096),
        ({"owned_by": "sglang"}, "sglang", False, 0),
        ({"owned_by": "tensorrt_llm"}, "tensorrt_llm", False, 0),
        ({"owned_by": "vllm", "cache_isolation": None}, "headrace", False, 0),
        ({"owned_by": "headrace-scripted"}, "scripted", False, 0),
        ({"owned_by": "somebody", "meta": None}, "openai", False, 0),
    ],
)
def test_the_dialect_is_read_from_the_list_of_models(
    row: dict[str, Any], dialect: str, *, streams_only: bool, context_tokens: int
) -> None:
    """Only an engine that we start ourselves has slots that are ours to assign."""

    async def scenario() -> None:
        server = Server({"id": "model", "created": 1_700_000_000, **row})
        record = Record()
        async with server.running():
            async with reconciling(record, upstreams=[upstream(server)], upstream_limits=QUICKLY):
                (replica,) = await eventually(lambda: record.replicas("model"))
        assert (replica.traits.name, replica.traits.streams_only) == (dialect, streams_only)
        assert not replica.traits.partitions_slots
        deployment = record.snapshots[-1].deployments["model"]
        assert (deployment.context_tokens, deployment.owner) == (context_tokens, row["owned_by"])

    asyncio.run(scenario())


def isolating(server: Server, isolation: CacheIsolation) -> Upstream:
    return Upstream(server.url, slots=8, isolation=isolation)


@pytest.mark.parametrize(
    ("owned_by", "isolation", "slots", "reason"),
    [
        ("llamacpp", CacheIsolation.SALT, 8, 'cache_isolation = "salt"'),
        ("vllm", CacheIsolation.SLOTS, 8, 'cache_isolation = "slots"'),
        ("somebody", CacheIsolation.OFF, 8, 'cache_isolation = "off_per_request"'),
        ("llamacpp", CacheIsolation.SLOTS, 7, "`slots` is 8, and the server has 7"),
    ],
)
def test_a_server_that_would_not_isolate_as_asked_is_not_used(
    owned_by: str, isolation: CacheIsolation, slots: int, reason: str
) -> None:
    """T42: what an operator relies on holds, or there is no answer; and why is to be read in the status."""

    async def scenario() -> None:
        server = Server({"id": "model", "owned_by": owned_by})
        server.slots = slots
        record = Record()
        async with server.running():
            upstreams = [isolating(server, isolation)]
            async with reconciling(record, upstreams=upstreams, upstream_limits=QUICKLY) as reconciler:
                await eventually(lambda: server.probes >= 6)
                (status,) = reconciler.status()
        assert status.state is ReplicaState.FAILED
        assert reason in status.reason
        assert record.replicas("model") == ()

    asyncio.run(scenario())


def test_slots_of_a_server_of_llama_cpp_are_assigned_where_it_has_them_all() -> None:
    """And one answer at a time: it would spread several over slots of its own choosing."""

    async def scenario() -> None:
        server = Server({"id": "model", "owned_by": "llamacpp"})
        server.slots = 8
        record = Record()
        async with server.running():
            upstreams = [isolating(server, CacheIsolation.SLOTS)]
            async with reconciling(record, upstreams=upstreams, upstream_limits=QUICKLY) as reconciler:
                (replica,) = await eventually(lambda: record.replicas("model"))
                (status,) = reconciler.status()
        assert replica.traits.partitions_slots
        assert status.traits == replica.traits
        assert record.snapshots[-1].deployments["model"].choices_max == 1

    asyncio.run(scenario())


def test_a_deployment_takes_token_ids_only_if_each_of_its_servers_does() -> None:
    """Where a salt is the first line of a prompt, the prompt must be text."""

    async def scenario() -> None:
        first, second = Server({"id": "model"}), Server({"id": "model"})
        record = Record()
        async with first.running(), second.running():
            upstreams = [isolating(first, CacheIsolation.PROMPT), upstream(second)]
            async with reconciling(record, upstreams=upstreams, upstream_limits=QUICKLY):
                await eventually(lambda: len(record.replicas("model")) == 2)
        assert not record.snapshots[-1].deployments["model"].takes_token_ids

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "url",
    [
        "https://",
        "127.0.0.1:8000",
        "http://",
        "http://host:port",
        "http://host:99999",
        "http://user:password@host/v1",
        "http://host/v1?key=value",
        "ftp://host",
        "http://host:0",
        "http://a..b:80",
        "http://host/a b",
        "http://host/\u20ac",
    ],
)
def test_a_url_that_cannot_be_served_is_refused_before_anything_starts(url: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        Upstream(url, slots=1).address()
    assert "password" not in refusal.value.message


@pytest.mark.parametrize(
    ("url", "host", "port", "prefix"),
    [
        ("http://host", "host", 80, ""),
        ("http://host:8000/v1", "host", 8000, ""),
        ("http://host:8000/v1/", "host", 8000, ""),
        ("http://host/team/a/v1", "host", 80, "/team/a"),
        ("http://[::1]:8000", "::1", 8000, ""),
    ],
)
def test_a_base_url_may_end_in_v1_or_not(url: str, host: str, port: int, prefix: str) -> None:
    address = Upstream(url, slots=1).address()
    assert (address.host, address.port, address.path_prefix) == (host, port, prefix)


def test_a_server_given_twice_is_refused() -> None:
    """Its slots would be counted twice."""

    async def scenario() -> None:
        twice = [Upstream("http://host:1", slots=1), Upstream("http://host:1/v1", slots=1)]
        async with reconciling(Record(), upstreams=twice):
            pass

    with pytest.raises(ConfigError, match="host:1"):
        asyncio.run(scenario())


def test_a_model_named_for_embeddings_is_offered_for_nothing_else() -> None:
    assert tasks_of("text-embedding-3-small") == {Task.EMBEDDINGS}
    assert tasks_of("sentence-transformers/all-MiniLM-L6-v2") == {Task.EMBEDDINGS}
    assert tasks_of("llama-3.1-8b-instruct") == {Task.CHAT, Task.EMBEDDINGS}

"""Prefix caches between tenants, on the wire: who gets which salt, what callers can't say, and what they are told."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.stores.opening import open_database
from headrace.stores.usage_report import UsageReport
from tests.gateway.plain_server import MODEL, PlainServer, plain_server
from tests.support.provider import Provider, provider, wait_until
from tests.support.scripted import ScriptedEngine, scripted_engine
from tests.support.websocket import LIMIT_S, dial

SALT = re.compile(r"[A-Za-z0-9_-]{43}")
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"prompt": "hello"},
    "/v1/embeddings": {"input": "hello"},
}
MINE = "m" * 43
# Every word by which a caller might name a cache, a slot or a session, at the top and inside.
SAID: dict[str, Any] = {
    "cache_salt": MINE,
    "cache_salt_id": 7_777_777,
    "extra_key": MINE,
    "id_slot": 7_777_777,
    "cache_prompt": True,
    "session_id": MINE,
    "session_params": {"id": MINE},
    "extra_body": {"cache_salt": MINE, "extra_body": {"cache_salt": MINE}},
    "extra_args": {"nvext": {"cache_salt": MINE}},
    "nvext": {"cache_salt": MINE},
}


@dataclass(frozen=True)
class Kinds:
    """A provider in front of one engine of each kind, whose model has the name of its kind."""

    running: Provider
    engines: dict[str, ScriptedEngine]

    def ask(self, kind: str, key: str, path: str = "/v1/chat/completions", **fields: Any) -> dict[str, Any]:
        status, _, body = self.running.post(path, {"model": kind, **PATHS[path], **fields}, key=key)
        assert status == 200, body
        answer: dict[str, Any] = json.loads(body)
        return answer

    def salt(self, kind: str, key: str, path: str = "/v1/chat/completions") -> str | None:
        """The salt that comes with a request."""
        self.ask(kind, key, path)
        salt: str | None = self.engines[kind].executions()[-1].get("cache_salt")
        return salt


@pytest.fixture(scope="module")
def kinds() -> Iterator[Kinds]:
    with ExitStack() as stack:
        engines = {
            kind: stack.enter_context(scripted_engine(owned_by=kind, models=(kind,), log=True, tokens=2))
            for kind in ("vllm", "sglang", "tensorrt_llm", "llamacpp", "somebody")
        }
        running = stack.enter_context(provider(upstreams=[engine.url for engine in engines.values()]))
        wait_until(
            lambda: running.metric("headrace_replica_ready") == len(engines), what="every engine to be ready"
        )
        yield Kinds(running, engines)


@pytest.fixture(scope="module")
def keys(kinds: Kinds) -> dict[str, str]:
    """A key of each of these tenants: two alone, two of a group, one with a boundary inside it."""
    for tenant, flags in {
        "alone": (),
        "other": (),
        "first": ("--cache-group", "friends"),
        "second": ("--cache-group", "friends"),
        "split": ("--cache-boundary", "key"),
        "users": ("--cache-boundary", "user"),
    }.items():
        kinds.running.cli("tenants", "create", tenant, *flags)
    tenants = ("alone", "other", "first", "second", "split", "users")
    made = {tenant: kinds.running.key(tenant) for tenant in tenants}
    return made | {"alone again": kinds.running.key("alone"), "split again": kinds.running.key("split")}


@pytest.mark.parametrize("path", PATHS)
def test_a_salt_differs_for_each_tenant_and_is_one_for_a_group(
    kinds: Kinds, keys: dict[str, str], path: str
) -> None:
    """T42. Sharing is agreed by name; a finer boundary keeps even keys of one tenant apart."""
    salts = {name: kinds.salt("vllm", key, path) for name, key in keys.items()}
    assert all(salt is not None and SALT.fullmatch(salt) for salt in salts.values())
    assert salts["alone"] == salts["alone again"]
    assert salts["first"] == salts["second"]
    assert len(set(salts.values())) == len(salts) - 2


@pytest.mark.parametrize(
    ("kind", "salted"),
    [
        ("vllm", [True, True, True]),
        ("sglang", [True, True, False]),
        ("tensorrt_llm", [True, False, False]),
        ("llamacpp", [False, False, False]),
        ("somebody", [False, False, False]),
    ],
)
def test_each_kind_of_engine_gets_a_salt_where_it_takes_one(
    kinds: Kinds, keys: dict[str, str], kind: str, salted: list[bool]
) -> None:
    """The table of docs/concepts/cache-isolation.md, by real requests."""
    found = [kinds.salt(kind, keys["alone"], path) for path in PATHS]
    assert [salt is not None for salt in found] == salted
    assert len({salt for salt in found if salt is not None}) <= 1
    if kind == "llamacpp":
        last = [each.get("cache_prompt") for each in kinds.engines[kind].executions()[-3:]]
        assert last == [False, False, None], "it keeps no prefixes of what it embeds"


def executions_from(engine: ScriptedEngine, index: int, *, count: int) -> list[dict[str, Any]]:
    """Those that the engine has logged from that one on; none before there are so many."""
    found = engine.executions()[index:]
    return found if len(found) >= count else []


def test_what_a_caller_says_of_caches_slots_and_sessions_reaches_no_engine(
    kinds: Kinds, keys: dict[str, str]
) -> None:
    """T42: on every path and over WebSocket, however it is wrapped."""
    for kind, engine in kinds.engines.items():
        before = len(engine.executions())
        for path in PATHS:
            kinds.ask(kind, keys["alone"], path, **SAID)
        for path in list(PATHS)[:2]:
            with dial(kinds.running.port, keys["alone"], path=path) as connection:
                connection.send(json.dumps({"model": kind, **PATHS[path], **SAID}))
                while not json.loads(text := connection.recv(timeout=LIMIT_S))["object"].startswith(
                    "headrace.d"
                ):
                    assert "error" not in str(text)
        traces = wait_until(partial(executions_from, engine, before, count=5), what="all executions")
        assert MINE not in json.dumps(traces)
        assert "7777777" not in json.dumps(traces)
        assert not any(each.get("cache_prompt") for each in traces)


@pytest.fixture(scope="module")
def plain() -> Iterator[tuple[PlainServer, Provider, str]]:
    """A server that no dialect knows, told to salt prompts at their start."""
    with plain_server() as server:
        config = f'[[upstreams]]\nurl = "{server.url}"\ncache_isolation = "prompt"\n'
        with provider(config=config) as running:
            yield server, running, running.key("alone")


def test_none_of_it_is_anywhere_in_what_is_sent(plain: tuple[PlainServer, Provider, str]) -> None:
    """The whole body, as an engine would read it."""
    server, running, key = plain
    for path, fields in PATHS.items():
        running.post(path, {"model": MODEL, **fields, **SAID, "kept": "as it is"}, key=key)
        sent = json.dumps(server.bodies[-1])
        assert MINE not in sent
        assert "7777777" not in sent
        assert not SAID.keys() & server.bodies[-1].keys()
        assert server.bodies[-1]["kept"] == "as it is"


def test_where_the_prompt_is_salted_it_begins_with_the_tenants_own_line(
    plain: tuple[PlainServer, Provider, str],
) -> None:
    """T42, for a server without a salt: equal for one tenant, another for the next; what is embedded stays as it is."""
    server, running, key = plain
    begins = []
    for caller in (key, running.key("alone"), running.key("other")):
        running.chat(caller, model=MODEL)
        (message,) = server.bodies[-1]["messages"]
        line, _, rest = message["content"].partition("\n")
        assert (rest, len(line), "cache_salt" in server.bodies[-1]) == ("hello", 22, False)
        begins.append(line)
    assert begins[0] == begins[1] != begins[2]
    running.post("/v1/embeddings", {"model": MODEL, "input": "hello"}, key=key)
    assert server.bodies[-1]["input"] == "hello"
    status, _, body = running.post("/v1/completions", {"model": MODEL, "prompt": [1, 2]}, key=key)
    assert (status, json.loads(body)["error"]["param"]) == (400, "prompt")


def test_no_field_of_another_endpoint_passes_by_the_salt(plain: tuple[PlainServer, Provider, str]) -> None:
    """T42: some engines read `messages` and `prompt` whatever the endpoint."""
    server, running, key = plain
    hello = [{"role": "user", "content": "hello"}]
    for path, fields, param in (
        ("/v1/completions", {"prompt": "a", "messages": [5]}, "messages[0]"),
        ("/v1/chat/completions", {"messages": hello, "prompt": {"a": 1}}, "prompt"),
        ("/v1/chat/completions", {"messages": hello, "prompt": [1, 2]}, "prompt"),
    ):
        status, _, body = running.post(path, {"model": MODEL, **fields}, key=key)
        assert (status, json.loads(body)["error"]["param"]) == (400, param)
    running.post("/v1/chat/completions", {"model": MODEL, "messages": hello, "prompt": "hello"}, key=key)
    sent = server.bodies[-1]
    line = sent["prompt"].partition("\n")[0]
    assert (len(line), sent["messages"][0]["content"]) == (22, f"{line}\nhello")


@pytest.mark.parametrize(("kind", "told"), [("vllm", True), ("sglang", False), ("somebody", False)])
@pytest.mark.parametrize("stream", [True, False])
def test_cached_tokens_are_told_and_charged_only_where_they_are_surely_the_callers_own(
    kinds: Kinds, keys: dict[str, str], kind: str, told: bool, stream: bool
) -> None:
    """T42, REPORTS 28, 106: neither the answer nor the bill tells of another's prompts; the attempt's record has the truth."""
    kinds.engines[kind].set_faults("usage:cached=64")
    fields: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    _, headers, body = kinds.running.chat(keys["alone"], model=kind, **fields)
    kinds.engines[kind].set_faults("")
    assert (b'"cached_tokens":64' in body.replace(b" ", b"")) == told
    assert (b"cache" in body) == told
    request_id = headers["x-request-id"]
    (row,) = wait_until(
        lambda: [row for row in kinds.running.usage() if row["request_id"] == request_id], what="the record"
    )
    assert row["cached_tokens"] == (64 if told else 0)
    report = UsageReport(open_database(kinds.running.data, must_exist=True))
    try:
        assert [attempt.cached_tokens for attempt in report.executions(request_id)] == [64]
    finally:
        report.close()


def test_status_and_models_say_what_isolates_each(kinds: Kinds, keys: dict[str, str]) -> None:
    ways = {
        "vllm": "salt", "sglang": "salt", "tensorrt_llm": "salt", "llamacpp": "off_per_request", "somebody": "none",
    }  # fmt: skip
    status = kinds.running.status()["deployments"]
    assert {each["model"]: each["cache_isolation"] for each in status} == ways
    listed = json.loads(kinds.running.get("/v1/models", key=keys["alone"])[2])["data"]
    assert {each["id"]: each["cache_isolation"] for each in listed} == ways
    risks = {each["model"]: each["replicas"][0]["cache_risk"] for each in status}
    assert [model for model, risk in risks.items() if not risk] == ["vllm"]
    told = kinds.running.cli("status").stdout
    assert all(risk in told for risk in risks.values())


@pytest.mark.slow
def test_salts_are_one_over_workers_and_restarts_until_they_are_rotated(tmp_path: Path) -> None:
    """T42: another salt after a restart would cost every tenant its cache; one in each worker most of it."""
    with scripted_engine(owned_by="vllm", log=True, tokens=1) as engine:

        def salts(key: str, *, workers: int = 1, rotation: int = 0) -> tuple[set[str], str]:
            config = f"[server]\nworkers = {workers}\n[prefix_cache]\nsalt_rotation = {rotation}\n"
            with provider(data=tmp_path / "data", upstreams=[engine.url], config=config) as running:
                states = [row["state"] for row in running.status()["workers"]]
                assert workers == 1 or states == ["ready"] * workers
                key = key or running.key("alone", requests_per_minute=0)
                before = len(engine.executions())
                for _ in range(24):  # each on a connection of its own, which the kernel gives to any worker
                    assert running.chat(key)[0] == 200
                return {each["cache_salt"] for each in engine.executions()[before:]}, key

        first, key = salts("", workers=2)
        again, _ = salts(key)
        rotated, _ = salts(key, rotation=1)
    assert len(first) == 1
    assert first == again
    assert rotated.isdisjoint(first)


def test_salts_are_told_to_engines_alone(kinds: Kinds, keys: dict[str, str]) -> None:
    """T47: with one, and a way to the engine, a tenant's cache could be looked into."""
    salts = {kinds.salt("vllm", key) for key in keys.values()}
    data = kinds.running.data
    told = [
        (data / "logs" / "headrace.log").read_text(),
        json.dumps(kinds.running.status()),
        kinds.running.admin("/metrics")[1].decode(),
        kinds.running.get("/v1/models", key=keys["alone"])[2].decode(),
        *(path.read_bytes().decode("latin-1") for path in data.glob("headrace.db*")),
    ]
    assert not [salt for salt in salts if salt is not None and any(salt in each for each in told)]


def test_where_users_are_kept_apart_the_keys_of_one_user_share(kinds: Kinds, keys: dict[str, str]) -> None:
    """T42."""
    made = [
        kinds.running.cli("keys", "create", "--tenant", "users", "--user", user).stdout.strip()
        for user in ("anna", "anna", "boris")
    ]
    kinds.running.key("users")  # what was made before it is in force as well
    first, again, other = (kinds.salt("vllm", key) for key in made)
    assert first == again
    assert len({first, other, kinds.salt("vllm", keys["users"])}) == 3


def test_a_change_of_group_is_in_force_at_once(kinds: Kinds) -> None:
    key = kinds.running.key("joiner")
    alone = kinds.salt("vllm", key)
    kinds.running.cli("tenants", "set", "joiner", "--cache-group", "friends")
    wait_until(lambda: kinds.salt("vllm", key) != alone, what="the group's salt")
    told = kinds.running.cli("tenants", "set", "joiner", "--cache-boundary", "key", check=False)
    assert (told.returncode, "cache_boundary" in told.stderr) == (2, True)

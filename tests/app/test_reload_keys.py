"""Each documented key in turn: it is really in force after a reload, or is said to need a restart. REPORTS 73."""

import asyncio
import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace import config
from headrace.app import system_key
from headrace.app.budgets import no_budgets
from headrace.app.data_plane import DataPlane
from headrace.cli.main import main
from headrace.config import Config
from headrace.core.clock import SystemClock
from headrace.core.fleet import Deployment, FleetSnapshot, Replica, Task
from headrace.core.ids import ReplicaId
from headrace.policies.reloading import Effect, effect_of, flat
from headrace.stores import opening
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics
from tests.support.graph import reachable
from tests.support.provider import wait_until
from tests.support.reloading import Configured, configured
from tests.support.scripted import ScriptedEngine, scripted_engine

DEFAULTS = flat(msgspec.to_builtins(Config()))
# What can't be the default plus something, or needs another key beside it.
OTHERS: dict[str, dict[str, Any]] = {
    "server.host": {"server.host": "127.0.0.2"},
    "server.admin_host": {"server.admin_host": "127.0.0.2"},
    "server.tls_certificate": {},  # with its key, below
    "server.tls_key": {},
    "server.websocket_origins": {"server.websocket_origins": ["https://app.example"]},
    "server.trusted_proxies": {"server.trusted_proxies": ["10.0.0.0/24"]},
    "media.urls": {"media.urls": "fetch"},
    "media.networks": {"media.networks": ["10.1.2.0/24"]},
    "ledger.mode": {"ledger.mode": "lenient"},
    "request.deadline_s": {"request.deadline_s": 601.0},
    "stores.database": {"stores.database": "file:{secret}"},
    "limits.store": {"limits.store": "file:{secret}", "limits.hosts_max": 2},
    "models.s3.access_key": {
        "models.s3.access_key": "file:{secret}",
        "models.s3.secret_key": "file:{secret}",
    },
    "models.s3.secret_key": {
        "models.s3.access_key": "file:{secret}",
        "models.s3.secret_key": "file:{secret}",
    },
    "models.s3.session_token": {
        "models.s3.access_key": "file:{secret}",
        "models.s3.secret_key": "file:{secret}",
        "models.s3.session_token": "file:{secret}",
    },
    "models.s3.endpoint": {"models.s3.endpoint": "https://s3.example"},
    "models.mlflow.url": {"models.mlflow.url": "https://mlflow.example"},
    "models.mlflow.token": {"models.mlflow.token": "file:{secret}"},
    "models.mlflow.username": {"models.mlflow.username": "me", "models.mlflow.password": "file:{secret}"},
    "models.mlflow.password": {"models.mlflow.username": "me", "models.mlflow.password": "file:{secret}"},
    # Nothing that this service would ever come near: for some seconds it would refuse the work of the tests that follow.
    "pressure.memory_bytes_max": {"pressure.memory_bytes_max": 1 << 50},
    "pressure.lag_s_max": {"pressure.lag_s_max": 60.0},
    "auth.issuers": {},  # below
    "upstreams": {},
}
# A machine that is busy with other things must not make this service refuse work.
CALM = {"pressure.lag_s_max": 30.0}
# Flags of the rig go before these, and upstreams before the engine's models: they are named for that.
HIDDEN = {"server.port", "server.admin_port", "server.workers", "engine.chat_model", "engine.embedding_model"}
ISSUER = """
[[auth.issuers]]
name = "idp"
issuer = "https://idp.example"
audience = "us"
jwks_url = "https://idp.example/keys"
tenant = "demo"
"""


def another(key: str) -> dict[str, Any]:
    """Keys to set, so that this one is other than its default."""
    if key in OTHERS:
        return OTHERS[key]
    value = DEFAULTS[key]
    if isinstance(value, bool):
        return {key: not value}
    if isinstance(value, (int, float)):
        return {key: value + 1}
    return {key: "another"}


def toml(values: dict[str, Any]) -> str:
    """A file with these keys, in their sections."""
    sections: dict[str, list[str]] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(f"{name} = {json.dumps(value)}")
    return "\n".join(line for section, lines in sections.items() for line in (f"[{section}]", *lines))


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    with scripted_engine(slots=4, log=True) as engine:
        yield engine


@pytest.fixture(scope="module")
def service(engine: ScriptedEngine) -> Iterator[Configured]:
    with configured(text(engine, {})) as service:
        yield service


def text(engine: ScriptedEngine, values: dict[str, Any], more: str = "") -> str:
    return f'{toml(CALM | values)}\n{more}\n[[upstreams]]\nurl = "{engine.url}"\nslots = 4\n'


KEYS = [key for key in DEFAULTS if another(key)]


@pytest.mark.parametrize("key", KEYS)
def test_a_changed_key_is_in_force_or_is_said_to_need_a_restart(
    service: Configured, engine: ScriptedEngine, key: str
) -> None:
    service.file.with_name("secret").write_text("word")
    service.file.write_text(text(engine, {}))
    service.provider.cli("reload")
    values = {
        name: value.format(secret=service.file.with_name("secret")) if isinstance(value, str) else value
        for name, value in another(key).items()
    }
    service.file.write_text(text(engine, values))
    done = json.loads(service.provider.cli("reload", "--json").stdout)
    if key in HIDDEN:
        assert key in done["hidden"]
    elif effect_of(key) is Effect.AT_ONCE:
        assert key in done["changed"]
        assert not done["restart_required"]
    else:
        assert key in done["restart_required"]
        assert not done["changed"]
        assert key in service.provider.status()["config"]["restart_required"]


def test_identity_providers_need_a_restart(service: Configured, engine: ScriptedEngine) -> None:
    service.file.write_text(text(engine, {}, ISSUER))
    done = json.loads(service.provider.cli("reload", "--json").stdout)
    assert done["restart_required"] == ["auth.issuers"]


def test_a_certificate_is_checked_as_at_a_start(service: Configured, engine: ScriptedEngine) -> None:
    service.file.write_text(text(engine, {"server.tls_certificate": "nowhere.pem"}))
    done = service.provider.cli("reload", check=False)
    assert done.returncode == 2
    assert "`server.tls_key` is missing" in done.stderr


# What is observed, of each section at least one.


def reload(service: Configured, engine: ScriptedEngine, values: dict[str, Any]) -> None:
    service.file.write_text(text(engine, values))
    service.provider.cli("reload")


def code_of(body: bytes) -> str:
    found: str = json.loads(body)["error"]["code"]
    return found


def test_a_body_is_as_large_and_a_deadline_as_near_as_the_new_version_says(
    service: Configured, engine: ScriptedEngine
) -> None:
    reload(service, engine, {"server.body_bytes_max": 1024})
    status, _, body = service.provider.chat(service.key, user="x" * 2000)
    assert (status, code_of(body)) == (413, "payload_too_large")
    engine.set_faults("ttft:60000")
    try:
        reload(service, engine, {"request.deadline_s": 0.2})
        status, _, body = service.provider.chat(service.key)
        assert (status, code_of(body)) == (504, "deadline_exceeded")
    finally:
        engine.set_faults("")


def test_a_contract_says_how_long_a_queue_is_waited_in_now(
    service: Configured, engine: ScriptedEngine
) -> None:
    contract = "/v1/models/scripted/contract"
    reload(service, engine, {"admission.queue_wait_max_s": 17.0})
    assert b"17.0" in service.provider.get(contract, key=service.key)[2]


def test_a_tenant_without_limits_of_its_own_has_the_new_defaults(
    service: Configured, engine: ScriptedEngine
) -> None:
    reload(service, engine, {"tenant_defaults.requests_burst": 77})
    assert service.provider.chat(service.key)[1]["x-ratelimit-limit-requests"] == "77"


def test_media_is_fetched_and_answers_are_kept_as_the_new_version_says(
    service: Configured, engine: ScriptedEngine
) -> None:
    part = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/a.png"}}
    messages = [{"role": "user", "content": [part]}]
    reload(service, engine, {})
    assert b"URLs are not fetched here" in service.provider.chat(service.key, messages=messages)[2]
    reload(service, engine, {"media.urls": "fetch"})
    assert b"URLs are not fetched here" not in service.provider.chat(service.key, messages=messages)[2]
    reload(service, engine, {"idempotency.answer_bytes_max": 0})
    headers = {"idempotency-key": "once"}
    assert service.provider.chat(service.key, headers=headers)[0] == 200
    assert b"was not kept" in service.provider.chat(service.key, headers=headers)[2]


def test_pressure_is_judged_by_the_new_limit_on_memory(service: Configured, engine: ScriptedEngine) -> None:
    reload(service, engine, {"pressure.memory_bytes_max": 1, "pressure.hold_s": 0.0})
    wait_until(lambda: service.provider.chat(service.key)[0] == 503, what="work to be refused")
    reload(service, engine, {"pressure.hold_s": 0.0})
    wait_until(lambda: service.provider.chat(service.key)[0] == 200, what="work to be taken again")


def test_a_replica_is_ejected_by_the_new_rule(service: Configured, engine: ScriptedEngine) -> None:
    reload(service, engine, {"health.failures_to_eject": 1, "health.ejection_s": 0.05})
    engine.set_faults("error:500@1")
    before = len(service.provider.log_lines())
    assert service.provider.chat(service.key)[0] == 502
    wait_until(
        lambda: "replica.ejected" in [line["event"] for line in service.provider.log_lines()[before:]],
        what="the ejection to be logged",
    )
    wait_until(lambda: service.provider.chat(service.key)[0] == 200, what="the replica to be back")


def test_a_rotated_salt_is_another_one_for_the_engine(service: Configured, engine: ScriptedEngine) -> None:
    def salt() -> str:
        assert service.provider.chat(service.key)[0] == 200
        found: str = engine.executions()[-1]["cache_salt"]
        return found

    reload(service, engine, {})
    first = salt()
    assert salt() == first
    reload(service, engine, {"prefix_cache.salt_rotation": 1})
    assert salt() != first


def test_a_server_has_as_many_slots_as_the_new_version_says(
    service: Configured, engine: ScriptedEngine
) -> None:
    service.file.write_text(text(engine, {}).replace("slots = 4", "slots = 3"))
    service.provider.cli("reload")
    assert service.provider.status()["deployments"][0]["replicas"][0]["slots"] == 3


# All others: nothing that can be reached from a data plane holds the value of before.


class Nowhere:
    """Records that nobody keeps."""

    is_behind = False

    def begin(self, *asked: object) -> None: ...

    append = replace = confirm = begin


AT_ONCE_NUMBERS = [
    key
    for key, value in DEFAULTS.items()
    if effect_of(key) is Effect.AT_ONCE and isinstance(value, (int, float)) and not isinstance(value, bool)
]
# Not kept by a data plane: one is asked for at the drain, the other is a name's key.
ELSEWHERE = {"server.drain_s", "prefix_cache.salt_rotation"}


def marked(start: int) -> tuple[Config, dict[str, float]]:
    """A configuration in which every such key has a value that nothing else has."""
    marks: dict[str, float] = {}
    tree: dict[str, Any] = {}
    for number, key in enumerate(AT_ONCE_NUMBERS):
        value = start - number * 7  # of two bounds that stand one after the other, the second is the tighter
        marks[key] = value if isinstance(DEFAULTS[key], int) else value + 0.375
        *path, name = key.split(".")
        table = tree
        for part in path:
            table = table.setdefault(part, {})
        table[name] = marks[key]
    # These two are bounded by their neighbours.
    tree["request"]["deadline_s"], tree["request"]["deadline_max_s"] = (
        min(marks["request.deadline_s"], marks["request.deadline_max_s"]),
        max(marks["request.deadline_s"], marks["request.deadline_max_s"]),
    )
    return config.parse(tree, file="headrace.toml"), marks


def test_nothing_in_a_data_plane_holds_a_value_of_the_version_before(tmp_path: Path) -> None:
    """Each number that is in force at once is as reachable after a reload as in a data plane that was begun with it."""
    opening.prepare(tmp_path, "")
    assert main(["keys", "create", "--tenant", "demo", "--data", str(tmp_path)]) == 0
    system_key.renew(tmp_path)
    old, old_marks = marked(7_000_003)
    new, new_marks = marked(9_000_005)

    async def run() -> tuple[set[str], set[str]]:
        async with asyncio.timeout(30.0):
            plane = plane_of(old, tmp_path)
            before = held(plane, old_marks)
            async with asyncio.TaskGroup() as tasks:
                opened: asyncio.Future[int] = asyncio.get_running_loop().create_future()
                running = tasks.create_task(plane.run(opened=opened.set_result))
                await opened
                plane.publish(SNAPSHOT)
                plane.reload(new, 2, SNAPSHOT)
                while plane.report().config_version != 2:  # noqa: ASYNC110 -- a report is all that tells
                    await asyncio.sleep(0.01)
                left = held(plane, old_marks)
                for _ in range(100):  # until whoever read the key ring has let go of what it read it for
                    if not left:
                        break
                    await asyncio.sleep(0.1)
                    left = held(plane, old_marks)
                there = held(plane, new_marks)
                running.cancel()
            plane.close()
            assert there == before
            return before, left

    before, left = asyncio.run(run())
    assert before >= set(AT_ONCE_NUMBERS) - ELSEWHERE
    assert not left, sorted(left)


SNAPSHOT = FleetSnapshot(
    1,
    {
        "chat": Deployment(
            "chat", "chat", frozenset({Task.CHAT}), "unpinned", (Replica(ReplicaId("a"), "127.0.0.1", 9, 4),)
        )
    },
)


def plane_of(wanted: Config, data: Path) -> DataPlane:
    clock = SystemClock()
    server = msgspec.structs.replace(wanted.server, port=0)
    return DataPlane(
        msgspec.structs.replace(wanted, server=server),
        data,
        records=Nowhere(),  # type: ignore[arg-type]
        budgets=no_budgets(clock),
        metrics=Metrics(),
        log=Log(io.StringIO(), clock),
        clock=clock,
        chance=random.Random(1),
        key_missing=lambda issuer: None,
    )


def held(plane: DataPlane, marks: dict[str, float]) -> set[str]:
    """The keys whose marks can be reached, in the parts that go by them: not in the configuration that they came from."""
    found = {value for value in reachable(plane, without=Config) if isinstance(value, (int, float))}
    return {key for key, mark in marks.items() if mark in found}

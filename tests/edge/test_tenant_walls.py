"""T41, REPORTS 104: nothing that is one tenant's can be had, seen, disturbed or told by another, with a key or with a token."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from headrace.core.request import Endpoint
from headrace.gateway.routes import Info
from tests.support.http_answers import Answer, answers, read_answers
from tests.support.issuer import AUDIENCE, IssuerServer, issuer_server
from tests.support.provider import Provider, provider, wait_until
from tests.support.scripted import ScriptedEngine, scripted_engine
from tests.support.websocket import ask, dial
from tests.support.wire import post, read

TENANTS = ("acme", "globex")
CHAT, EMBED = "chat-{}", "embed-{}"
NOBODYS = "nobody"
CREDENTIALS = ("key", "token")
CONFIG = """
[tenant_defaults]
requests_per_minute = 0
concurrency_max = 0

[[auth.issuers]]
name = "idp"
issuer = "{url}"
audience = "{audience}"
algorithms = ["ES256"]
tenant_claim = "tenant"

[auth.issuers.scopes]
"acme" = {{ models = ["chat-acme", "embed-acme"] }}
"globex" = {{ models = ["chat-globex", "embed-globex"] }}
"""


@dataclass
class Walls:
    """Two tenants, each with models of its own, and a key and a token that open these alone."""

    service: Provider
    engine: ScriptedEngine
    issuer: IssuerServer
    held: dict[tuple[str, str], str] = field(default_factory=dict)

    def credential(self, tenant: str, kind: str) -> str:
        return self.held[tenant, kind]

    def records(self) -> dict[str, str]:
        """The tenant of each request in the ledger."""
        return {row["request_id"]: row["tenant"] for row in self.service.usage("--limit", "10000")}

    def recorded(self, requests: dict[str, str]) -> None:
        """Waits until the ledger holds these requests as these tenants'."""
        wait_until(lambda: requests.keys() <= self.records().keys(), what="the records")
        found = self.records()
        assert {request: found[request] for request in requests} == requests


@pytest.fixture(scope="module")
def walls() -> Iterator[Walls]:
    models = tuple(name.format(tenant) for tenant in TENANTS for name in (CHAT, EMBED))
    with (
        issuer_server() as issuer,
        scripted_engine(slots=64, itl_ms=5, models=models) as engine,
        provider(
            upstreams=[engine.url], upstream_slots=64, config=CONFIG.format(url=issuer.url, audience=AUDIENCE)
        ) as service,
    ):
        running = Walls(service, engine, issuer)
        for tenant in TENANTS:
            service.cli("tenants", "create", tenant)
            own = [flag for name in (CHAT, EMBED) for flag in ("--model", name.format(tenant))]
            created = service.cli("keys", "create", "--tenant", tenant, *own)
            running.held[tenant, "key"] = created.stdout.strip()
            running.held[tenant, "token"] = issuer.token(tenant=tenant, scope=tenant)
        for credential in running.held.values():
            wait_until(lambda: service.get("/v1/models", key=credential)[0] == 200, what="keys and tokens")  # noqa: B023
        yield running


# What there is to reach.


def inference(walls: Walls, credential: str, model: str, endpoint: Endpoint) -> tuple[int, str]:
    body: dict[str, Any] = {"model": model, "max_tokens": 2}
    if endpoint is Endpoint.CHAT_COMPLETIONS:
        body["messages"] = [{"role": "user", "content": "hello"}]
    elif endpoint is Endpoint.COMPLETIONS:
        body["prompt"] = "hello"
    else:
        body = {"model": model, "input": "hello"}
    status, _, answer = walls.service.post(endpoint.value, body, key=credential)
    return status, answer.decode()


def websocket(walls: Walls, credential: str, model: str, endpoint: Endpoint) -> tuple[int, str]:
    with dial(walls.service.port, credential, path=endpoint.value) as connection:
        fields: dict[str, Any] = {"model": model, "max_tokens": 2}
        if endpoint is Endpoint.COMPLETIONS:
            connection.send(json.dumps({"prompt": "hello", **fields}))
            told = read_end(connection)
        else:
            told = ask(connection, **fields).end
        return (200 if told["object"] == "headrace.done" else told["status"]), json.dumps(told)


def read_end(connection: Any) -> dict[str, Any]:
    while True:
        told: dict[str, Any] = json.loads(connection.recv(timeout=60))
        if told["object"] in ("headrace.done", "headrace.error"):
            return told


def model_card(walls: Walls, credential: str, model: str) -> tuple[int, str]:
    status, _, answer = walls.service.get(f"/v1/models/{model}", key=credential)
    return status, answer.decode()


def model_contract(walls: Walls, credential: str, model: str) -> tuple[int, str]:
    status, _, answer = walls.service.get(f"/v1/models/{model}/contract", key=credential)
    return status, answer.decode()


def model_list(walls: Walls, credential: str, model: str) -> tuple[int, str]:
    """As if each of its models were asked for: 404 for one that isn't in it."""
    status, _, answer = walls.service.get("/v1/models", key=credential)
    assert status == 200
    listed = {each["id"] for each in json.loads(answer)["data"]}
    return (200, "") if model in listed else (404, "")


def routes() -> Iterator[tuple[str, Any, str]]:
    """Every route that needs a key, generated from what the gateway has: how to reach a model by it, and a model of its kind."""
    for endpoint in Endpoint:
        kind = EMBED if endpoint is Endpoint.EMBEDDINGS else CHAT
        yield f"POST {endpoint.value}", partial(inference, endpoint=endpoint), kind
        if endpoint is not Endpoint.EMBEDDINGS:
            yield f"WebSocket {endpoint.value}", partial(websocket, endpoint=endpoint), kind
    by_info = {Info.MODELS: model_list, Info.MODEL: model_card, Info.CONTRACT: model_contract}
    for info in Info:
        if info not in (Info.LIVEZ, Info.READYZ, Info.OPENAPI):  # the same for all, and about nobody
            yield f"GET {info.name.lower()}", by_info[info], CHAT


ROUTES = {name: (reach, kind) for name, reach, kind in routes()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CREDENTIALS)
@pytest.mark.parametrize("route", ROUTES)
def test_another_tenants_model_does_not_exist(walls: Walls, route: str, kind: str) -> None:
    """T41: by every route, with a key and with a token: 404 and the very words that a name which nobody has gets."""
    reach, model = ROUTES[route]
    for mine, theirs in (TENANTS, TENANTS[::-1]):
        credential = walls.credential(mine, kind)
        assert reach(walls, credential, model.format(mine))[0] == 200
        (hidden, told), (unknown, said) = (
            reach(walls, credential, name) for name in (model.format(theirs), NOBODYS)
        )
        assert hidden == unknown == 404
        assert without_ids(told, model.format(theirs)) == without_ids(said, NOBODYS)


def without_ids(text: str, name: str) -> str:
    head, _, rest = text.replace(name, "MODEL").partition('"request_id"')
    return head + rest.partition(",")[2]


@pytest.mark.slow
@pytest.mark.parametrize("kind", CREDENTIALS)
def test_the_same_names_given_by_two_tenants_name_two_things(walls: Walls, kind: str) -> None:
    """T41: Idempotency-Keys; each gets its own answer, and never the other's kept one."""
    asked: dict[str, str] = {}
    for turn in range(2):
        for tenant in TENANTS:
            status, headers, _ = walls.service.chat(
                walls.credential(tenant, kind),
                model=CHAT.format(tenant),
                headers={"idempotency-key": f"shared-{kind}", "x-request-id": "shared"},
            )
            assert status == 200
            assert headers["x-request-id"] != "shared"
            assert headers.get("x-headrace-idempotent-replay") == ("true" if turn else None)
            if turn:
                assert headers["x-headrace-original-request-id"] == asked[tenant]
            asked.setdefault(tenant, headers["x-request-id"])
    walls.recorded({request: tenant for tenant, request in asked.items()})


def question(credential: str, tenant: str, **fields: Any) -> bytes:
    """A chat request that calls itself as all others do."""
    text = {"model": CHAT.format(tenant), "messages": [{"role": "user", "content": f"of {tenant}"}], **fields}
    return post(
        "/v1/chat/completions",
        json.dumps(text).encode(),
        headers=f"authorization: Bearer {credential}\r\nx-request-id: same\r\nrequest-id: same\r\n",
    )


@pytest.mark.slow
def test_a_thousand_requests_with_one_id_stay_apart(walls: Walls) -> None:
    """REPORTS 104: two tenants, 500 times each, in parallel; answers name their own model, and records their own tenant."""

    def ask_often(number: int) -> dict[str, tuple[str, str]]:
        tenant, kind = TENANTS[number % 2], CREDENTIALS[number // 2 % 2]
        request = question(walls.credential(tenant, kind), tenant, max_tokens=1)
        told = {}
        with walls.service.connect() as connection:
            for _ in range(125):
                connection.sendall(request)
                answer = one_answer(connection)
                told[answer.headers["x-request-id"]] = (tenant, answer.json["model"])
        return told

    with ThreadPoolExecutor(8) as pool:
        told = {request: seen for part in pool.map(ask_often, range(8)) for request, seen in part.items()}
    assert len(told) == 1000, "every request has an id of its own"
    assert all(model == CHAT.format(tenant) for tenant, model in told.values())
    walls.recorded({request: tenant for request, (tenant, _) in told.items()})


def one_answer(connection: socket.socket) -> Answer:
    (answer,) = answers(read_answers(connection, count=1, silence_s=0.0005).data)
    assert answer.status == 200, answer.body
    return answer


@pytest.mark.slow
def test_who_leaves_takes_nobody_elses_answer_with_him(walls: Walls) -> None:
    """REPORTS 104: twenty streams of one tenant are cut, twenty of the other with the same id go on to their end."""
    leaving: list[socket.socket] = []
    staying: list[socket.socket] = []
    for number in range(20):
        for tenant, connections in zip(TENANTS, (leaving, staying), strict=True):
            connection = walls.service.connect()
            connection.sendall(
                question(
                    walls.credential(tenant, CREDENTIALS[number % 2]), tenant, max_tokens=60, stream=True
                )
            )
            connections.append(connection)
    for connection in leaving:
        assert connection.recv(64).startswith(b"HTTP/1.1 200 ")
        connection.close()
    try:
        for connection in staying:
            seen = read(connection, until=b"data: [DONE]\n\n")
            assert seen.status == 200
            assert seen.payloads[-1] == "[DONE]"
    finally:
        for connection in staying:
            connection.close()
    wait_until(lambda: walls.service.status()["in_flight"] == 0, what="rest")

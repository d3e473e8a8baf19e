"""An admin port on a store of its own."""

import http.client
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.app import admin
from headrace.config import Config
from headrace.control.api import AdminServer
from headrace.core.clock import ManualClock
from headrace.core.roles import Role
from headrace.policies.refusal_history import Refused
from headrace.policies.reloading import Reloaded
from headrace.stores import sqlite
from headrace.stores.prices import PriceStore
from headrace.stores.tenants import TenantStore
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics

OWNER = "hr_admin_0123456789abcdef"


@dataclass(frozen=True)
class Port:
    """An admin port on a store of its own, and a token for each role."""

    store: TenantStore
    clock: ManualClock
    server: AdminServer
    number: int
    tokens: dict[str, str]
    database: Path

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str = OWNER,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """One request on a connection of its own; `body` is JSON-encoded unless it is bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.number, timeout=60)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        try:
            connection.request(
                method,
                path,
                data,
                {**({"authorization": f"Bearer {token}"} if token else {}), **(headers or {})},
            )
            answer = connection.getresponse()
            content = answer.read()
            is_json = answer.getheader("content-type") == "application/json"
            return answer.status, json.loads(content) if is_json else {}
        finally:
            connection.close()

    def error(self, *arguments: Any, **options: Any) -> tuple[int, str, str]:
        status, body = self.ask(*arguments, **options)
        return status, body["error"]["code"], body["error"]["message"]

    def refused(self, *arguments: Any, **options: Any) -> str:
        """Why it was 400."""
        status, code, message = self.error(*arguments, **options)
        assert (status, code) == (400, "invalid_request"), message
        return message


@pytest.fixture
def port(tmp_path: Path) -> Iterator[Port]:
    clock = ManualClock()
    database = tmp_path / sqlite.DATABASE_NAME
    store = TenantStore(sqlite.open_file(database), bytes(32), clock=clock, actor="cli:root")
    prices = PriceStore(sqlite.open_file(database), clock=clock, actor="service")
    tokens = {role.word: store.create_admin(role)[1] for role in Role}
    server = serving(store, prices, tmp_path, clock)
    number = server.start()
    yield Port(store, clock, server, number, tokens, database)
    server.stop()
    store.close()
    prices.close()


NOTHING_RELOADED = Reloaded(1, (), (), (), [], 0, False, True, 0.0)


def serving(store: TenantStore, prices: PriceStore, data: Path, clock: ManualClock) -> AdminServer:
    """Not started yet."""
    return AdminServer(
        "127.0.0.1",
        0,
        OWNER,
        metrics=Metrics(),
        status=lambda: {"ready": True},
        heartbeat=lambda: 0.0,
        log=Log(io.StringIO(), clock),
        routes=admin.routes(
            store,
            prices,
            Config,
            data,
            ask_use=lambda limits: {},
            ask_deployments=dict,
            ask_reload=lambda actor: NOTHING_RELOADED,
            ask_refused=lambda model, since_s: Refused({"queue_full": 3}, since_s),
            clock=clock,
        ),
        find=admin.finder(store),
    )

"""Claims about the admin port's table of routes: who may ask what, what is refused, and that every act is in the audit log."""

import json
import re
import socket
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace.control.admin_routes import BODY_BYTES_MAX, AdminRoute
from headrace.control.identity_api import IdentityApi
from headrace.core.clock import ManualClock
from headrace.core.roles import Role
from headrace.stores.postgres import PostgresDatabase
from headrace.stores.prices import PriceStore
from headrace.stores.tenants import TenantStore
from tests.app.conftest import OWNER, Port, serving

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "admin-api.md"


def example(route: AdminRoute) -> str:
    """A path of that route; nobody has that name."""
    return re.sub(r"\{[a-z]+\}", "nobody", route.path)


def test_while_the_database_is_away_nothing_is_said_not_to_exist(tmp_path: Path) -> None:
    """A key that "isn't there" would be taken for one that was revoked: whoever asks is told to come back, and of no address."""
    clock = ManualClock()
    given = {"tenant": "acme", "name": "acme", "role": "viewer"}
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and never listens
        away = PostgresDatabase(f"postgresql://headrace:s3cret@127.0.0.1:{nobody.getsockname()[1]}/central")
        store = TenantStore(away, bytes(32), clock=clock, is_checked=True)
        server = serving(store, PriceStore(away, clock=clock, actor="service"), tmp_path, clock)
        port = Port(store, clock, server, server.start(), {}, tmp_path)
        try:
            for route in IdentityApi(store, clock=clock).routes():
                body = {name: given[name] for name in route.fields if name in given} or None
                status, answer = port.ask(route.method, example(route), body)
                assert status == 503, (route.method, route.path, answer)
                assert "127.0.0.1" not in json.dumps(answer)
            assert port.ask("GET", "/admin/v1/tenants/acme/use")[0] == 503
        finally:
            server.stop()


# Who may come in, and how far


def test_every_route_asks_for_its_role_of_everybody(port: Port) -> None:
    """T46: each route of the table with each role; the table is the port's own, so none can be left out."""
    assert len({(route.method, route.path) for route in port.server.routes}) == len(port.server.routes) > 15
    for route in port.server.routes:
        for role in Role:
            status, answer = port.ask(route.method, example(route), token=port.tokens[role.word])
            assert (status == 403) == (role < route.role), (route.method, route.path, role.word, status)
            assert status != 401
            if status == 403:
                assert answer["error"]["message"] == (
                    f"This needs the role `{route.role.word}`; this token's is `{role.word}`."
                )
        assert port.ask(route.method, example(route))[0] not in (401, 403), "the owner may do everything"


def test_every_route_is_closed_to_who_has_no_token_in_force(port: Port) -> None:
    """T46: nothing, a wrong one, an API key, a revoked and an expired one; each is told the same."""
    port.store.create_tenant("acme")
    revoked, gone = port.store.create_admin(Role.ADMIN)
    port.store.revoke_admin(revoked.id)
    _, expired = port.store.create_admin(Role.ADMIN, lifetime_s=10)
    port.clock.advance(11)
    _, key = port.store.create_key("acme")
    token = port.tokens["admin"]
    for bad in ("", "x", key, gone, expired, token[:-1], token[:20] + "A" + token[21:], f"{OWNER}x"):
        for route in port.server.routes:
            status, answer = port.ask(route.method, example(route), token=bad)
            assert (status, answer["error"]["code"]) == (401, "unauthenticated"), (route.path, bad)
    assert port.ask("GET", "/admin/v1/tenants", token=token)[0] == 200


def test_the_page_lists_every_route_with_its_role(port: Port) -> None:
    table = {(route.method, route.path, route.role.word) for route in port.server.routes}
    rows = re.findall(r"^\| `([A-Z]+) (/admin/v1/[^`]+)` \| ([a-z]+) \|", PAGE.read_text(), re.MULTILINE)
    assert {*rows, ("GET", "/metrics", "viewer")} == table


def test_a_revoked_token_is_refused_at_once(port: Port) -> None:
    token = port.tokens["operator"]
    assert port.ask("GET", "/admin/v1/keys", token=token)[0] == 200
    assert port.ask("DELETE", f"/admin/v1/admins/{token[8:16]}")[0] == 200
    assert port.ask("GET", "/admin/v1/keys", token=token)[0] == 401


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/admin/v1/tenants"), ("GET", "/admin/v1/tenant"), ("POST", "/metrics")]
)
def test_what_is_in_no_table_does_not_exist(port: Port, method: str, path: str) -> None:
    assert port.error(method, path)[:2] == (404, "not_found")
    assert port.error(method, path, token=port.tokens["viewer"])[:2] == (404, "not_found")


# What can be done


def test_a_tenant_lives_over_the_api_as_it_does_on_the_command_line(port: Port) -> None:
    status, made = port.ask("POST", "/admin/v1/tenants", {"name": "acme", "weight": 3, "class": "high"})
    assert status == 201
    assert (made["tenant"], made["weight"], made["class"], made["requests_per_minute"]) == (
        "acme",
        3,
        "high",
        None,
    )
    assert port.ask("GET", "/admin/v1/tenants/acme") == (200, made)
    assert port.ask("GET", "/admin/v1/tenants") == (200, {"tenants": [made]})
    status, changed = port.ask(
        "PATCH",
        "/admin/v1/tenants/acme",
        {"weight": None, "organization": "acme-group"},
        token=port.tokens["operator"],
    )
    assert (status, changed) == (200, {**made, "weight": 1, "organization": "acme-group"})
    _, key = port.ask("POST", "/admin/v1/keys", {"tenant": "acme"})
    assert "has keys that work" in port.refused("DELETE", "/admin/v1/tenants/acme")
    port.ask("DELETE", f"/admin/v1/keys/{key['id']}")
    assert port.ask("DELETE", "/admin/v1/tenants/acme") == (200, {"tenant": "acme", "deleted": True})
    assert port.error("GET", "/admin/v1/tenants/acme")[0] == 404
    assert port.store.keys() == []


def test_a_key_lives_over_the_api_as_it_does_on_the_command_line(port: Port) -> None:
    port.store.create_tenant("acme")
    narrow = {
        "tenant": "acme",
        "name": "ci",
        "expires_in_s": 60,
        "models": ["small"],
        "networks": ["10.0.0.0/8"],
    }
    status, made = port.ask("POST", "/admin/v1/keys", narrow, token=port.tokens["operator"])
    assert status == 201
    secret = made.pop("key")
    assert secret[8:16] == made["id"]
    assert (made["state"], made["models"], made["networks"], made["user"]) == (
        "active",
        ["small"],
        ["10.0.0.0/8"],
        "",
    )
    assert port.ask("GET", f"/admin/v1/keys/{made['id']}") == (200, made)
    port.clock.advance(1)
    status, new = port.ask("POST", f"/admin/v1/keys/{made['id']}/rotate", {"overlap_s": 0})
    assert (status, new["replaces"], new["models"]) == (201, made["id"], ["small"])
    status, ended = port.ask("DELETE", f"/admin/v1/keys/{new['id']}")
    assert (status, ended["state"]) == (200, "revoked")
    listed = port.ask("GET", "/admin/v1/keys?tenant=acme")[1]["keys"]
    assert [(key["id"], key["state"]) for key in listed] == [(made["id"], "expired"), (new["id"], "revoked")]
    assert "is expired" in port.refused("POST", f"/admin/v1/keys/{made['id']}/rotate")


def test_an_admin_token_lives_over_the_api_as_it_does_on_the_command_line(port: Port) -> None:
    status, made = port.ask("POST", "/admin/v1/admins", {"role": "viewer", "name": "grafana"})
    token = made.pop("token")
    assert (status, made["role"], made["name"], made["expires"]) == (201, "viewer", "grafana", None)
    assert port.ask("GET", "/admin/v1/status", token=token)[0] == 200
    assert made in port.ask("GET", "/admin/v1/admins")[1]["admins"]
    assert port.ask("DELETE", f"/admin/v1/admins/{made['id']}")[1]["state"] == "revoked"


def test_each_act_is_in_the_audit_log_as_whoever_asked_for_it(port: Port) -> None:
    before = len(port.store.audit_entries())
    operator, id_ = port.tokens["operator"], port.tokens["operator"][8:16]
    port.ask("POST", "/admin/v1/tenants", {"name": "acme"})
    port.ask("PATCH", "/admin/v1/tenants/acme", {"weight": 2}, token=operator)
    port.ask("PATCH", "/admin/v1/tenants/acme", {"weight": "2"}, token=operator)
    port.ask("DELETE", "/admin/v1/tenants/acme", token=operator)
    _, made = port.ask("POST", "/admin/v1/admins", {"role": "viewer"})
    status, found = port.ask("GET", f"/admin/v1/audit?after={before}", token=port.tokens["viewer"])
    assert status == 200
    assert [(entry["actor"], entry["action"], entry["target"]) for entry in found["entries"]] == [
        ("admin:owner", "tenant.create", "acme"),
        (f"admin:{id_}", "tenant.change", "acme"),
        ("admin:owner", "admin.create", made["id"]),
    ]
    assert found["entries"][1]["changes"] == {"weight": {"old": 1, "new": 2}}
    assert made["token"][17:60] not in str(found)
    assert port.ask("GET", "/admin/v1/audit?tenant=acme&limit=1")[1]["entries"] == found["entries"][:1]
    assert port.ask("GET", "/admin/v1/audit?since=2999-01-01")[1] == {"entries": []}
    head = port.ask("GET", "/admin/v1/audit/verify")[1]["head"]
    assert port.ask("GET", f"/admin/v1/audit/verify?head={head}")[1]["problem"] is None


# What is refused


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        (
            "POST",
            "/admin/v1/tenants",
            {"name": "b", "wieght": 2},
            "no field `wieght` here; did you mean `weight`?",
        ),
        ("POST", "/admin/v1/tenants", {"name": "b", "weight": 0}, "`weight` must be from 1"),
        ("POST", "/admin/v1/tenants", {"name": "b", "weight": True}, "must be a whole number"),
        ("POST", "/admin/v1/tenants", {"name": "b", "class": ["high"]}, "`class` must be one of"),
        ("POST", "/admin/v1/tenants", {"name": 7}, "`name`: expected `str`, got `int`"),
        ("POST", "/admin/v1/tenants", {}, "missing required field `name`"),
        ("POST", "/admin/v1/tenants", {"name": "B"}, "tenant name 'B'"),
        ("POST", "/admin/v1/tenants", {"name": "acme"}, "exists already"),
        ("PATCH", "/admin/v1/tenants/acme", {"name": "b"}, "no field `name` here"),
        ("POST", "/admin/v1/keys", {"tenant": "acme", "modles": []}, "did you mean `models`?"),
        (
            "POST",
            "/admin/v1/keys",
            {"tenant": "acme", "models": []},
            "`models`: expected `array` of length >= 1",
        ),
        ("POST", "/admin/v1/keys", {"tenant": "acme", "env": "prod"}, "`env`"),
        (
            "POST",
            "/admin/v1/keys",
            {"tenant": "acme", "expires_in_s": -1},
            "`expires_in_s`: expected `float` >= 0",
        ),
        ("POST", "/admin/v1/keys", {"tenant": "acme", "name": "a\nb"}, "printable"),
        ("POST", "/admin/v1/admins", {"role": "root"}, "`role`"),
        ("POST", "/admin/v1/tenants", [], "no JSON object"),
        ("POST", "/admin/v1/tenants", b"{", "no JSON object"),
        ("POST", "/admin/v1/tenants", b'{"name": "\xff"}', "no JSON object"),
        ("POST", "/admin/v1/tenants", b"[" * 60_000, "no JSON object"),
        (
            "GET",
            "/admin/v1/keys?tenatn=acme",
            None,
            "no query parameter `tenatn` here; did you mean `tenant`?",
        ),
        ("GET", "/admin/v1/keys?tenant=acme&tenant=b", None, "given twice"),
        ("GET", "/admin/v1/tenants?x=1", None, "it takes none"),
        ("GET", "/admin/v1/audit?since=yesterday", None, "`since` is a date"),
        ("GET", "/admin/v1/audit?limit=0", None, "`limit` is a whole number, at least 1"),
        ("GET", "/admin/v1/audit?after=-1", None, "`after` is a whole number"),
        ("GET", "/admin/v1/audit/verify?head=7", None, "is no head"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_done(
    port: Port, method: str, path: str, body: Any, message: str
) -> None:
    port.store.create_tenant("acme")
    before = port.store.audit_entries()
    assert message in port.refused(method, path, body)
    assert port.store.audit_entries() == before


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("PATCH", "/admin/v1/tenants/acmee", {"weight": 2}, "no tenant `acmee`; did you mean `acme`?"),
        ("DELETE", "/admin/v1/tenants/nobody", None, "no tenant `nobody`"),
        ("GET", "/admin/v1/keys?tenant=nobody", None, "no tenant `nobody`"),
        ("POST", "/admin/v1/keys", {"tenant": "nobody"}, "no tenant `nobody`"),
        ("DELETE", "/admin/v1/keys/nosuchid", None, "no key `nosuchid`"),
        ("POST", "/admin/v1/keys/nosuchid/rotate", {}, "no key `nosuchid`"),
        ("DELETE", "/admin/v1/admins/nosuchid", None, "no admin `nosuchid`"),
    ],
)
def test_what_does_not_exist_is_404(port: Port, method: str, path: str, body: Any, message: str) -> None:
    port.store.create_tenant("acme")
    status, code, said = port.error(method, path, body)
    assert (status, code) == (404, "not_found")
    assert message in said


def test_a_secret_pasted_where_an_id_belongs_does_not_come_back(port: Port) -> None:
    """T47."""
    port.store.create_tenant("acme")
    _, key = port.store.create_key("acme")
    for secret, path in (
        (key, f"/admin/v1/keys/{key}"),
        (port.tokens["viewer"], f"/admin/v1/admins/{port.tokens['viewer']}"),
    ):
        status, answer = port.ask("DELETE", path)
        assert status == 404
        assert secret[17:60] not in str(answer)


def test_a_body_has_a_bound_and_an_end(port: Port) -> None:
    assert port.error("POST", "/admin/v1/tenants", b" " * (BODY_BYTES_MAX + 1))[:2] == (
        413,
        "payload_too_large",
    )
    assert (
        port.error("POST", "/admin/v1/tenants", b"x" * (BODY_BYTES_MAX + 1), token=port.tokens["viewer"])[0]
        == 403
    )


def test_while_the_database_can_not_be_had_callers_are_told_to_come_back(port: Port) -> None:
    """It is nobody's mistake, and no token is refused for it; the owner's needs no database."""
    with closing(sqlite3.connect(port.database)) as by_hand, by_hand:
        by_hand.execute("ALTER TABLE admin RENAME TO gone")
        by_hand.execute("ALTER TABLE tenant RENAME TO lost")
    assert port.error("GET", "/admin/v1/status", token=port.tokens["viewer"])[:2] == (503, "saturated")
    assert port.error("GET", "/admin/v1/tenants")[:2] == (503, "saturated")
    assert port.error("GET", "/admin/v1/tenants/acme")[:2] == (503, "saturated")
    assert port.ask("GET", "/admin/v1/status")[0] == 200

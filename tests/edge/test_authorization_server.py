"""Tokens of a real authorization server: signed in there, served here; its rotation and its tokens' end are noticed."""

import base64
import json
import time
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.authorization_server import CLIENT, authorization_server
from tests.support.provider import Provider, provider, wait_until
from tests.support.scripted import scripted_engine

pytestmark = pytest.mark.slow

USERS = {"anna": {"tenant": "Acme Ltd"}, "boris": {"tenant": "Globex"}, "eve": {"tenant": "Initech"}}
CONFIG = """
[auth]
keys_gap_s = 1

[[auth.issuers]]
name = "idp"
issuer = "{url}"
audience = "{client}"
tenant_claim = "tenant"
tenants = {{ "Acme Ltd" = "acme", "Globex" = "globex" }}
leeway_s = 0
"""


def claims(token: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    return found


def status(service: Provider, token: str) -> int:
    return service.get("/v1/models", key=token)[0]


def test_who_signs_in_there_is_served_here() -> None:
    """T39, T40: by the authorization code grant; its user's tenant is ours, its rotation and its tokens' end are noticed."""
    with scripted_engine() as engine, ExitStack() as stack:
        first = stack.enter_context(ExitStack())
        idp = first.enter_context(authorization_server(USERS))
        config = CONFIG.format(url=idp.url, client=CLIENT)
        service = stack.enter_context(provider(upstreams=[engine.url], config=config))
        for tenant in ("acme", "globex", "initech"):
            service.cli("tenants", "create", tenant)
        anna, boris, eve = (idp.sign_in(user) for user in USERS)
        old = anna["id_token"]
        wait_until(lambda: status(service, old) == 200, what="the server's keys")
        asked = {}
        for grant, tenant in ((anna, "acme"), (boris, "globex")):
            code, headers, _ = service.chat(grant["id_token"])
            assert code == 200
            asked[headers["x-request-id"]] = tenant
        assert status(service, eve["id_token"]) == 403, (
            "her tenant exists, but this server may not speak for it"
        )
        assert status(service, anna["access_token"]) == 401, "opaque: only the server knows what it means"

        def recorded() -> bool:
            tenants = {row["request_id"]: row["tenant"] for row in service.usage()}
            return {request: tenants.get(request) for request in asked} == asked

        wait_until(recorded, what="the records")
        # Started again it has another key. It names none in its tokens, so only their signatures show it.
        first.close()
        assert status(service, old) == 200, "an outage of the server is none of ours"
        idp = stack.enter_context(authorization_server(USERS, port=idp.port, lifetime_s=6))
        wait_until(lambda: status(service, idp.sign_in("anna")["id_token"]) == 200, what="the new key")
        assert status(service, old) == 401
        new = idp.sign_in("anna")["id_token"]
        assert status(service, new) == 200
        wait_until(lambda: status(service, new) == 401, what="the end of the token")
        assert time.time() >= claims(new)["exp"]

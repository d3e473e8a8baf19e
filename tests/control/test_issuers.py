"""T40: a provider's keys are looked at in time, and never more often than was agreed, whatever tokens are shown to us."""

import asyncio
import io
import json
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from headrace.control.issuers import Issuers, LookRules
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError
from headrace.core.signing import KeySet
from headrace.policies.issuers import Issuer
from headrace.telemetry.logs import Log
from headrace.telemetry.metrics import Metrics
from tests.support.issuer import AUDIENCE, KEYS_PATH, IssuerServer, issuer_server

GAP_S = 0.3
pytestmark = pytest.mark.slow


def watched(
    server: IssuerServer,
    until: Callable[[list[KeySet], Issuers], bool],
    *,
    log: io.StringIO | None = None,
    **changed: Any,
) -> list[KeySet]:
    """What is published until that holds of it; asked a hundred times a second."""
    issuer = Issuer("idp", server.url, AUDIENCE, tenant="acme", **changed)
    rules = LookRules(refresh_s=2 * GAP_S, gap_s=GAP_S, keep_s=2 * GAP_S)

    async def watch() -> list[KeySet]:
        seen: list[KeySet] = []
        clock = SystemClock()
        issuers = Issuers(
            [issuer],
            rules,
            publish=seen.append,
            metrics=Metrics(),
            log=Log(log or io.StringIO(), clock),
            clock=clock,
        )
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(issuers.run())
            while not until(seen, issuers):  # noqa: ASYNC110 -- a condition over what others do has no event
                await asyncio.sleep(0.01)
            running.cancel()
        return seen

    return asyncio.run(watch())


def test_a_flood_of_unknown_keys_never_shortens_the_time_between_two_looks() -> None:
    """T40: ten thousand of them a second. When the next one may follow is published beforehand."""
    began_s = time.monotonic()
    with issuer_server() as server:

        def flood(seen: list[KeySet], issuers: Issuers) -> bool:
            for _ in range(100):
                issuers.missing("idp")
            issuers.missing("nobody")
            return len(seen) >= 6

        seen = watched(server, flood)
        # Each on its own may come to the server late, so the gap before the next one says nothing.
        assert all(look_s - began_s > 0.9 * number * GAP_S for number, look_s in enumerate(server.looks_s))
        assert all(later.next_look_s - earlier.next_look_s >= GAP_S for earlier, later in pairwise(seen))
        assert server.discoveries == 1


def test_without_any_caller_keys_are_looked_at_now_and_then() -> None:
    with issuer_server() as server:
        watched(server, lambda seen, _: len(seen) >= 4, jwks_url=server.url + KEYS_PATH)
        assert all(later - earlier > 1.9 * GAP_S for earlier, later in pairwise(server.looks_s))
        assert server.discoveries == 0


def test_a_provider_that_was_never_there_is_looked_for_sooner_and_one_that_went_is_found_elsewhere() -> None:
    with issuer_server() as server:
        server.status = 503

        def back(seen: list[KeySet], issuers: Issuers) -> bool:
            if len(seen) == 2:
                server.status = 200
            return any(each.keys for each in seen)

        seen = watched(server, back)
        assert [len(each.keys) for each in seen][:2] == [0, 0]
        assert server.discoveries >= 3


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ({"status": 404}, "answered 404"),
        ({"status": 302}, "answered 302"),
        ({"document": b"<html>"}, "not JSON"),
        ({"document": b"{}"}, "not a JWK Set"),
        ({"document": b'{"keys": [' + b'{"kty": "RSA"},' * 20_000 + b"{}]}"}, "too large"),
        ({"discovery": {"issuer": "https://evil.example"}}, "another issuer"),
        ({"discovery": {"jwks_uri": "http://evil.example/keys"}}, "https://"),
        ({"discovery": {"jwks_uri": 5}}, "can't be read"),
        ({"discovery_document": b'{"x":' + b"[" * 60_000 + b"]" * 60_000 + b"}"}, "can't be read"),
    ],
)
def test_a_provider_that_makes_no_sense_is_not_believed(broken: dict[str, Any], told: str) -> None:
    """The log says what is wrong."""
    with issuer_server() as server:
        for name, value in broken.items():
            setattr(server, name, value)
        log = io.StringIO()
        (seen,) = watched(server, lambda seen, _: bool(seen), log=log)
        assert seen.keys == ()
        line = json.loads(log.getvalue())
        assert (line["event"], line["issuer"]) == ("issuer.failing", "idp")
        assert told in line["error"]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://id.example/keys", "must be https://"),
        ("http://localhost.example/keys", "must be https://"),
        ("ftp://id.example/keys", "must be https://"),
        ("https:///keys", "is not a URL"),
        ("https://user:secret@id.example/keys", "is not a URL"),
        ("https://id.example:0/keys", "is not a URL"),
        ("https://id.example:99999/keys", "out of range"),
        ("https://id.example/keys#first", "is not a URL"),
        ("https://id.example/ke ys", "percent-encoded"),
        ("https://id.example/\u00e9", "percent-encoded"),
        ("https://id.example/a\nb", "is not a URL"),
        ("https://[::1/keys", "Invalid IPv6"),
    ],
)
def test_a_url_that_cannot_be_used_is_told_at_the_start(url: str, told: str) -> None:
    clock = SystemClock()
    with pytest.raises(ConfigError, match=told) as refused:
        Issuers(
            [Issuer("idp", "https://id.example", AUDIENCE, tenant="acme", jwks_url=url)],
            LookRules(300, 60, 86400),
            publish=lambda _: None,
            metrics=Metrics(),
            log=Log(io.StringIO(), clock),
            clock=clock,
        )
    assert "auth.issuers: idp: jwks_url" in refused.value.message

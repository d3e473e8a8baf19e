"""T39, T40, REPORTS 43, 45, 47: tokens of an identity provider open what their tenant has, on every worker, and nothing else does."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from tests.support.http_answers import Answer, answers, read_answers
from tests.support.issuer import IssuerServer, issuer_server, new_key
from tests.support.provider import Provider, provider, wait_until
from tests.support.scripted import ScriptedEngine, scripted_engine
from tests.support.websocket import ask, dial, hear, question
from tests.support.wire import post, read

pytestmark = pytest.mark.slow

WORKERS = 4
UNLIMITED = "[tenant_defaults]\nrequests_per_minute = 0\nconcurrency_max = 0\n"
CANARY = "c4n4ry"


@dataclass
class Place:
    """Four workers that trust one provider, in front of an engine that takes 20 ms for each word."""

    issuer: IssuerServer
    service: Provider
    engine: ScriptedEngine

    def status(self, token: str) -> int:
        return self.service.get("/v1/models", key=token)[0]

    def everywhere(self, token: str) -> set[int]:
        """The statuses on so many fresh connections that every worker has most likely had several."""
        return {self.status(token) for _ in range(6 * WORKERS)}

    def refused(self, reason: str) -> float:
        """How many requests were refused for that reason, which only the operator learns."""
        return self.service.metric("headrace_refusals_total", reason=reason)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with (
        issuer_server(new_key("first"), new_key("rsa", "RS256")) as issuer,
        scripted_engine(slots=64, itl_ms=20) as engine,
        provider(
            upstreams=[engine.url], upstream_slots=64, arguments=["--workers", str(WORKERS)], config=UNLIMITED + issuer.config(more="keys_gap_s = 600")
        ) as service,
    ):  # fmt: skip
        service.cli("tenants", "create", "acme")
        service.cli("tenants", "create", "globex")
        running = Place(issuer, service, engine)
        wait_until(
            lambda: running.everywhere(issuer.token()) == {200}, what="tenants and keys on every worker"
        )
        yield running
        log = (service.data / "logs" / "headrace.log").read_text()
        assert '"event":"internal.error"' not in log
        # T40: no value of an Authorization header, nor a claim, is in the log.
        assert CANARY not in log
        assert "eyJ" not in log


def bearer(token: str) -> str:
    return f"authorization: Bearer {token}\r\n"


def send(service: Provider, value: bytes) -> int:
    """The status of a request with that Authorization header, sent as it is."""
    with service.connect() as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: test\r\nAuthorization: " + value + b"\r\n\r\n")
        return read(connection, silence_s=30).status


def test_a_token_is_served_like_a_key_of_its_tenant(place: Place) -> None:
    token = place.issuer.token(sub="anna", tenant="globex")
    status, headers, body = place.service.chat(token)
    assert (status, json.loads(body)["object"]) == (200, "chat.completion")

    def recorded() -> list[tuple[str, str]]:
        rows = place.service.usage("--tenant", "globex")
        return [(row["key_id"], row["user"]) for row in rows if row["request_id"] == headers["x-request-id"]]

    assert wait_until(recorded, what="the record") == [("token:idp", "anna")]


def test_all_workers_together_ask_the_provider_once(place: Place) -> None:
    """T40: a thousand tokens that name keys which don't exist, to four workers: 401, and no look before its time."""
    before = place.issuer.looks
    unknown = [place.issuer.token(headers={"kid": f"{CANARY}-{number}"}) for number in range(250)]
    with ThreadPoolExecutor(16) as pool:
        statuses = Counter(pool.map(place.status, unknown * 4))
    assert statuses == {401: 1000}
    assert place.issuer.looks == before
    assert place.issuer.discoveries == 1
    assert place.refused("token_key_unknown") > 0


def test_what_is_not_a_good_token_is_401_and_never_said_why(place: Place) -> None:
    """T40, REPORTS 47."""
    issuer, now_s = place.issuer, int(time.time())
    good = issuer.token(sub=CANARY)
    header, payload, signature = good.split(".")
    other = new_key("first")  # the same id, another key
    wrong = {
        "unsigned": f"{header}.{payload}.",
        "none": f"eyJhbGciOiJub25lIn0.{payload}.{signature}",
        "forged": issuer.token(key=other),
        "other audience": issuer.token(aud="api://other"),
        "no audience": issuer.token(aud=None),
        "other issuer": issuer.token(iss=f"{issuer.url}/"),
        "expired": issuer.token(iat=now_s - 60, exp=now_s - 1),
        "endless": issuer.token(exp=None),
        "too long": issuer.token(exp=now_s + 100_000),
        "not yet": issuer.token(nbf=now_s + 60),
        "from the future": issuer.token(iat=now_s + 60),
        "sql": f"' OR 1=1 -- {CANARY}",
        "half": good[: len(good) // 2],
        "twice": f"{good} {good}",
        "long": CANARY * 3000,
        "encrypted": f"{good}.{signature}.{signature}",
    }
    seen = {name: place.service.get("/v1/models", key=token) for name, token in wrong.items()}
    assert {name: status for name, (status, _, _) in seen.items() if status != 401} == {}
    assert len({body.split(b'"request_id"')[0] for _, _, body in seen.values()}) == 1
    assert {headers["www-authenticate"] for _, headers, _ in seen.values()} == {"Bearer"}
    for value in (b"Bearer " + good.encode() + b"\xff", b"Bearer \xff\xfe\x80", b"Bearer"):
        assert send(place.service, value) == 401
    # The bounds of a head, and what may stand in one, are the port's: docs/reference/http.md.
    for value in (b"Bearer a\0b", b"Bearer " + b"a" * 64 * 1024, b"Bearer " + b"a" * 1024 * 1024):
        assert send(place.service, value) == 400
    assert place.status(good) == 200


def test_twins_are_never_swapped_on_the_same_connections(place: Place) -> None:
    """REPORTS 45, T41: two tokens with one beginning alternate on kept connections; each record is its own tenant's."""
    key = place.issuer.keys[-1]
    mine, theirs = place.issuer.token(key=key, tenant="acme"), place.issuer.token(key=key, tenant="globex")
    assert mine[:40] == theirs[:40]
    body = json.dumps(
        {"model": "scripted", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    ).encode()
    told: dict[str, str] = {}
    with place.service.connect() as connection:
        for number in range(40):
            tenant, token = (("acme", mine), ("globex", theirs))[number % 2]
            connection.sendall(post("/v1/chat/completions", body, headers=bearer(token)))
            (answer,) = answers(read_answers(connection, count=1, silence_s=0.001).data)
            assert answer.status == 200
            told[answer.headers["x-request-id"]] = tenant

    def recorded() -> dict[str, str] | None:
        rows = {row["request_id"]: row["tenant"] for row in place.service.usage()}
        return rows if told.keys() <= rows.keys() else None

    rows: dict[str, str] = wait_until(recorded, what="the records")
    assert {request: rows[request] for request in told} == told


def test_a_token_that_expires_is_refused_though_it_was_known(place: Place) -> None:
    """T39: on fresh connections, on one that has used it all the time, and on a WebSocket; a stream that runs goes on."""
    issuer, service = place.issuer, place.service
    expires_s = int(time.time()) + 4
    token = issuer.token(exp=expires_s)
    long = json.dumps(
        {
            "model": "scripted",
            "messages": [{"role": "user", "content": "hello"}],
            "stream": True,
            "max_tokens": 500,
        }
    ).encode()
    with service.connect() as streaming, service.connect() as kept, dial(service.port, token) as socket:
        assert ask(socket).end["object"] == "headrace.done"
        streaming.sendall(post("/v1/chat/completions", long, headers=bearer(token)))
        question_ = b"GET /v1/models HTTP/1.1\r\nhost: test\r\n" + bearer(token).encode() + b"\r\n"

        def on_kept() -> Answer:
            kept.sendall(question_)
            (answer,) = answers(read_answers(kept, count=1, silence_s=0.001).data)
            return answer

        assert {on_kept().status for _ in range(3)} == {200}
        refused = wait_until(
            lambda: (answer := on_kept()).status == 401 and answer, limit_s=60, what="the expiry"
        )
        assert time.time() >= expires_s
        assert refused.headers["x-headrace-reason"] == "unauthenticated"
        assert place.everywhere(token) == {401}
        end = ask(socket).end
        assert (end["status"], end["error"]["code"]) == (401, "unauthenticated")
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=60)
        assert read(streaming, until=b"data: [DONE]\n\n").end == "open"
    assert place.refused("token_expired") > 0


def test_all_tokens_of_a_tenant_from_before_a_moment_can_be_revoked(place: Place) -> None:
    """T39, REPORTS 43: in force on every worker within two seconds; those of other tenants, and later ones, go on."""
    issuer, service = place.issuer, place.service
    service.cli("tenants", "create", "leaver")
    old, other = issuer.token(tenant="leaver", iat=int(time.time()) - 5), issuer.token()
    wait_until(lambda: place.everywhere(old) == {200}, what="the tenant")
    with dial(service.port, old) as socket:
        socket.send(question(max_tokens=100))
        hear(socket, until=["headrace.open"])
        service.cli("tenants", "set", "leaver", "--tokens-valid-from", "now")
        began_s = time.monotonic()
        wait_until(lambda: place.status(old) == 403, what="the revocation")
        wait_until(lambda: place.everywhere(old) == {403}, what="the revocation everywhere")
        assert time.monotonic() - began_s < 10  # 2 s, and a machine that others use
        assert hear(socket).end["object"] == "headrace.done"
        assert ask(socket).end["status"] == 403
    assert place.status(other) == 200
    later = issuer.token(tenant="leaver", iat=int(time.time()) + 2)
    wait_until(lambda: place.status(later) == 200, what="a token from after the moment")
    line = next(line for line in service.log_lines() if line.get("reason") == "token_revoked")
    assert (line["tenant"], line["key_id"]) == ("leaver", "token:idp")


def test_a_tenant_that_does_not_exist_is_nobody_until_it_does(place: Place) -> None:
    """REPORTS 43: what the token means follows its tenant within two seconds, everywhere."""
    token = place.issuer.token(tenant="newcomer")
    status, _, body = place.service.get("/v1/models", key=token)
    assert (status, json.loads(body)["error"]["code"]) == (403, "forbidden")
    assert "newcomer" not in body.decode()
    line = next(line for line in place.service.log_lines() if line.get("reason") == "token_tenant")
    assert (line["event"], line["status"]) == ("request.refused", 403)
    assert place.refused("token_tenant") > 0
    place.service.cli("tenants", "create", "newcomer", "--concurrency", "1")
    began_s = time.monotonic()
    wait_until(lambda: place.everywhere(token) == {200}, what="the tenant")
    assert time.monotonic() - began_s < 10
    # Its limits are the tenant's, over all workers, though it has no key at all.
    with dial(place.service.port, token) as first, dial(place.service.port, token) as second:
        first.send(question(max_tokens=100))
        hear(first, until=["headrace.open"])
        assert ask(second).end["error"]["code"] == "concurrency_limited"
        hear(first)


def test_keys_and_tokens_of_one_tenant_work_side_by_side(place: Place) -> None:
    key = place.service.key("acme")
    assert place.status(key) == place.status(place.issuer.token()) == 200
    place.service.cli("keys", "revoke", key[8:16])
    wait_until(lambda: place.status(key) == 401, what="the revocation")
    assert place.status(place.issuer.token()) == 200


def test_a_page_gives_its_token_as_a_subprotocol(place: Place) -> None:
    """Browsers can't set headers; see docs/reference/websocket.md."""
    token = place.issuer.token()
    protocols = [Subprotocol("headrace.v1"), Subprotocol(f"headrace.key.{token}")]
    with dial(place.service.port, subprotocols=protocols) as socket:
        assert socket.subprotocol == "headrace.v1"
        assert ask(socket, max_tokens=1).end["object"] == "headrace.done"
    forged = place.issuer.token(key=new_key("first"))
    with pytest.raises(InvalidStatus) as refused:
        dial(place.service.port, subprotocols=[protocols[0], Subprotocol(f"headrace.key.{forged}")])
    assert refused.value.response.status_code == 401


ROTATING = "keys_gap_s = 1\nkeys_refresh_s = 3600\nkeys_keep_s = 2"


def refused(service: Provider, token: str) -> Answer | None:
    status, headers, body = service.get("/v1/models", key=token)
    return None if status == 200 else Answer(status, headers, body)


def test_a_rotation_and_an_outage_of_the_provider(edge_engine: ScriptedEngine) -> None:
    """T40: a new key is found when its first token comes, one that is gone is no longer believed, an outage is bridged with the
    keys that there were, for as long as that was agreed, and then callers are asked to come back."""
    with issuer_server() as issuer, provider(
        upstreams=[edge_engine.url], config=UNLIMITED + issuer.config(tenant='tenant = "acme"', more=ROTATING)
    ) as service:  # fmt: skip
        service.cli("tenants", "create", "acme")
        old = issuer.token()
        wait_until(lambda: refused(service, old) is None, what="the tenant")
        issuer.keys = [new_key("second")]
        new = issuer.token(tenant="whatever it says")
        wait_until(lambda: refused(service, new) is None, what="the new key")
        assert issuer.looks <= 4, (
            "one when we started, one for the new key; a machine that others use may be late"
        )
        answer = refused(service, old)
        assert answer is not None
        assert answer.status == 401
        issuer.status = 500
        third = issuer.token(key=new_key("third"))
        wait_until(
            lambda: (
                service.metric("headrace_issuer_looks_total", result="failed")
                or refused(service, third) is None
            ),
            what="a look that fails",
        )
        assert refused(service, new) is None
        gone = wait_until(lambda: refused(service, new), what="the end of the keys that we had")
        assert (gone.status, gone.error["code"], gone.headers["retry-after"]) == (503, "saturated", "1")
        assert service.metric("headrace_issuer_keys", issuer="idp") == 0
        issuer.status = 200
        wait_until(lambda: refused(service, new) is None, what="the provider to be back")
        events = [line["event"] for line in service.log_lines() if line["event"].startswith("issuer.")]
        assert events == ["issuer.answered", "issuer.failing", "issuer.answered"]


@pytest.fixture(scope="module")
def edge_engine() -> Iterator[ScriptedEngine]:
    with scripted_engine() as engine:
        yield engine


def test_a_provider_that_is_away_keeps_nobody_with_a_key_from_us(edge_engine: ScriptedEngine) -> None:
    """The service starts without it; its tokens, and nothing else, get 503."""
    with issuer_server() as issuer:
        issuer.status = 404
        with provider(upstreams=[edge_engine.url], config=UNLIMITED + issuer.config()) as service:
            assert service.get("/v1/models", key=service.key("acme"))[0] == 200
            assert service.get("/v1/models", key=issuer.token())[0] == 503
            wait_until(
                lambda: [line for line in service.log_lines() if line["event"] == "issuer.failing"],
                what="the line",
            )


def test_a_provider_over_plain_http_is_refused_at_the_start(edge_engine: ScriptedEngine) -> None:
    """Whoever can change keys on their way would make tokens for everybody."""
    config = '[[auth.issuers]]\nname = "idp"\nissuer = "http://id.example"\naudience = "a"\ntenant = "acme"\n'
    with pytest.raises(AssertionError, match="must be https://"):
        with provider(upstreams=[edge_engine.url], config=config):
            pytest.fail("it has started")

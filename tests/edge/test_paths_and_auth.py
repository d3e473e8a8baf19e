"""T43, T46, T39, T40: no spelling of a path and no form of a key opens what the plain one doesn't."""

import http.client
import json
import os
import socket
import time
from pathlib import Path

import pytest

from headrace.core import keys
from headrace.core.request import Endpoint
from tests.edge.conftest import Edge
from tests.support.http_answers import answers, read_answers
from tests.support.provider import wait_until
from tests.support.wire import post

OPEN = ("/livez", "/readyz")
KEYED = (
    "/v1/models", "/v1/models/scripted", "/v1/models/scripted/contract", "/openapi.json",
    *(endpoint.value for endpoint in Endpoint),
)  # fmt: skip
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE")

SPELLINGS = [
    "/", "//", "/v1", "/v1/", "//v1/models", "/v1//models", "/./v1/models", "/v1/./models", "/v1/../v1/models",
    "/x/../v1/models", "/livez/../v1/models", "/livez/..%2fv1/models", "/%76%31/models", "/v1%2fmodels",
    "/v1/%2e%2e/v1/models", "/%2e%2e/livez", "/%6civez", "/livez/", "//livez", "/./livez", "/livez;a", "/livez;",
    "/livez%3f", "/livez%00", "/livez%20", "/livez.", "/livez#a", "/Livez", "/LIVEZ", "/readyz/", "/READYZ", "/readyz;a",
    "/V1/models", "/v1/Models", "/v1/models/", "/v1/models;a", "/v1/models.", "/v1/models%20", "/v1/models%3f",
    "/v1/chat/completions/", "/v1/chat//completions", "/v1/chat/completions;a", "/v1/chat/completions%3f",
    "/v1\\models", "/..;/v1/models", "/metrics", "/admin/v1/status", "/health", "/docs", "/openapi", "/.env",
]  # fmt: skip


def status(
    edge: Edge, target: str, *, method: str = "GET", host: str = "test", key: str = "", port: int = 0
) -> int:
    """The status of one request whose target is sent as it is."""
    line = f"Authorization: Bearer {key}\r\n" if key else ""
    request = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n{line}Content-Length: 0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port or edge.service.port), timeout=60) as connection:
        connection.sendall(request.encode("latin-1"))
        return int(connection.recv(4096).split(b" ", 2)[1])


@pytest.mark.parametrize("target", SPELLINGS)
def test_no_spelling_of_a_path_answers_without_a_key(edge: Edge, target: str) -> None:
    """T43: on either port; 401 for what exists and for what doesn't, or 400 where it can't be read."""
    assert status(edge, target) in (400, 401)
    # The admin port decodes before it matches, so it sees another spelling of its own open path.
    doors = (200,) if target == "/%6civez" else (400, 401)
    assert status(edge, target, port=edge.service.admin_port) in doors


@pytest.mark.parametrize("target", [spelling for spelling in SPELLINGS if spelling != "/v1/models/"])
def test_with_a_key_only_the_exact_path_exists(edge: Edge, target: str) -> None:
    """T43: nothing is decoded or tidied up before it is matched."""
    assert status(edge, target, key=edge.key) in (400, 404)
    assert status(edge, target, key=edge.key, method="POST") in (400, 404)


@pytest.mark.parametrize(
    "host", ["test", "test:80", "livez", "TEST.example", "test.", "[::1]:8000", "127.0.0.1"]
)
def test_a_host_decides_nothing(edge: Edge, host: str) -> None:
    """T43."""
    assert [status(edge, path, host=host) for path in OPEN] == [200, 200]
    assert [status(edge, path, host=host) for path in KEYED[:2]] == [401, 401]
    assert [status(edge, path, host=host, key=edge.key) for path in KEYED[:2]] == [200, 200]


def test_a_query_decides_nothing(edge: Edge) -> None:
    """T43: the decision is that of the plain path."""
    for query in ("?", "?a=b", "?/livez", "??"):
        assert status(edge, f"/livez{query}") == 200
        assert status(edge, f"/v1/models{query}") == 401
        assert status(edge, f"/v1/models{query}", key=edge.key) == 200


def test_only_livez_and_readyz_answer_without_a_key(edge: Edge) -> None:
    """T46: every route with every method, on both ports; the admin port's own liveness is the third door, by design."""
    paths = (*OPEN, *KEYED, "/", "/metrics", "/admin/v1/status")
    for port, doors in (
        (edge.service.port, {("GET", "/livez"), ("GET", "/readyz")}),
        (edge.service.admin_port, {("GET", "/livez"), ("HEAD", "/livez")}),
    ):
        answered = {
            (method, path): status(edge, path, method=method, port=port)
            for path in paths
            for method in METHODS
        }
        assert {asked for asked, code in answered.items() if code != 401} == doors
        assert all(answered[door] == 200 for door in doors)


def test_nothing_else_listens(edge: Edge) -> None:
    """T46: the process holds two listening sockets, both on loopback."""
    assert listening(edge.service.pid) == {
        ("127.0.0.1", edge.service.port),
        ("127.0.0.1", edge.service.admin_port),
    }


def listening(pid: int) -> set[tuple[str, int]]:
    """Addresses of the process's listening TCP sockets, from /proc."""
    links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and columns[9] in inodes:
                address, port = columns[1].split(":")
                octets = bytes.fromhex(address)[::-1] if len(address) == 8 else bytes.fromhex(address)
                found.add((".".join(map(str, octets)), int(port, 16)))
    return found


# Keys


def authorization(edge: Edge, value: bytes) -> tuple[int, bytes]:
    with edge.service.connect() as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: test\r\nAuthorization: " + value + b"\r\n\r\n")
        head, _, body = connection.recv(65536).partition(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1]), body


def unknown_key() -> str:
    return keys.make("live", id_random=os.urandom(16), secret_random=os.urandom(32))


def test_every_wrong_key_gets_the_same_401(edge: Edge) -> None:
    """T40: the message doesn't tell which part was right."""
    key = edge.key.encode()
    twin = key[:20] + b"A" * (len(key) - 20)
    wrong = {
        "none": b"", "scheme only": b"Bearer", "no key": b"Bearer ", "basic": b"Basic " + key, "bare": key, "twin": b"Bearer " + twin,
        "unknown": b"Bearer " + unknown_key().encode(), "shorter": b"Bearer " + key[:-1], "longer": b"Bearer " + key + b"0",
        "upper case": b"Bearer " + key.upper(), "two": b"Bearer " + key + b" " + key, "quoted": b'Bearer "' + key + b'"',
        "sql": b"Bearer ' OR 1=1 --", "bytes": b"Bearer \xff\xfe\x80" + key, "long": b"Bearer " + b"a" * 20_000,
        "comma": b"Bearer " + key + b", Bearer x", "crc": b"Bearer " + key[:-8] + b"00000000",
    }  # fmt: skip
    answered = {name: authorization(edge, value) for name, value in wrong.items()}
    assert {name for name, (code, _) in answered.items() if code != 401} == set()
    messages = {body.split(b'"request_id"')[0] for _, body in answered.values()}
    assert len(messages) == 1


def test_the_scheme_is_read_in_any_case(edge: Edge) -> None:
    for scheme in (b"Bearer ", b"bearer ", b"BEARER  "):
        assert authorization(edge, scheme + edge.key.encode())[0] == 200


def test_an_unauthenticated_body_is_not_read(edge: Edge) -> None:
    """T34: the refusal comes on the head alone."""
    with edge.service.connect() as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000\r\n\r\n"
        )
        assert connection.recv(4096).startswith(b"HTTP/1.1 401 ")


def test_a_401_says_how_to_authenticate(edge: Edge) -> None:
    """RFC 9110, section 11.6.1."""
    for port in (edge.service.port, edge.service.admin_port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/v1/models")
        assert connection.getresponse().headers["www-authenticate"] == "Bearer"
        connection.close()


def test_the_admin_token_is_no_key_and_a_key_no_admin_token(edge: Edge) -> None:
    token = (edge.service.data / "run" / "admin.token").read_text().strip()
    assert status(edge, "/v1/models", key=token) == 401
    assert status(edge, "/admin/v1/status", key=edge.key, port=edge.service.admin_port) == 401
    assert status(edge, "/admin/v1/status", key=token, port=edge.service.admin_port) == 200


def post_on(kept: socket.socket, key: str, *, text: str = "hi") -> int:
    """One chat completion in one write on a connection that stays open; its status."""
    body = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": text}]}).encode()
    kept.settimeout(60.0)  # reading the answer before left it at moments
    kept.sendall(post("/v1/chat/completions", body, headers=f"authorization: Bearer {key}\r\n"))
    (answer,) = answers(read_answers(kept, count=1, silence_s=0.01).data)
    return answer.status


@pytest.mark.slow
def test_a_revoked_key_is_refused_within_two_seconds(edge: Edge) -> None:
    """T39: on a connection that used it before, too; other keys go on working."""
    key = edge.service.key("leaver")
    with edge.service.connect() as kept:
        # Several with the same head: from the second on, it is recognised and not read again.
        assert [post_on(kept, key) for _ in range(3)] == [200, 200, 200]
        edge.service.cli("keys", "revoke", key[8:16])
        revoked_s = time.monotonic()
        wait_until(lambda: edge.service.get("/v1/models", key=key)[0] == 401, what="the revocation")
        assert time.monotonic() - revoked_s < 10.0  # 2 s, and a machine that others use
        assert post_on(kept, key) == 401
    assert edge.service.get("/v1/models", key=edge.key)[0] == 200


@pytest.mark.slow
def test_a_key_that_is_revoked_while_the_body_is_on_its_way_is_refused(edge: Edge) -> None:
    """T39: the head was let in, but the request only begins when its body is there."""
    key, requests = edge.service.key("leaver-in-between"), edge.requests()
    body = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "x"}]}).encode()
    request = post("/v1/chat/completions", body, headers=f"authorization: Bearer {key}\r\n")
    with edge.service.connect() as connection:
        connection.sendall(request[:-10])
        edge.service.cli("keys", "revoke", key[8:16])
        wait_until(lambda: edge.service.get("/v1/models", key=key)[0] == 401, what="the revocation")
        connection.sendall(request[-10:])
        (answer,) = answers(read_answers(connection, count=1, silence_s=0.01).data)
    assert (answer.status, answer.error["code"]) == (401, "unauthenticated")
    assert edge.requests() == requests


@pytest.mark.slow
def test_an_expired_key_is_refused(edge: Edge) -> None:
    """T39: by wall time, to the second, without any command being run."""
    edge.service.cli("tenants", "create", "guest")
    key = edge.service.cli("keys", "create", "--tenant", "guest", "--expires", "4s").stdout.strip()
    wait_until(lambda: edge.service.get("/v1/models", key=key)[0] == 200, what="the key to be in force")
    with edge.service.connect() as kept:
        wait_until(lambda: post_on(kept, key) == 401, what="the expiry on a connection that is never idle")
    assert edge.service.get("/v1/models", key=key)[0] == 401


@pytest.mark.slow
def test_bodies_of_other_lengths_under_the_same_head_are_read_whole(edge: Edge) -> None:
    with edge.service.connect() as kept:
        assert [post_on(kept, edge.key, text="a" * size) for size in (1, 5, 90_000, 0, 5, 300_000, 7)] == [
            200
        ] * 7
        assert post_on(kept, edge.key, text="a" * 5_000_000) == 413


# Models


def test_models_are_listed_and_shown(edge: Edge) -> None:
    listed = edge.ask("GET", "/v1/models").json
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["org/model", "scripted"]
    assert set(listed["data"][0]) == {"id", "object", "created", "owned_by", "cache_isolation"}
    assert edge.ask("GET", "/v1/models/scripted").json == listed["data"][1]


@pytest.mark.parametrize("name", ["org/model", "org%2Fmodel", "org%2fmodel"])
def test_a_models_name_may_hold_a_slash(edge: Edge, name: str) -> None:
    """Client libraries differ in whether they quote it."""
    assert edge.ask("GET", f"/v1/models/{name}").json["id"] == "org/model"


@pytest.mark.parametrize(
    "name", ["nothing", "%00", "%ff%fe", "..%2f..%2fetc", "%0d%0aX-A:%20b", "scripted%20", "a" * 9000]
)
def test_an_unknown_model_is_404(edge: Edge, name: str) -> None:
    answer = edge.ask("GET", f"/v1/models/{name}")
    assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "model_not_found", "model")
    assert len(answer.body) < 2000

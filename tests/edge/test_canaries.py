"""T47: every secret that passes through a service is a canary, every way a request can end is forced, and nothing keeps one."""

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from headrace.core import keys
from headrace.core.outcome import Reason
from tests.edge.conftest import Edge
from tests.edge.gathering import family, hits, of_files, of_processes, of_service
from tests.edge.test_secrets import CANARY, CHAT, HEADERS, PROMPT, provoke
from tests.support import buggy_headrace, websocket
from tests.support.echo_replica import MODEL as ECHO
from tests.support.echo_replica import echo_replica
from tests.support.provider import HEADRACE, Provider, provider, wait_until
from tests.support.scripted import ScriptedEngine, scripted_engine

pytestmark = pytest.mark.slow

UPSTREAM_KEY = f"sk-{CANARY}-upstream-key"
CONFIG = """
[server]
header_timeout_s = 0.5
drain_s = 0.5
[request]
attempts_max = 1
stall_limit_s = 0.5
first_event_limit_s = 0.5
write_stall_limit_s = 0.5
[admission]
queue_length_max = 1
queue_wait_max_s = 0.5
[health]
failures_to_eject = 1000
rest_s = 0
[media]
urls = "fetch"
[[upstreams]]
url = "{engine}"
slots = 2
api_key = "env:CANARY_UPSTREAM_KEY"
[[upstreams]]
url = "{echo}"
api_key = "env:CANARY_UPSTREAM_KEY"
"""
# Ways to end that this service isn't brought to; each is reached by a test that leaves its words in no log either, and
# has no text of a caller's or an engine's in reach.
ELSEWHERE = {
    Reason.QUOTA_UNAVAILABLE, Reason.LEDGER_BEHIND, Reason.UNRECORDED, Reason.WORK_UNKNOWN, Reason.PRESSED, Reason.BODY_UNREAD,
    Reason.DRAINING, Reason.STOPPING, Reason.RESTING, Reason.NO_READY_REPLICA, Reason.WAIT_TOO_LONG, Reason.QUEUE_TIME_OVER, Reason.KEYS_STALE, Reason.DISPLACED,
    Reason.SLOW_READER, Reason.OVERSIZED, Reason.TOKENS_OVER_LIMIT, Reason.MODEL_CONCURRENCY_LIMITED, Reason.MODEL_RATE_LIMITED,
    Reason.MODEL_TOKENS_LIMITED, Reason.KEY_CONCURRENCY_LIMITED, Reason.KEY_TOKENS_LIMITED, Reason.KEY_RATE_LIMITED,
}  # fmt: skip


def jwt() -> str:
    """A token of nobody's, whose claims and signature are canaries."""

    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    head, claims = {"alg": "RS256", "kid": f"{CANARY}-kid"}, {"iss": f"https://{CANARY}/", "sub": CANARY}
    return f"{part(head)}.{part(claims)}.{CANARY}-signature"


class Secrets:
    """What must be nowhere, by what it is; `add` as more of them become known."""

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {"canary": CANARY.encode(), "token": jwt().encode()}
        claims = jwt().split(".")[1]
        self.found["claims"] = claims.encode()

    def add(self, what: str, secret: str) -> str:
        """The part of a key or token that proves anything; its id is public."""
        self.found[what] = secret[17:60].encode()
        return secret


@contextmanager
def service(
    monkeypatch: pytest.MonkeyPatch, temporary: Path, *, workers: int, program: list[str]
) -> Iterator[tuple[Provider, ScriptedEngine]]:
    """A provider whose temporary files all lie in one folder."""
    monkeypatch.setenv("CANARY_UPSTREAM_KEY", UPSTREAM_KEY)
    monkeypatch.setenv("TMPDIR", str(temporary))
    with ExitStack() as stack:
        engine = stack.enter_context(scripted_engine(slots=64))
        echo = stack.enter_context(echo_replica())
        running = stack.enter_context(
            provider(
                config=CONFIG.format(engine=engine.url, echo=echo),
                arguments=["--workers", str(workers)],
                program=program,
                data=temporary.parent / "data",
            )
        )
        wait_until(lambda: running.metric("headrace_replica_ready") == 2, what="both upstreams")
        yield running, engine


def is_forbidden(running: Provider, key: str) -> bool:
    return running.post(CHAT, PROMPT, key=key, headers=HEADERS)[0] == 403


def limits(running: Provider) -> None:
    """Each limit of a tenant, reached by a request full of canaries."""
    limited: dict[str, dict[str, int]] = {
        "tokens": {"tokens_per_minute": 60, "tokens_burst": 60},
        "single": {"concurrency": 1},
    }
    for tenant, given in limited.items():
        key = running.key(tenant, **given)
        for _ in range(3):
            running.post(CHAT, {**PROMPT, "max_tokens": 40}, key=key, headers=HEADERS)
    for reason, narrowed in (
        ("network", ["--network", "10.1.2.0/24"]),
        ("scope", ["--endpoint", "/v1/embeddings"]),
    ):
        narrow = running.cli("keys", "create", "--tenant", "tokens", *narrowed).stdout.strip()
        wait_until(partial(is_forbidden, running, narrow), what=reason)
    running.cli("tenants", "create", "stays", "--location", "elsewhere")
    running.post(CHAT, PROMPT, key=running.key("stays"), headers=HEADERS)
    running.cli("tenants", "create", "poor", "--quota", "requests/total=1")
    key = running.key("poor")
    for _ in range(2):
        running.post(CHAT, PROMPT, key=key, headers=HEADERS)


def crowd(running: Provider, engine: ScriptedEngine, key: str, single: str) -> None:
    """Callers that leave, wait, come too late, and find no place: the engine is stuck meanwhile."""
    raw = json.dumps({**PROMPT, "stream": True}).encode()

    def head(more: str = "", *, of: str = key) -> bytes:
        names = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
        length = f"content-length: {len(raw)}\r\n"
        return f"POST {CHAT} HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {of}\r\n{names}{more}{length}\r\n".encode()

    engine.set_faults("stall:3")
    with ExitStack() as stack:
        for of in (single, single, key, key, key, key):
            connection = stack.enter_context(running.connect())
            connection.sendall(head("x-headrace-deadline-ms: 20000\r\n" if of == key else "", of=of) + raw)
        wait_until(
            lambda: _ends(running) >= {Reason.QUEUE_FULL, Reason.CONCURRENCY_LIMITED}, what="a full queue"
        )
    with running.connect() as connection:
        connection.sendall(head() + raw)
        connection.recv(100)
    wait_until(lambda: running.status()["in_flight"] == 0, what="everybody to be gone")
    engine.set_faults("")


def _ends(running: Provider) -> set[str]:
    return {reason for reasons in running.status()["requests"].values() for reason in reasons}


def echoes(running: Provider, key: str) -> list[bytes]:
    """A replica that throws at us what it was told, the key that we came with as well."""
    answers = []
    for what in ("200", "400", "401", "404", "413", "422", "429", "500", "503", "event"):
        for stream in (False, True):
            asked = {"model": ECHO, "messages": [{"role": "user", "content": f"{what} {CANARY}-echo"}]}
            answers.append(running.post(CHAT, {**asked, "stream": stream}, key=key, headers=HEADERS)[2])
    return answers


def media(running: Provider, key: str) -> None:
    for url in (
        f"http://127.0.0.1:1/{CANARY}?key={CANARY}",
        f"http://{CANARY}.invalid/",
        f"data:image/png;base64,{CANARY}",
        f"file:///{CANARY}",
    ):
        part = {"type": "image_url", "image_url": {"url": url}}
        running.post(
            CHAT, {**PROMPT, "messages": [{"role": "user", "content": [part]}]}, key=key, headers=HEADERS
        )


def sockets(running: Provider, key: str) -> None:
    """Over WebSocket: canaries as messages that are one, and as messages that are none."""
    for message in (json.dumps(PROMPT), CANARY, f'{{"{CANARY}', json.dumps({**PROMPT, "model": CANARY})):
        with websocket.dial(running.port, key) as caller, suppress(Exception):
            caller.send(message)
            caller.recv(timeout=20)
    with suppress(Exception):
        websocket.dial(running.port, f"{CANARY}-key").close()
    with suppress(Exception):
        websocket.dial(running.port, key, headers={"origin": f"https://{CANARY}"}).close()


def bugs(running: Provider, key: str) -> None:
    for stage in ("unstarted", "working", "answering"):
        for stream in (False, True):
            running.post(CHAT, {**PROMPT, "bug": stage, "stream": stream}, key=key, headers=HEADERS)


def admins(running: Provider, secrets: Secrets) -> None:
    """The admin port: tokens that are none, bodies that are none, and names that don't exist."""
    token = secrets.add("admin token", running.cli("admins", "create", "--role", "viewer").stdout.strip())
    for key in (token, f"hr_admn_{CANARY}", jwt()):
        for path in (f"/admin/v1/tenants/{CANARY}", f"/admin/v1/audit?since={CANARY}", f"/{CANARY}"):
            running._ask("GET", path, key=key, body=None, port=running.admin_port)
        for body in (b'{"name": "%b' % CANARY.encode(), json.dumps({CANARY: CANARY}).encode()):
            running._ask("POST", "/admin/v1/tenants", key=key, body=body, port=running.admin_port)


def left_behind(running: Provider, temporary: Path) -> dict[str, bytes]:
    assert running.process.stdout is not None
    seen = {"output": (running.started + running.process.stdout.read()).encode()}
    return seen | of_files(running.data) | {f"tmp/{name}": text for name, text in of_files(temporary).items()}


def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tmp"
    made.mkdir()
    return made


def test_no_way_to_end_a_request_leaves_anything_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T47: prompts, answers, tool arguments, headers, keys and tokens; also through bugs of ours and a hostile replica."""
    secrets, temporary = Secrets(), folder(tmp_path)
    program = [sys.executable, "-P", buggy_headrace.__file__]
    with service(monkeypatch, temporary, workers=1, program=program) as (running, engine):
        key = secrets.add("key", running.key("unlimited", requests_per_minute=0, concurrency=0))
        single = secrets.add("another key", running.key("single", concurrency=1, requests_per_minute=0))
        unknown = keys.make("live", id_random=os.urandom(16), secret_random=os.urandom(32))
        for stranger in (secrets.add("unknown key", unknown), jwt(), f"{CANARY}-bearer"):
            assert running.get("/v1/models", key=stranger)[0] == 401
        told = echoes(running, key)
        assert not [
            answer for answer in told[2:] if UPSTREAM_KEY.encode() in answer and b'"choices"' not in answer
        ]
        provoke(Edge(engine, running, key))
        limits(running)
        media(running, key)
        sockets(running, key)
        admins(running, secrets)
        bugs(running, key)
        crowd(running, engine, key, single)
        reached = _ends(running)
        seen = of_service(running)
        assert running.stop() == 0
        seen |= left_behind(running, temporary)
    assert {"logs/headrace.log", "headrace.db"} <= seen.keys()
    assert hits(seen, secrets.found) == []
    assert {reason.value for reason in Reason} - reached - ELSEWHERE == set()


def is_replaced(running: Provider, pid: int) -> bool:
    return running.status()["workers"][0]["pid"] not in (pid, None)


def test_a_process_that_is_killed_leaves_nothing_of_its_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T47: workers that abort and are killed in the middle of answers, then the service; its journals are left."""
    secrets, temporary = Secrets(), folder(tmp_path)
    monkeypatch.chdir(temporary)  # where the kernel would put a core dump
    with service(monkeypatch, temporary, workers=2, program=HEADRACE) as (running, engine):
        key = secrets.add("key", running.key("unlimited", requests_per_minute=0, concurrency=0))
        engine.set_faults("stall:3")
        with ExitStack() as stack:
            raw = json.dumps({**PROMPT, "stream": True}).encode()
            for _ in range(2):
                connection = stack.enter_context(running.connect())
                connection.sendall(
                    f"POST {CHAT} HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {key}\r\ncontent-length: {len(raw)}\r\n\r\n".encode()
                    + raw
                )
            engine.wait_for_stats(lambda stats: stats["running"] == 2)
            for number in (signal.SIGABRT, signal.SIGKILL):
                pid = running.status()["workers"][0]["pid"]
                os.kill(pid, number)
                wait_until(partial(is_replaced, running, pid), what="another")
            seen = of_service(running)
            assert running.stop(signal.SIGKILL) == -signal.SIGKILL
            seen |= left_behind(running, temporary)
    assert [name for name in seen if name.startswith("run/")], "the journals of the killed"
    assert hits(seen, secrets.found) == []


def test_no_process_of_a_service_dumps_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T47: it holds prompts and keys; where an operator wants dumps, `server.core_dumps` leaves the limits as they were."""
    with service(monkeypatch, folder(tmp_path), workers=2, program=HEADRACE) as (running, _):
        pids = family(running.pid)
        assert len(pids) > 2
        for pid in pids:
            limits = Path(f"/proc/{pid}/limits").read_text().split("\n")
            assert [line.split()[4] for line in limits if line.startswith("Max core file size")] == ["0"]
            assert int(Path(f"/proc/{pid}/coredump_filter").read_text(), 16) == 0


def test_a_canary_that_somebody_left_would_be_found(tmp_path: Path) -> None:
    """The search itself: a plain file, the database, what stands in a log that is open, and a command line."""
    with scripted_engine() as engine, provider(upstreams=[engine.url], data=tmp_path / "data") as running:
        running.cli("tenants", "create", "demo")
        running.cli("keys", "create", "--tenant", "demo", "--name", CANARY)
        (running.data / "logs" / "planted.log").write_text(f"x{CANARY}y")
        with subprocess.Popen([sys.executable, "-c", "input()", CANARY], stdin=subprocess.PIPE) as child:
            places = hits(
                of_service(running) | of_files(running.data) | of_processes([child.pid]),
                {"it": CANARY.encode()},
            )
            child.kill()
    found = {where for where, _ in places}
    assert {"logs/planted.log", "admin port /admin/v1/keys", f"argv {child.pid}"} <= found
    assert any(where.startswith("headrace.db") for where in found)


SECRET_URLS = [
    f"http://127.0.0.1:1/v1?key={CANARY}",
    f"http://user:{CANARY}@127.0.0.1:1/v1",
    f"http://127.0.0.1:1/v1#{CANARY}",
]


@pytest.mark.parametrize("url", SECRET_URLS)
def test_a_secret_in_an_upstreams_url_is_not_told(tmp_path: Path, url: str) -> None:
    """REPORTS 100: such a URL is refused at the start, in words and files that don't hold it; given by flag and by file."""
    config = tmp_path / "headrace.toml"
    config.write_text(f'[[upstreams]]\nurl = "{url}"\n')
    for given in (["--upstream", url], ["--config", str(config)]):
        done = subprocess.run(
            [*HEADRACE, "up", "--data", str(tmp_path / "data"), "--port", "0", "--admin-port", "0", *given],
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == 2
        assert (
            hits({"said": done.stdout + done.stderr, **of_files(tmp_path / "data")}, {"it": CANARY.encode()})
            == []
        )

"""T14, REPORTS 68: large bodies are read in a child process; whatever happens to it or to them, the loop goes on."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace.core.request import Endpoint
from headrace.gateway.intake import TENANT_PLACES
from headrace.protocols import openai
from tests.gateway.plain_server import MODEL, PlainServer, plain_server
from tests.gateway.rig import CHAT, Rig, error_of, read_answer, read_events, rig, words
from tests.support import wire
from tests.support.provider import wait_until

CONFIG = "[server]\nbody_bytes_max = 33554432\n[admission]\nqueue_length_max = 1000\n"
MEGABYTE = 1_000_000
LARGE = "large " * 60_000  # 360 KB
EMBEDDINGS = "/v1/embeddings"


@pytest.fixture(scope="module")
def plain() -> Iterator[PlainServer]:
    with plain_server() as running:
        yield running


@pytest.fixture(scope="module")
def big_rig(plain: PlainServer) -> Iterator[Rig]:
    with rig({"slots": 256, "log": True}, upstreams=[plain.url], config=CONFIG) as running:
        yield running


@pytest.fixture
def big(big_rig: Rig) -> Iterator[Rig]:
    yield big_rig
    big_rig.wait_until_idle()


def children(running: Rig) -> list[int]:
    """The parsers of the provider."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
            is_ours = int(parent) == running.provider.pid
            if is_ours and b"parser_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def chat(text: str, **fields: Any) -> bytes:
    question = {"model": "scripted", "messages": [{"role": "user", "content": text}], "max_tokens": 3}
    return json.dumps({**question, **fields}, ensure_ascii=False).encode()


def send(running: Rig, body: bytes, *, path: str = CHAT, headers: str = "", key: str = "") -> socket.socket:
    connection = running.provider.connect()
    authorization = f"authorization: Bearer {key or running.key}\r\n"
    connection.sendall(wire.post(path, body, headers=authorization + headers))
    return connection


def ask(running: Rig, body: bytes, *, path: str = CHAT, headers: str = "") -> wire.Exchange:
    with send(running, body, path=path, headers=headers) as connection:
        return read_answer(connection)


@pytest.fixture
def child(big: Rig) -> int:
    """The parser, running and idle."""
    assert ask(big, chat(LARGE)).status == 200
    (pid,) = children(big)
    return pid


@pytest.fixture
def stopped(child: int) -> Iterator[int]:
    """The parser, which takes what it is sent and reads nothing until it is continued or killed."""
    os.kill(child, signal.SIGSTOP)
    yield child
    try:
        os.kill(child, signal.SIGCONT)
    except ProcessLookupError:
        pass


# --- what comes out is what went in ---


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("megabytes", [0.3, 5, 20])
def test_a_large_prompt_reaches_the_replica_as_it_came(
    big: Rig, plain: PlainServer, megabytes: float, stream: bool
) -> None:
    """REPORTS 68."""
    text = 'Wörter \u2028 \U0001fae0 {[,"]} \\ ' * int(megabytes * MEGABYTE / 30)
    extra = {"vendor": {"a": [1, 2.5, None, 2**63]}, "cache_salt": "mine"}
    answer = ask(big, chat(text, model=MODEL, stream=stream, **extra))
    assert answer.status == 200
    got = plain.bodies[-1]
    expected = {"vendor": extra["vendor"], "messages": [{"role": "user", "content": text}], "max_tokens": 3}
    ours = {"stream": True, "stream_options": {"include_usage": True}} if stream else {"stream": False}
    assert got == {"model": MODEL, **expected, **ours}


def test_a_large_batch_of_token_ids_is_answered(big: Rig) -> None:
    """Two million numbers are honest work, and no longer too much of it."""
    batch = [[1000 + i % 7] * 8000 for i in range(200)]
    answer = ask(big, json.dumps({"model": "scripted", "input": batch}).encode(), path=EMBEDDINGS)
    assert answer.status == 200
    assert len(json.loads(answer.body)["data"]) == 200


def test_small_bodies_start_no_child_and_dense_ones_do() -> None:
    """A hundred kilobytes of `{}` cost as much as megabytes of text."""
    with rig({}) as running:
        assert ask(running, chat("small")).status == 200
        assert ask(running, chat("x" * 200_000)).status == 200
        assert children(running) == []
        assert ask(running, chat("small", extra=[{}] * 30_000)).status == 200
        assert len(children(running)) == 1


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (chat(LARGE, temperature=3), "temperature"),
        (chat(LARGE, extra=2**64), "extra"),
        (chat(LARGE)[:-1], None),
        (b"[" + chat(LARGE) + b"]", None),
        (chat(LARGE).replace(b"large", b"lar\xffe", 1), None),
        (b'{"x":' + b"[" * MEGABYTE + b"]" * MEGABYTE + b"}", None),
        (b"{" + b",".join(b'"%d":0' % i for i in range(300_000)) + b"}", None),
    ],
    ids=["value", "large integer", "cut", "not an object", "not UTF-8", "deep", "keys"],
)
def test_what_is_refused_in_the_child_is_a_400_as_everywhere(
    big: Rig, body: bytes, param: str | None
) -> None:
    """T33: with the same words, and nothing of it reaches an engine."""
    before = big.engine.stats()["requests"]
    answer = ask(big, body)
    assert answer.status == 400
    assert (error_of(answer)["code"], error_of(answer)["param"]) == ("invalid_request", param)
    assert big.engine.stats()["requests"] == before


# --- the loop goes on ---


class Pulse:
    """When each of something came that should come without pause."""

    def __init__(self) -> None:
        self.at_s = [time.monotonic()]

    def beat(self) -> None:
        self.at_s.append(time.monotonic())

    def worst_s(self, start_s: float, end_s: float) -> float:
        """The longest pause that lies in that time, or reaches into it."""
        return max(
            after - before for before, after in pairwise(self.at_s) if after > start_s and before < end_s
        )


@pytest.mark.slow
def test_streams_keep_their_pace_while_megabytes_are_read() -> None:
    """T14, REPORTS 68: prompts of 5 and 20 MB, and numbers that cost much more; `/livez` answers meanwhile.

    Compared with what these bodies cost to parse, which the loop would be held for, and they are sent until it shows: the
    machine may be busy with something else. They go to another engine than the streams come from, which would hold itself up.
    """
    numbers = json.dumps({"model": "other", "x": "0" * 40, "input": [[50000] * 9500] * 250}).encode()
    text = [chat("word " * megabytes * MEGABYTE, model="other") for megabytes in (1, 4)]
    before_s = time.monotonic()
    openai.parse_body(Endpoint.EMBEDDINGS, numbers)
    cost_s = time.monotonic() - before_s
    options = {"slots": 128, "itl_ms": 25, "tokens": 4000}
    done = threading.Event()
    with rig(options, {"models": ("other",)}, config=CONFIG) as running, ExitStack() as stack:
        streams = [stack.enter_context(running.open(max_tokens=4000)) for _ in range(20)]
        for stream in streams:
            read_events(stream, 2)
        lives, tokens = Pulse(), [Pulse() for _ in streams]

        def live() -> None:
            while not done.is_set():
                assert running.provider.get("/livez")[0] == 200
                lives.beat()

        def follow(stream: socket.socket, pulse: Pulse) -> None:
            while not done.is_set():
                assert stream.recv(65536)
                pulse.beat()

        watchers = [threading.Thread(target=live)]
        watchers += [threading.Thread(target=follow, args=pair) for pair in zip(streams, tokens, strict=True)]
        for thread in watchers:
            thread.start()
        pauses_s: list[float] = []
        try:
            assert [ask(running, body).status for body in text] == [200, 200]
            while len(pauses_s) < 10 and min(pauses_s, default=cost_s) >= cost_s / 2:
                start_s = time.monotonic()
                assert ask(running, numbers, path=EMBEDDINGS).status == 200
                end_s = time.monotonic()
                pauses_s.append(max(pulse.worst_s(start_s, end_s) for pulse in (lives, *tokens)))
        finally:
            done.set()
            for thread in watchers:
                thread.join()
        print(f"parsing {cost_s:.3f} s, longest pauses {pauses_s}")
        assert min(pauses_s) < cost_s / 2


# --- what happens to the child ---


def test_a_killed_child_costs_one_request_a_503_and_the_next_one_nothing(big: Rig, stopped: int) -> None:
    with send(big, chat(LARGE)) as first, send(big, chat(LARGE)) as second:
        wait_until_reading(big, 2)
        os.kill(stopped, signal.SIGKILL)
        answers = [read_answer(first), read_answer(second)]
    assert sorted(answer.status for answer in answers) == [200, 503]
    (refused,) = [answer for answer in answers if answer.status == 503]
    assert error_of(refused)["code"] == "saturated"
    assert b"\r\nretry-after: 1\r\n" in refused.head
    assert children(big) != [stopped]


def wait_until_reading(running: Rig, count: int) -> None:
    wait_until(
        lambda: running.provider.metric("headrace_bodies_reading") == count, what=f"{count} bodies to be read"
    )


def test_an_idle_child_that_dies_is_not_missed(big: Rig, child: int) -> None:
    os.kill(child, signal.SIGKILL)
    # Who asks before its end is noticed is told to come back.
    wait_until(lambda: ask(big, chat(LARGE)).status == 200, what="another child")
    assert len(children(big)) == 1


def test_a_caller_that_leaves_takes_only_its_own_body_along(big: Rig, stopped: int) -> None:
    """T6: those behind it are served, and the engine never hears of it."""
    before = big.engine.stats()["requests"]
    leaving = [send(big, chat(LARGE)) for _ in range(3)]
    with send(big, chat(LARGE)) as staying:
        wait_until_reading(big, 4)
        for connection in leaving:
            connection.close()
        wait_until_reading(big, 2)  # the first of them is in the child already
        os.kill(stopped, signal.SIGCONT)
        assert read_answer(staying).status == 200
    assert big.engine.stats()["requests"] == before + 1
    assert children(big) == [stopped]


def test_the_deadline_holds_while_a_body_waits_to_be_read(big: Rig, stopped: int) -> None:
    """T9."""
    answer = ask(big, chat(LARGE), headers="x-headrace-deadline-ms: 300\r\n")
    assert answer.status == 504
    os.kill(stopped, signal.SIGCONT)
    wait_until_reading(big, 0)
    assert ask(big, chat(LARGE)).status == 200


def test_more_large_bodies_than_may_wait_are_refused(big: Rig, stopped: int) -> None:
    """And one tenant alone can't take all the places: it is told that it is its own doing."""
    others = [big.provider.key(f"large-{number}", requests_per_minute=0) for number in range(4)]
    with ExitStack() as stack:
        waiting = [
            stack.enter_context(send(big, chat(LARGE), key=key))
            for key in others
            for _ in range(TENANT_PLACES)
        ]
        wait_until_reading(big, 32)
        refused = ask(big, chat(LARGE))
        assert (refused.status, error_of(refused)["code"]) == (503, "saturated")
        with send(big, chat(LARGE), key=others[0]) as connection:
            limited = read_answer(connection)
        assert (limited.status, error_of(limited)["code"]) == (429, "concurrency_limited")
        assert ask(big, chat("small")).status == 200, "what is read at once waits for nobody"
        os.kill(stopped, signal.SIGCONT)
        assert {read_answer(connection).status for connection in waiting} == {200}


@pytest.mark.slow
def test_a_provider_that_is_killed_leaves_no_child() -> None:
    with rig({}) as running:
        assert ask(running, chat(LARGE)).status == 200
        (pid,) = children(running)
        os.kill(running.provider.pid, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), what="the child to be gone")


@pytest.mark.slow
def test_a_drain_waits_for_a_body_that_is_being_read() -> None:
    """T61: it was taken before the signal, so it is answered."""
    with rig({}) as running:
        assert ask(running, chat(LARGE)).status == 200
        (pid,) = children(running)
        os.kill(pid, signal.SIGSTOP)
        with send(running, chat(LARGE, stream=True)) as connection:
            wait_until_reading(running, 1)
            os.kill(running.provider.pid, signal.SIGTERM)
            wait_until(lambda: running.provider.get("/readyz")[0] == 503, what="the drain")
            os.kill(pid, signal.SIGCONT)
            answer = read_answer(connection)
        assert answer.text == words(3)
        assert "[DONE]" in answer.payloads
        assert running.provider.stop() == 0
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_a_drain_ends_with_a_body_that_is_refused_once_it_is_read() -> None:
    """T61: nothing is in progress then, so nothing is waited for."""
    with rig({}) as running:
        assert ask(running, chat(LARGE)).status == 200
        (pid,) = children(running)
        os.kill(pid, signal.SIGSTOP)
        with send(running, chat(LARGE, model="nobody")) as connection:
            wait_until_reading(running, 1)
            os.kill(running.provider.pid, signal.SIGTERM)
            wait_until(lambda: running.provider.get("/readyz")[0] == 503, what="the drain")
            os.kill(pid, signal.SIGCONT)
            assert read_answer(connection).status == 404
        # Well below the 30 s that requests in progress may take.
        assert running.provider.process.wait(20) == 0

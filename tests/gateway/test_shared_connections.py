"""A connection may carry the requests of many callers, as a proxy's does: each is its own, however it was read."""

import json
import socket

import pytest

from tests.gateway.rig import CHAT, Rig, read_answer
from tests.support import wire
from tests.support.wire import Exchange


def question(key: str, *, headers: str = "", text: str = "hello") -> bytes:
    body = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": text}]}).encode()
    return wire.post(CHAT, body, headers=f"authorization: Bearer {key}\r\n{headers}")


def ask(connection: socket.socket, key: str) -> Exchange:
    """In one write."""
    connection.sendall(question(key))
    return read_answer(connection)


def ask_in_two_reads(connection: socket.socket, key: str) -> Exchange:
    """The body leaves only when the gateway has said that it read the head."""
    head, _, body = question(key, headers="expect: 100-continue\r\n").partition(b"\r\n\r\n")
    connection.sendall(head + b"\r\n\r\n")
    assert connection.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.sendall(body)
    return read_answer(connection)


@pytest.mark.slow
def test_requests_of_two_tenants_on_one_connection_are_recorded_as_theirs(solo: Rig) -> None:
    """T41: a head that was seen before is recognised, and then stands for whoever sent it then."""
    keys = {tenant: solo.provider.key(tenant, requests_per_minute=0) for tenant in ("first", "second")}
    with solo.provider.connect() as connection:
        asked = [
            ("first", ask(connection, keys["first"])),
            ("second", ask_in_two_reads(connection, keys["second"])),
            ("first", ask(connection, keys["first"])),
            ("first", ask_in_two_reads(connection, keys["first"])),
            ("second", ask(connection, keys["second"])),
            ("second", ask(connection, keys["second"])),
        ]
    assert [solo.record(answer).tenant for _, answer in asked] == [tenant for tenant, _ in asked]


@pytest.mark.slow
def test_a_caller_that_sends_and_never_waits_is_read_no_further_than_a_few_requests(solo: Rig) -> None:
    """T12: also where each of its requests comes in a read of its own, under the head of the one before."""
    request = question(solo.key, text="x" * 60_000)
    with solo.provider.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        connection.sendall(request)
        assert read_answer(connection).status == 200
        solo.set_faults("ttft:4000")
        connection.settimeout(1.0)
        for _ in range(1000):
            try:
                connection.sendall(request)
            except TimeoutError:
                return
            solo.provider.get("/livez")  # a moment for the gateway, so that requests don't arrive together
    pytest.fail("sixty megabytes were read of a caller that waits for its second answer")

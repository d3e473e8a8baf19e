"""A real authorization server (oidc-provider-mock, built on Authlib) in a process of its own, for tests of bearer tokens."""

import base64
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

CLIENT, SECRET, CALLBACK = "headrace", "a secret of the client", "https://app.example/callback"
FORM = {"content-type": "application/x-www-form-urlencoded"}
START_LIMIT_S = 60.0


@dataclass(frozen=True)
class AuthorizationServer:
    """A running server. Made by `authorization_server`, which also stops it."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def sign_in(self, user: str) -> dict[str, Any]:
        """What its token endpoint gives for the code that the user's consent gave (RFC 6749, section 4.1)."""
        asked = {
            "response_type": "code",
            "client_id": CLIENT,
            "redirect_uri": CALLBACK,
            "scope": "openid profile",
        }
        status, headers, body = self._ask("POST", f"/oauth2/authorize?{urlencode(asked)}", {"sub": user})
        assert status == 302, body
        (code,) = parse_qs(urlsplit(headers["location"]).query)["code"]
        return self._token(grant_type="authorization_code", code=code, redirect_uri=CALLBACK)

    def _token(self, **fields: str) -> dict[str, Any]:
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        status, _, body = self._ask("POST", "/oauth2/token", fields, authorization=f"Basic {basic}")
        assert status == 200, body
        answer: dict[str, Any] = json.loads(body)
        return answer

    def _ask(
        self, method: str, path: str, fields: dict[str, str], **headers: str
    ) -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, urlencode(fields), {**FORM, **headers})
            response = connection.getresponse()
            return (
                response.status,
                {name.lower(): value for name, value in response.getheaders()},
                response.read().decode(),
            )
        finally:
            connection.close()


@contextmanager
def authorization_server(
    users: dict[str, dict[str, Any]], *, port: int = 0, lifetime_s: int = 3600
) -> Iterator[AuthorizationServer]:
    """Serving when it is handed over and gone afterwards. Each start makes a new key: a second one on the same port is a
    rotation.

    Args:
        users: Further claims by the user's name.
        lifetime_s: Of its tokens.
    """
    port = port or _free_port()
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "oidc_provider_mock",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    command += ["--token-max-age", str(lifetime_s)]
    for name, claims in users.items():
        command += ["--user-claims", json.dumps({"sub": name, **claims})]
    # It speaks plain HTTP on loopback, which its library must be told is meant.
    environment = {**os.environ, "AUTHLIB_INSECURE_TRANSPORT": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        try:
            _wait_until_open(process, port)
            yield AuthorizationServer(port)
        finally:
            process.kill()


def _free_port() -> int:
    """Its command takes no 0 for any port, and doesn't say which one it got."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _wait_until_open(process: "subprocess.Popen[bytes]", port: int) -> None:
    until_s = time.monotonic() + START_LIMIT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except ConnectionRefusedError:
            assert process.poll() is None, "the authorization server has ended"
            assert time.monotonic() < until_s, "the authorization server doesn't open its port"
            time.sleep(0.05)
        else:
            return

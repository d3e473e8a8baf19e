"""An identity provider of the tests' own: it publishes keys, counts who asks for them, and signs whatever a test wants signed.

What a real authorization server says is asked of one in tests/gateway/test_authorization_server.py; this one can also lie.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

AUDIENCE = "api://headrace"
KEYS_PATH, DISCOVERY_PATH = "/keys", "/.well-known/openid-configuration"


@dataclass(frozen=True)
class SigningKey:
    """A key pair of a provider."""

    id: str
    algorithm: str
    private: Any

    @property
    def member(self) -> dict[str, Any]:
        """Its public half as a JWK."""
        member: dict[str, Any] = get_default_algorithms()[self.algorithm].to_jwk(
            self.private.public_key(), as_dict=True
        )
        member.pop("key_ops", None)
        return {**member, "kid": self.id, "alg": self.algorithm, "use": "sig"}


def new_key(name: str, algorithm: str = "ES256") -> SigningKey:
    if algorithm == "ES256":
        private: Any = ec.generate_private_key(ec.SECP256R1())
    elif algorithm == "ES384":
        private = ec.generate_private_key(ec.SECP384R1())
    elif algorithm == "EdDSA":
        private = ed25519.Ed25519PrivateKey.generate()
    else:
        private = rsa.generate_private_key(65537, 2048)
    return SigningKey(name, algorithm, private)


@dataclass
class IssuerServer:
    """What it publishes; tests change it between requests.

    Attributes:
        looks_s: When its keys were asked for, in monotonic seconds.
        status: What it answers.
        document: What it says instead of its keys; None for its keys.
        discovery_document: What it says instead of where they are.
    """

    url: str = ""
    keys: list[SigningKey] = field(default_factory=list)
    looks_s: list[float] = field(default_factory=list)
    discoveries: int = 0
    status: int = 200
    document: bytes | None = None
    discovery_document: bytes | None = None
    discovery: dict[str, Any] = field(default_factory=dict)

    @property
    def looks(self) -> int:
        return len(self.looks_s)

    def claims(self, **changed: Any) -> dict[str, Any]:
        """Those of a good token for tenant `acme`, an hour long; None leaves one out."""
        now_s = int(time.time())
        claims = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "user-1",
            "tenant": "acme",
            "iat": now_s,
            "exp": now_s + 3600,
            **changed,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def token(
        self, *, key: SigningKey | None = None, headers: dict[str, Any] | None = None, **changed: Any
    ) -> str:
        """A token signed with the newest key, or that one."""
        key = key or self.keys[-1]
        return jwt.encode(
            self.claims(**changed),
            key.private,
            algorithm=key.algorithm,
            headers={"kid": key.id, **(headers or {})},
        )

    def config(self, *, name: str = "idp", tenant: str = 'tenant_claim = "tenant"', more: str = "") -> str:
        """A section of headrace.toml that trusts it; `more` are keys of [auth]."""
        algorithms = sorted({key.algorithm for key in self.keys})
        return f"""
[auth]
{more}

[[auth.issuers]]
name = "{name}"
issuer = "{self.url}"
audience = "{AUDIENCE}"
algorithms = {json.dumps(algorithms)}
leeway_s = 0
{tenant}
"""


class _Handler(BaseHTTPRequestHandler):
    state: IssuerServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        state = self.state
        if self.path == DISCOVERY_PATH:
            state.discoveries += 1
            found = {"issuer": state.url, "jwks_uri": state.url + KEYS_PATH, **state.discovery}
            body = (
                json.dumps(found).encode() if state.discovery_document is None else state.discovery_document
            )
        else:
            assert self.path == KEYS_PATH, self.path
            state.looks_s.append(time.monotonic())
            document = state.document
            body = (
                json.dumps({"keys": [key.member for key in state.keys]}).encode()
                if document is None
                else document
            )
        self.send_response(state.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def issuer_server(*keys: SigningKey) -> Iterator[IssuerServer]:
    state = IssuerServer(keys=list(keys) or [new_key("first")])
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"state": state})) as server:
        state.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()

"""How does a request prove to S3-compatible storage who makes it? Signature Version 4, for requests without a body.

Written here because it is some sixty lines of hashing, and the library that has it brings fifteen megabytes along; the tests
hold it against that library's signatures. Source: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import parse_qsl, quote, urlsplit

_ALGORITHM = "AWS4-HMAC-SHA256"
_EMPTY_BODY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """Whom we are to the storage.

    Attributes:
        session_token: Of credentials that were lent for a while, else "".
    """

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


def signed_headers(
    credentials: S3Credentials,
    *,
    method: str,
    url: str,
    region: str,
    now_s: float,
    headers: Mapping[str, str],
) -> dict[str, str]:
    """All headers to send: those given, which are signed too, and those that prove who asks.

    Args:
        url: With its path and query encoded as they are sent.
        now_s: Unix seconds; storage takes a signature for about fifteen minutes.
    """
    parts = urlsplit(url)
    moment = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{moment[:8]}/{region}/s3/aws4_request"
    sent = {**headers, "x-amz-content-sha256": _EMPTY_BODY, "x-amz-date": moment}
    if credentials.session_token:
        sent["x-amz-security-token"] = credentials.session_token
    signed = {"host": parts.netloc, **{name.lower(): " ".join(value.split()) for name, value in sent.items()}}
    names = ";".join(sorted(signed))
    canonical = "\n".join(
        (
            method,
            parts.path or "/",
            canonical_query(parts.query),
            "".join(f"{name}:{signed[name]}\n" for name in sorted(signed)),
            names,
            _EMPTY_BODY,
        )
    )
    to_sign = "\n".join((_ALGORITHM, moment, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = _hmac(key, part)
    signature = _hmac(key, to_sign).hex()
    credential = f"{credentials.access_key}/{scope}"
    sent["Authorization"] = (
        f"{_ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}"
    )
    return sent


def canonical_query(query: str) -> str:
    """The query in the one form that both sides sign: encoded alike, in the order of the encoded names and values."""
    pairs = parse_qsl(query, keep_blank_values=True)
    encoded = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in pairs)
    return "&".join(f"{name}={value}" for name, value in encoded)


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()

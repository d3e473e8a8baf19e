"""A server that is known by its own certificate: when the file with it changes, and what happens until the server follows."""

import asyncio
from pathlib import Path

import pytest

from headrace.core.errors import UpstreamError
from headrace.engines import fetch
from headrace.engines.tls import PinnedServer
from tests.support.certificates import self_signed
from tests.support.scripted import scripted_engine
from tests.support.tls_front import tls_front


def test_a_renewed_certificate_is_trusted_beside_the_one_before_it_and_no_other_is(tmp_path: Path) -> None:
    """Which of the two the server shows in the moment of the change can't be known. Half a file changes nothing."""
    first, second, third = (self_signed(tmp_path, name, hosts=["models.example"]) for name in "abc")
    file = tmp_path / "served.pem"
    file.write_bytes(first.certificate.read_bytes())
    pinned = PinnedServer(str(file), key="--certificate")

    def asked(port: int) -> int:
        answer = fetch.fetch(
            "127.0.0.1", port, "GET", "/v1/models",
            timeout_s=60.0, body_bytes_max=1 << 20, tls=pinned.context(),
        )  # fmt: skip
        return asyncio.run(answer).status

    with (
        scripted_engine() as engine,
        tls_front(engine.port, first) as before,
        tls_front(engine.port, second) as after,
        tls_front(engine.port, third) as stranger,
    ):
        assert asked(before.port) == 200
        with pytest.raises(UpstreamError, match="not trusted"):
            asked(after.port)
        file.write_bytes(second.certificate.read_bytes())
        assert (asked(before.port), asked(after.port)) == (200, 200)
        for damaged in (third.certificate.read_bytes()[:100], b""):
            file.write_bytes(damaged)
            assert asked(after.port) == 200
        file.unlink()
        assert asked(after.port) == 200
        with pytest.raises(UpstreamError, match="not trusted"):
            asked(stranger.port)

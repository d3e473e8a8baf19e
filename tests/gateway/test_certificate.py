"""What is read as the public port's certificate, and what is refused with the name of the key that is wrong."""

from datetime import timedelta
from pathlib import Path

import pytest

from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError
from headrace.gateway.certificate import CertificateFiles, load
from tests.support.certificates import Authority


def test_the_expiry_is_that_of_the_servers_own_certificate(tmp_path: Path) -> None:
    """The first in the file; its chain follows."""
    authority = Authority(tmp_path)
    issued = authority.issue(valid_for=timedelta(days=30))
    with issued.certificate.open("ab") as chain:
        chain.write(authority.file.read_bytes())
    loaded = load(CertificateFiles(issued.certificate, issued.key))
    assert (loaded.expiry_s - SystemClock().wall_s()) / 86_400 == pytest.approx(30, abs=0.01)


@pytest.mark.parametrize(
    ("certificate", "key", "named", "because"),
    [
        ("nothing.pem", "server.key", "server.tls_certificate", "No such file"),
        ("server.pem", "nothing.key", "server.tls_key", "No such file"),
        (".", "server.key", "server.tls_certificate", "Is a directory"),
        ("server.key", "server.key", "server.tls_certificate", "no certificate in PEM form"),
        ("cut.pem", "server.key", "server.tls_certificate", "no certificate in PEM form"),
        ("server.pem", "server.pem", "server.tls_key", "no private key in PEM form"),
        ("server.pem", "other.key", "server.tls_key", "is not the private key"),
        ("server.pem", "locked.key", "server.tls_key", "no private key in PEM form"),
    ],
)
def test_a_wrong_file_is_named_with_its_key(
    tmp_path: Path, certificate: str, key: str, named: str, because: str
) -> None:
    """And nobody is asked for a passphrase: a service would hang there."""
    authority = Authority(tmp_path)
    whole = authority.issue("server").certificate.read_text()
    authority.issue("other")
    authority.issue("locked", passphrase=b"secret")
    (tmp_path / "cut.pem").write_text(whole[: len(whole) // 2])
    with pytest.raises(ConfigError) as refused:
        load(CertificateFiles(tmp_path / certificate, tmp_path / key))
    assert f"`{named}`" in refused.value.message
    assert because in refused.value.message

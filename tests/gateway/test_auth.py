"""Who is calling is decided from what is in memory: no store is asked on the way, whatever stands in the header."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core import keys
from headrace.core.clock import SystemClock
from headrace.core.errors import Unauthenticated
from headrace.core.tenant import TenantLimits
from headrace.gateway.auth import Authenticator
from headrace.stores import pepper
from headrace.stores.tenants import open_tenants


def test_who_has_no_provider_pays_for_no_signatures() -> None:
    """PyJWT and cryptography are neither imported by a service nor by a worker until a configuration names a provider."""
    program = (
        "import sys, headrace.app.service, headrace.app.worker\n"
        "assert not {'jwt', 'cryptography', 'headrace.gateway.tokens'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


HOSTILE = [
    b"", b"Bearer", b"Bearer ", b"Basic abc", b"Bearer ' OR 1=1 --", b"Bearer '; DROP TABLE api_key; --", b"Bearer \xff\xfe\x80",
    b"Bearer a\0b", b"Bearer " + b"a" * 64 * 1024, b"Bearer " + b"a" * 1024 * 1024, b"Bearer " + b"%" * keys.KEY_BYTES,
]  # fmt: skip


def test_no_header_leads_to_a_query(tmp_path: Path) -> None:
    """T40, REPORTS 47: the store is closed before anybody calls. A key is known all the same, and nothing else is."""
    clock = SystemClock()
    store = open_tenants(tmp_path, clock=clock)
    store.create_tenant("acme")
    _, key = store.create_key("acme")
    auth = Authenticator(pepper.load(tmp_path / pepper.NAME), clock=clock)
    auth.replace(store.key_ring(TenantLimits()))
    store.close()
    assert auth.identify({b"authorization": b"Bearer " + key.encode()}).tenant == "acme"
    stranger = keys.make("live", id_random=os.urandom(16), secret_random=os.urandom(32)).encode()
    for value in (*HOSTILE, b"Bearer " + stranger, b"Bearer " + key[:20].encode() + stranger[20:]):
        with pytest.raises(Unauthenticated) as refused:
            auth.identify({b"authorization": value})
        assert refused.value.message == Unauthenticated.MESSAGE

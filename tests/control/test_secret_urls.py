"""REPORTS 100: a secret that someone wrote into an upstream's URL is in no word that we say about it."""

import pytest

from headrace.control.upstreams import Upstream
from headrace.core.errors import ConfigError


@pytest.mark.parametrize(
    "url",
    [
        "http://host/v1?key=SECRET", "http://host/v1#SECRET", "http://user:SECRET@host/v1", "http://user:SECRET@host:port/v1", "http://SECRET@[::1/v1",
        "ftp://user:SECRET@host/v1?key=SECRET", "http://user:SECRET@host:99999/?a=SECRET#SECRET", "https://host:0/?key=SECRET", "http://?key=SECRET",
    ],
)  # fmt: skip
def test_no_error_about_a_url_tells_its_secret(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Upstream(url, 1).address()
    assert "SECRET" not in str(refused.value)
    assert "SECRET" not in str(refused.value.__cause__ or "")

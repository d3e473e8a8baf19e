"""Settings that hold for every test."""

import pytest
from hypothesis import HealthCheck, settings

# A busy machine must fail no property: how long an example takes is measured by benchmarks, not here.
settings.register_profile("headrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headrace")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `long` run only when they are asked for by that name: `pytest -m long`."""
    if "long" in config.getoption("-m"):
        return
    skip = pytest.mark.skip(reason="the short form of it runs; this one by `-m long`")
    for item in items:
        if item.get_closest_marker("long") is not None:
            item.add_marker(skip)

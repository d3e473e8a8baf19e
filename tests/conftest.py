"""Settings that hold for every test."""

import pytest
from hypothesis import HealthCheck, settings

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

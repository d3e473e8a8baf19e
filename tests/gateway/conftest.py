"""Rigs that many tests share: a provider takes two seconds to start, and a fault script a millisecond to set."""

from collections.abc import Iterator

import pytest

from tests.gateway.rig import Rig, rig

# An engine that a busy machine makes slow keeps its slots: tests hold all of them, and those that follow need them.
SOLO_CONFIG = """
[admission]
adaptive_concurrency = false
"""
PAIR_CONFIG = f"""{SOLO_CONFIG}
[request]
retry_floor_per_s = 1000

[health]
failures_to_eject = 1000000
rest_s = 0
"""


@pytest.fixture(scope="session")
def solo_rig() -> Iterator[Rig]:
    with rig({"slots": 64, "log": True}, config=SOLO_CONFIG) as running:
        running.set_prices()
        yield running


@pytest.fixture
def solo(solo_rig: Rig) -> Iterator[Rig]:
    """One engine with the default configuration and a fixed number of slots, without faults; idle before and after each test."""
    solo_rig.set_faults("")
    yield solo_rig
    solo_rig.wait_until_idle()


@pytest.fixture(scope="session")
def pair_rig() -> Iterator[Rig]:
    options = {"slots": 64, "owned_by": "vllm"}
    with rig(options, options, config=PAIR_CONFIG) as running:
        running.set_prices()
        yield running


@pytest.fixture
def pair(pair_rig: Rig) -> Iterator[Rig]:
    """Two engines that pose as vLLM, behind a provider that retries as often as it likes, ejects nobody and
    lets nobody rest; else like `solo`."""
    pair_rig.set_faults("")
    yield pair_rig
    pair_rig.wait_until_idle()

"""Engines' counters are read beside the service's work, which nothing about them may disturb."""

import asyncio
from collections.abc import Sequence

from headrace.control.counts import CounterWatch
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError
from headrace.core.fleet import Deployment, EngineTraits, FleetSnapshot, Replica, Task
from headrace.core.ids import ReplicaId
from headrace.policies.engine_counts import Stretch


def test_a_file_of_authorities_that_is_gone_ends_nothing() -> None:
    """Of that server nothing is read, as of one that doesn't answer."""
    saved: list[Stretch] = []
    failures: list[ConfigError] = []

    def save(stretches: Sequence[Stretch]) -> None:
        saved.extend(stretches)

    watch = CounterWatch(stretch_s=300.0, save=save, failed=failures.append, clock=SystemClock())
    secure = Replica(
        ReplicaId("localhost:1"), "localhost", 1, 1, EngineTraits(name="vllm"), is_secure=True, ca_file="/nowhere.pem"
    )  # fmt: skip
    offered = Deployment("m", "m", frozenset({Task.CHAT}), "unpinned", (secure,))
    watch.publish(FleetSnapshot(1, {"m": offered}))
    asyncio.run(watch.round())
    assert (saved, failures) == ([], [])

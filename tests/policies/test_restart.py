"""The delay before a restart: grows, has a ceiling, is forgotten after steady service."""

from random import Random

import pytest

from headrace.policies.restart import RestartPolicy

POLICY = RestartPolicy()


class Highest:
    """The chance that makes every delay its longest."""

    def random(self) -> float:
        return 1.0

    def randrange(self, stop: int, /) -> int:
        return stop - 1

    def getrandbits(self, k: int, /) -> int:
        return 2**k - 1


def test_the_backoff_doubles_and_then_stays_at_the_ceiling() -> None:
    delays = [POLICY.delay_s(count, Highest()) for count in range(1, 9)]
    assert delays == [0.5, 1, 2, 4, 8, 30, 30, 30]


@pytest.mark.parametrize("count", [1, 3, 6, 1000])
def test_jitter_takes_at_most_half_of_the_backoff(count: int) -> None:
    chance, longest = Random(7), POLICY.delay_s(count, Highest())
    delays = [POLICY.delay_s(count, chance) for _ in range(100)]
    assert longest / 2 <= min(delays)
    assert max(delays) <= longest
    assert len(set(delays)) > 50


def test_only_steady_service_makes_earlier_failures_forgotten() -> None:
    assert POLICY.quick_failures(4, ready_for_s=59.9) == 5
    assert POLICY.quick_failures(4, ready_for_s=60.0) == 1

"""kill -9 of the controller at random moments of changes of versions and of scale, again and again.

No engine is left over or there twice, what is wanted is reached, and no caller notices anything.
"""

import random
from collections import Counter

import pytest

from tests.support.fleet import Fleet, deployment, fleet
from tests.support.provider import wait_until

KILLS = 6
KILLS_LONG = 100
SETTLE_LIMIT_S = 60.0


class Course:
    """What is wanted, changed at random. State: `version`, and how many replicas of it there should be."""

    def __init__(self, running: Fleet, chance: random.Random) -> None:
        self._running = running
        self._chance = chance
        self.version = 0
        self.replicas = 1

    def change(self) -> None:
        """A version of another answer, or more or fewer replicas of the same."""
        answer = f"answer {self.version}" if self._chance.random() < 0.5 else "the same"
        self.replicas = self._chance.choice([each for each in (1, 2, 3) if each != self.replicas])
        self._running.apply_file(
            deployment(
                args={"answer": answer, "load_s": self._chance.choice([0.0, 0.3]), "ttft_ms": 5},
                scale={"min": self.replicas, "max": self.replicas},
                lifecycle={"drain_s": 30, "may_cut_requests": True},
            )
        )
        self.version += 1

    def is_reached(self) -> bool:
        targets = [f"chat@v{self.version}"] * self.replicas
        rows = self._running.replicas()
        return [row["target"] for row in rows] == targets == self._running.ready()


def kill_again_and_again(kills: int, *, seed: int) -> None:
    chance = random.Random(seed)
    with fleet() as running:
        course = Course(running, chance)
        course.change()
        wait_until(course.is_reached, limit_s=SETTLE_LIMIT_S, what="the first version")
        with running.callers(count=3) as callers:
            for number in range(kills):
                if chance.random() < 0.8:
                    course.change()
                # From at once to when most of a change is over; some kills hit a controller that has just begun.
                moment_s = chance.random() * chance.choice([0.1, 1.5])
                callers.wait(moment_s)
                killed = running.kill_controller()
                if chance.random() < 0.5:
                    running.until_kept(not_by=killed)
                if number % 5 == 4:
                    wait_until(course.is_reached, limit_s=SETTLE_LIMIT_S, what=f"version {course.version}")
            wait_until(course.is_reached, limit_s=SETTLE_LIMIT_S, what=f"version {course.version}")
            assert callers.count > kills
        assert callers.statuses == {"200"}, callers.outcomes
        wait_until(lambda: len(running.engines()) == course.replicas, what="no engine too many")
        ids = Counter(row["id"] for row in running.replicas())
        assert set(ids.values()) == {1}
        assert {row["pid"] for row in running.replicas()} == {*running.engines()}
        assert running.controller()["restarts"] == kills


@pytest.mark.slow
def test_no_engine_is_left_over_or_doubled_and_no_request_lost_when_the_controller_is_killed() -> None:
    kill_again_and_again(KILLS, seed=1)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_same_a_hundred_times() -> None:
    kill_again_and_again(KILLS_LONG, seed=2)

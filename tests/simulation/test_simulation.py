"""The real gateway under simulated callers, replicas, network and time breaks no law; a gateway with a bug does."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from headrace.core.endings import Ending
from headrace.core.fleet import Route
from headrace.core.outcome import AttemptOutcome
from headrace.gateway.connection import ClientConnection
from headrace.gateway.delivery import Delivery
from headrace.gateway.dispatch import Dispatch
from headrace.gateway.http_call import HttpCall
from headrace.gateway.usage import Account, UsageCloser
from headrace.gateway.watch import Watch
from headrace.policies import dispatch, routing
from headrace.policies.dispatch import Dispatcher
from headrace.policies.limits import TenantLimiter
from headrace.policies.partition import SlotGrant, SlotTable
from headrace.policies.retry import RetryBudget
from headrace.policies.routing import RoutingTable
from headrace.protocols import sse
from headrace.protocols.answers import StreamedAnswer
from tests.simulation import world
from tests.simulation.__main__ import known_seeds

ROOT = Path(__file__).parents[2]
SEEDS = [str(number) for number in range(20)]
SEEDS_TO_FIND = 120  # within so many, each planted bug must show


@pytest.mark.slow
def test_no_law_is_broken_under_the_first_seeds() -> None:
    """T1-T9, T12, T17, T18, T25, T27: slots are what runs, each request ends once, nobody waits longer than they may."""
    reports = [world.run(seed) for seed in SEEDS]
    ends = {end for report in reports for end in report.outcomes}
    assert {"delivered", "broken", "refused", "left", "nothing"} <= ends, "these seeds no longer see much"
    expected = sum(report.shares.expected for report in reports)
    deviation = sum(report.shares.variance for report in reports) ** 0.5
    assert expected > 20, "these seeds no longer see canaries"
    assert abs(sum(report.shares.arrived for report in reports) - expected) < 5 * deviation, (
        "by their weights"
    )


@pytest.mark.parametrize("seed", known_seeds())
def test_a_seed_that_once_broke_a_law_breaks_none(seed: str) -> None:
    world.run(seed)


@pytest.mark.slow
def test_the_same_seed_is_the_same_history_in_every_process() -> None:
    """Whatever addresses and hashes this process has: else a failing seed could not be repeated."""
    told = {
        subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seed", "11"],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2", "3")
    }
    assert len(told) == 1
    assert world.run("11").digest in told.pop()
    assert world.run("12").digest != world.run("11").digest


def test_a_failing_seed_says_how_to_repeat_it() -> None:
    with mock.patch.object(RetryBudget, "request", side_effect=RuntimeError("planted")):
        failure = find()
    assert f"SEED={failure.seed}" in str(failure)
    assert f"python -m tests.simulation --seed {failure.seed}" in str(failure)
    assert failure.last


def find() -> world.Failure:
    """The first failure among the seeds."""
    for number in range(SEEDS_TO_FIND):
        try:
            world.run(str(number))
        except world.Failure as failure:
            return failure
    pytest.fail(f"no law is broken within {SEEDS_TO_FIND} seeds: the bug goes unseen")


def around(target: Any, name: str, bug: Callable[..., Any]) -> Any:
    """Replaces a method by `bug(original, self, ...)`."""
    original = getattr(target, name)

    def wrong(*arguments: Any, **options: Any) -> Any:
        return bug(original, *arguments, **options)

    return mock.patch.object(target, name, wrong)


def keeps_the_slot(
    original: Any, self: Dispatcher, ticket: Any, outcome: AttemptOutcome, **options: Any
) -> Any:
    load = ticket.load
    found = original(self, ticket, outcome, **options)
    load.shared.outstanding += outcome is AttemptOutcome.CANCELLED
    return found


def writes_after_the_end(original: Any, self: HttpCall, events: list[bytes]) -> None:
    original(self, events)
    self.write([b"{}"])


def says_done_after_an_error(original: Any, self: HttpCall, status: int, body: bytes) -> None:
    self.write([body])
    original(self, status, sse.DONE)


def closes_twice(original: Any, self: UsageCloser, *arguments: Any) -> None:
    original(self, *arguments)
    original(self, *arguments)


def forgets(original: Any, *arguments: Any, **options: Any) -> None:
    """What should have been done is not."""


def lets_anybody_reuse_it(original: Any, self: SlotTable, partition: str) -> SlotGrant:
    return SlotGrant(original(self, partition).index, may_reuse=True)


def sends_to_who_is_down(original: Any, self: RoutingTable, route: Route) -> Any:
    found = ((self.find(arm.target), arm.weight_ppm) for arm in route.arms[1:])
    return [routing._Piece(0, weight_ppm, deployment) for deployment, weight_ppm in found if deployment]


BUGS: dict[str, Callable[[], Any]] = {
    "a cancelled attempt keeps its slot": lambda: around(Dispatcher, "give_back", keeps_the_slot),
    "a stream goes on after its end": lambda: around(HttpCall, "finish", writes_after_the_end),
    "[DONE] follows an error": lambda: around(HttpCall, "break_off", says_done_after_an_error),
    "retries cost nothing": lambda: mock.patch.object(RetryBudget, "take", return_value=True),
    "what was delivered in part is tried again": lambda: mock.patch.object(Ending, "may_retry", True),
    "a request has two records": lambda: around(UsageCloser, "close", closes_twice),
    "a request has no record": lambda: around(UsageCloser, "close", forgets),
    "the expired are dispatched": lambda: mock.patch.object(dispatch, "_refuse_late"),
    "nobody hears of a caller that leaves": lambda: around(ClientConnection, "cut", forgets),
    "a tenant's count is never lowered": lambda: around(TenantLimiter, "release", forgets),
    "a level's count is never lowered": lambda: around(TenantLimiter, "release_levels", forgets),
    "tokens are never settled": lambda: around(Dispatch, "settle", forgets),
    "nobody watches attempts": lambda: around(Watch, "tick", forgets),
    "there are no heartbeats": lambda: around(Delivery, "beat", forgets),
    "a cut answer passes for a whole one": lambda: mock.patch.object(StreamedAnswer, "is_complete", True),
    "a slot's cache is anybody's": lambda: around(SlotTable, "take", lets_anybody_reuse_it),
    "a rollback turns away who waits": lambda: around(Dispatcher, "_hand_over", forgets),
    "an answer is recorded as of the revision that failed": lambda: around(Account, "follow", forgets),
    "a canary that is down gets its share": lambda: around(RoutingTable, "_pieces", sends_to_who_is_down),
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_breaks_a_law(bug: str) -> None:
    """The laws bite: each of these bugs shows within SEEDS_TO_FIND seeds."""
    with BUGS[bug]():
        failure = find()
    assert failure.is_by_law, failure.trace

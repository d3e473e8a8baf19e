"""Claims about rehearsals: what they prove, what they leave alone, and that they end."""

import pytest

from headrace.core.verdicts import Verdict
from headrace.policies import rehearsal
from headrace.policies.rehearsal import NotRehearsed
from headrace.policies.rollout_commands import Command
from headrace.policies.rollout_state import Rehearsed
from tests.policies.rollout_rig import Fleet, Version, terms


def fleet(earlier: Version, **kind: object) -> Fleet:
    """Version 2 serves, and version 1 was there before it."""
    return Fleet({1: earlier, 2: Version(), 3: Version()}, **kind).serving(2, 2)  # type: ignore[arg-type]


def rehearse(world: Fleet, version: int = 1, **changes: object) -> Rehearsed:
    world.state = rehearsal.begun("chat", world.state, version, terms(**changes))
    end_s = world.now_s + 10_000.0
    while world.state.rehearsal is not None:
        assert world.now_s < end_s
        assert world.share(2) == 1.0
        assert world.ready(2) == 2
        world.tick()
    assert world.state.rehearsed is not None
    return world.state.rehearsed


def test_a_version_that_still_loads_and_answers_right_passes_and_ends_again() -> None:
    world = fleet(Version(ready_after_s=20.0))
    found = rehearse(world)
    assert (found.version, found.verdict, found.detail) == (1, Verdict.PASS, "")
    assert found.ready_s == pytest.approx(20.0, abs=1.0)
    assert found.at_s > 0.0
    assert (world.present(1), world.routed.get(1, 0), world.lost) == (0, 0, 0)


@pytest.mark.parametrize(
    ("earlier", "verdict", "why"),
    [
        (Version(ready_after_s=None), Verdict.FAIL, "did not get ready"),
        (Version(ready_after_s=1.0, dies_after_s=1.0), Verdict.FAIL, "it ended"),
        (Version(right_share=0.2), Verdict.FAIL, "20% right"),
        (Version(right_share=None), Verdict.ERROR, "could not be run"),
        (Version(verdict=Verdict.INCONCLUSIVE), Verdict.INCONCLUSIVE, "95% right"),
        (Version(ready_after_s=1e6, stuck_after_s=1e6), Verdict.FAIL, "not done within"),
    ],
)
def test_what_would_go_wrong_in_a_rollback_is_found_out_before(
    earlier: Version, verdict: Verdict, why: str
) -> None:
    world = fleet(earlier)
    found = rehearse(world, max_duration_s=1000.0)
    assert found.verdict is verdict
    assert why in found.detail
    world.tick()
    assert world.present(1) == 0


def test_a_version_that_no_longer_fits_beside_the_accepted_one_fails() -> None:
    found = rehearse(fleet(Version(), fits=2))
    assert (found.verdict, found.detail) == (Verdict.FAIL, "no memory beside version 2")


def test_a_version_without_an_acceptance_set_passes_when_it_is_ready() -> None:
    assert rehearse(fleet(Version()), gate=()).verdict is Verdict.PASS


def test_a_version_that_is_kept_ready_is_started_once_more_all_the_same() -> None:
    """That its old processes run doesn't show that it could be started."""
    world = Fleet({1: Version(), 2: Version()}).serving(1, 2)
    world.want(2, terms(), replicas=2)
    world.run_until_ended()
    world.state = rehearsal.begun("chat", world.state, 1, terms())
    world.tick()
    assert (world.ready(1), world.present(1)) == (2, 3)
    world.run(30.0)
    assert world.state.rehearsed is not None
    assert world.state.rehearsed.verdict is Verdict.PASS
    assert world.present(1) == 2


def test_a_rollout_interrupts_a_rehearsal() -> None:
    world = fleet(Version(ready_after_s=50.0))
    world.state = rehearsal.begun("chat", world.state, 1, terms())
    world.tick()
    world.want(3, terms(), replicas=2)
    world.tick()
    assert world.state.rehearsed is not None
    assert (world.state.rehearsed.verdict, world.present(1)) == (Verdict.ERROR, 0)
    world.run_until_ended()
    assert world.said == ["3 promoted: passed"]


def test_a_removed_deployment_has_no_rehearsal() -> None:
    world = fleet(Version(ready_after_s=50.0))
    world.state = rehearsal.begun("chat", world.state, 1, terms())
    world.wanted = None
    world.tick()
    assert (world.state.rehearsal, world.replicas) == (None, [])


def test_a_rehearsal_that_makes_no_sense_is_refused() -> None:
    world = fleet(Version())
    with pytest.raises(NotRehearsed, match="is what serves"):
        rehearsal.begun("chat", world.state, 2, terms())
    trial = rehearsal.begun("chat", world.state, 1, terms())
    with pytest.raises(NotRehearsed, match="chat@v1 is being rehearsed already"):
        rehearsal.begun("chat", trial, 1, terms())
    with pytest.raises(NotRehearsed, match="serves nobody"):
        rehearsal.begun("chat", Fleet({1: Version()}).state, 1, terms())
    world.want(3, terms(), replicas=2)
    world.tick()
    with pytest.raises(NotRehearsed, match="rollout in progress"):
        rehearsal.begun("chat", world.state, 1, terms())
    world.say(Command.ABORT)

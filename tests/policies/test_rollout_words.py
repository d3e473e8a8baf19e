"""Claims about what operators say to rollouts, and about versions that are wanted while one is under way."""

from headrace.core.verdicts import Verdict
from headrace.policies.rollout_commands import Command
from headrace.policies.rollout_state import Reason, Stage
from tests.policies.rollout_rig import FAILURES, Fleet, Version, fleet, mirrored, terms


def test_a_shadow_is_compared_before_any_customer_sees_its_answers_and_waits_for_a_word() -> None:
    world = fleet(Version())
    world.want(2, mirrored(strategy="shadow"), replicas=2)
    world.run(120.0)
    assert world.state.rollout is not None
    assert (world.state.rollout.stage, world.state.rollout.waits_for) == (Stage.MIRRORING, Reason.PROMOTION)
    assert world.routed.get(2, 0) == 0
    assert world.say(Command.PROMOTE).is_done
    world.run_until_ended()
    assert world.said == ["2 promoted: passed"]


def test_a_comparison_of_two_versions_goes_on_until_somebody_decides() -> None:
    world = fleet(Version())
    world.want(2, terms(strategy="ab"), replicas=2)
    world.run(300.0)
    assert world.state.rollout is not None
    assert world.state.rollout.waits_for is Reason.PROMOTION
    assert world.share(2) == 0.1
    world.say(Command.ABORT)
    world.tick()
    assert (world.share(1), world.present(2)) == (1.0, 0)


def test_a_newer_version_ends_the_rollout_of_an_older_one_and_begins_its_own() -> None:
    world = fleet(Version())
    world.versions[3] = Version()
    world.want(2, terms(), replicas=2)
    while world.share(2) == 0.0:
        world.tick()
    world.want(3, terms(), replicas=2)
    world.tick()
    assert world.share(1) == 1.0
    assert world.said == ["2 superseded: newer_version"]
    world.run_until_ended()
    assert world.said == ["2 superseded: newer_version", "3 promoted: passed"]


def test_the_accepted_version_wanted_again_aborts_the_rollout() -> None:
    world = fleet(Version())
    world.want(2, terms(), replicas=2)
    while world.share(2) == 0.0:
        world.tick()
    world.want(1, terms(), replicas=2, is_return=True)
    world.tick()
    assert world.said == ["2 aborted: operator"]
    assert (world.share(1), world.present(2)) == (1.0, 0)


def test_a_held_rollout_stays_and_still_rolls_back() -> None:
    world = fleet(Version())
    world.want(2, terms(), replicas=2)
    while world.share(2) == 0.0:
        world.tick()
    world.say(Command.HOLD)
    world.run(300.0)
    assert world.state.rollout is not None
    assert world.state.rollout.waits_for is Reason.HELD
    assert world.share(2) == 0.1
    world.versions[2].failure_share = 0.6
    world.run_until_ended()
    assert world.said == ["2 rolled_back: gate_failed"]


def test_a_step_that_is_held_goes_on_when_it_is_resumed_or_promoted() -> None:
    for command in (Command.RESUME, Command.PROMOTE):
        world = fleet(Version())
        world.want(2, terms(), replicas=2)
        world.tick()
        world.say(Command.HOLD)
        world.run(300.0)
        assert world.share(2) == 0.0, "also a preparation is held"
        assert world.say(command).is_done
        world.run_until_ended()
        assert world.said == ["2 promoted: passed"]


def test_an_operator_may_leave_out_all_checks_but_not_the_replicas() -> None:
    world = fleet(Version(right_share=0.0, failure_share=0.5, ready_after_s=20.0))
    world.want(2, terms(), replicas=2)
    world.run(5.0)
    assert world.say(Command.PROMOTE_FULLY).is_done
    world.tick()
    assert world.share(2) == 0.0
    world.run_until_ended()
    assert (world.said, world.ready(2), world.lost) == (["2 promoted: passed"], 2, 0)


def test_an_abort_with_nothing_in_progress_touches_nothing() -> None:
    """argo#1292: such an abort scaled the accepted version to zero."""
    world = fleet(Version())
    before = world.state
    for command in Command:
        answer = world.say(command)
        assert not answer.is_done
        assert "nothing has changed" in answer.text
    assert world.state == before


def test_an_aborted_candidate_is_not_brought_back_by_its_autoscaler() -> None:
    """argo#4973."""
    world = fleet(Version())
    world.want(2, terms(), replicas=2)
    while world.share(2) == 0.0:
        world.tick()
    world.wished[2] = 2
    world.say(Command.ABORT)
    world.run(600.0)
    assert (world.present(2), world.share(2)) == (0, 0.0)


def test_an_aborted_rollout_can_be_begun_again() -> None:
    world = fleet(Version())
    world.want(2, terms(), replicas=2)
    world.run(5.0)
    world.say(Command.ABORT)
    world.tick()
    assert world.say(Command.RETRY).is_done
    assert not world.say(Command.RETRY).is_done or world.state.rollout is None
    world.run_until_ended()
    assert world.said[-1] == "2 promoted: passed"


def test_an_operator_may_wave_an_acceptance_set_that_says_nothing_through() -> None:
    world = fleet(Version(verdict=Verdict.INCONCLUSIVE))
    world.want(2, terms(), replicas=2)
    world.run(60.0)
    assert world.state.rollout is not None
    assert (world.state.rollout.stage, world.state.rollout.waits_for) == (Stage.ACCEPTANCE, Reason.EVIDENCE)
    world.say(Command.PROMOTE)
    assert world.run_until_ended().said == ["2 promoted: passed"]


def test_a_promotion_is_held_too() -> None:
    world = fleet(Version(ready_after_s=10.0), replicas=4)
    world.want(2, terms(gate=(FAILURES,)), replicas=4)
    while world.state.rollout is None or world.state.rollout.stage is not Stage.PROMOTING:
        world.tick()
    world.say(Command.HOLD)
    world.run(60.0)
    assert (world.ready(2), world.share(2)) == (4, 0.5)
    world.say(Command.PROMOTE)
    assert world.run_until_ended().said == ["2 promoted: passed"]


def test_words_during_a_first_rollout_and_of_a_repetition_that_is_under_way() -> None:
    world = Fleet({1: Version()})
    world.want(1, terms())
    world.tick()
    assert not world.say(Command.RETRY).is_done
    assert world.say(Command.ABORT).text == "the rollout of chat@v1 is aborted"
    world.tick()
    assert world.wish.arms == ()


def test_a_refused_version_is_wanted_again_by_a_repetition_after_another_was_wanted() -> None:
    world = fleet(Version(failure_share=0.6))
    world.want(2, terms(), replicas=2)
    world.run_until_ended()
    world.want(1, terms(), replicas=2)
    world.tick()
    assert world.say(Command.RETRY).wants == 2

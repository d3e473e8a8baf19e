"""Claims about rollouts: good versions take over, bad ones don't, and nobody notices either."""

from collections.abc import Callable

import pytest

from headrace.core.deployment_terms import Gate, MirrorTerms, Step
from headrace.core.verdicts import Interval, Judgement, Verdict
from headrace.core.verdicts import Reason as Why
from headrace.policies.rollout_commands import Command
from headrace.policies.rollout_gates import Material
from headrace.policies.rollout_state import Reason, Result, Stage
from tests.policies.rollout_rig import FAILURES, Fleet, Version, fleet, mirrored, terms


def test_a_good_version_takes_over_and_no_request_is_lost() -> None:
    world = fleet(Version())
    world.want(2, terms(), replicas=2)
    world.run_until_ended()
    assert world.said == ["2 promoted: passed"]
    assert world.share(2) == 1.0
    assert world.ready(2) == 2
    assert (world.lost, world.broken) == (0, 0)


def test_nothing_is_taken_from_the_accepted_version_before_the_promotion() -> None:
    """REPORTS 75: a canary that loads for a minute gets nothing before it is ready, and costs no capacity."""
    world = fleet(Version(ready_after_s=60.0), replicas=3)
    world.want(2, terms(), replicas=3)
    world.run(50.0)
    assert world.state.rollout is not None
    assert world.state.rollout.stage is Stage.PREPARING
    assert (world.ready(1), world.share(1), world.routed.get(2, 0)) == (3, 1.0, 0)
    while world.state.rollout is not None:
        assert world.ready(1) == 3
        world.tick()
    assert world.said == ["2 promoted: passed"]
    assert (world.lost, world.broken) == (0, 0)


def test_the_accepted_version_keeps_its_capacity_though_its_own_load_gets_less() -> None:
    world = fleet(Version(), replicas=4)
    world.want(2, terms(), replicas=4)
    world.wished[1] = 1  # its autoscaler sees half of the traffic
    while world.share(2) < 0.5:
        world.tick()
    assert world.ready(1) == 4


def test_a_failing_version_is_rolled_back_within_two_checks_of_its_minimum_sample() -> None:
    """T56: it is judged by its share alone, and nobody else's requests fail."""
    world = fleet(Version(failure_share=0.5))
    world.want(2, terms(), replicas=2)
    while world.share(2) == 0.0:
        world.tick()
    began_s = world.now_s
    world.run_until_ended()
    assert world.said == ["2 rolled_back: gate_failed"]
    minimum_s = 100 / (0.1 * world.rate)
    assert world.now_s - began_s <= minimum_s + 2 * 10.0 + world.tick_s
    assert world.broken < world.routed[2]
    assert world.lost == 0


def test_what_has_a_share_is_judged_also_while_the_replicas_of_the_next_step_start() -> None:
    """A start may take many minutes, in which a share of the callers' requests has nobody else to look after it."""
    world = fleet(Version(), replicas=4)
    world.want(2, terms(), replicas=4)
    while world.state.rollout is None or world.state.rollout.step == 0:
        world.tick()
    assert (world.share(2), world.state.rollout.is_open) == (0.1, False)
    world.versions[2].ready_after_s, world.versions[2].stuck_after_s = None, 3600.0
    world.versions[2].failure_share = 0.5
    began_s = world.now_s
    world.run_until_ended()
    assert world.said == ["2 rolled_back: gate_failed"]
    assert world.now_s - began_s <= 4 * 10.0
    assert world.lost == 0


def test_what_is_held_before_its_promotion_is_judged_and_what_an_operator_promotes_fully_is_not() -> None:
    for is_promoted in (False, True):
        world = fleet(Version())
        world.want(2, terms(), replicas=2)
        while world.share(2) < 0.5:
            world.tick()
        if is_promoted:
            world.versions[2].ready_after_s, world.versions[2].stuck_after_s = None, 3600.0
            world.say(Command.PROMOTE_FULLY)
        while world.state.rollout is not None and world.state.rollout.stage is not Stage.PROMOTING:
            world.tick()
        world.say(Command.HOLD)
        world.versions[2].failure_share = 0.5
        world.run(60.0)
        assert world.said == ([] if is_promoted else ["2 rolled_back: gate_failed"])


def test_a_slow_version_is_rolled_back() -> None:
    world = fleet(Version(ttft_s=0.4))
    world.want(2, terms(), replicas=2)
    world.run_until_ended()
    assert world.said == ["2 rolled_back: gate_failed"]
    assert world.state.ended is not None
    assert "ttft_p95" in world.state.ended.detail


def test_wrong_answers_with_status_200_never_meet_a_customer() -> None:
    world = fleet(Version(right_share=0.4))
    world.want(2, terms(), replicas=2)
    world.run_until_ended()
    assert world.said == ["2 rolled_back: gate_failed"]
    assert world.routed.get(2, 0) == 0


def test_a_version_that_never_gets_ready_is_rolled_back_and_the_old_one_serves_on() -> None:
    """The end is final, and what served goes on serving (ray#66252, ray#66290)."""
    world = fleet(Version(ready_after_s=None))
    world.want(2, terms(), replicas=2)
    world.run_until_ended()
    assert world.said == ["2 rolled_back: replicas_failed"]
    world.run(600.0)
    assert world.said == ["2 rolled_back: replicas_failed"], (
        "a rollout ends once, and doesn't begin again by itself"
    )
    assert (world.present(2), world.ready(1), world.lost) == (0, 2, 0)


def test_a_crash_loop_ends_the_rollout() -> None:
    world = fleet(Version(ready_after_s=1.0, dies_after_s=4.0))
    world.want(2, terms(), replicas=2)
    world.run_until_ended()
    assert world.said == ["2 rolled_back: replicas_failed"]
    assert world.lost == 0


def test_silence_is_never_a_pass_and_time_alone_promotes_nothing() -> None:
    world = fleet(Version(), rate=0.0)
    world.want(2, terms(max_duration_s=1000.0), replicas=2)
    world.run(900.0)
    assert world.state.rollout is not None
    assert world.state.rollout.waits_for is Reason.REQUESTS
    assert (world.state.rollout.stage, world.state.rollout.step) == (Stage.STEPPING, 0)
    world.run_until_ended()
    assert world.said == ["2 rolled_back: max_duration"]


def test_what_does_not_fit_beside_the_accepted_version_is_not_begun() -> None:
    """Capacity is looked at before the rollout (ray#63016)."""
    world = fleet(Version(), fits=2)
    world.want(2, terms(), replicas=2)
    world.run_until_ended()
    assert world.said == ["2 rolled_back: does_not_fit"]
    assert (world.ready(1), world.present(2)) == (2, 0)


def test_recreate_ends_the_old_replicas_first_and_brings_them_back_where_the_new_ones_fail() -> None:
    world = fleet(Version(), fits=2)
    world.want(2, terms(strategy="recreate"), replicas=2)
    while world.present(2) == 0:
        world.tick()
    assert world.present(1) == 0
    world.run_until_ended()
    assert world.said == ["2 promoted: passed"]
    world.versions[3] = Version(right_share=0.0)
    world.want(3, terms(strategy="recreate"), replicas=2)
    world.run_until_ended()
    assert world.said[-1] == "3 rolled_back: gate_failed"
    world.run(10.0)
    assert (world.ready(2), world.present(3), world.share(2)) == (2, 0, 1.0)


def test_bluegreen_switches_everything_at_once_and_back_on_failures() -> None:
    world = fleet(Version(), replicas=2)
    world.want(2, terms(strategy="bluegreen"), replicas=2)
    while world.share(2) == 0.0:
        world.tick()
    assert (world.share(2), world.ready(2), world.ready(1)) == (1.0, 2, 2)
    world.run_until_ended()
    assert world.said == ["2 promoted: passed"]
    world.versions[3] = Version(failure_share=0.5)
    world.want(3, terms(strategy="bluegreen"), replicas=2)
    world.run_until_ended()
    assert world.said[-1] == "3 rolled_back: gate_failed"
    assert (world.share(2), world.lost) == (1.0, 0)


def test_a_shadow_whose_answers_differ_is_rolled_back_unseen() -> None:
    world = fleet(Version(disagrees=0.4))
    world.want(2, mirrored(), replicas=2)
    world.run_until_ended()
    assert world.said == ["2 rolled_back: gate_failed"]
    assert world.routed.get(2, 0) == 0


def test_a_shadow_may_be_judged_by_failures_and_latencies_alone() -> None:
    world = fleet(Version(ttft_s=0.4))
    world.want(2, terms(mirror=MirrorTerms(20.0, 100)), replicas=2)
    world.run_until_ended()
    assert (world.said, world.routed.get(2, 0)) == (["2 rolled_back: gate_failed"], 0)


def test_the_previous_version_stays_ready_for_its_time_and_takes_over_at_once() -> None:
    world = fleet(Version())
    world.want(2, terms(keep_previous_s=300.0), replicas=2)
    world.run_until_ended()
    world.run(100.0)
    assert world.ready(1) == 2
    world.want(1, terms(), replicas=2, is_return=True)
    world.tick()
    assert (world.share(1), world.state.accepted) == (1.0, 1)
    assert world.said[-1] == "1 promoted: passed"


def test_a_version_whose_replicas_are_gone_is_started_before_it_gets_anything() -> None:
    world = fleet(Version())
    world.want(2, terms(keep_previous_s=30.0), replicas=2)
    world.run_until_ended()
    world.run(60.0)
    assert world.present(1) == 0
    world.want(1, terms(), replicas=2, is_return=True)
    world.tick()
    assert world.share(2) == 1.0
    world.run_until_ended()
    assert (world.share(1), world.ready(1), world.lost) == (1.0, 2, 0)


def test_the_first_version_of_all_is_promoted_when_it_is_ready_and_its_answers_are_right() -> None:
    world = Fleet({1: Version()})
    world.want(1, terms())
    world.tick()
    assert world.wish.arms == ()
    world.run_until_ended()
    assert (world.said, world.share(1)) == (["1 promoted: passed"], 1.0)


def test_the_first_version_without_an_acceptance_set_serves_as_soon_as_it_is_ready() -> None:
    """Nobody else does, and there is nothing to compare it with."""
    world = Fleet({1: Version()})
    world.want(1, terms(gate=()))
    world.tick()
    assert world.share(1) == 1.0
    world.run_until_ended()
    assert (world.said, world.share(1)) == (["1 promoted: passed"], 1.0)


def test_a_first_version_that_fails_leaves_nothing_behind_and_may_be_tried_again() -> None:
    world = Fleet({1: Version(ready_after_s=None)})
    world.want(1, terms())
    world.run_until_ended()
    assert (world.wish.arms, world.present(1)) == ((), 0)
    world.versions[1] = Version()
    world.failures.clear()
    assert world.say(Command.RETRY).is_done
    world.run_until_ended()
    assert world.said == ["1 rolled_back: replicas_failed", "1 promoted: passed"]


def test_a_removed_deployment_has_no_route_and_no_replica() -> None:
    world = fleet(Version())
    world.want(2, terms(), replicas=2)
    world.run(5.0)
    world.wanted = None
    world.tick()
    assert (world.wish.arms, world.replicas, world.state.accepted) == ((), [], None)
    assert world.said == ["2 aborted: operator"]


def test_an_acceptance_set_that_cannot_be_run_is_tried_again_and_is_no_verdict() -> None:
    world = fleet(Version(right_share=None))
    world.want(2, terms(error_limit=3), replicas=2)
    world.run(15.0)
    assert world.state.rollout is not None
    assert world.state.rollout.attempt == 1
    world.versions[2].right_share = 0.95
    world.run_until_ended()
    assert world.said == ["2 promoted: passed"]


def test_an_acceptance_set_that_can_never_be_run_ends_the_rollout() -> None:
    world = fleet(Version(right_share=None))
    world.want(2, terms(error_limit=3), replicas=2)
    world.run_until_ended()
    assert world.said == ["2 rolled_back: gate_errors"]


def test_checks_that_could_not_be_made_have_a_budget_of_their_own() -> None:
    world = fleet(Version(), blind="no report for 10 s")
    world.want(2, terms(error_limit=3), replicas=2)
    world.run_until_ended()
    assert world.said == ["2 rolled_back: gate_errors"]


def test_a_gate_that_is_only_told_decides_nothing() -> None:
    world = fleet(Version(ttft_s=0.4))
    dry = Gate("ttft_p95", max_ratio=1.1, dry_run=True)
    world.want(2, terms(gate=(FAILURES, dry)), replicas=2)
    world.run_until_ended()
    assert world.said == ["2 promoted: passed"]


def test_after_a_rollout_the_accepted_version_keeps_its_capacity_for_a_while() -> None:
    world = fleet(Version(failure_share=0.6), replicas=4)
    world.want(2, terms(), replicas=4)
    world.wished[1] = 1
    world.run_until_ended()
    world.run(60.0)
    assert world.ready(1) == 4
    world.run(120.0)
    assert world.ready(1) == 1


def test_what_had_more_replicas_before_does_not_raise_the_bound_of_the_new_version() -> None:
    world = fleet(Version(), replicas=4)
    world.want(2, terms(), replicas=2)
    world.run_until_ended()
    assert world.ready(2) == 2
    world.run(10.0)
    assert (world.present(2), world.lost) == (2, 0)


def test_a_clock_that_jumps_ends_nothing() -> None:
    world = fleet(Version())
    world.want(2, terms(max_duration_s=3600.0), replicas=2)
    world.run(10.0)
    world.now_s += 1e6
    world.tick()
    assert world.state.rollout is not None
    world.now_s -= 2e6
    world.run_until_ended()
    assert world.state.ended is not None
    assert world.state.ended.result is Result.PROMOTED


def says(verdict: Verdict) -> Callable[[Gate, Material], Judgement]:
    """A judge that has requests enough, and says this of every gate."""
    return lambda gate, material: Judgement(
        verdict, Why.UNDECIDED, Interval(None, None, None), 0.0, 0.05, 9, 9
    )


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("hold", ["2 rolled_back: max_duration"]),
        ("rollback", ["2 rolled_back: undecided"]),
        ("promote", ["2 promoted: passed"]),
    ],
)
def test_what_stays_undecided_is_decided_as_the_terms_say(policy: str, said: list[str]) -> None:
    world = fleet(Version(), judge=says(Verdict.INCONCLUSIVE))
    world.want(2, terms(inconclusive=policy, max_duration_s=1200.0), replicas=2)
    assert world.run_until_ended().said == said
    world = fleet(Version(verdict=Verdict.INCONCLUSIVE))
    world.want(2, terms(inconclusive=policy, max_duration_s=1200.0), replicas=2)
    assert world.run_until_ended().said == said


def test_a_check_that_could_not_be_made_once_is_made_again() -> None:
    world = fleet(Version(), judge=says(Verdict.ERROR))
    world.want(2, terms(error_limit=3), replicas=2)
    while world.state.rollout is None or not world.state.rollout.errors:
        world.tick()
    world.judge = says(Verdict.PASS)
    assert world.run_until_ended().said == ["2 promoted: passed"]


def test_a_step_takes_its_least_time() -> None:
    world = fleet(Version())
    world.want(2, terms(steps=(Step(50.0, 10, 200.0),)), replicas=2)
    world.run(150.0)
    assert world.state.rollout is not None
    assert world.state.rollout.waits_for is Reason.TIME
    assert world.run_until_ended().said == ["2 promoted: passed"]


def test_a_canary_that_gets_hardly_any_of_its_share_waits_for_it() -> None:
    """What reaches it may be no fair sample of the requests."""
    world = fleet(Version())
    world.want(2, terms(steps=(Step(50.0, 10),)), replicas=2)
    while world.share(2) < 0.5:
        world.tick()
    for index in range(100):
        for replica in world.replicas:
            replica.is_ready = replica.version == 1 or index % 4 == 0
        world.versions[2].ready_after_s = 1e9
        world.tick()
    assert world.state.rollout is not None
    assert world.state.rollout.waits_for is Reason.SHARE


def test_a_version_that_was_never_accepted_does_not_come_back_without_its_gates() -> None:
    world = fleet(Version(failure_share=0.6))
    world.want(2, terms(), replicas=2, is_return=True)
    world.run_until_ended()
    assert world.said == ["2 rolled_back: gate_failed"]

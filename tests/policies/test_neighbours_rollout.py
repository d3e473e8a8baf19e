"""What went wrong in other projects' rollouts and with what they took for health, as scenarios: none of it happens here.

On a clock that is turned by hand, with replicas that behave as they are told; each names the thread that it was learned from.
"""

import msgspec
import pytest

from headrace.core.deployments import Artifact, EngineKind, Revision
from headrace.core.fleet import Task
from headrace.policies.rollout_commands import Command
from headrace.policies.rollout_state import RolloutState, Stage
from tests.policies.rollout_rig import Fleet, Version, fleet, terms


def test_a_failed_update_is_final_and_the_old_replicas_answer_all_the_while() -> None:
    """ray#66252: a failed update answered 503 with healthy old replicas. ray#66290: it used them all up, one after the other."""
    world = fleet(Version(ready_after_s=1.0, dies_after_s=2.0), replicas=3)
    world.want(2, terms(), replicas=3)
    world.run_until_ended()
    world.run(3600.0)
    assert world.said == ["2 rolled_back: replicas_failed"]
    assert (world.ready(1), world.present(2), world.lost) == (3, 0, 0)


def test_what_is_new_starts_before_anything_that_is_old_ends() -> None:
    """ray#63016: a fifth of the replicas was stopped first, as is right for what starts in a second."""
    world = fleet(Version(ready_after_s=300.0), replicas=5)
    world.want(2, terms(strategy="bluegreen", keep_previous_s=0.0), replicas=5)
    least = 5
    while world.state.rollout is not None or not world.said:
        world.tick()
        least = min(least, world.ready(1) + world.ready(2))
    assert (least, world.ready(2)) == (5, 5)


def test_whether_both_fit_is_found_out_before_and_not_when_half_is_done() -> None:
    """ray#63016."""
    world = fleet(Version(), replicas=2, fits=2)
    world.want(2, terms(), replicas=2)
    world.run_until_ended()
    assert world.said == ["2 rolled_back: does_not_fit"]
    assert world.state.ended is not None
    assert world.state.ended.detail


def test_after_a_rollback_nothing_goes_to_the_candidate_nor_to_an_older_version() -> None:
    """kserve#2130: the share of a canary that was rolled back went to a revision before the last good one."""
    world = Fleet({1: Version(), 2: Version(), 3: Version(failure_share=0.6)}).serving(1, 2)
    world.want(2, terms(keep_previous_s=1e6), replicas=2)
    world.run_until_ended()
    world.want(3, terms(), replicas=2)
    world.run_until_ended()
    before = dict(world.routed)
    world.run(300.0)
    assert world.said[-1] == "3 rolled_back: gate_failed"
    assert [arm.version for arm in world.wish.arms] == [2]
    assert (world.routed[1], world.routed[3]) == (before[1], before[3])


def test_an_abort_with_nothing_running_does_not_scale_what_serves_to_zero() -> None:
    """argo-rollouts#1292."""
    world = fleet(Version(), replicas=3)
    assert not world.say(Command.ABORT).is_done
    world.run(60.0)
    assert (world.ready(1), world.lost) == (3, 0)


def test_at_the_last_step_there_is_somebody_for_every_request() -> None:
    """argo-rollouts#3586: 503 when the canary had everything: its replicas were not there yet."""
    world = fleet(Version(ready_after_s=40.0), replicas=4, rate=80.0)
    world.want(2, terms(), replicas=4)
    while world.share(2) < 1.0:
        assert world.share(2) == 0.0 or world.ready(2) >= world.share(2) * 4
        world.tick()
    world.run(60.0)
    assert (world.ready(2), world.lost, world.broken) == (4, 0, 0)


def test_an_autoscaler_does_not_bring_an_aborted_candidate_back() -> None:
    """argo-rollouts#4973."""
    world = fleet(Version(), replicas=2)
    world.want(2, terms(), replicas=2)
    while world.share(2) == 0.0:
        world.tick()
    world.say(Command.ABORT)
    world.wished[2] = 4
    world.run(600.0)
    assert (world.present(2), world.share(2)) == (0, 0.0)


def test_a_process_that_is_up_and_never_answers_is_no_replica() -> None:
    """vllm#39863, vllm#24897, gpustack#6203, triton#7588: the port was open, a health page said 200, and nobody was behind it.

    A rollout goes by replicas that have answered; one that never does ends it.
    """
    world = fleet(Version(ready_after_s=None, stuck_after_s=120.0))
    world.want(2, terms(), replicas=2)
    world.run(100.0)
    assert world.present(2) > 0
    assert world.state.rollout is not None
    assert world.state.rollout.stage is Stage.PREPARING
    world.run_until_ended()
    assert (world.said, world.routed.get(2, 0)) == (["2 rolled_back: replicas_failed"], 0)


def test_another_controller_that_finds_a_rollout_half_done_goes_on_with_the_same() -> None:
    """skypilot#8563, skypilot#8547: recovery crashed on rows that it had half written, and its clean-up deleted the service."""
    world = fleet(Version(), replicas=2)
    world.want(2, terms(), replicas=2)
    while not world.said:
        world.tick()
        wished = world.wish
        world.state = msgspec.json.decode(msgspec.json.encode(world.state), type=RolloutState)
        assert wished == world.wish
    assert world.said == ["2 promoted: passed"]
    assert (world.lost, world.broken) == (0, 0)


@pytest.mark.parametrize("part", ["tokenizer", "template", "runtime"])
def test_the_same_weights_with_another_part_are_another_revision(part: str) -> None:
    """mteb#5377: a new tokenizer alone changed the answers, under an unchanged name."""
    weights = Artifact("pypi:model==1!model.gguf", sha256="a" * 64)
    before = Revision(Task.CHAT, EngineKind.EMBEDDED, runtime="xllamacpp 1", weights=weights)
    value = "xllamacpp 2" if part == "runtime" else Artifact(f"file:{part}", sha256="b" * 64)
    assert msgspec.structs.replace(before, **{part: value}).digest != before.digest

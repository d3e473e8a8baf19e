"""Claims about what is recorded of rollouts: each change once, with all that it was made from."""

import msgspec

from headrace.core.deployment_terms import MirrorTerms
from headrace.policies import decisions, rollout_record
from headrace.policies.rollout_commands import Command, Said, obey
from headrace.policies.rollout_record import KIND, Inputs
from headrace.policies.rollout_state import RolloutState
from headrace.policies.rollout_wish import wish
from tests.policies.rollout_rig import Fleet, Version, terms


class Recorded(Fleet):
    """A fleet whose steps are recorded as the controller records them; `kept` is what outlives it."""

    def decide(self) -> None:
        inputs = Inputs(self.state, self.wanted, self.seen(), self.now_s)
        after, self.wish = rollout_record.decide(inputs)
        if (reason := rollout_record.reason(self.state, after)) is not None:
            outcome = rollout_record.outcome(self.state, after, self.wish)
            self.log.append(decisions.decision(KIND, "chat", reason, inputs, outcome))
            assert rollout_record.is_news(self.state, after), "what is recorded is stored"
        self.state = after
        self.fresh = {}

    @property
    def log(self) -> list[decisions.Decision]:
        return self.__dict__.setdefault("_log", [])


def recorded(candidate: Version) -> Recorded:
    return Recorded({1: Version(), 2: candidate, 3: Version()}).serving(1, 4)  # type: ignore[return-value]


def test_each_decision_of_a_rollout_can_be_made_again_from_its_record() -> None:
    world = recorded(Version())
    world.want(2, terms(keep_previous_s=30.0), replicas=4)
    world.run_until_ended()
    world.run(60.0)
    reasons = [each.reason for each in world.log]
    assert reasons[0] == "begun"
    assert {"acceptance", "stepping", "opened", "checked", "promoting", "passed"} <= set(reasons)
    assert reasons[-1] == "previous_ended"
    replays = {KIND: rollout_record.replay}
    assert {decisions.difference(each, replays) for each in world.log} == {""}
    ended = msgspec.json.decode(next(each for each in world.log if each.reason == "passed").outcome)
    assert (ended["result"], ended["candidate"], ended["weights_ppm"]) == ("promoted", 2, {"2": 1_000_000})
    assert [each["verdict"] for each in ended["checks"]] == ["pass", "pass"]


def test_nothing_is_recorded_where_nothing_happens() -> None:
    world = recorded(Version())
    world.run(100.0)
    assert world.log == []


def test_time_and_counts_alone_are_no_news() -> None:
    world = recorded(Version(ready_after_s=100.0))
    world.want(2, terms(), replicas=4)
    world.run(10.0)
    before = world.state
    world.tick()
    assert before != world.state
    assert not rollout_record.is_news(before, world.state)
    world.state = RolloutState(accepted=2, answered=2)
    world.want(2)
    trial, _ = obey(Said("chat", world.state, Command.REHEARSE, 1, terms()))
    assert trial.rehearsal is not None
    older = msgspec.structs.replace(trial, rehearsal=msgspec.structs.replace(trial.rehearsal, age_s=9.0))
    assert not rollout_record.is_news(trial, older)
    assert rollout_record.is_news(world.state, trial)


def test_an_acceptance_set_that_is_run_again_is_recorded() -> None:
    world = recorded(Version(right_share=None))
    world.want(2, terms(error_limit=3), replicas=4)
    world.run_until_ended()
    assert [each.reason for each in world.log].count("acceptance_run") == 2
    assert world.log[-1].reason == "gate_errors"


def test_what_an_operator_said_can_be_said_again_to_the_same_state() -> None:
    world = recorded(Version())
    world.want(2, terms(), replicas=4)
    world.run(5.0)
    for command in Command:
        said = Said("chat", world.state, command)
        after, answer = obey(said)
        outcome = rollout_record.obeyed(said, after, answer)
        record = decisions.decision(KIND, "chat", command, said, outcome)
        assert decisions.difference(record, {KIND: rollout_record.replay}) == ""
        assert ("result" in outcome) == (command is Command.ABORT)


def test_status_says_how_a_rollout_stands_and_how_the_last_one_ended() -> None:
    world = recorded(Version())
    told = rollout_record.summary("chat", world.state, world.wish)
    assert told == {"weights": {"chat@v1": 1.0}, "previous": None, "previous_left_s": None}
    world.want(2, terms(mirror=MirrorTerms(20.0, 10)), replicas=4)
    while world.share(2) == 0.0:
        told = rollout_record.summary("chat", world.state, world.wish)
        world.tick()
    assert (told["stage"], told["step"], told["candidate"]) == ("mirroring", None, 2)
    world.tick()
    told = rollout_record.summary("chat", world.state, world.wish)
    assert told["weights"] == {"chat@v1": 0.9, "chat@v2": 0.1}
    assert (told["stage"], told["step"], told["steps"], told["requests_needed"]) == ("stepping", 1, 2, 100)
    world.run_until_ended()
    told = rollout_record.summary("chat", world.state, world.wish)
    assert (told["previous"], told["previous_left_s"]) == (1, 600)
    assert told["last"]["result"] == "promoted"
    msgspec.json.encode(told)


def test_status_and_records_tell_of_rehearsals() -> None:
    world = recorded(Version())
    world.state, answer = obey(Said("chat", world.state, Command.REHEARSE, 3, terms(gate=())))
    assert answer.is_done
    told = rollout_record.summary("chat", world.state, wish(world.state, world.seen()))
    assert told["rehearsing"] == {"version": 3, "age_s": 0, "ready_s": None}
    world.run(10.0)
    assert [each.reason for each in world.log] == ["rehearsed"]
    told = rollout_record.summary("chat", world.state, world.wish)
    assert (told["rehearsed"]["version"], told["rehearsed"]["verdict"]) == (3, "pass")
    for nonsense in (
        Said("chat", world.state, Command.REHEARSE),
        Said("chat", world.state, Command.REHEARSE, 1, terms()),
    ):
        after, answer = obey(nonsense)
        assert (after, answer.is_done) == (world.state, False)

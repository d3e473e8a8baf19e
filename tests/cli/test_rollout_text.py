"""Claims about what a rollout reads like: where it is, what it waits for, and what there is to say to it."""

import msgspec

from headrace.cli import rollout_text
from headrace.policies import rollout_record
from headrace.policies.rollout_commands import Command, Said, obey
from headrace.policies.rollout_state import Reason
from tests.policies.rollout_rig import Fleet, Version, fleet, terms


def lines(world: Fleet) -> str:
    """As the terminal shows it, after its way through the admin port."""
    told = rollout_record.summary("chat", world.state, world.wish)
    row = {
        **told,
        "name": "chat",
        "accepted": world.state.accepted,
        "wanted": world.wanted and world.wanted.version,
    }
    return "\n".join(rollout_text.lines(msgspec.json.decode(msgspec.json.encode(row))))


def test_every_reason_to_wait_has_words_of_its_own() -> None:
    waits = list(Reason)[list(Reason).index(Reason.REPLICAS) :]
    assert set(rollout_text.WAITS) == {reason.value for reason in waits}


def test_a_rollout_is_shown_from_its_begin_to_what_is_left_of_it() -> None:
    world = fleet(Version())
    assert lines(world) == "chat: 100.0% chat@v1\n  rehearsed: never"
    world.want(2, terms(), replicas=2)
    world.tick()
    assert "chat@v2 by canary: preparing, 0 s after its begin" in lines(world)
    assert "waits for its replicas to be ready" in lines(world)
    while world.share(2) == 0.0:
        world.tick()
    world.run(12.0)
    world.say(Command.HOLD)
    shown = lines(world)
    assert "90.0% chat@v1, 10.0% chat@v2" in shown
    assert "step 1 of 2, held" in shown
    assert "of 100 have ended" in shown
    assert "quality:acceptance: pass, 95% right" in shown
    assert "GATE" in shown
    world.say(Command.RESUME)
    world.run_until_ended()
    shown = lines(world)
    assert "chat@v1 is kept ready for another 600 s: `headrace rollback chat` is immediate" in shown
    assert "last: chat@v2 promoted after" in shown


def test_why_a_version_was_refused_is_shown() -> None:
    world = fleet(Version(failure_share=0.5))
    world.want(2, terms(), replicas=2)
    world.run_until_ended()
    shown = lines(world)
    assert "rolled back after" in shown
    assert "in stepping: failure_rate failed 2 checks" in shown
    assert "version 2 is wanted" in shown


def test_a_rehearsal_is_shown_while_it_runs_and_with_its_date_afterwards() -> None:
    world = Fleet({1: Version(ready_after_s=3.0), 2: Version()}).serving(2, 1)
    world.state, _ = obey(Said("chat", world.state, Command.REHEARSE, 1, terms()))
    world.tick()
    assert "rehearsing chat@v1 for 0 s: starting" in lines(world)
    while world.state.rehearsal is not None:
        world.tick()
    shown = lines(world)
    assert "rehearsed: chat@v1 pass at 1970-01-01T00:16:4" in shown
    assert "quality:acceptance pass (95% right)" in shown
    world.versions[1].ready_after_s = None
    world.state, _ = obey(Said("chat", world.state, Command.REHEARSE, 1, terms(gate=())))
    world.run(60.0)
    assert "chat@v1 fail" in lines(world)
    assert "did not get ready" in lines(world)

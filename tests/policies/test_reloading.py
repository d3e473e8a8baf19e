"""The pure part of a reload: which keys differ, what each needs, and what is said about it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.policies.reloading import Effect, Reloaded, compare, effect_of, flat, told

SOME_KEYS = (
    "server.port",
    "server.drain_s",
    "request.deadline_s",
    "engine.slots",
    "upstreams",
    "ledger.mode",
)
VALUES = st.fixed_dictionaries(dict.fromkeys(SOME_KEYS, st.integers(0, 2)))


@pytest.mark.parametrize(
    ("key", "effect"),
    [
        ("server.port", Effect.RESTART),
        ("server.drain_s", Effect.AT_ONCE),
        ("request.deadline_s", Effect.AT_ONCE),
        ("tenant_defaults.shadow.requests_burst", Effect.AT_ONCE),
        ("upstreams", Effect.AT_ONCE),
        ("upstreams[].slots", Effect.AT_ONCE),
        ("auth.issuers[].name", Effect.RESTART),
        ("nobody.thought.of.it", Effect.RESTART),
        ("nothing", Effect.RESTART),
    ],
)
def test_the_longest_name_that_fits_says_when_a_key_is_in_force_and_an_unknown_one_needs_a_restart(
    key: str, effect: Effect
) -> None:
    assert effect_of(key) is effect


def test_a_tree_of_tables_is_every_key_with_its_value() -> None:
    tree = {"a": {"b": 1, "c": {"d": [2]}}, "e": []}
    assert flat(tree) == {"a.b": 1, "a.c.d": [2], "e": []}


@given(running=VALUES, wanted=VALUES, before=VALUES, now=VALUES)
def test_every_difference_is_told_once_and_nothing_that_is_in_force_is(
    running: dict[str, int], wanted: dict[str, int], before: dict[str, int], now: dict[str, int]
) -> None:
    """REPORTS 73: no changed key is passed over in silence."""
    found = compare(running=running, wanted=wanted, file_before=before, file_now=now)
    named = [*found.changed, *found.restart, *found.hidden]
    assert len(named) == len(set(named))
    assert {*found.changed, *found.restart} == {key for key in SOME_KEYS if running[key] != wanted[key]}
    assert all(effect_of(key) is Effect.AT_ONCE for key in found.changed)
    assert all(effect_of(key) is Effect.RESTART for key in found.restart)
    changed_in_file = {key for key in SOME_KEYS if before[key] != now[key]}
    assert all(key in changed_in_file and now[key] != wanted[key] for key in found.hidden)
    assert all(key in named or now[key] == wanted[key] for key in changed_in_file)


def test_what_is_written_as_it_runs_waits_for_nothing_any_more() -> None:
    """A change that needed a restart and was taken back is no longer pending."""
    before, now = {"server.port": 2}, {"server.port": 1}
    assert compare(running=now, wanted=now, file_before=before, file_now=now).restart == ()


def reloaded(**fields: Any) -> Reloaded:
    nothing = {
        "version": 7,
        "changed": (),
        "restart_required": (),
        "hidden": (),
        "silent": [],
        "late": 0,
        "is_controller_away": False,
        "is_audited": True,
        "elapsed_s": 0.0625,
    }
    return Reloaded(**{**nothing, **fields})


def test_people_hear_each_key_with_what_becomes_of_it() -> None:
    lines = told(
        reloaded(
            changed=("server.drain_s",),
            restart_required=("server.port",),
            hidden=("server.host",),
            silent=["127.0.0.1:9"],
            late=1,
            is_controller_away=True,
            is_audited=False,
        )
    )
    assert lines[0] == "configuration version 7 is in force (0.06 s)"
    assert "  server.drain_s: changed" in lines
    assert "  server.port: restart required" in lines
    assert any("server.host" in line and "flag" in line for line in lines)
    assert "  upstream 127.0.0.1:9: no answer yet" in lines
    assert any("1 workers" in line for line in lines)
    assert any("controller is away" in line for line in lines)
    assert any("audit log lacks" in line for line in lines)


def test_people_hear_that_nothing_has_changed() -> None:
    assert told(reloaded())[1:] == ["  nothing has changed"]

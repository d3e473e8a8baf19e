"""The transition table of a delivery: what can happen, what can't, and the page that shows it."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest

from headrace.core.clock import ManualClock
from headrace.core.endings import ENDINGS, Ending, Stage
from headrace.core.ids import KeyId, TenantId
from headrace.core.outcome import Outcome, Reason
from headrace.core.request import InferenceRequest
from headrace.core.tenant import Principal, TenantLimits
from headrace.gateway.delivery import EVENTS, TRANSITIONS, Delivery, Event, State

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "delivery.md"
ENDS = {State[outcome.name] for outcome in Outcome}
LIVE = set(State) - ENDS
MAY_RETRY = {State.WAITING, State.OPEN}


def reachable(start: State) -> set[State]:
    """Every state that a delivery can come to from there."""
    found: set[State] = set()
    ahead = [start]
    while ahead:
        for state in set(TRANSITIONS[ahead.pop()].values()) - found:
            found.add(state)
            ahead.append(state)
    return found


def test_every_state_has_its_row() -> None:
    assert set(TRANSITIONS) == set(State)


@pytest.mark.parametrize("state", sorted(LIVE))
def test_a_live_state_has_an_answer_to_every_event(state: State) -> None:
    """A refusal comes before any work, so only there where an answer may still begin."""
    missing = set(Event) - set(TRANSITIONS[state])
    assert missing == (set() if state in MAY_RETRY else {Event.REFUSAL})


@pytest.mark.parametrize("state", sorted(ENDS))
def test_an_end_has_no_exit(state: State) -> None:
    """No transition leaves DELIVERED, nor any other end: a request has one outcome."""
    assert TRANSITIONS[state] == {}


STATES_OF = {
    Stage.UNSTARTED: {State.WAITING, State.OPEN},
    Stage.WORKING: {State.WAITING, State.OPEN},
    Stage.ANSWERING: {State.DELIVERING},
}


@pytest.mark.parametrize("row", ENDINGS.values(), ids=lambda row: f"{row.reason}-{row.stage}")
def test_every_row_of_the_endings_is_a_step_of_the_table_to_the_state_of_its_outcome(row: Ending) -> None:
    """So no request can end in a way that its caller was not told."""
    for state in STATES_OF[row.stage]:
        assert TRANSITIONS[state][EVENTS[row.outcome]] is State[row.outcome.name]


def test_no_way_leads_from_the_first_byte_of_an_answer_back_to_a_retry() -> None:
    """T1: no text is repeated, because nothing that was delivered can be begun again."""
    assert reachable(State.DELIVERING) & MAY_RETRY == set()
    assert State.FAILED not in reachable(State.DELIVERING)
    assert State.BROKEN not in TRANSITIONS[State.WAITING].values()


@pytest.mark.parametrize("state", sorted(LIVE))
def test_every_live_state_can_end_and_every_end_can_be_reached(state: State) -> None:
    assert reachable(state) & ENDS
    assert reachable(State.WAITING) >= ENDS


@pytest.mark.parametrize("state", sorted(LIVE))
def test_a_caller_who_leaves_is_cancelled_whatever_came_before(state: State) -> None:
    """T5."""
    assert TRANSITIONS[state][Event.GONE] is State.CANCELLED


@pytest.mark.parametrize("has_content", [True, False])
def test_a_slow_reader_has_an_ending_even_before_its_answer_began(has_content: bool) -> None:
    """On a shared connection it may be the answer before that it leaves untaken. Without an ending there would be no record."""
    principal = Principal(TenantId("acme"), KeyId("k3x9q2ab"), TenantLimits())
    request = cast(InferenceRequest, SimpleNamespace(is_streaming=True, principal=principal))
    call, clock = Mock(), ManualClock()
    delivery = Delivery(
        call, request, Mock(), clock=clock, heartbeat_s=1.0, headers=lambda request, deployment: b""
    )
    delivery.has_begun = True
    call.is_paused = False
    clock.advance(2.0)
    delivery.beat(clock.now_s())
    if has_content:
        delivery.content([b"{}"], now_s=clock.now_s())
    delivery.cut_reader()
    delivery.client_gone()
    assert delivery.ending is not None
    assert delivery.ending.outcome is Outcome.CANCELLED
    assert delivery.ending.reason is (Reason.SLOW_READER if has_content else Reason.CLIENT_GONE)


def test_the_page_shows_the_table_as_it_is() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    table = rows[next(i for i, row in enumerate(rows) if row[1:] and row[1] == "`HEARTBEAT`") :]
    events = [Event[cell.strip("`")] for cell in table[0][1:]]
    assert sorted(events) == sorted(Event)
    shown = {
        State[cells[0].strip("`")]: {
            event: State[cell.strip("`")] for event, cell in zip(events, cells[1:], strict=True) if cell
        }
        for cells in table[1:]
        if re.fullmatch(r"`[A-Z]+`", cells[0])
    }
    assert shown == {state: TRANSITIONS[state] for state in LIVE}


def test_the_page_explains_every_state_and_event() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert {member.name for kind in (State, Event) for member in kind} <= set(re.findall(r"`([A-Z]+)`", page))

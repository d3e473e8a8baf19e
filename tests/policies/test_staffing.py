"""Erlang's number of slots keeps its promise, and is the smallest that does."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.policies.staffing import slots_for


def waits(slots: int, load: float) -> float:
    """The textbook's formula, with factorials, for what the recursion finds."""
    whole = sum(load**n / math.factorial(n) for n in range(slots))
    last = load**slots / math.factorial(slots) * slots / (slots - load)
    return last / (whole + last)


@given(load=st.floats(0.01, 60.0), share=st.floats(0.001, 0.5))
def test_so_many_slots_let_few_enough_wait_and_one_less_would_not(load: float, share: float) -> None:
    slots = slots_for(load, waiting_share=share)
    assert slots > load
    assert waits(slots, load) <= share * (1 + 1e-6)
    if slots - 1 > load:
        assert waits(slots - 1, load) >= share * (1 - 1e-6)


@given(load=st.floats(0.0, 500.0), more=st.floats(0.0, 100.0))
def test_more_work_needs_no_fewer_slots(load: float, more: float) -> None:
    assert slots_for(load, waiting_share=0.01) <= slots_for(load + more, waiting_share=0.01)


def test_no_work_needs_no_slot() -> None:
    assert slots_for(0.0, waiting_share=0.01) == 0


def test_a_large_fleet_needs_less_to_spare_for_its_size() -> None:
    shares = [slots_for(load, waiting_share=0.01) / load for load in (4.0, 16.0, 64.0, 256.0, 1024.0)]
    assert all(larger < smaller for smaller, larger in pairwise(shares))
    assert shares[-1] == pytest.approx(1.0, abs=0.1)

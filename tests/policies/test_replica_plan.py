"""As many replicas as are wanted, and none that works while another one would do (REPORTS 79)."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ids import ReplicaId
from headrace.policies.replica_plan import Present, plan

FLEETS = st.lists(
    st.builds(
        Present,
        st.integers(0, 20).map(lambda number: ReplicaId(f"chat-{number}")),
        st.booleans(),
        st.integers(0, 4),
        st.floats(0, 100),
    ),
    max_size=8,
    unique_by=lambda each: each.id,
)


def present(number: int, *, ready: bool = True, in_flight: int = 0, decided_s: float = 0.0) -> Present:
    return Present(ReplicaId(f"chat-{number}"), ready, in_flight, decided_s)


@given(FLEETS, st.integers(0, 10))
def test_afterwards_there_are_as_many_as_are_wanted(fleet: list[Present], wanted: int) -> None:
    steps = plan(fleet, wanted)
    assert len(fleet) + steps.starts - len(set(steps.removals)) == wanted
    assert not (steps.starts and steps.removals)
    assert {*steps.removals} <= {each.id for each in fleet}


@given(FLEETS, st.integers(0, 10))
def test_nobody_who_serves_goes_while_somebody_stays_who_does_not(fleet: list[Present], wanted: int) -> None:
    going = {*plan(fleet, wanted).removals}
    if any(each.id in going and each.is_ready for each in fleet):
        assert all(each.is_ready for each in fleet if each.id not in going)


def test_the_ones_that_are_still_loading_are_dropped_first() -> None:
    """Want 4, then 2 while 2 load: the two that serve stay."""
    fleet = [
        present(0, in_flight=0),
        present(1, in_flight=9),
        present(2, ready=False),
        present(3, ready=False),
    ]
    assert {*plan(fleet, 2).removals} == {"chat-2", "chat-3"}


def test_of_those_that_serve_the_least_busy_goes_and_of_equals_the_youngest() -> None:
    fleet = [
        present(0, in_flight=3),
        present(1, in_flight=1, decided_s=5),
        present(2, in_flight=1, decided_s=9),
    ]
    assert plan(fleet, 2).removals == ("chat-2",)


def test_who_is_named_goes_before_all_others() -> None:
    """A replica that is too old goes although another one has less to do."""
    fleet = [present(0, in_flight=3), present(1), present(2)]
    assert plan(fleet, 1, first=[ReplicaId("chat-0"), ReplicaId("gone")]).removals[0] == "chat-0"

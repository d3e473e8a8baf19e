"""No schedule of arrivals, failures and restarts brings a ticket to a replica outside the places that it may go to."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import Forbidden, NoReadyReplica, OverloadError
from headrace.core.fleet import FleetSnapshot
from headrace.core.outcome import AttemptOutcome
from headrace.policies import locations
from headrace.policies.dispatch import Dispatcher
from headrace.policies.tickets import Start, Ticket
from tests.policies.dispatch_rig import RULES, bounds, fleet, replica, ticket

PLACES = ("eu", "us", "")


def snapshot(*ready: str, known: tuple[str, ...] = ()) -> FleetSnapshot:
    """One replica in each of these places, and more places where none is ready."""
    picture = fleet(chat=[replace(replica(f"in-{place}"), location=place) for place in ready])
    chat = replace(picture.deployments["chat"], locations=(*ready, *known))
    return FleetSnapshot(deployments={"chat": chat})


def dispatcher(*ready: str, known: tuple[str, ...] = ()) -> Dispatcher:
    made = Dispatcher(bounds=bounds(length_max=100), health=RULES, chance=Random(1))
    made.publish(snapshot(*ready, known=known), now_s=0.0)
    return made


def test_a_model_that_runs_in_no_allowed_place_is_refused_with_their_names_alone() -> None:
    with pytest.raises(Forbidden) as refused:
        dispatcher("us", "").arrive(ticket(locations=("eu", "ch")), now_s=0.0)
    assert refused.value.reason == "location"
    assert "eu or ch" in refused.value.message
    assert "us" not in refused.value.message.replace("request", "").split()


def test_where_its_replicas_are_down_a_model_is_not_forbidden() -> None:
    """The caller may come back: 503, with a time."""
    with pytest.raises(NoReadyReplica) as refused:
        dispatcher("us", known=("eu",)).arrive(ticket(locations=("eu",)), now_s=0.0)
    assert refused.value.retry_after_s == 5.0


def test_who_may_go_anywhere_goes_to_places_without_a_name_too() -> None:
    one = dispatcher("", "us")
    assert all(one.arrive(ticket(), now_s=0.0) for _ in range(2))


def test_all_replicas_are_allowed_to_who_names_no_place() -> None:
    loads = [load for _, load in dispatcher("eu", "us").loads()]
    assert locations.allowed((), loads) == loads
    assert [load.replica.location for load in locations.allowed(("us",), loads)] == ["us"]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(("come", "end", "lose", "publish")),
        st.lists(st.sampled_from(PLACES), unique=True),
        st.integers(0, 3),
    ),
    max_size=40,
)


@given(EVENTS)
def test_nothing_ever_runs_outside_its_places(events: list[tuple[str, list[str], int]]) -> None:
    """Also not by a retry, out of the queue, or after the fleet has changed."""
    one = dispatcher(*PLACES)
    tickets: list[Ticket] = []
    for now, (what, places, number) in enumerate(events):
        running = [each for each in tickets if each.load is not None]
        if what == "publish":
            actions = one.publish(snapshot(*places), now_s=float(now))
            assert all(isinstance(action, Start) for action in actions)
        elif what == "come":
            named = tuple(place for place in places if place)
            newcomer = ticket(locations=named, deadline_s=1e9)
            try:
                if not one.arrive(newcomer, now_s=float(now)):
                    one.wait(newcomer, now_s=float(now))
                tickets.append(newcomer)
            except (Forbidden, OverloadError):
                assert newcomer.load is None
        elif running:
            ending = running[number % len(running)]
            outcome = AttemptOutcome.COMPLETED if what == "end" else AttemptOutcome.LOST
            one.give_back(ending, outcome, now_s=float(now))
            if what == "lose" and one.has_alternative(ending, now_s=float(now)):
                one.retry(ending, now_s=float(now))
        for each in tickets:
            if each.load is not None and each.locations:
                assert each.load.replica.location in each.locations

"""Which revision answers: the weights hold, conversations stay, and nobody is sent where nothing is ready."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.fleet import PPM, Arm, Deployment, FleetSnapshot, Mirror, Replica, Route
from headrace.core.ids import ReplicaId
from headrace.policies.routing import RoutingTable, point

CONVERSATIONS = [f"conversation {number}" for number in range(2000)]
WEIGHTS = st.integers(0, PPM)


def target(version: int, *, ready: bool = True, name: str = "chat") -> Deployment:
    replicas = (Replica(ReplicaId(f"{name}-{version}"), "h", 1, 1),) if ready else ()
    return Deployment(name, name, frozenset(), f"sha256:{version}", replicas, version=version)


def table(*targets: Deployment, route: Route | None = None) -> RoutingTable:
    return RoutingTable(
        FleetSnapshot(1, {each.key: each for each in targets}, {} if route is None else {"chat": route})
    )


def arms(*weights_ppm: int) -> tuple[Arm, ...]:
    """The first gets what the others leave."""
    return (
        Arm("chat@v1", PPM - sum(weights_ppm)),
        *(Arm(f"chat@v{number}", weight) for number, weight in enumerate(weights_ppm, 2)),
    )


def chosen(
    routing: RoutingTable, conversation: str, *, request_id: str = "req_1", tenant: str = "acme"
) -> int:
    deployment = routing.choose("chat", tenant=tenant, conversation=conversation, request_id=request_id)
    assert deployment is not None
    return deployment.version


def shares(routing: RoutingTable, conversations: Sequence[str] = CONVERSATIONS) -> dict[int, float]:
    counts = Counter(chosen(routing, each) for each in conversations)
    return {version: count / len(conversations) for version, count in counts.items()}


def test_a_name_without_a_route_is_served_by_its_own_target() -> None:
    routing = table(target(0))
    assert routing.plain == {"chat": target(0)}
    assert chosen(routing, "") == 0
    assert routing.choose("other", tenant="acme", conversation="", request_id="r") is None
    assert (routing.offered("chat"), routing.offered("other")) == (target(0), None)


@pytest.mark.parametrize(
    "weights", [(10_000,), (100_000,), (500_000,), (100_000, 300_000), (500_000, 500_000)]
)
def test_each_arm_gets_its_share_of_the_conversations(weights: tuple[int, ...]) -> None:
    routing = table(target(1), target(2), target(3), route=Route(arms(*weights)))
    found = shares(routing)
    for version, weight in enumerate(weights, 2):
        assert found[version] == pytest.approx(weight / PPM, abs=4 * (0.25 / len(CONVERSATIONS)) ** 0.5)


@given(WEIGHTS, WEIGHTS, st.text(max_size=20), st.text(min_size=1, max_size=20))
def test_a_conversation_changes_its_arm_at_most_once_while_the_canary_grows(
    one: int, other: int, tenant: str, conversation: str
) -> None:
    small, large = sorted((one, other))
    before, after = (
        chosen(table(target(1), target(2), route=Route(arms(weight))), conversation, tenant=tenant)
        for weight in (small, large)
    )
    assert before == after or (before, after) == (1, 2)


@given(WEIGHTS, WEIGHTS, WEIGHTS, WEIGHTS, st.text(min_size=1, max_size=20))
def test_of_two_growing_arms_neither_takes_a_conversation_from_the_other(
    a: int, b: int, c: int, d: int, conversation: str
) -> None:
    second, third = sorted((a, b)), sorted((c, d))
    total = max(PPM, second[1] + third[1])
    weights = [(s * PPM // total, t * PPM // total) for s, t in zip(second, third, strict=True)]
    before, after = (
        chosen(table(target(1), target(2), target(3), route=Route(arms(*pair))), conversation)
        for pair in weights
    )
    assert before in (1, after)


def test_one_conversation_has_one_arm_and_two_tenants_same_words_are_two_conversations() -> None:
    routing = table(target(1), target(2), route=Route(arms(500_000)))
    assert len({chosen(routing, "hello", request_id=f"req_{number}") for number in range(50)}) == 1
    assert len({chosen(routing, "hello", tenant=f"tenant {number}") for number in range(50)}) == 2


def test_a_request_that_belongs_to_nothing_is_spread_by_itself() -> None:
    for route, conversation in ((Route(arms(500_000)), ""), (Route(arms(500_000), is_sticky=False), "hello")):
        routing = table(target(1), target(2), route=route)
        assert {chosen(routing, conversation, request_id=f"req_{n}") for n in range(50)} == {1, 2}


def test_a_canary_without_a_ready_replica_gets_nothing_and_the_accepted_arm_its_share() -> None:
    """REPORTS 75, T56; the third arm's conversations stay where they are."""
    route = Route(arms(300_000, 300_000))
    both = table(target(1), target(2), target(3), route=route)
    one = table(target(1), target(2, ready=False), target(3), route=route)
    for conversation in CONVERSATIONS[:200]:
        before = chosen(both, conversation)
        assert chosen(one, conversation) == (1 if before == 2 else before)
    assert one.is_served("chat@v1")
    assert not one.is_served("chat@v2")
    assert table(target(1), route=route).plain == {"chat": target(1)}


def test_the_accepted_arm_without_a_ready_replica_leaves_nothing_to_a_canary() -> None:
    """What isn't proven doesn't get everybody because what is has a bad moment."""
    routing = table(target(1, ready=False), target(2), route=Route(arms(100_000)))
    assert shares(routing, CONVERSATIONS[:500])[1] > 0.8


def test_in_an_experiment_each_arm_takes_over_from_the_other() -> None:
    """Both are accepted."""
    routes = (Route(arms(300_000), is_experiment=True), Route(arms(300_000, 300_000), is_experiment=True))
    assert shares(table(target(1, ready=False), target(2), route=routes[0]), CONVERSATIONS[:9]) == {2: 1.0}
    three = table(target(1, ready=False), target(2), target(3), route=routes[1])
    assert set(shares(three, CONVERSATIONS[:99])) == {2, 3}


def test_a_canary_that_has_all_of_the_weight_gets_everything() -> None:
    routing = table(target(1), target(2), route=Route(arms(PPM)))
    assert routing.plain == {"chat": target(2)}
    halves = table(target(1), target(2), target(3), route=Route(arms(PPM // 2, PPM // 2)))
    assert set(shares(halves, CONVERSATIONS[:99])) == {2, 3}


def test_what_another_target_can_not_do_is_for_the_accepted_one() -> None:
    routing = table(target(1), target(2), target(0, name="other"), route=Route(arms(100_000)))
    assert routing.takes_over("chat", "chat@v2") == target(1)
    assert routing.takes_over("chat", "chat@v9") == target(1), "also what is no longer there"
    assert routing.takes_over("chat", "chat@v1") is None
    assert routing.takes_over("other", "other") is None
    assert routing.takes_over("gone", "gone@v1") is None


def test_a_target_without_a_route_is_found_by_its_key_and_offered_to_nobody() -> None:
    """A revision that is kept warm, or that was never let at callers."""
    routing = table(target(1), target(2), route=Route(arms()))
    assert routing.find("chat@v2") == target(2)
    assert routing.find("chat@v7") is None
    assert not routing.is_served("chat@v2")
    assert routing.names() == ["chat"]
    assert table(target(4)).names() == [], "its name leads nowhere yet"


def test_of_a_split_name_the_accepted_target_is_told() -> None:
    routing = table(target(1), target(2), target(0, name="other"), route=Route(arms(100_000)))
    assert routing.offered("chat") == target(1)
    assert sorted(routing.names()) == ["chat", "other"]


@pytest.mark.parametrize("share_ppm", [0, 50_000, PPM])
def test_so_many_of_the_requests_are_mirrored(share_ppm: int) -> None:
    route = Route(arms(), mirror=Mirror("chat@v2", share_ppm))
    routing = table(target(1), target(2), route=route)
    mirrored = [routing.mirror("chat", request_id=f"req_{n}") for n in range(2000)]
    assert sum(each is not None for each in mirrored) / 2000 == pytest.approx(share_ppm / PPM, abs=0.02)
    assert {each for each in mirrored if each} <= {target(2)}


def test_nothing_is_mirrored_where_nobody_could_take_it() -> None:
    route = Route(arms(), mirror=Mirror("chat@v2", PPM))
    assert table(target(1), target(2, ready=False), route=route).mirror("chat", request_id="r") is None
    assert table(target(1), route=route).mirror("chat", request_id="r") is None
    assert (
        table(target(1), target(2), route=replace(route, mirror=None)).mirror("chat", request_id="r") is None
    )
    assert table(target(0)).mirror("chat", request_id="r") is None


@given(st.lists(st.text(), max_size=3))
def test_every_point_lies_on_the_line(parts: list[str]) -> None:
    assert 0 <= point(*parts) < PPM

"""Which versions a deployment may go back to."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.policies.ways_back import ways_back

REMOVED = (0, "remove")


def test_the_nearest_comes_first() -> None:
    assert ways_back([(1, "apply"), (2, "apply"), (3, "apply")], ()) == [2, 1]


def test_what_was_left_by_going_back_is_no_way_back() -> None:
    assert ways_back([(1, "apply"), (2, "apply"), (3, "apply"), (2, "rolled_back")], ()) == [1]
    assert ways_back([(1, "apply"), (2, "apply"), (1, "rollback")], ()) == []
    assert ways_back([(1, "apply"), (2, "apply"), (3, "apply"), (1, "rollback"), (4, "apply")], ()) == [1]


def test_what_never_served_is_no_way_back() -> None:
    """Version 2 was replaced by the next while its rollout went on."""
    history = [(1, "apply"), (2, "apply"), (3, "apply")]
    assert ways_back(history, {1}) == [1]
    assert ways_back(history, {1, 2}) == [2, 1]


def test_a_removed_deployment_comes_back_as_it_was() -> None:
    assert ways_back([(1, "apply"), (2, "apply"), REMOVED], ()) == [2, 1]
    assert ways_back([(1, "apply"), REMOVED, (1, "rollback")], ()) == []
    assert ways_back([(1, "apply"), REMOVED, (2, "apply"), REMOVED], {1, 2}) == [2, 1]


VERSIONS = st.integers(min_value=1, max_value=5)
HISTORIES = st.lists(st.tuples(VERSIONS, st.sampled_from(["apply", "rollback", "rolled_back", "retry"])))


@given(HISTORIES)
def test_each_is_named_once_and_what_is_wanted_now_never(history: list[tuple[int, str]]) -> None:
    found = ways_back(history, ())
    assert len(set(found)) == len(found)
    assert {version for version, _ in history} >= set(found)
    assert not history or history[-1][0] not in found


@given(HISTORIES, VERSIONS, VERSIONS)
def test_going_back_again_never_comes_to_what_going_back_left(
    history: list[tuple[int, str]], good: int, bad: int
) -> None:
    if good != bad:
        assert bad not in ways_back([*history, (good, "apply"), (bad, "apply"), (good, "rolled_back")], ())

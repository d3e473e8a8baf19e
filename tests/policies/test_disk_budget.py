"""What leaves a store that is too full: never what is needed, the longest unused first, and no more than must."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.policies.disk_budget import Held, evicted, held_bytes

_SIZES = {blob: (index + 1) * 10 for index, blob in enumerate("abcdefgh")}
_BLOBS = st.sets(st.sampled_from(sorted(_SIZES)), min_size=1).map(lambda blobs: {b: _SIZES[b] for b in blobs})


@st.composite
def stores(draw: st.DrawFn) -> list[Held]:
    each = st.tuples(_BLOBS, st.integers(0, 5), st.booleans())
    return [
        Held(str(number), blobs, float(used_s), is_kept)
        for number, (blobs, used_s, is_kept) in enumerate(draw(st.lists(each, max_size=8)))
    ]


@given(stores(), st.integers(0, 400))
def test_what_somebody_needs_never_goes(held: list[Held], bytes_max: int) -> None:
    assert not [each for each in evicted(held, bytes_max=bytes_max) if each.is_kept]


@given(stores(), st.integers(0, 400))
def test_the_rest_fits_unless_all_that_could_free_something_has_gone(
    held: list[Held], bytes_max: int
) -> None:
    gone = evicted(held, bytes_max=bytes_max)
    rest = [each for each in held if each not in gone]
    assert held_bytes(rest) <= bytes_max or held_bytes(rest) == held_bytes(
        [each for each in held if each.is_kept]
    )


@given(stores(), st.integers(0, 400))
def test_each_went_while_there_was_too_much_and_in_the_order_of_use(held: list[Held], bytes_max: int) -> None:
    gone = evicted(held, bytes_max=bytes_max)
    for count in range(len(gone)):
        assert held_bytes([one for one in held if one not in gone[:count]]) > bytes_max
    assert [each.used_s for each in gone] == sorted(each.used_s for each in gone)


@given(stores(), st.integers(0, 400))
def test_what_shares_all_of_its_files_with_what_is_needed_stays(held: list[Held], bytes_max: int) -> None:
    needed = {blob for each in held if each.is_kept for blob in each.blobs}
    assert all(set(each.blobs) - needed for each in evicted(held, bytes_max=bytes_max))


def test_a_file_that_two_need_goes_with_the_second() -> None:
    held = [Held("old", {"a": 10}, 1, False), Held("new", {"a": 10, "b": 5}, 2, False)]
    assert [each.id for each in evicted(held, bytes_max=12)] == ["old", "new"]
    assert evicted(held, bytes_max=15) == []

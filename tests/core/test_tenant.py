"""Are a tenant's shares divided among workers so that all of it is seen to?"""

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.tenant import TenantShare


@given(reserved=st.integers(0, 1000), workers=st.integers(1, 64))
def test_the_parts_of_a_reservation_hold_all_of_it_and_less_than_one_slot_more_each(
    reserved: int, workers: int
) -> None:
    part = TenantShare(reserved_slots=reserved).part(workers).reserved_slots
    assert reserved <= part * workers < reserved + workers

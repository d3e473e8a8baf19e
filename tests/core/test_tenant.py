"""Are a tenant's shares divided among workers so that all of it is seen to, and do its terms agree with each other?"""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.tenant import CacheBoundary, TenantShare, TenantTerms


@given(reserved=st.integers(0, 1000), workers=st.integers(1, 64))
def test_the_parts_of_a_reservation_hold_all_of_it_and_less_than_one_slot_more_each(
    reserved: int, workers: int
) -> None:
    part = TenantShare(reserved_slots=reserved).part(workers).reserved_slots
    assert reserved <= part * workers < reserved + workers


@pytest.mark.parametrize("boundary", [CacheBoundary.KEY, CacheBoundary.USER])
def test_what_is_kept_apart_within_a_tenant_is_not_shared_with_others(boundary: CacheBoundary) -> None:
    """T42: also where the terms come from a database that somebody has edited."""
    with pytest.raises(ValueError, match="set one of them"):
        TenantTerms(cache_group="friends", cache_boundary=boundary)
    stored = msgspec.json.encode({"cache_group": "friends", "cache_boundary": boundary})
    with pytest.raises(msgspec.ValidationError, match="set one of them"):
        msgspec.json.decode(stored, type=TenantTerms)

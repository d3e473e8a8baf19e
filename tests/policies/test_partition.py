"""Slots of a shared prefix cache: never two requests in one, never one tenant's cache for another."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.policies.partition import SlotGrant, SlotTable

TENANTS = ("acme", "beta", "corp")


@given(
    slots=st.integers(1, 5),
    steps=st.lists(st.tuples(st.sampled_from(TENANTS), st.booleans(), st.integers(0, 4)), max_size=80),
)
def test_reuse_is_allowed_exactly_where_the_same_tenant_was_last(
    slots: int, steps: list[tuple[str, bool, int]]
) -> None:
    """T42: a prompt of one tenant can't be seen or timed by another."""
    table, last, held = SlotTable(slots), dict[int, str](), list[SlotGrant]()
    for tenant, begins, which in steps:
        if begins and len(held) < slots:
            grant = table.take(tenant)
            assert grant.index not in [other.index for other in held]
            assert 0 <= grant.index < slots
            assert grant.may_reuse == (last.get(grant.index) == tenant)
            last[grant.index] = tenant
            held.append(grant)
        elif held:
            table.give_back(held.pop(which % len(held)))


def test_a_tenant_gets_the_free_slot_that_it_used_last() -> None:
    table = SlotTable(3)
    first, second = table.take("acme"), table.take("acme")
    table.give_back(second)
    table.give_back(first)
    assert table.take("acme") == SlotGrant(second.index, may_reuse=True)


def test_a_newcomer_gets_the_slot_that_was_unused_for_longest() -> None:
    table = SlotTable(2)
    for tenant in ("acme", "beta", "acme"):
        table.give_back(table.take(tenant))
    assert table.take("corp") == SlotGrant(1, may_reuse=False)


def test_a_table_that_shrinks_gives_out_no_slot_beyond_it_and_grows_again() -> None:
    table = SlotTable(2)
    first, last = table.take("acme"), table.take("acme")
    table.resize(1)
    table.give_back(first)
    assert table.take("acme").index == 0
    table.give_back(last)
    table.resize(3)
    assert {table.take("beta").index, table.take("beta").index} == {1, 2}

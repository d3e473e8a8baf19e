"""Slots of a shared prefix cache: never two requests in one, never one tenant's cache for another."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.policies.partition import SlotGrant, SlotTable

TENANTS = ("acme", "beta", "corp")


@given(
    slots=st.integers(1, 5),
    steps=st.lists(
        st.tuples(st.sampled_from(TENANTS), st.booleans(), st.booleans(), st.integers(0, 4)), max_size=80
    ),
)
def test_reuse_is_allowed_exactly_where_the_same_tenant_filled_the_cache(
    slots: int, steps: list[tuple[str, bool, bool, int]]
) -> None:
    """T42: a prompt of one tenant can't be seen or timed by another."""
    table, filled, held = SlotTable(slots), dict[int, str](), list[tuple[str, SlotGrant]]()
    for tenant, begins, fills, which in steps:
        if begins and len(held) < slots:
            grant = table.take(tenant)
            assert grant.index not in [other.index for _, other in held]
            assert 0 <= grant.index < slots
            assert grant.may_reuse == (filled.pop(grant.index, None) == tenant)
            held.append((tenant, grant))
        elif held:
            holder, grant = held.pop(which % len(held))
            if fills:
                table.fill(grant, holder)
                filled[grant.index] = holder
            table.give_back(grant)


def use(table: SlotTable, tenant: str) -> SlotGrant:
    grant = table.take(tenant)
    table.fill(grant, tenant)
    table.give_back(grant)
    return grant


def test_whoever_was_cut_before_the_engine_worked_may_not_reuse_what_another_left() -> None:
    """T42: a slot that was given out and not filled still holds its former tenant's prompt."""
    table = SlotTable(1)
    use(table, "acme")
    table.give_back(table.take("beta"))
    assert not table.take("beta").may_reuse


def test_a_tenant_gets_the_free_slot_that_it_used_last() -> None:
    table = SlotTable(3)
    first, second = table.take("acme"), table.take("acme")
    for grant in (second, first):
        table.fill(grant, "acme")
        table.give_back(grant)
    assert table.take("acme") == SlotGrant(second.index, may_reuse=True)


def test_a_newcomer_gets_the_slot_that_was_unused_for_longest() -> None:
    table = SlotTable(2)
    for tenant in ("acme", "beta", "acme"):
        use(table, tenant)
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


def test_a_slot_that_moves_to_another_table_takes_along_who_filled_it() -> None:
    """Workers lend slots to each other: the tenant's prompts stay its own, whichever worker has the slot."""
    here, there = SlotTable(0), SlotTable(0)
    here.lend(3, None)
    grant = here.take("acme")
    assert not grant.may_reuse
    here.fill(grant, "acme")
    here.give_back(grant)
    there.lend(*here.withdraw())
    assert there.take("acme").may_reuse


def test_a_slot_that_was_used_elsewhere_in_between_is_not_reused() -> None:
    here = SlotTable(0)
    here.lend(0, "acme")
    here.lend(1, "acme")
    assert here.withdraw() == (0, "acme")
    here.lend(0, "other")
    first, second = here.take("acme"), here.take("acme")
    assert (first.index, first.may_reuse) == (1, True)
    assert (second.index, second.may_reuse) == (0, False)

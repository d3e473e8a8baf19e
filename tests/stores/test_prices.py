"""The price book only grows, refuses what can't be charged exactly, and never changes what the past was charged."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.clock import ManualClock
from headrace.core.errors import ConfigError
from headrace.core.prices import EVERY_MODEL, EVERY_TENANT, Item, Price, rates_of
from headrace.stores import audit, price_file, prices, sqlite
from headrace.stores.database import Database
from headrace.stores.prices import Draft, PriceStore
from headrace.stores.tenants import TenantStore
from tests.stores.test_ledger import Rig, rig, usage_record

__all__ = ["rig"]

NOW_S = ManualClock().wall_s()


@pytest.fixture
def database(rig: Rig) -> Iterator[Database]:
    opened = sqlite.open_file(rig.path)
    TenantStore(sqlite.open_file(rig.path), bytes(32), clock=ManualClock()).close()
    with opened.transaction():
        opened.execute("INSERT INTO tenant (name, created_s) VALUES ('acme', 0)")
    yield opened
    opened.close()


@pytest.fixture
def store(database: Database) -> PriceStore:
    return PriceStore(database, clock=ManualClock(), actor="cli:root")


def use(rig: Rig, name: str, **changes: object) -> None:
    ledger = rig.ledger()
    ledger.append(usage_record(name, **changes), [])
    ledger.stop()


def request_id(wall_s: float) -> str:
    return f"req_{int(wall_s * 1000):012x}{'0' * 20}"


def test_a_version_holds_when_every_worker_knows_it(store: PriceStore) -> None:
    """Two seconds later."""
    [price] = store.enter([Draft("EUR", {Item.INPUT: "0.15"}, model="m")])
    assert price == Price(
        "p1", "", "m", "EUR", NOW_S + prices.LEAD_S, {Item.INPUT: "0.15"}, rates_of({Item.INPUT: "0.15"})
    )
    assert store.versions() == [price]
    book = store.book()
    assert book.find("acme", "m", wall_s=price.valid_from_s) == price
    assert book.find("acme", "m", wall_s=price.valid_from_s - 0.001) is None


def test_the_past_can_not_be_changed(store: PriceStore, rig: Rig) -> None:
    used_s = NOW_S - 3600
    use(rig, request_id(used_s), tenant="acme", model="m", started_s=used_s)
    stated = {Item.INPUT: "1"}
    for draft in (
        Draft("EUR", stated, valid_from_s=used_s - 10),
        Draft("EUR", stated, model="m", valid_from_s=used_s),
        Draft("EUR", stated, tenant="acme", valid_from_s=0.0),
        Draft("EUR", None, tenant="acme", model="m", valid_from_s=used_s),
    ):
        with pytest.raises(ConfigError, match="can't hold from the past on"):
            store.enter([draft])
    assert store.versions() == []
    unused = [
        Draft("EUR", stated, valid_from_s=used_s + 1),
        Draft("EUR", stated, model="other", valid_from_s=0.0),
        Draft("EUR", stated, valid_from_s=NOW_S + 2),
    ]
    assert len(store.enter(unused)) == 3


def test_all_versions_of_a_file_are_entered_or_none(store: PriceStore) -> None:
    good, bad = Draft("EUR", {Item.INPUT: "1"}), Draft("euro", {Item.INPUT: "1"})
    with pytest.raises(ConfigError, match="three capital letters"):
        store.enter([good, bad])
    assert store.versions() == []


def test_what_is_in_the_book_already_is_not_entered_again(store: PriceStore) -> None:
    draft = Draft("EUR", {Item.INPUT: "1"}, valid_from_s=0.0)
    assert len(store.enter([draft])) == 1
    assert store.enter([draft]) == []
    assert len(store.enter([Draft("EUR", {Item.INPUT: "2"}, valid_from_s=0.0)])) == 1


@pytest.mark.parametrize(
    ("draft", "says"),
    [
        (Draft("EUR", {Item.INPUT: "0.0000001"}), "input: 0.0000001 has too many decimals"),
        (Draft("EUR", {Item.OUTPUT: "-1"}), "from 0 to 10000"),
        (Draft("EUR", {Item.OUTPUT: "1,5"}), "not an amount"),
        (Draft("eur", {}), "three capital letters"),
        (Draft("EUR", {}, tenant="nobody"), "no tenant `nobody`"),
        (Draft("EUR", {}, model=""), "a model's name"),
        (Draft("EUR", {}, model="a\nb"), "a model's name"),
    ],
)
def test_what_could_not_be_charged_is_refused(store: PriceStore, draft: Draft, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        store.enter([draft])


def test_nobody_changes_a_version_by_hand_either(store: PriceStore, rig: Rig) -> None:
    store.enter([Draft("EUR", {Item.INPUT: "1"})])
    connection = sqlite3.connect(rig.path)
    try:
        for statement in ("UPDATE price SET stated = 'null'", "DELETE FROM price"):
            with pytest.raises(sqlite3.IntegrityError, match="never changed"):
                connection.execute(statement)
    finally:
        connection.close()


def test_every_version_is_in_the_audit_log_and_counts_as_a_change(
    store: PriceStore, database: Database
) -> None:
    before = store.revision()
    store.enter([Draft("EUR", {Item.INPUT: "1"}, tenant="acme")])
    assert store.revision() > before
    [entry] = audit.entries(database, tenant="acme")
    assert (entry.action, entry.actor, entry.target) == ("price.set", "cli:root", "p1")
    assert entry.changes["prices"] == (None, {"input": "1"})


def test_the_list_shows_what_holds_and_what_will(store: PriceStore) -> None:
    one = {Item.INPUT: "1"}
    entered = store.enter(
        [
            Draft("EUR", one, valid_from_s=0.0),
            Draft("EUR", {Item.INPUT: "2"}, valid_from_s=10.0),
            Draft("EUR", one, model="m", valid_from_s=0.0),
            Draft("EUR", None, model="m", valid_from_s=5.0),
            Draft("EUR", one, valid_from_s=NOW_S + 100),
        ]
    )
    assert prices.in_force(store.versions(), wall_s=NOW_S) == [entered[1], entered[4]]


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=20)
STATED = st.dictionaries(st.sampled_from(Item), st.sampled_from(["0", "1", "0.15", "12.500000"]), min_size=1)
DRAFTS = st.builds(
    Draft,
    currency=st.sampled_from(["EUR", "JPY"]),
    stated=st.one_of(st.none(), STATED.map(lambda stated: dict(sorted(stated.items())))),
    model=st.one_of(st.just(EVERY_MODEL), TEXT),
    tenant=st.sampled_from([EVERY_TENANT, "acme"]),
    valid_from_s=st.integers(0, 2_000_000_000).map(float),
)


@given(drafts=st.lists(DRAFTS, max_size=5))
def test_a_book_that_was_exported_is_imported_as_it_was(drafts: list[Draft]) -> None:
    book = [
        Price("p1", draft.tenant, draft.model, draft.currency, draft.valid_from_s or 0.0, draft.stated, None)
        for draft in drafts
    ]
    text = price_file.write(book)
    if drafts:
        assert price_file.read(text, file="prices.toml") == drafts


def test_numbers_in_a_file_are_read_by_their_digits() -> None:
    """0.1 is one tenth there, not the nearest binary fraction."""
    text = '[[price]]\ncurrency = "EUR"\nvalid_from = 2026-12-01\ninput = 0.1\noutput = 3\n'
    [draft] = price_file.read(text, file="f")
    assert draft == Draft("EUR", {Item.INPUT: "0.1", Item.OUTPUT: "3"}, valid_from_s=1_796_083_200.0)
    quoted = text.replace("2026-12-01", '"2026-12-01T00:00:00"')
    assert price_file.read(quoted, file="f") == [draft]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[price]", "f: "),
        ("", "holds `\\[\\[price\\]\\]` tables"),
        ("price = 1", "holds `\\[\\[price\\]\\]` tables"),
        ('[[price]]\nextra = 1\ncurrency = "EUR"', "unknown key `extra`"),
        ('[[price]]\ninptu = 1\ncurrency = "EUR"', "did you mean `input`"),
        ("[[price]]\ninput = 1", "`currency` is missing"),
        ('[[price]]\ninput = 1\ncurrency = "EUR"\nmodel = 3', "`model` is missing or is no text"),
        ('[[price]]\ncurrency = "EUR"', "at least one price"),
        ('[[price]]\ncurrency = "EUR"\ninput = 1\nwithdrawn = true', "at least one price"),
        ('[[price]]\ncurrency = "EUR"\ninput = true', "decimal number"),
        ('[[price]]\ncurrency = "EUR"\ninput = 1\nvalid_from = "soon"', "a date such as"),
        ('[[price]]\ncurrency = "EUR"\ninput = 1\nvalid_from = 7', "a date such as"),
    ],
)
def test_a_file_that_is_none_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        price_file.read(text, file="f")


def test_opening_waits_for_a_database_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such database"):
        prices.open_prices(tmp_path, clock=ManualClock(), must_exist=True)

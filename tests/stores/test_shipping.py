"""Records of a gateway reach the central database whole and once, whoever dies on the way, and are kept here for a while."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import ConfigError
from headrace.stores import schema, shipping, sqlite
from headrace.stores.postgres import PostgresDatabase
from headrace.stores.shipping import Shipper
from tests.stores.test_ledger import execution_record, usage_record


class Rig:
    """A ledger, written as its writer does, and the central database."""

    def __init__(self, path: Path, url: str) -> None:
        self.clock = ManualClock()
        self.local = sqlite.open_file(path)
        self.central = PostgresDatabase(url)
        schema.migrate(self.central)
        self._path, self._url = path, url

    def shipper(self) -> Shipper:
        """As of a process that has just started."""
        return Shipper(sqlite.open_file(self._path), PostgresDatabase(self._url), clock=self.clock)

    def group(self, *names: str, **changes: object) -> None:
        """One group of the ledger's writer: a row for each request, a row for a failed attempt, and its note."""
        with self.local.transaction():
            for name in names:
                usage = msgspec.structs.asdict(usage_record(name, attempts=2, **changes)) | {
                    "replica": "r1", "generation": 0, "served_started_s": 1.0, "served_s": 0.5, "served_ttft_s": None
                }  # fmt: skip
                attempt = msgspec.structs.asdict(execution_record(name, 1, outcome="upstream_lost"))
                for table, row in (("usage", usage), ("attempt", attempt)):
                    names_ = ", ".join(f'"{column}"' for column in row)
                    self.local.execute(
                        f"INSERT INTO {table} ({names_}) VALUES ({', '.join('?' * len(row))})",
                        tuple(row.values()),
                    )
            shipping.note(self.local.connection, names, at_s=self.clock.wall_s())

    def arrived(self) -> list[str]:
        return [name for (name,) in self.central.rows("SELECT request_id FROM usage ORDER BY request_id")]


@pytest.fixture
def rig(tmp_path: Path, new_postgres_url: Callable[[], str]) -> Iterator[Rig]:
    made = Rig(tmp_path / sqlite.DATABASE_NAME, new_postgres_url())
    yield made
    made.local.close()
    made.central.close()


def ship_all(shipper: Shipper) -> int:
    records = 0
    while True:
        shipment = shipper.step()
        records += shipment.records
        assert shipment.refused == ()
        if shipment.is_last:
            return records


def test_every_row_arrives_as_it_is(rig: Rig) -> None:
    rig.group("req_1", "req_2", user="é", charge_pico=2**60)
    rig.group("req_3", is_streaming=False)
    shipper = rig.shipper()
    assert ship_all(shipper) == 3
    assert ship_all(shipper) == 0
    shipper.close()
    for statement in (
        "SELECT * FROM usage ORDER BY request_id",
        "SELECT * FROM execution ORDER BY request_id, attempt",
    ):
        assert rig.central.rows(statement) == rig.local.rows(statement)
        assert rig.central.rows(statement)


def test_a_record_that_commits_late_is_not_passed_over(rig: Rig) -> None:
    """Ids are made as requests arrive; a long one commits after many that arrived later."""
    shipper = rig.shipper()
    rig.group("req_5", "req_9")
    assert ship_all(shipper) == 2
    rig.group("req_1")
    assert ship_all(shipper) == 1
    assert rig.arrived() == ["req_1", "req_5", "req_9"]
    shipper.close()


def test_a_crash_between_the_two_commits_ships_again_and_doubles_nothing(rig: Rig) -> None:
    """T28, T30: the central commit happened, the mark here did not move."""
    rig.group("req_1", "req_2")
    rig.group("req_3")
    first = rig.shipper()
    ship_all(first)
    first.close()
    rig.local.execute("UPDATE shipping SET number = 0")
    second = rig.shipper()
    assert ship_all(second) == 3
    second.close()
    assert rig.arrived() == ["req_1", "req_2", "req_3"]
    assert rig.central.row("SELECT count(*) FROM execution") == (6,)


def test_a_step_ships_a_bounded_number_of_records(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "RECORDS_MAX", 5)
    for number in range(4):
        rig.group(*(f"req_{number}_{each}" for each in range(3)))
    rig.group(*(f"req_large_{each}" for each in range(9)))
    shipper = rig.shipper()
    steps = []
    while not (shipment := shipper.step()).is_last:
        steps.append(shipment.records)
    assert [*steps, shipment.records] == [3, 3, 3, 3, 9]
    shipper.close()


def test_a_row_that_the_central_database_refuses_is_set_aside_and_holds_nothing_up(rig: Rig) -> None:
    rig.local.execute("PRAGMA ignore_check_constraints = ON")
    rig.group("req_1")
    rig.group("req_bad", prompt_tokens=-1)
    rig.group("req_nul", reason="\0")
    rig.group("req_2")
    shipper = rig.shipper()
    shipment = shipper.step()
    assert shipment.is_last
    assert len(shipment.refused) == 2
    assert shipper.step().records == 0
    shipper.close()
    assert rig.arrived() == ["req_1", "req_2"]
    kept = rig.central.rows("SELECT request_id, record FROM usage_rejected ORDER BY request_id")
    assert [name for name, _ in kept] == ["'req_bad'", "'req_nul'"]
    assert "'prompt_tokens': -1" in kept[0][1]


def test_the_lag_is_the_age_of_what_waits(rig: Rig) -> None:
    shipper = rig.shipper()
    assert shipper.lag_s() == 0.0
    rig.group("req_1")
    rig.clock.advance(7)
    rig.group("req_2")
    assert (shipper.lag_s(), shipping.waiting(rig.local)) == (7.0, 2)
    ship_all(shipper)
    assert (shipper.lag_s(), shipping.waiting(rig.local)) == (0.0, 0)
    shipper.close()


def test_rows_stay_here_for_the_agreed_time_and_what_was_never_shipped_stays(rig: Rig) -> None:
    shipper = rig.shipper()
    rig.group("req_old")
    ship_all(shipper)
    rig.clock.advance(100)
    rig.group("req_unshipped")
    rig.clock.advance(10)
    assert shipper.forget(keep_s=200) == 0
    assert shipper.forget(keep_s=50) == 1
    assert shipper.forget(keep_s=5) == 0
    assert rig.local.rows("SELECT request_id FROM usage") == [("req_unshipped",)]
    assert rig.local.rows("SELECT request_id FROM attempt") == [("req_unshipped",)]
    assert ship_all(shipper) == 1
    assert rig.arrived() == ["req_old", "req_unshipped"]
    shipper.close()


def test_what_a_restored_central_database_lacks_is_shipped_again(rig: Rig) -> None:
    rig.group("req_1")
    rig.group("req_2")
    shipper = rig.shipper()
    ship_all(shipper)
    rig.central.execute("ALTER TABLE usage DISABLE TRIGGER USER")  # a backup from before it, in short
    rig.central.execute("DELETE FROM usage WHERE request_id = 'req_2'")
    assert shipping.ship_again(rig.local) == 2
    ship_all(shipper)
    shipper.close()
    assert rig.arrived() == ["req_1", "req_2"]


def test_a_central_database_that_is_away_is_an_error_and_loses_nothing(rig: Rig) -> None:
    rig.group("req_1")
    away = Shipper(
        sqlite.open_file(Path(rig.local.name)),
        PostgresDatabase("postgresql://nobody@127.0.0.1:1/x"),
        clock=rig.clock,
    )
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1"):
        away.step()
    away.close()
    assert shipping.waiting(rig.local) == 1


def test_a_note_of_nothing_is_none(rig: Rig) -> None:
    shipping.note(rig.local.connection, [], at_s=0.0)
    assert rig.local.rows("SELECT * FROM outbox") == []
    rig.group("req_1")
    assert [json.loads(ids) for (ids,) in rig.local.rows("SELECT request_ids FROM outbox")] == [["req_1"]]


def test_what_a_crash_cut_off_is_known_centrally(rig: Rig) -> None:
    """T29: orphans are listed for all gateways."""
    with rig.local.transaction():
        rig.local.execute("INSERT INTO orphan VALUES ('req_o', 'acme', 'k', 'm', 'r0', 0, 1, 1.5, 2.5)")
        shipping.note(rig.local.connection, ["req_o"], at_s=2.5)
    shipper = rig.shipper()
    assert ship_all(shipper) == 1
    shipper.close()
    assert rig.central.rows("SELECT * FROM orphan") == rig.local.rows("SELECT * FROM orphan") != []

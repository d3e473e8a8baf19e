"""A backup holds all of one moment, comes back whole or not at all, and replaces nothing unasked."""

import json
import sqlite3
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from headrace.core import keys
from headrace.core.clock import ManualClock
from headrace.core.errors import ConfigError
from headrace.core.tenant import TenantLimits
from headrace.stores import backup, directory, opening, pepper, sqlite, tenants
from headrace.stores.ledger import Ledger
from tests.stores.test_ledger import execution_record, usage_record

DEFAULTS = TenantLimits(requests_per_minute=60, requests_burst=6, concurrency_max=4)


class Rig:
    """A data directory with a tenant, a key and three records, and one to restore into."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        self.data, self.other, self.archive = root / "data", root / "other", root / "archive"
        store = tenants.open_tenants(self.data, clock=self.clock)
        store.create_tenant("acme")
        _, self.secret = store.create_key("acme")
        store.close()
        self.append("req_1", "req_2", "req_3")

    def append(self, *names: str) -> None:
        ledger = Ledger(self.data / sqlite.DATABASE_NAME, clock=self.clock, on_failure=print)
        ledger.start()
        for name in names:
            ledger.append(usage_record(name), [execution_record(name)])
        ledger.stop()

    def make(self) -> backup.Contents:
        return backup.make(self.data, self.archive, clock=self.clock)

    def rings(self, data: Path) -> bool:
        store = tenants.open_tenants(data, clock=self.clock)
        ring = store.key_ring(DEFAULTS)
        store.close()
        return keys.digest(pepper.load(data / pepper.NAME), self.secret.encode()) in ring

    def records(self, data: Path) -> list[str]:
        database = opening.open_database(data, must_exist=True)
        names = [name for (name,) in database.rows("SELECT request_id FROM usage ORDER BY request_id")]
        database.close()
        return names

    def changed(self, name: str, content: bytes) -> None:
        """The archive with another content of one part."""
        with tarfile.open(self.archive) as tar:
            parts = {each.name: tar.extractfile(each).read() for each in tar}  # type: ignore[union-attr]
        parts[name] = content
        with tarfile.open(self.archive, "w:gz") as tar:
            for each, data in parts.items():
                member = tarfile.TarInfo(each)
                member.size = len(data)
                tar.addfile(member, BytesIO(data))


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_what_was_backed_up_comes_back_and_works(rig: Rig) -> None:
    made = rig.make()
    rig.append("req_4")
    assert (made.records, made.created_s) == (3, rig.clock.wall_s())
    assert rig.archive.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in rig.archive.parent.iterdir() if each.name.startswith(".")] == []
    assert backup.restore(rig.archive, rig.other) == made
    assert rig.records(rig.other) == ["req_1", "req_2", "req_3"]
    assert rig.rings(rig.other)
    for name in (pepper.NAME, sqlite.DATABASE_NAME):
        assert (rig.other / name).stat().st_mode & 0o077 == 0


def test_a_writer_that_is_at_work_neither_waits_nor_spoils_the_copy(rig: Rig) -> None:
    connection = sqlite.connect(rig.data / sqlite.DATABASE_NAME)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO usage_rejected VALUES ('half', '', '')")
    rig.make()
    connection.execute("COMMIT")
    connection.close()
    backup.restore(rig.archive, rig.other)
    restored = sqlite3.connect(rig.other / sqlite.DATABASE_NAME)
    assert restored.execute("SELECT count(*) FROM usage_rejected").fetchone() == (0,)
    restored.close()


def test_nothing_is_replaced_unasked_and_what_is_replaced_is_kept(rig: Rig) -> None:
    rig.make()
    with pytest.raises(ConfigError, match="exists already"):
        rig.make()
    rig.append("req_4")
    with pytest.raises(ConfigError, match="--force"):
        backup.restore(rig.archive, rig.data)
    assert rig.records(rig.data) == ["req_1", "req_2", "req_3", "req_4"]
    backup.restore(rig.archive, rig.data, force=True)
    assert rig.records(rig.data) == ["req_1", "req_2", "req_3"]
    kept = sqlite3.connect(rig.data / f"{sqlite.DATABASE_NAME}.replaced")
    assert kept.execute("SELECT count(*) FROM usage").fetchone() == (4,)
    kept.close()


def test_a_directory_in_use_is_left_alone(rig: Rig) -> None:
    rig.make()
    with directory.sole_user(rig.other), pytest.raises(ConfigError, match="in use"):
        backup.restore(rig.archive, rig.other)
    assert not (rig.other / sqlite.DATABASE_NAME).exists()


@pytest.mark.parametrize("cut", [0, 1, 10, 100, 1000, -1000])
def test_an_archive_that_was_cut_restores_nothing(rig: Rig, cut: int) -> None:
    """T30."""
    rig.make()
    rig.archive.write_bytes(rig.archive.read_bytes()[:cut])
    with pytest.raises(ConfigError, match="archive"):
        backup.restore(rig.archive, rig.other)
    assert not [each for each in rig.other.rglob("*") if each.is_file()]


def test_another_content_than_was_backed_up_is_refused(rig: Rig) -> None:
    rig.make()
    whole = rig.archive.read_bytes()
    for name, content in (
        (pepper.NAME, b"x" * 32),
        (sqlite.DATABASE_NAME, b""),
        ("manifest.json", b"{}"),
        ("manifest.json", b"[1"),
        ("manifest.json", b'{"format": 2, "version": "9.0"}'),
        ("manifest.json", json.dumps({"format": 1, "version": "", "sha256": {}, "created_s": 0}).encode()),
    ):
        rig.archive.write_bytes(whole)
        rig.changed(name, content)
        with pytest.raises(ConfigError):
            backup.restore(rig.archive, rig.other)
    assert not [each for each in rig.other.rglob("*") if each.is_file()]


def test_names_that_lead_elsewhere_are_passed_over(rig: Rig, tmp_path: Path) -> None:
    rig.make()
    rig.changed("../escaped", b"out")
    backup.restore(rig.archive, rig.other)
    assert not (tmp_path / "escaped").exists()
    assert sorted(each.name for each in rig.other.iterdir()) == ["headrace.db", "pepper"]


def test_a_backup_by_a_newer_version_is_refused(rig: Rig) -> None:
    connection = sqlite3.connect(rig.data / sqlite.DATABASE_NAME)
    connection.execute("INSERT INTO migration (number, name) VALUES (999, 'from the future')")
    connection.commit()
    connection.close()
    with pytest.raises(ConfigError, match="newer headrace"):
        rig.make()


def test_a_directory_without_a_pepper_is_no_backup(rig: Rig) -> None:
    (rig.data / pepper.NAME).unlink()
    with pytest.raises(ConfigError, match="pepper"):
        rig.make()
    assert not rig.archive.exists()


def test_where_the_central_database_is_comes_along(rig: Rig) -> None:
    opening.remember(rig.data, "env:HEADRACE_DATABASE_URL")
    rig.make()
    backup.restore(rig.archive, rig.other)
    assert opening.remembered(rig.other) == "env:HEADRACE_DATABASE_URL"

"""`headrace db`: each command does what its help says, on either kind of database, and refuses what would hurt."""

import json
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from headrace.cli.main import main
from headrace.core.errors import ConfigError
from headrace.stores import directory, opening, schema
from tests.support.postgres import PASSWORD

Shown = Callable[..., str]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def run(data: Path, capsys: pytest.CaptureFixture[str]) -> Shown:
    """Runs a command on the data directory, and returns what it said; it must end with `status`."""

    def run_one(*arguments: str, status: int = 0) -> str:
        ended = main([*arguments, "--data", str(data)])
        told = capsys.readouterr()
        assert ended == status, told.err
        assert PASSWORD not in told.out + told.err
        return told.out if status == 0 else told.err

    return run_one


@pytest.fixture
def reference(tmp_path: Path, new_postgres_url: Callable[[], str]) -> str:
    """Of an empty central database."""
    (tmp_path / "url").write_text(new_postgres_url())
    return f"file:{tmp_path / 'url'}"


def schemas(run: Shown) -> list[tuple[str, int]]:
    status = json.loads(run("db", "status", "--json"))
    return [(row["kind"], row["schema"]) for row in status["databases"]]


def test_a_directory_without_a_database_is_a_mistake(run: Shown) -> None:
    for command in (("status",), ("migrate",), ("downgrade", "--to", "1"), ("backup", "x"), ("ship",)):
        assert "--data" in run("db", *command, status=2)


def test_the_schema_goes_back_and_forth_and_a_loss_is_asked_about(run: Shown) -> None:
    run("tenants", "create", "acme", "--weight", "3")
    assert schemas(run) == [("SQLite", schema.NEWEST)]
    told = run("db", "downgrade", "--to", "3", status=2)
    assert "--lose" in told
    assert "audit log" in told
    assert schemas(run) == [("SQLite", schema.NEWEST)], "refused whole, not half"
    run("db", "downgrade", "--to", "3", "--lose")
    assert schemas(run) == [("SQLite", 3)]
    run("db", "migrate", "--to", "4")
    assert schemas(run) == [("SQLite", 4)]
    run("db", "migrate")
    assert schemas(run) == [("SQLite", schema.NEWEST)]
    assert json.loads(run("tenants", "list", "--json"))[0]["tenant"] == "acme"
    assert "from 0 to" in run("db", "migrate", "--to", "999", status=2)


def test_an_older_schema_under_a_running_service_is_left_as_it_is(run: Shown, data: Path) -> None:
    """A newer command beside an older service: the schema would change under its feet."""
    run("tenants", "create", "acme")
    run("db", "downgrade", "--to", "4", "--lose")
    with directory.sole_user(data):
        for command in (("tenants", "list"), ("keys", "create", "--tenant", "acme"), ("usage",)):
            assert "headrace db migrate" in run(*command, status=2)
        for step in (("db", "migrate"), ("db", "downgrade", "--to", "1", "--lose")):
            assert "in use" in run(*step, status=2)
        assert schemas(run) == [("SQLite", 4)]
    run("tenants", "list")
    assert schemas(run) == [("SQLite", schema.NEWEST)]


def test_a_backup_is_made_and_restored(run: Shown, data: Path, tmp_path: Path) -> None:
    key = run("keys", "create", "--tenant", "acme").strip()
    archive = str(tmp_path / "archive")
    assert json.loads(run("db", "backup", archive, "--json"))["schema"] == schema.NEWEST
    assert "exists already" in run("db", "backup", archive, status=2)
    assert "--force" in run("db", "restore", archive, status=2)
    assert "restored" in run("db", "restore", archive, "--force")
    (listed,) = json.loads(run("keys", "list", "--json"))
    assert listed["id"] == key.split("_")[2]


def test_a_directory_moves_to_a_central_database_and_commands_follow(
    run: Shown, data: Path, reference: str
) -> None:
    run("tenants", "create", "acme", "--weight", "3")
    run("keys", "create", "--tenant", "acme")
    copied = json.loads(run("db", "move", "--to", reference, "--json"))
    assert (copied["tenant"], copied["api_key"]) == (1, 1)
    assert "already" in run("db", "move", "--to", reference, status=2)
    assert schemas(run) == [("SQLite", schema.NEWEST), ("PostgreSQL", schema.NEWEST)]
    run("tenants", "create", "globex")
    assert [row["tenant"] for row in json.loads(run("tenants", "list", "--json"))] == ["acme", "globex"]
    with psycopg.connect(Path(reference.partition(":")[2]).read_text()) as connection:
        assert connection.execute("SELECT count(*) FROM tenant").fetchone() == (2,)
    assert "0 records" in run("db", "ship", "--again")
    run("audit", "verify")
    status = json.loads(run("db", "status", "--json"))
    assert (status["unshipped"], status["used_by"]) == (0, [])


def test_other_gateways_are_asked_before_the_schema_changes_under_them(
    run: Shown, data: Path, reference: str
) -> None:
    run("tenants", "create", "acme")
    run("db", "move", "--to", reference)
    url = Path(reference.partition(":")[2]).read_text()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO gateway (id, host, pid, version, schema_number, seen_s)"
            " VALUES ('x', 'other.example', 1, '0.0.9', 1, extract(epoch FROM clock_timestamp()))"
        )
        back = str(schema.NEWEST - 1)
        assert "other.example" in run("db", "downgrade", "--to", back, "--lose", status=2)
        run("db", "downgrade", "--to", back, "--lose", "--although-running")
        assert "other.example" in run("tenants", "list", status=2)
        assert "other.example" in json.loads(run("db", "status", "--json"))["used_by"][0]
        connection.execute("UPDATE gateway SET seen_s = 0")
        run("tenants", "list")
        assert schemas(run)[1] == ("PostgreSQL", schema.NEWEST)


def test_without_its_address_nothing_falls_back_to_the_copy(
    run: Shown, data: Path, reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key made in the copy would be gone with the next look at the central database."""
    monkeypatch.setenv("HEADRACE_TEST_URL", Path(reference.partition(":")[2]).read_text())
    run("tenants", "create", "acme")
    run("db", "move", "--to", "env:HEADRACE_TEST_URL")
    run("tenants", "list")
    monkeypatch.delenv("HEADRACE_TEST_URL")
    assert "HEADRACE_TEST_URL is not set" in run("keys", "create", "--tenant", "acme", status=2)
    assert opening.remembered(data) == "env:HEADRACE_TEST_URL"


def test_a_service_goes_on_by_its_copy_alone_only_when_told_so(
    run: Shown, data: Path, reference: str
) -> None:
    run("tenants", "create", "acme")
    run("db", "move", "--to", reference)
    with directory.sole_user(data), pytest.raises(ConfigError, match="delete"):
        opening.prepare(data, "")
    (data / opening.REFERENCE_NAME).unlink()
    with directory.sole_user(data):
        opening.prepare(data, "")
    assert schemas(run) == [("SQLite", schema.NEWEST)]
    local = opening.open_local(data)
    assert local.rows("SELECT * FROM mirror") == []
    local.close()
    run("tenants", "create", "globex")

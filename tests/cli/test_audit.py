"""`headrace audit` as a person and a script meet it."""

import json
import pwd
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.stores import sqlite


def run(capture: pytest.CaptureFixture[str], data: Path, line: str) -> tuple[int, str, str]:
    status = main([*line.split(), "--data", str(data)])
    printed = capture.readouterr()
    return status, printed.out, printed.err


def test_a_command_is_in_the_log_under_the_name_of_who_ran_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, tmp_path, "tenants create acme --weight 3 --organization acme-group")
    run(capsys, tmp_path, "keys create --tenant globex")
    _, out, _ = run(capsys, tmp_path, "audit list --json")
    entries = json.loads(out)
    assert [entry["action"] for entry in entries] == ["tenant.create", "tenant.create", "key.create"]
    assert {entry["actor"] for entry in entries} == {f"cli:{pwd.getpwuid(tmp_path.stat().st_uid).pw_name}"}
    assert entries[0]["changes"] == {
        "weight": {"old": 1, "new": 3},
        "organization": {"old": "", "new": "acme-group"},
    }
    _, out, _ = run(capsys, tmp_path, "audit list --tenant acme --since 1h --limit 5")
    assert 'organization: "" -> "acme-group", weight: 1 -> 3' in out
    assert "globex" not in out
    _, out, _ = run(capsys, tmp_path, "audit list --after 2 --json")
    assert [entry["number"] for entry in json.loads(out)] == [3]


def test_verify_says_whether_the_log_is_whole_and_fails_where_it_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        run(capsys, tmp_path, f"tenants create t{number}")
    status, out, _ = run(capsys, tmp_path, "audit verify")
    head = out.split()[-1]
    assert (status, out) == (0, f"3 entries, unbroken; head {head}\n")
    assert run(capsys, tmp_path, f"audit verify --head {head}")[0] == 0
    status, _, err = run(capsys, tmp_path, f"audit verify --head 2:{head.partition(':')[2]}")
    assert (status, "entry 2 is another" in err) == (1, True)
    assert run(capsys, tmp_path, "audit verify --head nonsense")[0] == 2
    with closing(sqlite3.connect(tmp_path / sqlite.DATABASE_NAME)) as connection, connection:
        connection.execute("DROP TRIGGER audit_no_update")
        connection.execute("UPDATE audit SET actor = 'nobody' WHERE number = 2")
    status, out, err = run(capsys, tmp_path, "audit verify")
    assert (status, out) == (1, "")
    assert "entry 2 was changed after it was written; the 1 before it are in order" in err
    status, out, _ = run(capsys, tmp_path, "audit verify --json")
    assert (status, json.loads(out)["entries"]) == (1, 1)

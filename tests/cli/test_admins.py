"""`headrace admins` and the end of a tenant, as a person and a script meet them."""

import json
import re
from pathlib import Path

import pytest

from headrace.cli.main import main

TOKEN = re.compile(r"hr_admn_[a-z0-9]{8}_[A-Za-z0-9_-]{43}_[0-9a-f]{8}")


def run(capture: pytest.CaptureFixture[str], data: Path, line: str) -> tuple[int, str, str]:
    status = main([*line.split(), "--data", str(data)])
    printed = capture.readouterr()
    return status, printed.out, printed.err


def test_an_admin_token_is_printed_once_listed_without_it_and_revoked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """T47: also a token that is pasted where its id belongs doesn't come back."""
    status, token, err = run(capsys, tmp_path, "admins create --role viewer --name grafana --expires 30d")
    token_id = token[8:16]
    assert status == 0
    assert TOKEN.fullmatch(token.strip())
    assert f"viewer `{token_id}`" in err
    _, listed, _ = run(capsys, tmp_path, "admins list")
    assert all(word in listed for word in (token_id, "viewer", "grafana", "active"))
    _, _, revoked = run(capsys, tmp_path, f"admins revoke {token_id}")
    _, as_json, _ = run(capsys, tmp_path, "admins list --json")
    assert [(row["id"], row["state"]) for row in json.loads(as_json)] == [(token_id, "revoked")]
    status, out, pasted = run(capsys, tmp_path, f"admins revoke {token.strip()}")
    assert (status, "by their id" in pasted) == (2, True)
    assert token[17:60] not in err + listed + revoked + as_json + out + pasted


def test_a_tenant_is_removed_when_its_keys_have_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, key, _ = run(capsys, tmp_path, "keys create --tenant acme")
    status, _, err = run(capsys, tmp_path, "tenants delete acme")
    assert (status, f"has keys that work ({key[8:16]}); revoke them first" in err) == (2, True)
    _, new, _ = run(capsys, tmp_path, f"keys rotate {key[8:16]} --overlap 0s")
    run(capsys, tmp_path, f"keys revoke {new[8:16]}")
    assert run(capsys, tmp_path, "tenants delete acme")[0] == 0
    assert run(capsys, tmp_path, "tenants list --json")[1] == "[]\n"
    assert run(capsys, tmp_path, "keys list --json")[1] == "[]\n"
    assert "tenant.delete" in run(capsys, tmp_path, "audit list")[1]
    status, _, err = run(capsys, tmp_path, "tenants delete acme")
    assert (status, "no tenant `acme`" in err) == (2, True)

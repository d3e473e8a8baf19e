"""`headrace tenants`: what is agreed is shown in the words in which it is given."""

from pathlib import Path

import pytest

from headrace.cli.main import main


def test_what_is_agreed_is_shown_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*command: str) -> list[str]:
        assert main(["tenants", *command, "--data", str(tmp_path)]) == 0
        return capsys.readouterr().out.splitlines()

    said("create", "acme", "--budget", "0.0005/month", "--quota", "requests/day=5", "--quota",
         "tokens/month=10000", "--location", "eu", "--location", "us", "--durable", "on")  # fmt: skip
    shown = said("show", "acme")
    for line in (
        "budgets 0.0005/month",
        "is durable yes",
        "locations eu, us",
        "quotas requests/day=5, tokens/month=10000",
    ):
        assert line in shown
    heading, row = said("list")
    at = heading.index("DURABLE")
    assert row[at:].startswith("yes ")

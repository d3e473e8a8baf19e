"""`headrace slo check` and `headrace status` on a service that runs: what its callers got, and what each result cost."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.fleet import Fleet, fleet
from tests.support.provider import wait_until

PROMISED = """
deployment = "chat"
failure_share_max = 0.05

[[objectives]]
metric = "total"
within_ms = 30000
share = 0.9

[cost]
currency = "EUR"
per_qualified_result_max = {most}
"""
ASKED = 60


def check(running: Fleet, file: Path, *more: str) -> tuple[int, dict[str, Any]]:
    done = running.service.cli("slo", "check", str(file), "--window", "1h", "--json", *more, check=False)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
def test_a_running_service_is_held_to_what_its_results_may_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One replica at 360 EUR an hour costs 10 cents a second, at work or idle: 60 answers within some seconds are cents each."""
    (tmp_path / "slos").mkdir()
    dear, cheap = tmp_path / "slos" / "chat.toml", tmp_path / "cheap.toml"
    dear.write_text(PROMISED.format(most="1000"))
    cheap.write_text(PROMISED.format(most="0.000001"))
    quality = tmp_path / "quality.json"
    monkeypatch.chdir(tmp_path)
    with fleet() as running:
        running.apply(
            "chat", sections={"budget": {"replica_hour": "360", "currency": "EUR"}}, ttft_ms=1, tokens=1
        )
        # Without asking: what is refused before it is ready is a broken promise too.
        wait_until(lambda: running.ready("chat") == ["chat@v1"], what="a ready replica")
        assert {running.ask("chat")[0] for _ in range(ASKED)} == {200}

        def is_recorded() -> bool:
            found = check(running, dear)[1]
            return found["intended"] >= ASKED and found["cost"]["spent_pico"] > 0

        wait_until(is_recorded, what="the records of all, and the first decision's")
        status, found = check(running, dear)
        assert (status, found["verdict"]) == (0, "pass"), found
        cost = found["cost"]
        assert cost["qualified"] >= ASKED
        assert cost["per_result_pico"] == -(-cost["spent_pico"] // cost["qualified"])
        assert cost["spent_pico"] > 0
        status, found = check(running, cheap)
        assert (status, found["cost"]["verdict"]) == (1, "fail")
        assert (
            "EUR for each of"
            in running.service.cli("slo", "check", str(cheap), "--window", "1h", check=False).stdout
        )
        quality.write_text(json.dumps(_quality(right=0.5)))
        _, found = check(running, dear, "--quality", str(quality))
        assert found["cost"]["qualified"] <= found["intended"] / 2
        shown = json.loads(running.service.cli("status", "--json").stdout)["slos"]
        (row,) = shown
        assert row["deployment"] == "chat"
        assert row["intended"] >= ASKED
        assert [each["name"] for each in row["promises"]] == ["failures", "total 30000 ms"]
        assert row["promises"][0]["burn_rates"] == {"5m": 0.0, "1h": 0.0}
        (tmp_path / "slos" / "odd.toml").write_text("deployment = 7")
        told = running.service.cli("status").stdout
        assert "BURN RATE (1 H)" in told
        assert "promise slos/odd.toml" in told


def _quality(*, right: float) -> dict[str, Any]:
    """What `headrace eval --json` says, as far as it matters here."""
    return {
        "verdict": None,
        "detail": "",
        "set": {"name": "s", "kind": "acceptance", "version": 1, "digest": "", "cases": 10},
        "candidate": {
            "model": "chat",
            "revisions": [],
            "tally": {"right": 5, "wrong": 5, "errors": 0},
            "share": {"estimate": right, "low": 0.2, "high": 0.8},
        },
    }

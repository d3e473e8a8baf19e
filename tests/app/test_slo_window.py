"""Whether a promise was kept of late is told by what a service served and by what it turned away."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.policies.slo_requests import OUR_REASONS
from tests.support.fleet import Fleet, fleet
from tests.support.provider import wait_until

PROMISE = 'deployment = "chat"\nfailure_share_max = 0.01\n[[objectives]]\nmetric = "ttft"\nwithin_ms = 60000\nshare = 0.95\n'
ASKED = 12


def check(running: Fleet, promise: Path) -> tuple[int, dict[str, Any]]:
    done = running.service.cli("slo", "check", str(promise), "--window", "1h", "--json", check=False)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
def test_what_was_turned_away_counts_though_it_leaves_no_record(tmp_path: Path) -> None:
    """One slot, no queue, and a dozen callers at once: most of them are refused, by the service's fault."""
    promise = tmp_path / "chat.toml"
    promise.write_text(PROMISE)
    with fleet(config="[admission]\nqueue_length_max = 0\n") as running:
        running.apply("chat", slots=1, ttft_ms=200, tokens=1)
        running.until_ready("chat@v1", name="chat")
        with ThreadPoolExecutor(ASKED) as pool:
            statuses = list(pool.map(lambda _: running.ask("chat")[0], range(ASKED)))
        assert statuses.count(503) >= ASKED // 2
        counted = running.service.status()["requests"]
        served = sum(counted["delivered"].values())
        refused = sum(count for reason, count in counted["refused"].items() if reason in OUR_REASONS)

        def all_known() -> tuple[int, dict[str, Any]] | None:
            """Once the service has heard of all that it turned away, and the ledger of all that it served."""
            status, facts = check(running, promise)
            return (status, facts) if facts["intended"] == served + refused else None

        status, facts = wait_until(all_known, what="every request to be counted")
        assert status == 1
        assert facts["fates"] == {"whole": served, "refused": refused}
        (failures, ttft) = facts["kept"]
        assert failures["tally"]["bad"] == {"refused": refused}
        assert ttft["misses"] == failures["misses"], "who was refused saw no first token in time"
        assert set(facts["burn_rates"]["failures"]) == {"5m", "1h"}
        assert facts["burn_rates"]["failures"]["5m"] > 1
        assert "What was turned away before" in facts["notes"][0], (
            "the service has been up for less than the window"
        )
        shown = running.service.cli("slo", "check", str(promise), "--window", "1h", check=False).stdout
        assert "BURN RATE" in shown
        running.service.stop()
        stopped = running.service.cli("slo", "check", str(promise), "--window", "1h", check=False)
        assert "No service runs here" in stopped.stdout

"""`headrace tenants`, `keys` and `usage` as a person and a script meet them."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import main
from headrace.core.clock import SystemClock
from headrace.core.ids import KeyId, ReplicaId, RequestId, TenantId
from headrace.core.usage import ExecutionRecord, UsageRecord
from headrace.stores import sqlite
from headrace.stores.ledger import Ledger

KEY = re.compile(r"hr_(live|test)_[a-z0-9]{8}_[A-Za-z0-9_-]{43}_[0-9a-f]{8}")


class Shell:
    """Runs commands on one data directory and reads what they print."""

    def __init__(self, data: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.data = data
        self._capture = capture

    def run(self, line: str) -> tuple[int, str, str]:
        self._capture.readouterr()
        status = main([*line.split(), "--data", str(self.data)])
        printed = self._capture.readouterr()
        return status, printed.out, printed.err

    def json(self, line: str) -> list[dict[str, Any]]:
        status, out, _ = self.run(f"{line} --json")
        assert status == 0
        value: list[dict[str, Any]] = json.loads(out)
        return value


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path / "data", capsys)


def test_keys_create_prints_the_key_alone_and_makes_the_tenant(shell: Shell) -> None:
    status, out, err = shell.run("keys create --tenant acme --name ci --expires 30d")
    assert status == 0
    assert KEY.fullmatch(out.removesuffix("\n"))
    assert "`acme` did not exist" in err
    assert out.strip() not in err
    _, _, err = shell.run("keys create --tenant acme --env test")
    assert "did not exist" not in err
    ci, test = shell.json("keys list --tenant acme")
    assert (ci["name"], ci["env"], ci["state"], test["env"], test["expires"]) == (
        "ci",
        "live",
        "active",
        "test",
        None,
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(ci["expires"]))


def test_no_command_shows_a_key_again(shell: Shell) -> None:
    """T47: only `create` and `rotate` print a key, each its new one; a pasted key doesn't come back in an error."""
    _, secret, _ = shell.run("keys create --tenant acme")
    canary = secret[17:60]
    key_id = secret[8:16]
    lines = [
        "keys list",
        "keys list --json",
        "tenants list",
        f"keys revoke {secret}",
        f"keys rotate {key_id}",
    ]
    lines += [f"keys revoke {key_id}", f"keys rotate {key_id}", "usage"]
    for line in lines:
        _, out, err = shell.run(line)
        assert canary not in out + err, line


def test_a_key_is_rotated_and_revoked_by_its_id(shell: Shell) -> None:
    """T39."""
    _, secret, _ = shell.run("keys create --tenant acme --name ci")
    key_id = secret[8:16]
    status, rotated, err = shell.run(f"keys rotate {key_id} --overlap 1h")
    assert status == 0
    assert KEY.fullmatch(rotated.strip())
    assert f"`{key_id}` ends at" in err
    assert shell.run(f"keys revoke {rotated[8:16]}")[0] == 0
    old, new = shell.json("keys list")
    assert (old["state"], new["state"], new["replaces"]) == ("active", "revoked", key_id)
    status, _, err = shell.run(f"keys rotate {rotated[8:16]}")
    assert status == 2
    assert "is revoked" in err


def test_tenants_are_created_changed_and_listed(shell: Shell) -> None:
    shell.run("tenants create acme --requests-per-minute 1200 --concurrency 8")
    assert shell.run("tenants set acme --requests-burst 5 --concurrency default")[0] == 0
    (acme,) = shell.json("tenants list")
    limits = [acme[name] for name in ("requests_per_minute", "requests_burst", "concurrency_max")]
    assert limits == [1200, 5, None]
    _, table, _ = shell.run("tenants list")
    assert table.splitlines()[1].split()[:4] == ["acme", "1200", "5", "default"]


def test_the_shares_of_tenants_are_set_and_listed_and_what_is_not_given_stays(shell: Shell) -> None:
    shell.run("tenants create acme --class high --weight 3")
    shell.run("tenants create beta")
    assert shell.run("tenants set acme --reserved-slots 2")[0] == 0
    shares = [
        [one[name] for name in ("class", "weight", "reserved_slots")] for one in shell.json("tenants list")
    ]
    assert shares == [["high", 3, 2], ["normal", 1, 0]]
    _, table, _ = shell.run("tenants list")
    assert [row.split()[5:8] for row in table.splitlines()[1:]] == [["high", "3", "2"], ["normal", "1", "0"]]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("tenants set acmee --concurrency 1", "did you mean `acme`"),
        ("tenants create acme", "exists already"),
        ("tenants create Acme", "a-z, 0-9"),
        ("tenants create b --requests-burst 0", "from 1"),
        ("tenants create b --weight 0", "from 1 to 1000"),
        ("tenants create b --reserved-slots -1", "from 0 to"),
        ("tenants create b --requests-per-minute 99999999999999999999", "from 0 to 1000000000"),
        ("keys create --tenant acme --name a\udcff", "printable"),
        ("keys list --tenant acne", "did you mean `acme`"),
        ("keys revoke nosuchid", "see `headrace keys list`"),
        ("usage --tenant acne", "did you mean `acme`"),
    ],
)
def test_a_mistake_is_one_clear_line_and_status_2(shell: Shell, line: str, says: str) -> None:
    shell.run("tenants create acme")
    status, out, err = shell.run(line)
    assert status == 2
    assert not out
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("line", ["usage", "keys list", "tenants list", "keys revoke abcdefgh"])
def test_a_mistyped_directory_is_an_error_and_no_new_database(shell: Shell, line: str) -> None:
    status, _, err = shell.run(line)
    assert status == 2
    assert "no such database" in err
    assert not shell.data.exists()


@pytest.fixture
def used(shell: Shell) -> Shell:
    ledger = Ledger(shell.data / sqlite.DATABASE_NAME, clock=SystemClock(), on_failure=print)
    ledger.start()
    now_s = time.time()
    for number, (tenant, outcome, source, age_s) in enumerate(
        [
            ("acme", "delivered", "final", 5.0),
            ("acme", "cancelled", "estimated", 4.0),
            ("acme", "broken", "unknown", 3.0),
            ("globex", "delivered", "final", 90_000.0),
        ]
    ):
        milliseconds = int((now_s - age_s) * 1000)  # ids begin with the time of arrival
        name = RequestId(f"req_{milliseconds:012x}{number}")
        usage = UsageRecord(
            name, TenantId(tenant), KeyId("k3x9q2ab"), "m", "unpinned", "/v1/chat/completions", False,
            now_s - age_s, outcome, "ok", 200, 30, 10, 20, source, 0.0, 0.125, 1.5, 1,
        )  # fmt: skip
        execution = ExecutionRecord(
            name, 1, ReplicaId("r0"), 0, now_s - age_s, 1.5, 0.125, "completed", 200, 30, 10, 20, source
        )
        ledger.append(usage, [execution])
    ledger.stop()
    return shell


def test_usage_is_summed_by_tenant_and_model(used: Shell) -> None:
    """T31: what is unknown is counted as unknown and is in no sum."""
    acme, globex = used.json("usage")
    assert (acme["tenant"], acme["model"], acme["requests"], acme["unknown"]) == ("acme", "m", 3, 1)
    assert (acme["delivered"], acme["cancelled"], acme["broken"]) == (1, 1, 1)
    assert (acme["prompt_tokens"], acme["cached_tokens"], acme["completion_tokens"]) == (60, 40, 20)
    assert acme["estimated_share"] == 0.5
    assert (globex["requests"], globex["estimated_share"]) == (1, 0)
    _, table, _ = used.run("usage")
    heading, first, *_ = table.splitlines()
    shown = dict(zip(heading.split(), first.split(), strict=True))
    assert (shown["TENANT"], shown["REQUESTS"], shown["ESTIMATED"], shown["UNKNOWN"]) == (
        "acme",
        "3",
        "50.0%",
        "1",
    )


def test_usage_is_cut_by_time_and_tenant_and_grouped(used: Shell) -> None:
    assert [row["tenant"] for row in used.json("usage --since 24h")] == ["acme"]
    assert [row["tenant"] for row in used.json("usage --since 2020-01-01 --tenant globex")] == ["globex"]
    assert used.json("usage --since 2999-01-01") == []
    outcomes = {row["outcome"]: row["requests"] for row in used.json("usage --by outcome")}
    assert outcomes == {"delivered": 2, "cancelled": 1, "broken": 1}
    unknown = next(row for row in used.json("usage --by outcome") if row["outcome"] == "broken")
    assert unknown["prompt_tokens"] is None
    assert sum(int(str(row["requests"])) for row in used.json("usage --by day")) == 4


def test_single_requests_come_newest_first_with_their_attempts(used: Shell) -> None:
    newest, second, *_ = used.json("usage --requests --limit 3")
    assert (newest["request_id"][-1], newest["prompt_tokens"], newest["usage_source"]) == (
        "2",
        None,
        "unknown",
    )
    assert (second["request_id"][-1], second["prompt_tokens"], second["ttft_s"]) == ("1", 30, 0.125)
    executions = second["executions"]
    assert isinstance(executions, list)
    assert [(each["replica"], each["attempt"]) for each in executions] == [("r0", 1)]
    _, table, _ = used.run("usage --requests")
    assert len(table.splitlines()) == 5
    assert table.splitlines()[1].split().count("unknown") == 4


@pytest.mark.parametrize(
    "line",
    [
        "usage --since yesterday",
        "usage --limit 0",
        "keys create --tenant a --expires 30",
        "keys create --tenant a --expires 999999w",
    ],
)
def test_a_malformed_option_is_refused_with_what_would_be_accepted(
    shell: Shell, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(line.split())
    assert refused.value.code == 2
    assert re.search(r"such as|at least 1|longer than", capsys.readouterr().err)

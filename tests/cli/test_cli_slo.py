"""`headrace slo`: what people read, what programs read, and what Prometheus does with the rules."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from headrace.cli.main import main
from headrace.core.clock import SystemClock
from headrace.core.deployment_terms import SloTerms
from headrace.core.deployments import DeploymentSpec, EngineKind, Identity, Revision, Task
from headrace.core.load_records import Lateness, LoadRecord, LoadRun, Outcome, Window
from headrace.evidence import load_file
from headrace.policies import load_report
from headrace.stores.deployments import DeploymentStore, Meant
from headrace.stores.opening import open_local

FILE = """
deployment = "demo"
window_days = 7
failure_share_max = 0.005

[[objectives]]
metric = "ttft"
within_ms = 200
share = 0.99
"""


IN_TIME = Lateness()


@pytest.fixture
def promised(tmp_path: Path) -> Path:
    path = tmp_path / "demo.toml"
    path.write_text(FILE)
    return path


def run_of(
    path: Path,
    good: int,
    slow: int = 0,
    refused: int = 0,
    *,
    model: str = "demo",
    late: Lateness = IN_TIME,
) -> str:
    """A load test whose requests fared like that."""
    kinds = (
        (good, LoadRecord(0, 1.0, 1.0, 1.1, 1.2, 1.2, Outcome.OK, status=200)),
        (slow, LoadRecord(0, 1.0, 1.0, 1.5, 1.6, 1.6, Outcome.OK, status=200)),
        (refused, LoadRecord(0, 1.0, 1.0, None, None, 1.1, Outcome.REFUSED, status=503)),
    )
    alike = [record for count, record in kinds for _ in range(count)]
    records = [msgspec.structs.replace(record, number=number) for number, record in enumerate(alike)]
    run = LoadRun(
        "w", "sha256:0", 1, "http://x", model, 0.0, 10.0, Window(0.0, 10.0), records, late, [], is_closed=False
    )  # fmt: skip
    path.write_bytes(load_file.encode(load_report.summarise(run), run))
    return str(path)


def check(promised: Path, run: str, *more: str) -> int:
    return main(
        ["slo", "check", str(promised), "--load", run, "--data", str(promised.parent / "data"), *more]
    )


@pytest.mark.parametrize(
    ("fared", "status", "said"),
    [
        ((1000,), 0, "pass: proven: every promise was kept"),
        ((900, 100), 1, "fail: refuted: ttft 200 ms not kept"),
        ((900, 0, 100), 1, "fail: refuted: failures, ttft 200 ms not kept"),
        ((50,), 3, "not enough evidence: not enough samples: failures, ttft 200 ms not shown"),
    ],
)
def test_a_check_says_what_is_proven_and_its_status_says_it_too(
    promised: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    fared: tuple[int, ...],
    status: int,
    said: str,
) -> None:
    run = run_of(tmp_path / "run.json", *fared)
    assert check(promised, run) == status
    assert said in capsys.readouterr().out
    assert check(promised, run, "--json") == status
    facts = json.loads(capsys.readouterr().out)
    assert facts["intended"] == sum(fared)
    assert facts["kept"][0]["promise"]["name"] == "failures"


def test_a_page_is_written_that_needs_nothing_else(promised: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert check(promised, run_of(tmp_path / "run.json", good=1000), "--html", str(page)) == 0
    assert "ttft 200 ms" in page.read_text()


def test_a_load_test_of_another_model_proves_nothing(
    promised: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(promised, run_of(tmp_path / "run.json", good=9, model="other")) == 2
    assert "is of the model `other`" in capsys.readouterr().err
    (tmp_path / "run.json").write_text("{}")
    assert check(promised, str(tmp_path / "run.json")) == 2
    assert "not a load test" in capsys.readouterr().err


def test_a_generator_that_was_late_neither_proves_nor_refutes(
    promised: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Times begin when a request was due: what a busy generator adds would be put down to the service."""
    late = Lateness(0.1, 0.3, 0.4)
    for fared in ((1000,), (900, 100)):
        assert check(promised, run_of(tmp_path / "run.json", *fared, late=late)) == 4
        out = capsys.readouterr().out
        assert "The run says nothing of the service: one request in a hundred was sent 0.300 s late" in out
        assert "but by a generator that didn't keep up" in out


def test_a_file_that_cannot_be_read_or_written_is_no_broken_promise(
    promised: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 1 says that a promise is refuted."""
    assert check(promised, str(tmp_path / "none.json")) == 2
    assert "none.json cannot be read: No such file" in capsys.readouterr().err
    run = run_of(tmp_path / "run.json", good=1000)
    assert check(promised, run, "--html", str(tmp_path / "none" / "page.html")) == 2
    assert "page.html cannot be written: No such file" in capsys.readouterr().err


def test_no_request_is_counted_twice(
    promised: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(run_of(tmp_path / "run.json", good=30))
    said = json.loads(run.read_text())
    said["run"]["records"] *= 40
    run.write_text(json.dumps(said))
    assert check(promised, str(run)) == 2
    assert "a request is there twice" in capsys.readouterr().err


def test_less_load_than_promised_proves_nothing(
    promised: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    promised.write_text(f"{FILE}\n[load]\nrequests_per_s_max = 500\n")
    assert check(promised, run_of(tmp_path / "run.json", good=1000)) == 3
    out = capsys.readouterr().out
    assert "The load was below the one up to which the promise holds" in out
    assert "not enough evidence: proven, but not at the load that was promised" in out


def test_what_is_promised_reads_as_sentences(promised: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slo", "show", str(promised), "--data", str(promised.parent / "data")]) == 0
    out = capsys.readouterr().out
    assert "at least 99 %: the first of the answer comes within 200 ms" in out
    assert "It holds whatever the load is." in out
    assert "at one request per second 3,024 requests may miss" in out


def test_a_deployment_that_is_at_odds_with_its_promise_is_told_of(
    promised: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    spec = DeploymentSpec(Identity("demo", engine=EngineKind.SCRIPTED), slo=SloTerms(ttft_p95_ms=900))
    store = DeploymentStore(open_local(data), clock=SystemClock())
    store.apply_all([Meant(spec, Revision(Task.CHAT, EngineKind.SCRIPTED), "")])
    store.close()
    assert main(["slo", "show", str(promised), "--data", str(data)]) == 0
    assert "AT ODDS with the deployment: ttft 200 ms" in capsys.readouterr().out
    check(promised, run_of(tmp_path / "run.json", good=1000), "--json")
    (told,) = json.loads(capsys.readouterr().out)["contradictions"]
    assert "`slo.ttft_p95_ms` = 900, which is later; lower that to 200" in told


# Prometheus


PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="needs promtool: apt-get install -y --no-install-recommends prometheus"
)


def promtool(*arguments: str, cwd: Path) -> str:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def rules(promised: Path, tmp_path: Path) -> Path:
    path = tmp_path / "alerts.yml"
    assert main(["slo", "alerts", str(promised), "--out", str(path)]) == 0
    return path


@needs_promtool
def test_prometheus_accepts_the_rules_of_the_examples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["slo", "alerts", str(Path(__file__).parents[2] / "slos")]) == 0
    (tmp_path / "alerts.yml").write_text(capsys.readouterr().out)
    assert "SUCCESS" in promtool("check", "rules", "alerts.yml", cwd=tmp_path)


def test_two_files_of_one_deployment_make_no_alerts(
    promised: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prometheus would take none of the rules, of no deployment."""
    (tmp_path / "other.toml").write_text(FILE)
    assert main(["slo", "alerts", str(tmp_path)]) == 2
    assert "are both of `demo`" in capsys.readouterr().err


def series(delivered: str, failed: str, *, late: str = "0x2000") -> dict[str, str]:
    """What a scrape per minute saw. `late`: of the delivered ones, those whose first token came after the bound.

    Each is a word of promtool: `0+60x90` begins at 0 and grows by 60, 90 times.
    """
    requests = 'headrace_requests_total{model="demo",outcome="%s",reason="%s"}'
    count, within = delivered, delivered if late == "0x2000" else late
    return {
        'headrace_build_info{version="1"}': "1x2000",
        requests % ("delivered", "ok"): delivered,
        requests % ("refused", "queue_full"): failed,
        requests % ("refused", "rate_limited"): "0+600x2000",
        'headrace_ttft_seconds_count{model="demo"}': count,
        'headrace_ttft_seconds_bucket{model="demo",le="0.2"}': within,
    }


def simulated(rules: Path, given: dict[str, str], expected: dict[str, Sequence[str]]) -> None:
    """At each of these times exactly these alerts are there, as `SEVERITY OBJECTIVE`, or `SEVERITY` of one without."""
    lines = [
        "rule_files:",
        f"  - {rules.name}",
        "evaluation_interval: 1m",
        "tests:",
        "  - interval: 1m",
        "    input_series:",
    ]
    for name, values in given.items():
        lines += [f"      - series: '{name}'", f"        values: '{values}'"]
    lines += ["    promql_expr_test:"]
    for at, alerts in expected.items():
        lines += [
            "      - expr: 'group by (severity, objective) (ALERTS{alertstate=\"firing\"})'",
            f"        eval_time: {at}",
            "        exp_samples:" if alerts else "        exp_samples: []",
        ]
        for alert in alerts:
            severity, _, objective = alert.partition(" ")
            which = f', objective="{objective}"' if objective else ""
            lines += [
                f"          - labels: '{{severity=\"{severity}\"{which}}}'",
                "            value: 1",
            ]
    (rules.parent / "test.yml").write_text("\n".join(lines) + "\n")
    promtool("test", "rules", "test.yml", cwd=rules.parent)


PAGES = ("page failures", "page ttft 200 ms")
BOTH = (*PAGES, "ticket failures", "ticket ttft 200 ms")


@needs_promtool
def test_a_burst_of_refusals_is_told_of_within_minutes_and_ends_when_they_end(rules: Path) -> None:
    """One in five is refused from 2:00 to 2:30, of 60 a minute; limits of callers (600 a minute) are nobody's fault."""
    given = series("0+60x120 7248+48x30 8700+60x300", "0x120 12+12x30 372x300")
    simulated(
        rules,
        given,
        {"1h59m": (), "2h15m": BOTH, "2h29m": BOTH, "3h5m": ("ticket failures", "ticket ttft 200 ms")},
    )


@needs_promtool
def test_a_service_that_is_gone_is_told_of_though_it_misses_nothing(rules: Path) -> None:
    """It answers everything for an hour, and then there is none that could count."""
    given = dict.fromkeys(series("", ""), "0+60x60") | {'headrace_build_info{version="1"}': "1x60"}
    given['headrace_requests_total{model="demo",outcome="refused",reason="queue_full"}'] = "0x60"
    simulated(rules, given, {"59m": (), "1h10m": ("page",)})


@needs_promtool
def test_a_prometheus_that_begins_anew_tells_of_nobody(rules: Path) -> None:
    """Its first scrape comes after a minute."""
    given = dict.fromkeys(series("", ""), "_x1 0+60x60") | {'headrace_build_info{version="1"}': "_x1 1x60"}
    given['headrace_requests_total{model="demo",outcome="refused",reason="queue_full"}'] = "0x60"
    simulated(rules, given, {"0m": (), "1m": (), "2m": (), "10m": ()})


@needs_promtool
def test_a_slow_burn_is_a_ticket_and_wakes_nobody(rules: Path) -> None:
    """One in 167, where one in 200 is allowed: below the burn rate of a page, above that of a ticket."""
    given = series("0+166x320", "0+1x320")
    simulated(rules, given, {"5h": ("ticket failures",)})


@needs_promtool
def test_what_is_allowed_is_not_told_of(rules: Path) -> None:
    simulated(rules, series("0+249x320", "0+1x320"), {"1h": (), "5h": ()})


@needs_promtool
def test_two_failures_in_a_quiet_hour_wake_nobody(rules: Path) -> None:
    """Half of what was asked failed, and it was four requests."""
    given = series("0x60 1x10 2x2000", "0x60 1x10 2x2000")
    simulated(rules, given, {"1h5m": (), "1h15m": ()})


@needs_promtool
def test_slow_first_tokens_burn_their_own_budget_and_not_that_of_failures(rules: Path) -> None:
    """From 2:00 on one in four is late."""
    given = series("0+60x300", "0x300", late="0+60x120 7245+45x180")
    simulated(rules, given, {"1h59m": (), "2h30m": ("page ttft 200 ms", "ticket ttft 200 ms")})

"""What the controller decided can be read, and decided again, here or on another machine."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import main
from headrace.control.autoscaler import ScaleByLoad
from headrace.control.steering import TargetSeen
from headrace.core.clock import ManualClock
from headrace.core.deployment_terms import ScaleTerms
from headrace.core.deployments import AppliedVersion, DeploymentSpec, EngineKind, Identity, Revision
from headrace.core.fleet import Task
from headrace.policies.decisions import decision
from headrace.stores import sqlite
from headrace.stores.fleet import Change, FleetStore

APPLIED = AppliedVersion(
    "chat",
    1,
    DeploymentSpec(Identity("chat", EngineKind.SCRIPTED), scale=ScaleTerms(min=2, max=4)),
    Revision(Task.CHAT, EngineKind.SCRIPTED),
    0.0,
    "cli:me",
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A scale that was really decided, another that says so, and a kind that nobody knows."""
    scaled = ScaleByLoad(figures=lambda _: None).scale(TargetSeen(APPLIED), "", now_s=10.0, wall_s=1000.0)
    (real,) = scaled.decisions
    store = FleetStore(sqlite.open_file(tmp_path / sqlite.DATABASE_NAME), clock=ManualClock())
    store.take_lease("a controller")
    store.write(Change(decisions=[real, decision("tea", "other", "thirst", {}, {"cups": 1})]))
    store.close()
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main([*arguments]) == status
    return capsys.readouterr().out


def test_decisions_are_listed_with_their_reasons(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys, "decisions", "list", "--data", str(data)).splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["NUMBER", "AT"],
        ["1", lines[1].split()[1]],
        ["2", lines[2].split()[1]],
    ]
    assert "scale" in lines[1]
    assert "thirst" in lines[2]
    only = told(capsys, "decisions", "list", "--data", str(data), "--deployment", "other")
    assert "scale" not in only


def test_they_are_decided_again_from_a_file_alone(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of one that was changed afterwards it is said what is different, and what nobody can decide again is no difference."""
    file = tmp_path / "decisions.json"
    file.write_text(told(capsys, "decisions", "list", "--data", str(data), "--json"))
    said = told(capsys, "decisions", "replay", str(file))
    assert said == "2 decided again: 1 the same, 0 different, 1 of a kind that nobody decides here\n"
    rows: list[dict[str, Any]] = json.loads(file.read_text())
    rows[0]["outcome"]["replicas"] = 3
    file.write_text(json.dumps(rows))
    said = told(capsys, "decisions", "replay", str(file), "--kind", "scale", "--json", status=1)
    (other,) = json.loads(said)["different"]
    assert (other["seq"], other["kind"]) == (1, "scale")
    assert told(capsys, "decisions", "replay", str(file), status=1).startswith("1 chat scale: ")


@pytest.mark.parametrize("content", ["", "{}", '[{"seq": 1}]'])
def test_another_file_is_refused_in_one_line(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.json"
    file.write_text(content)
    assert main(["decisions", "replay", str(file)]) == 2
    assert f"{file}: not what `headrace decisions list --json` writes" in capsys.readouterr().err

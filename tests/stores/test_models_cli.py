"""`headrace models`: what operators and their scripts read, on which stream, with which exit status."""

import argparse
import hashlib
import json
from pathlib import Path

import pytest

from headrace.cli import models
from headrace.core.clock import ManualClock
from headrace.core.errors import ConfigError
from tests.support.tiny_models import tiny_model


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_DATA", str(tmp_path / "data"))
    (tmp_path / "mine.gguf").write_bytes(tiny_model(tmp_path).content)
    return tmp_path


def headrace(*arguments: str) -> int:
    root = argparse.ArgumentParser()
    models.add(root.add_subparsers(required=True))
    parsed = root.parse_args(["models", *arguments])
    return int(parsed.run(parsed) or 0)


def test_a_pull_prints_the_model_to_stdout_and_its_progress_to_stderr(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert headrace("pull", str(data / "mine.gguf"), "--as", "m", "--json") == 0
    printed = capsys.readouterr()
    facts = json.loads(printed.out)
    assert (facts["name"], facts["task"], facts["license"]) == ("m", "chat", "MIT")
    assert hashlib.sha256(Path(facts["path"]).read_bytes()).hexdigest() == facts["sha256"]
    assert "copying" in printed.err
    assert "100 % of" in printed.err


def test_list_shows_what_is_here_and_what_the_catalog_knows(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    headrace("pull", str(data / "mine.gguf"))
    capsys.readouterr()
    assert headrace("list", "--json") == 0
    listed = {model["name"]: model for model in json.loads(capsys.readouterr().out)}
    assert listed["mine"]["stored"] is True
    assert listed["smollm2-135m-instruct"]["stored"] is False
    assert {"license", "size_bytes", "task", "sha256", "note"} <= set(listed["smollm2-135m-instruct"])
    headrace("list")
    table = capsys.readouterr().out
    assert "mine" in table
    assert "weak at answers" in table


def test_verify_exits_1_and_names_the_damaged(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    headrace("pull", str(data / "mine.gguf"))
    assert headrace("verify") == 0
    (blob,) = (data / "data" / "models" / "blobs" / "sha256").iterdir()
    blob.chmod(0o644)
    blob.write_bytes(b"damage")
    capsys.readouterr()
    assert headrace("verify") == 1
    assert "mine: damaged" in capsys.readouterr().out
    assert headrace("verify", "mine", "--json") == 1
    assert json.loads(capsys.readouterr().out) == {"checked": 1, "damaged": ["mine"]}


def test_rm_says_what_it_freed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    headrace("pull", str(data / "mine.gguf"))
    assert headrace("rm", "mine") == 0
    assert "removed mine" in capsys.readouterr().out
    with pytest.raises(ConfigError):
        headrace("rm", "mine")


@pytest.mark.parametrize("action", ["pull", "list", "rm", "verify"])
def test_every_action_explains_itself_with_an_example(
    action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        headrace(action, "--help")
    assert exit.value.code == 0
    assert f"example: headrace models {action}" in capsys.readouterr().out


def test_a_terminal_gets_one_redrawn_line_and_files_get_every_tenth_part(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*, is_terminal: bool) -> str:
        monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
        clock = ManualClock()
        told = models.progress(clock)
        told.say("fetching")
        for done_bytes in range(0, 1001, 5):
            told.advance(done_bytes, 1000)
            clock.advance(0.01)
        told.say("converting")
        return capsys.readouterr().err

    plain = run(is_terminal=False).splitlines()
    assert plain[:2] == ["fetching", " 10 % of 0.0 MB"]
    assert len(plain) == 12
    live = run(is_terminal=True)
    assert live.count("\n") == 3
    assert 10 < live.count("\r") < 30


def test_a_folder_is_pulled_as_an_artifact_and_removed_by_its_digest(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "folder").mkdir()
    (data / "folder/README.md").write_text("---\nlicense: mit\n---\n")
    assert headrace("pull", str(data / "folder"), "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["license"], len(facts["files"])) == ("MIT", 1)
    assert (Path(facts["path"]) / "README.md").exists()
    headrace("list")
    assert str(data / "folder") in capsys.readouterr().out
    headrace("list", "--json")
    assert facts["sha256"] in [each["sha256"] for each in json.loads(capsys.readouterr().out)]
    assert headrace("verify", facts["sha256"][:12]) == 0
    headrace("show", facts["sha256"][:12], "--json")
    assert json.loads(capsys.readouterr().out.partition("\n")[2])["artifact"]["sha256"] == facts["sha256"]
    headrace("show", str(data / "folder"))
    shown = capsys.readouterr().out
    assert facts["sha256"] in shown
    assert "MIT: model card README.md" in shown
    with pytest.raises(ConfigError, match="no such artifact; there are"):
        headrace("show", "s3://nothing/here")
    headrace("rm", facts["sha256"][:12])
    assert not Path(facts["path"]).exists()


def test_a_folder_whose_license_nobody_states_is_accepted_by_name_or_not_pulled(data: Path) -> None:
    (data / "folder").mkdir()
    (data / "folder/config.json").write_text("{}")
    with pytest.raises(ConfigError, match="license must be accepted by name"):
        headrace("pull", str(data / "folder"))
    assert headrace("pull", str(data / "folder"), "--accept-license", "ours") == 0
    with pytest.raises(ConfigError, match="single GGUF files"):
        headrace("pull", str(data / "folder"), "--as", "name")


def test_gc_says_what_would_go_and_what_stays(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    headrace("pull", str(data / "mine.gguf"))
    blobs = data / "data/models/blobs/sha256"
    (blobs / ("a" * 64)).write_bytes(bytes(1000))
    capsys.readouterr()
    assert headrace("gc", "--dry-run", "--json", "--to", "0") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["dry_run"], facts["freed_bytes"]) == (True, 1000)
    assert [kept["uri"] for kept in facts["kept"]] == ["mine"]
    assert (blobs / ("a" * 64)).exists()
    assert headrace("gc") == 0
    assert "kept: mine" in capsys.readouterr().out
    assert not (blobs / ("a" * 64)).exists()


def test_gc_keeps_what_the_deployments_of_the_data_directory_need(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from contextlib import closing

    from headrace.core.deployments import Artifact, DeploymentSpec, EngineKind, Identity, Revision
    from headrace.core.fleet import Task
    from headrace.stores.deployments import open_deployments
    from headrace.stores.registry import ModelStore

    artifacts = []
    for letter in "ab":
        staged = data / letter
        staged.write_text(letter)
        sha256 = hashlib.sha256(letter.encode()).hexdigest()
        artifacts.append(Artifact(f"https://e.com/{letter}#sha256={sha256}", sha256=sha256, size_bytes=1))
        ModelStore(data / "data/models").artifacts.commit(artifacts[-1], {sha256: staged}, claims=())
    with closing(open_deployments(data / "data", clock=ManualClock())) as deployments:
        spec = DeploymentSpec(deployment=Identity(name="chat", engine=EngineKind.SCRIPTED))
        revision = Revision(task=Task.CHAT, engine=EngineKind.SCRIPTED, weights=artifacts[0])
        deployments.apply(spec, revision, "")
    assert headrace("gc", "--to", "0") == 0
    printed = capsys.readouterr().out
    assert f"kept: {artifacts[0].uri}: chat@v1 is wanted" in printed
    assert f"removed: {artifacts[1].uri}" in printed
    with pytest.raises(ConfigError, match="stays: chat@v1 is wanted"):
        headrace("rm", artifacts[0].uri)


def test_a_size_that_is_none_is_told(data: Path) -> None:
    with pytest.raises(ConfigError, match="a size such as 20GB"):
        headrace("gc", "--to", "much")

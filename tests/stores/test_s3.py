"""`s3://`: objects and folders of a real S3-speaking server that checks every signature, by version, digest and range."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from headrace import config
from headrace.core.clock import ManualClock, SystemClock
from headrace.core.errors import ConfigError, UpstreamError
from headrace.stores import places, s3_signing
from headrace.stores.downloads import Patience
from headrace.stores.places import Places
from headrace.stores.registry import ModelStore
from headrace.stores.s3 import S3Storage
from headrace.stores.s3_signing import S3Credentials
from tests.support.s3 import REGION, S3Server, cutting_proxy, s3_server
from tests.support.tiny_models import Heard, tiny_model, tiny_safetensors

LARGE = bytes(range(256)) * 4096
FILES = {
    "README.md": b"---\nlicense: mit\n---\n",
    "config.json": b"{}",
    "sub/model.safetensors": tiny_safetensors(LARGE),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "log") as running:
        running.make_bucket("versioned", versions=True)
        running.make_bucket("plain", versions=False)
        yield running


def storage(server: S3Server, **changes: str) -> Places:
    told = {
        "endpoint": server.url,
        "region": REGION,
        "access": server.access_key,
        "secret": server.secret_key,
    }
    told |= changes
    credentials = S3Credentials(told["access"], told["secret"]) if told["access"] else None
    return Places(s3=S3Storage(told["endpoint"], told["region"], credentials, SystemClock()))


def open_store(root: Path, server: S3Server, **changes: str) -> ModelStore:
    patience = Patience(attempts_max=3, sleep=lambda pause_s: None)
    return ModelStore(root, known={}, places=storage(server, **changes), patience=patience)


@pytest.fixture
def store(tmp_path: Path, server: S3Server) -> ModelStore:
    return open_store(tmp_path / "models", server)


@pytest.fixture
def at(request: pytest.FixtureRequest) -> str:
    """A place in the buckets that is this test's alone."""
    return hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]


def test_an_object_is_pinned_by_its_version_and_by_the_digest_that_the_storage_states(
    server: S3Server, store: ModelStore, at: str, heard: Heard, tmp_path: Path
) -> None:
    server.put("versioned", {f"{at}/m.bin": LARGE}, ChecksumAlgorithm="SHA256")
    artifact = store.resolve(f"s3://versioned/{at}/m.bin", progress=heard)
    assert re.fullmatch(rf"s3://versioned/{at}/m\.bin\?versionId=.+", artifact.uri)
    assert artifact.uri.endswith(artifact.rev)
    assert (artifact.sha256, artifact.size_bytes) == (hashlib.sha256(LARGE).hexdigest(), len(LARGE))
    assert store.artifacts.path(artifact) is None, (
        "its digest was stated, so nothing was transferred to learn it"
    )


def test_what_is_resolved_stays_what_it_was_whoever_overwrites_it(
    server: S3Server, store: ModelStore, at: str, heard: Heard, tmp_path: Path
) -> None:
    tiny = tiny_model(tmp_path)
    server.put("versioned", {f"{at}/m.gguf": tiny.content}, ChecksumAlgorithm="SHA256")
    artifact = store.resolve(f"s3://versioned/{at}/m.gguf", progress=heard)
    server.put("versioned", {f"{at}/m.gguf": tiny_model(tmp_path, license="gemma").content})
    assert store.fetch(artifact, progress=heard).read_bytes() == tiny.content
    moved = store.resolve(f"s3://versioned/{at}/m.gguf", progress=heard)
    assert moved.sha256 != artifact.sha256
    assert moved.license == "gemma"


def test_a_digest_that_nobody_states_is_learned_by_one_transfer(
    server: S3Server, store: ModelStore, at: str, heard: Heard, tmp_path: Path
) -> None:
    tiny = tiny_model(tmp_path)
    server.put("plain", {f"{at}/m.gguf": tiny.content})
    artifact = store.resolve(f"s3://plain/{at}/m.gguf", progress=heard)
    assert artifact.sha256 == tiny.sha256
    assert artifact.license == "MIT"
    server.client().delete_object(Bucket="plain", Key=f"{at}/m.gguf")
    assert store.fetch(artifact, progress=heard).read_bytes() == tiny.content


def test_an_object_that_was_replaced_where_no_versions_are_kept_is_told_as_that(
    server: S3Server, store: ModelStore, at: str, heard: Heard
) -> None:
    server.put("plain", {f"{at}/m.bin": LARGE}, ChecksumAlgorithm="SHA256")
    artifact = store.resolve(f"s3://plain/{at}/m.bin", progress=heard)
    server.put("plain", {f"{at}/m.bin": b"another"})
    with pytest.raises(ConfigError, match="has been replaced since it was resolved"):
        store.fetch(artifact, progress=heard)


def test_a_prefix_is_a_folder_and_each_file_keeps_its_version(
    server: S3Server, store: ModelStore, at: str, heard: Heard, tmp_path: Path
) -> None:
    server.put("versioned", {f"{at}/{path}": content for path, content in FILES.items()})
    server.put("versioned", {f"{at}/": b"", f"{at}-not-below": b"x"})
    artifact = store.resolve(f"s3://versioned/{at}/", progress=heard)
    assert [file.path for file in artifact.files] == sorted(FILES)
    assert artifact.license == "MIT"
    server.put("versioned", {f"{at}/config.json": b'{"changed": true}'})
    for where in (store, open_store(tmp_path / "elsewhere", server)):
        tree = where.fetch(artifact, progress=heard)
        assert {path: (tree / path).read_bytes() for path in FILES} == FILES
    changed = store.resolve(f"s3://versioned/{at}/", progress=heard)
    assert changed.sha256 != artifact.sha256


def test_only_what_changed_in_a_folder_is_transferred_again(
    server: S3Server, store: ModelStore, at: str, heard: Heard
) -> None:
    server.put("versioned", {f"{at}/{path}": content for path, content in FILES.items()})
    store.resolve(f"s3://versioned/{at}/", progress=heard)
    server.put("versioned", {f"{at}/config.json": b'{"changed": true}'})
    heard.lines.clear()
    store.resolve(f"s3://versioned/{at}/", progress=heard)
    fetched = [line for line in heard.lines if line.startswith("fetching")]
    assert len(fetched) == 1
    assert "config.json" in fetched[0]


def test_a_cut_transfer_goes_on_with_a_range(server: S3Server, tmp_path: Path, at: str, heard: Heard) -> None:
    server.put("plain", {f"{at}/m.bin": LARGE})
    with cutting_proxy(int(server.url.rpartition(":")[2])) as proxy:
        proxy.cut_after_bytes = [300_000, 400_000]
        store = open_store(tmp_path / "models", server, endpoint=proxy.url)
        artifact = store.resolve(f"s3://plain/{at}/m.bin", progress=heard)
        assert store.fetch(artifact, progress=heard).read_bytes() == LARGE
    assert sum(line.startswith("going on after") for line in heard.lines) == 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"secret": "wrong"}, "answers 403: .* has no access; check models.s3.access_key"),
        ({"access": "AKIAUNKNOWN"}, "answers 403"),
        ({"access": ""}, "answers 403: it isn't public, and models.s3.access_key isn't set"),
    ],
)
def test_who_has_no_access_is_told_what_to_check(
    server: S3Server, tmp_path: Path, at: str, heard: Heard, changes: dict[str, str], says: str
) -> None:
    server.put("plain", {f"{at}/m.bin": b"x"})
    with pytest.raises(ConfigError, match=says) as caught:
        open_store(tmp_path, server, **changes).resolve(f"s3://plain/{at}/m.bin", progress=heard)
    assert server.secret_key not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("s3://plain/nothing", "no such bucket or object"),
        ("s3://nowhere/nothing", "no such bucket or object"),
        ("s3://plain/nothing/", "has 0 files"),
        ("s3://nowhere/nothing/", "no such bucket or object"),
    ],
)
def test_what_is_not_there_is_the_operators_to_correct(
    store: ModelStore, heard: Heard, uri: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        store.resolve(uri, progress=heard)


def test_a_storage_that_is_down_is_tried_again_and_then_told(
    server: S3Server, tmp_path: Path, heard: Heard
) -> None:
    store = open_store(tmp_path, server, endpoint="http://127.0.0.1:9")
    with pytest.raises(UpstreamError, match="3 attempts"):
        store.resolve("s3://plain/m.bin", progress=heard)


def test_the_listing_of_a_large_folder_is_read_page_by_page(
    server: S3Server, store: ModelStore, at: str, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put("plain", {f"{at}/{number:02}": b"%d" % number for number in range(7)})
    monkeypatch.setattr("headrace.stores.s3.KEYS_A_PAGE", 3)
    artifact = store.resolve(f"s3://plain/{at}/", progress=heard)
    assert [file.path for file in artifact.files] == [f"{number:02}" for number in range(7)]


_KEYS = st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=40)


@given(key=_KEYS, version=_KEYS, token=st.sampled_from(["", "token"]), moment_s=st.integers(0, 2_000_000_000))
def test_a_signature_is_the_one_that_amazons_own_library_makes(
    key: str, version: str, token: str, moment_s: int
) -> None:
    """Over any key, version and moment; its library signs by its own clock, so it is asked to sign at the same one."""
    from headrace.stores.sources import S3Source

    clock = ManualClock()
    place = S3Storage("https://s3.example:9000", REGION, S3Credentials("AK", "SK", token), clock)
    url = place.url(S3Source("bucket", key, version=version))
    ours = s3_signing.signed_headers(
        S3Credentials("AK", "SK", token),
        method="GET",
        url=url,
        region=REGION,
        now_s=moment_s,
        headers={"x-amz-checksum-mode": "ENABLED"},
    )
    request = AWSRequest(method="GET", url=url, headers={"x-amz-checksum-mode": "ENABLED"})
    request.context["timestamp"] = ours["x-amz-date"]
    auth = S3SigV4Auth(Credentials("AK", "SK", token or None), "s3", REGION)
    request.headers["X-Amz-Date"] = ours["x-amz-date"]
    if token:
        request.headers["X-Amz-Security-Token"] = token
    request.headers["X-Amz-Content-SHA256"] = ours["x-amz-content-sha256"]
    canonical = auth.canonical_request(request)
    signature = auth.signature(auth.string_to_sign(request, canonical), request)
    assert ours["Authorization"].endswith(f"Signature={signature}")


def test_the_storage_of_the_configuration_has_its_secrets_by_reference(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_KEY", "AK")
    (tmp_path / "secret").write_text("SK\n")
    raw = {"models": {"s3": {"access_key": "env:AWS_KEY", "secret_key": f"file:{tmp_path / 'secret'}"}}}
    found = places.configured(config.parse(raw, file="headrace.toml").models).storage()
    assert found.credentials == S3Credentials("AK", "SK")
    assert found.endpoint == "https://s3.us-east-1.amazonaws.com"
    assert "SK" not in repr(found)


@pytest.mark.parametrize(
    ("s3", "says"),
    [
        ({"access_key": "env:X"}, "go together"),
        ({"access_key": "AKIA", "secret_key": "secret"}, "given by reference"),
        ({"endpoint": "http://storage.example"}, "only https"),
        ({"acess_key": "env:X"}, "did you mean `models.s3.access_key`"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(s3: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        places.configured(config.parse({"models": {"s3": s3}}, file="headrace.toml").models)


def test_http_is_for_those_who_ask_for_it() -> None:
    raw = {"models": {"s3": {"endpoint": "http://storage.example", "allow_http": True}}}
    found = places.configured(config.parse(raw, file="headrace.toml").models).storage()
    assert found.endpoint == "http://storage.example"

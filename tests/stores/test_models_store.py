"""The model store: whole or absent, licensed or refused, damaged files found and repaired."""

import json
import threading
from pathlib import Path

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import ConfigError, UpstreamError
from headrace.core.fleet import Task
from headrace.stores import catalog, objects, sources
from headrace.stores.catalog import CatalogEntry
from headrace.stores.objects import HEADROOM_BYTES, ObjectStore
from headrace.stores.registry import ModelStore
from tests.support.file_server import FileServer
from tests.support.tiny_models import Heard, TinyModel, tiny_model


def offer(server: FileServer, tiny: TinyModel, *, path: str = "/tiny.gguf") -> str:
    server.files[path] = tiny.content
    return f"{server.url}{path}#sha256={tiny.sha256}"


def blobs(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "models" / "blobs" / "sha256").glob("*"))


def test_a_pulled_model_is_found_by_name_with_all_that_is_known(
    store: ModelStore, served: FileServer, tmp_path: Path, heard: Heard
) -> None:
    tiny = tiny_model(tmp_path)
    source = offer(served, tiny)
    pulled = store.pull(source, progress=heard)
    assert pulled == store.get("tiny")
    assert (pulled.sha256, pulled.size_bytes) == (tiny.sha256, len(tiny.content))
    assert (pulled.task, pulled.license, pulled.source) == (Task.CHAT, "MIT", source)
    assert pulled.license_evidence == ("MIT: GGUF metadata general.license",)
    assert pulled.path.read_bytes() == tiny.content
    assert not (tmp_path / "models" / "staging" / "tiny").exists()


def test_a_second_pull_of_an_undamaged_model_costs_no_network(
    store: ModelStore, served: FileServer, tmp_path: Path, heard: Heard
) -> None:
    source = offer(served, tiny_model(tmp_path))
    first = store.pull(source, progress=heard)
    before = len(served.received)
    assert store.pull(source, progress=heard) == first
    assert store.pull("tiny", progress=heard) == first
    assert len(served.received) == before


def test_a_file_with_a_pooling_type_is_for_embeddings_unless_the_operator_says_otherwise(
    store: ModelStore, tmp_path: Path, heard: Heard
) -> None:
    content = tiny_model(tmp_path, more={"general.architecture": "bert", "bert.pooling_type": 1}).content
    (tmp_path / "e.gguf").write_bytes(content)
    assert store.pull(str(tmp_path / "e.gguf"), progress=heard).task is Task.EMBEDDINGS
    assert store.pull(str(tmp_path / "e.gguf"), progress=heard, task=Task.CHAT).task is Task.CHAT


def test_a_local_file_is_copied_and_copied_again_when_it_changed(
    store: ModelStore, tmp_path: Path, heard: Heard
) -> None:
    file = tmp_path / "mine.gguf"
    file.write_bytes(tiny_model(tmp_path).content)
    store.pull(str(file), progress=heard)
    changed = tiny_model(tmp_path, weight_bytes=8192)
    file.write_bytes(changed.content)
    assert store.pull(str(file), progress=heard).sha256 == changed.sha256
    assert blobs(tmp_path) == [changed.sha256], "what no name needs is gone"
    assert file.exists()


@pytest.mark.parametrize("license", ["gemma", ""])
def test_a_license_outside_the_policy_is_refused_and_nothing_becomes_visible(
    store: ModelStore, tmp_path: Path, heard: Heard, license: str
) -> None:
    file = tmp_path / "g.gguf"
    file.write_bytes(tiny_model(tmp_path, license=license).content)
    with pytest.raises(ConfigError, match="--accept-license"):
        store.pull(str(file), progress=heard)
    assert store.models() == []
    assert blobs(tmp_path) == []


def test_an_acceptance_is_recorded_with_its_name_and_time(
    store: ModelStore, tmp_path: Path, heard: Heard, clock: ManualClock
) -> None:
    (tmp_path / "g.gguf").write_bytes(tiny_model(tmp_path, license="gemma").content)
    model = store.pull(str(tmp_path / "g.gguf"), progress=heard, accept_license="Gemma")
    assert (model.license, model.license_accepted, model.accepted_s) == ("gemma", "gemma", clock.wall_s())
    manifest = json.loads((tmp_path / "models" / "manifests" / "g.json").read_text())
    assert manifest["license_accepted"] == "gemma"
    assert manifest["accepted_s"] == clock.wall_s()


def test_accepting_after_the_transfer_does_not_transfer_again(
    store: ModelStore, served: FileServer, tmp_path: Path, heard: Heard
) -> None:
    source = offer(served, tiny_model(tmp_path, license="gemma"))
    with pytest.raises(ConfigError, match='"gemma"'):
        store.pull(source, progress=heard)
    store.pull(source, progress=heard, accept_license="gemma")
    assert len(served.of("GET")) == 1


def test_a_repair_keeps_the_acceptance_and_its_time(
    store: ModelStore, served: FileServer, tmp_path: Path, heard: Heard, clock: ManualClock
) -> None:
    accepted = store.pull(
        offer(served, tiny_model(tmp_path, license="gemma")), progress=heard, accept_license="gemma"
    )
    accepted.path.unlink()
    clock.advance(1000)
    repaired = store.pull("tiny", progress=heard)
    assert (repaired.license_accepted, repaired.accepted_s) == ("gemma", accepted.accepted_s)


def test_a_license_other_is_named_by_its_own_name(store: ModelStore, tmp_path: Path, heard: Heard) -> None:
    content = tiny_model(tmp_path, license="other", more={"general.license.name": "acme-research"}).content
    (tmp_path / "o.gguf").write_bytes(content)
    with pytest.raises(ConfigError, match='"acme-research"'):
        store.pull(str(tmp_path / "o.gguf"), progress=heard)


def test_verify_names_what_is_damaged_and_a_pull_repairs_it(
    store: ModelStore, served: FileServer, tmp_path: Path, heard: Heard
) -> None:
    good, bad = tiny_model(tmp_path), tiny_model(tmp_path, weight_bytes=8192)
    store.pull(offer(served, good, path="/good.gguf"), progress=heard)
    damaged = store.pull(offer(served, bad, path="/bad.gguf"), progress=heard)
    assert store.verify() == {"bad": True, "good": True}
    damaged.path.chmod(0o644)
    damaged.path.write_bytes(bad.content[:-1] + b"!")
    assert store.verify() == {"bad": False, "good": True}
    store.pull("bad", progress=heard)
    assert store.verify("bad") == {"bad": True}


def test_a_missing_file_is_damage_and_the_name_does_not_count_as_here(
    store: ModelStore, tmp_path: Path, heard: Heard
) -> None:
    (tmp_path / "m.gguf").write_bytes(tiny_model(tmp_path).content)
    store.pull(str(tmp_path / "m.gguf"), progress=heard).path.unlink()
    assert store.get("m") is None
    assert store.verify() == {"m": False}


def test_removal_keeps_a_blob_that_another_name_uses(store: ModelStore, tmp_path: Path, heard: Heard) -> None:
    tiny = tiny_model(tmp_path)
    (tmp_path / "m.gguf").write_bytes(tiny.content)
    store.pull(str(tmp_path / "m.gguf"), progress=heard, rename="one")
    store.pull(str(tmp_path / "m.gguf"), progress=heard, rename="two")
    assert store.remove("one") == 0
    assert blobs(tmp_path) == [tiny.sha256]
    assert store.remove("two") == len(tiny.content)
    assert blobs(tmp_path) == []
    with pytest.raises(ConfigError, match="no such model"):
        store.remove("two")


@pytest.mark.parametrize("name", ["../x", "a/b", "", "-x", "X", "a" * 101])
def test_a_name_is_never_a_path(store: ModelStore, tmp_path: Path, heard: Heard, name: str) -> None:
    (tmp_path / "m.gguf").write_bytes(tiny_model(tmp_path).content)
    assert store.get(name) is None
    with pytest.raises(ConfigError):
        store.remove(name)
    if name:
        with pytest.raises(ConfigError, match="--as"):
            store.pull(str(tmp_path / "m.gguf"), progress=heard, rename=name)


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04 a zip", b"GGUF", b"GGUF\x03\x00\x00\x00" + b"\xff" * 64]
)
def test_what_the_engine_cannot_read_is_not_stored(
    store: ModelStore, tmp_path: Path, heard: Heard, content: bytes
) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ConfigError, match="GGUF"):
        store.pull(str(tmp_path / "m.gguf"), progress=heard)
    assert store.models() == []


def test_two_pulls_of_one_name_at_once_transfer_once(
    store: ModelStore, served: FileServer, tmp_path: Path
) -> None:
    source = offer(served, tiny_model(tmp_path))
    served.hold = True
    waiting = threading.Event()

    class Second(Heard):
        def say(self, line: str) -> None:
            if "waiting for another pull" in line:
                waiting.set()

    first, second = (
        threading.Thread(target=store.pull, args=(source,), kwargs={"progress": progress})
        for progress in (Heard(), Second())
    )
    first.start()
    assert served.halfway.wait(60)
    second.start()
    assert waiting.wait(60)
    served.release.set()
    for thread in (first, second):
        thread.join(10)
    assert len(served.of("GET")) == 1
    assert store.get("tiny") is not None


def test_a_full_disk_is_refused_with_what_is_needed_and_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"1000000000 MB are needed .* choose another --data"):
        ObjectStore(tmp_path).check_space(10**15)
    ObjectStore(tmp_path).check_space(-HEADROOM_BYTES)


def test_a_damaged_manifest_is_named_with_its_file(store: ModelStore, tmp_path: Path) -> None:
    objects.write_whole(tmp_path / "models" / "manifests" / "m.json", b"{")
    with pytest.raises(ConfigError, match=r"m\.json: not a manifest"):
        store.models()


def entry_for(tiny: TinyModel, source: str, *, license: str = "MIT", sha256: str = "") -> CatalogEntry:
    return CatalogEntry(
        task=Task.EMBEDDINGS,
        source=source,
        sha256=sha256 or tiny.sha256,
        size_bytes=len(tiny.content),
        license=license,
        license_evidence="model card",
        note="a note",
    )


def test_a_catalog_name_brings_its_task_note_and_license_under_any_name(
    served: FileServer, tmp_path: Path, heard: Heard
) -> None:
    tiny = tiny_model(tmp_path, license="")
    store = ModelStore(tmp_path / "models", known={"known": entry_for(tiny, offer(served, tiny))})
    model = store.pull("known", progress=heard, rename="mine")
    assert (model.name, model.task, model.note, model.license) == ("mine", Task.EMBEDDINGS, "a note", "MIT")
    assert store.pull("mine", progress=heard) == model


def test_a_digest_other_than_the_catalogs_is_refused_and_nothing_is_kept(
    served: FileServer, tmp_path: Path, heard: Heard
) -> None:
    tiny = tiny_model(tmp_path)
    store = ModelStore(
        tmp_path / "models", known={"known": entry_for(tiny, offer(served, tiny), sha256="0" * 64)}
    )
    with pytest.raises(UpstreamError, match="the catalog says 000"):
        store.pull("known", progress=heard)
    assert store.models() == []
    assert not (tmp_path / "models" / "staging" / "known").exists()


def test_a_catalog_license_outside_the_policy_is_refused_before_any_transfer(
    served: FileServer, tmp_path: Path, heard: Heard
) -> None:
    tiny = tiny_model(tmp_path)
    store = ModelStore(
        tmp_path / "models", known={"known": entry_for(tiny, offer(served, tiny), license="gemma")}
    )
    with pytest.raises(ConfigError, match='"gemma"'):
        store.pull("known", progress=heard)
    assert served.received == []


def test_an_unknown_name_is_answered_with_the_nearest(tmp_path: Path, heard: Heard) -> None:
    store = ModelStore(tmp_path / "models")
    with pytest.raises(ConfigError, match="did you mean smollm2-135m-instruct"):
        store.pull("smolm2-135", progress=heard)


def test_every_catalog_entry_is_pinned_permissive_and_readable() -> None:
    known = catalog.load()
    assert {"smollm2-135m-instruct", "all-minilm-l6-v2"} <= set(known)
    for name, entry in known.items():
        source = sources.parse(entry.source)
        assert str(source) == entry.source, name
        assert len(entry.sha256) == 64, name
        assert entry.note, name
        assert isinstance(source, sources.HubSource) or entry.archive_sha256, name

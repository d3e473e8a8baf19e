"""Garbage collection: a store stays within its bound, what a deployment needs stays, and no crash leaves half of anything."""

import hashlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.core.clock import ManualClock
from headrace.core.deployments import Artifact, ArtifactFile, folder_digest
from headrace.core.errors import ConfigError
from headrace.stores.pins import Needs
from headrace.stores.registry import ModelStore
from tests.support.file_server import FileServer
from tests.support.tiny_models import Heard, tiny_model

SIZE = 1000


def content(letter: str) -> bytes:
    return letter.encode() * SIZE


def digest(letter: str) -> str:
    return hashlib.sha256(content(letter)).hexdigest()


def single(letter: str) -> Artifact:
    uri = f"https://models.example/{letter}#sha256={digest(letter)}"
    return Artifact(uri, sha256=digest(letter), size_bytes=SIZE)


def folder(name: str, letters: str) -> Artifact:
    files = tuple(ArtifactFile(f"sub/{x}", digest(x), SIZE, single(x).uri) for x in letters)
    uri = f"hf://org/{name}@{'0' * 40}/"
    return Artifact(uri, "0" * 40, folder_digest(files), SIZE * len(files), files=files)


def put(store: ModelStore, root: Path, artifact: Artifact, letters: str, *, clock: ManualClock) -> None:
    """As a fetch does, without the network."""
    clock.advance(60)
    staged = {}
    for letter in letters:
        path = root / f"staged-{letter}"
        path.write_bytes(content(letter))
        staged[digest(letter)] = path
    store.artifacts.commit(artifact, staged, claims=())


class Deployments:
    """Who needs what; tests change it."""

    def __init__(self) -> None:
        self.needs: dict[str, tuple[str, ...]] = {}

    def __call__(self) -> Needs:
        return self.needs


@pytest.fixture
def deployments() -> Deployments:
    return Deployments()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock, deployments: Deployments) -> ModelStore:
    return ModelStore(tmp_path / "models", known={}, clock=clock, ask_needs=deployments)


def here(store: ModelStore) -> set[str]:
    return {record.artifact.uri for record in store.artifacts.records()}


def files_on_disk(root: Path) -> set[str]:
    return {path.name for path in (root / "models/blobs/sha256").iterdir()}


def test_what_was_not_used_for_longest_goes_first(
    store: ModelStore, tmp_path: Path, clock: ManualClock, heard: Heard
) -> None:
    for letter in "abc":
        put(store, tmp_path, single(letter), letter, clock=clock)
    clock.advance(60)
    store.fetch(single("a"), progress=heard)  # used again
    found = store.collect(bytes_max=2 * SIZE)
    assert [gone.uri for gone in found.gone] == [single("b").uri]
    assert here(store) == {single("a").uri, single("c").uri}
    assert (found.freed_bytes, found.held_bytes) == (SIZE, 2 * SIZE)
    assert files_on_disk(tmp_path) == {digest("a"), digest("c")}


def test_what_a_deployment_needs_stays_however_small_the_bound(
    store: ModelStore, tmp_path: Path, clock: ManualClock, deployments: Deployments
) -> None:
    """A rollback target that was collected would make the rollback a download, in the middle of an incident."""
    for letter in "abc":
        put(store, tmp_path, single(letter), letter, clock=clock)
    deployments.needs = {digest("a"): ("a rollback may go back to chat@v1",)}
    found = store.collect(bytes_max=0)
    assert here(store) == {single("a").uri}
    assert [(kept.uri, kept.reasons) for kept in found.kept] == [
        (single("a").uri, ("a rollback may go back to chat@v1",))
    ]


def test_files_that_two_artifacts_share_stay_with_the_one_that_stays(
    store: ModelStore, tmp_path: Path, clock: ManualClock, deployments: Deployments
) -> None:
    put(store, tmp_path, folder("old", "ab"), "ab", clock=clock)
    put(store, tmp_path, folder("new", "bc"), "bc", clock=clock)
    deployments.needs = {folder("new", "bc").sha256: ("chat@v2 is wanted",)}
    store.collect(bytes_max=0)
    assert files_on_disk(tmp_path) == {digest("b"), digest("c")}
    tree = store.artifacts.path(folder("new", "bc"))
    assert tree is not None
    assert (tree / "sub/b").read_bytes() == content("b")
    assert [path.name for path in (tmp_path / "models/trees").iterdir()] == [folder("new", "bc").sha256]


def test_what_has_a_name_or_cannot_be_had_again_stays(
    store: ModelStore, tmp_path: Path, clock: ManualClock, heard: Heard
) -> None:
    (tmp_path / "mine.gguf").write_bytes(tiny_model(tmp_path).content)
    store.pull(str(tmp_path / "mine.gguf"), progress=heard)
    (tmp_path / "here").mkdir()
    (tmp_path / "here/config.json").write_text("{}")
    local = store.resolve(str(tmp_path / "here"), progress=heard)
    store.collect(bytes_max=0)
    assert store.get("mine") is not None
    assert store.artifacts.path(local) is not None


def test_a_trial_says_the_same_and_changes_nothing(
    store: ModelStore, tmp_path: Path, clock: ManualClock
) -> None:
    for letter in "abc":
        put(store, tmp_path, single(letter), letter, clock=clock)
    orphan = tmp_path / "models/blobs/sha256" / digest("x")
    orphan.write_bytes(content("x"))
    before = files_on_disk(tmp_path)
    trial = store.collect(bytes_max=SIZE, is_trial=True)
    assert files_on_disk(tmp_path) == before
    assert store.collect(bytes_max=SIZE) == trial
    assert (trial.freed_bytes, trial.held_bytes) == (3 * SIZE, SIZE)


def test_without_a_bound_only_what_nobody_knows_of_goes(
    store: ModelStore, tmp_path: Path, clock: ManualClock
) -> None:
    put(store, tmp_path, single("a"), "a", clock=clock)
    orphan = tmp_path / "models/blobs/sha256" / digest("x")
    orphan.write_bytes(content("x"))
    assert store.collect().gone == []
    assert files_on_disk(tmp_path) == {digest("a")}


def test_what_a_cut_transfer_left_goes_after_a_week_and_never_while_somebody_works_on_it(
    store: ModelStore, tmp_path: Path, clock: ManualClock
) -> None:
    left = tmp_path / "models/staging/+left"
    left.mkdir(parents=True)
    (left / "file.part").write_bytes(content("a"))
    os.utime(left / "file.part", (clock.wall_s(), clock.wall_s()))
    os.utime(left, (clock.wall_s(), clock.wall_s()))
    clock.advance(6 * 86400)
    store.collect()
    assert left.exists()
    clock.advance(2 * 86400)
    with store._objects.lock("+left"):
        store.collect()
    assert left.exists()
    assert store.collect().freed_bytes == SIZE
    assert not left.exists()


def test_a_store_with_a_bound_makes_room_before_it_fetches(
    served: FileServer, tmp_path: Path, clock: ManualClock, deployments: Deployments, heard: Heard
) -> None:
    store = ModelStore(
        tmp_path / "models", known={}, clock=clock, ask_needs=deployments, disk_bytes_max=3 * SIZE
    )
    for letter in "abc":
        put(store, tmp_path, single(letter), letter, clock=clock)
    served.files["/d"] = content("d")
    new = Artifact(f"{served.url}/d#sha256={digest('d')}", sha256=digest("d"), size_bytes=SIZE)
    assert store.fetch(new, progress=heard).read_bytes() == content("d")
    assert here(store) == {single("b").uri, single("c").uri, new.uri}
    assert any("removed https://models.example/a" in line for line in heard.lines)


def test_a_fetch_that_cannot_fit_is_refused_before_the_transfer_and_takes_nothing_that_is_needed(
    served: FileServer, tmp_path: Path, clock: ManualClock, deployments: Deployments, heard: Heard
) -> None:
    store = ModelStore(
        tmp_path / "models", known={}, clock=clock, ask_needs=deployments, disk_bytes_max=2 * SIZE
    )
    for letter in "ab":
        put(store, tmp_path, single(letter), letter, clock=clock)
        deployments.needs[digest(letter)] = (f"{letter}@v1 is wanted",)
    served.files["/d"] = content("d")
    new = Artifact(f"{served.url}/d#sha256={digest('d')}", sha256=digest("d"), size_bytes=SIZE)
    with pytest.raises(ConfigError, match=r"models\.disk_bytes_max is 2000"):
        store.fetch(new, progress=heard)
    assert here(store) == {single("a").uri, single("b").uri}


def test_an_artifact_that_is_needed_cannot_be_removed_by_hand(
    store: ModelStore, tmp_path: Path, clock: ManualClock, deployments: Deployments
) -> None:
    put(store, tmp_path, single("a"), "a", clock=clock)
    deployments.needs = {digest("a"): ("chat@v1 is wanted", "chat-0 runs chat@v1")}
    with pytest.raises(ConfigError, match=r"stays: chat@v1 is wanted; chat-0 runs chat@v1"):
        store.remove(single("a").uri)
    deployments.needs = {}
    assert store.remove(digest("a")[:12]) == SIZE
    assert files_on_disk(tmp_path) == set()


def test_a_name_whose_bytes_a_deployment_needs_cannot_be_removed(
    store: ModelStore, tmp_path: Path, deployments: Deployments, heard: Heard
) -> None:
    tiny = tiny_model(tmp_path)
    (tmp_path / "mine.gguf").write_bytes(tiny.content)
    store.pull(str(tmp_path / "mine.gguf"), progress=heard)
    deployments.needs = {tiny.sha256: ("chat@v1 is wanted",)}
    with pytest.raises(ConfigError, match="mine is needed and stays: chat@v1 is wanted"):
        store.remove("mine")
    assert store.get("mine") is not None


def test_pulls_and_collections_at_once_leave_every_pull_whole(
    served: FileServer, tmp_path: Path, heard: Heard
) -> None:
    """What is fetched at this moment is on no record yet, and no collection takes it."""
    root = tmp_path / "models"
    letters = "abcdefgh"
    served.files |= {f"/{letter}": content(letter) for letter in letters}
    artifacts = [
        Artifact(f"{served.url}/{letter}#sha256={digest(letter)}", sha256=digest(letter), size_bytes=SIZE)
        for letter in letters
    ]
    needs: Needs = {artifact.sha256: ("wanted",) for artifact in artifacts}
    is_over = threading.Event()

    def collect() -> None:
        while not is_over.is_set():
            ModelStore(root, known={}, ask_needs=lambda: needs).collect(bytes_max=0)

    collecting = threading.Thread(target=collect)
    collecting.start()
    try:
        for artifact in artifacts:
            ModelStore(root, known={}).fetch(artifact, progress=heard)
    finally:
        is_over.set()
        collecting.join()
    store = ModelStore(root, known={})
    assert all(store.artifacts.path(artifact) is not None for artifact in artifacts)
    assert store.verify() == {artifact.uri: True for artifact in artifacts}


# Killed at any step

_CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.mkdir", "os.utime", "os.chmod")


def killed_at(step: int, work: Callable[[], None]) -> bool:
    """Runs `work` in a process that is killed before its change number `step` of the disk; whether it got that far."""
    child = os.fork()
    if child == 0:
        left = step

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            writes = (
                event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            )
            if event in _CHANGES or writes:
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.slow
def test_a_collection_killed_before_any_of_its_steps_leaves_records_and_files_in_agreement(
    tmp_path: Path, clock: ManualClock
) -> None:
    """modelexpress#168: an eviction took the record and left the files, so the disk was as full as before."""
    needed = folder("needed", "cd")
    needs: Needs = {needed.sha256: ("chat@v1 is wanted",)}
    for step in range(1000):
        root = tmp_path / str(step)
        root.mkdir()
        store = ModelStore(root / "models", known={}, clock=clock, ask_needs=lambda: needs)
        put(store, root, folder("unused", "abc"), "abc", clock=clock)
        put(store, root, single("e"), "e", clock=clock)
        put(store, root, needed, "cd", clock=clock)
        was_killed = killed_at(step, lambda store=store: store.collect(bytes_max=0))  # type: ignore[misc]
        assert_whole(store)
        assert store.artifacts.path(needed) is not None
        store.collect(bytes_max=0)
        assert here(store) == {needed.uri}
        assert files_on_disk(root) == {digest("c"), digest("d")}
        if not was_killed:
            assert step > 8, "it has as many steps"
            return
    raise AssertionError("it never came to its end")


@pytest.mark.slow
def test_a_commit_killed_before_any_of_its_steps_is_invisible_or_whole_and_can_be_repeated(
    tmp_path: Path, clock: ManualClock
) -> None:
    for step in range(1000):
        root = tmp_path / str(step)
        root.mkdir()
        store = ModelStore(root / "models", known={}, clock=clock)
        put(store, root, single("a"), "a", clock=clock)
        work = lambda: put(store, root, folder("new", "abc"), "abc", clock=clock)  # noqa: B023, E731
        was_killed = killed_at(step, work)
        assert_whole(store)
        store.collect()
        assert_whole(store)
        put(store, root, folder("new", "abc"), "abc", clock=clock)
        assert store.verify() == {single("a").uri: True, folder("new", "abc").uri: True}
        if not was_killed:
            assert step > 10, "it has as many steps"
            return
    raise AssertionError("it never came to its end")


def assert_whole(store: ModelStore) -> None:
    """What is on record is here, every byte and every link of it."""
    for record in store.artifacts.records():
        path = store.artifacts.path(record.artifact)
        assert path is not None, record.artifact.uri
        assert store.artifacts.verify(record.artifact) == []
        for file in record.artifact.files:
            assert hashlib.sha256((path / file.path).read_bytes()).hexdigest() == file.sha256

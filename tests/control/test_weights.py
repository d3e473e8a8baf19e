"""A replica's files: fetched, read through before they are used, put aside when they are damaged, and fetched again once."""

import asyncio
import hashlib
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.control import weights
from headrace.control.weights import Meter, Weights
from headrace.core.deployment_terms import LifecycleTerms
from headrace.core.deployments import Artifact
from headrace.core.errors import HeadraceError
from headrace.stores.downloads import Progress
from tests.control.lives import FETCHING, READY, STARTING, WARMING, living, run, scripted
from tests.control.rig import eventually


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Shelf:
    """A store that keeps files as ours does: by their digest, under one root."""

    def __init__(self, root: Path, *contents: bytes) -> None:
        self.root = root
        self.damaged: list[Path] = []
        self.fetched = 0
        self._contents = list(contents)
        self.is_blocked = threading.Event()

    def fetch(self, artifact: Artifact, progress: Progress) -> Path:
        path = self.root / artifact.sha256
        if path.exists():
            return path
        content = self._contents[min(self.fetched, len(self._contents) - 1)]
        self.fetched += 1
        self.root.mkdir(exist_ok=True)
        path.write_bytes(content)
        progress.advance(len(content), len(content))
        return path

    def weights(self) -> Weights:
        return Weights(self.root, self.fetch, note_damage=lambda file: self.damaged.append(file.path))


GOOD = b"weights " * 1000
ARTIFACT = Artifact(uri="https://example.org/weights", sha256=digest(GOOD), size_bytes=len(GOOD))


def test_who_waits_for_what_another_replica_fetches_gets_on_with_it(tmp_path: Path) -> None:
    """E4: a long transfer is no stall for the second replica of a version, which waits for the same bytes."""
    shelf, is_here = Shelf(tmp_path / "store", GOOD), threading.Event()
    first, second = Meter(), Meter()
    sent = 0

    def fetch(artifact: Artifact, progress: Progress) -> Path:
        nonlocal sent
        if not shelf.fetched:
            while not is_here.wait(0.01):
                sent += 1
                progress.advance(sent, 0)
        return shelf.fetch(artifact, progress)

    async def scenario() -> None:
        weights = Weights(shelf.root, fetch)

        def bring(meter: Meter) -> "asyncio.Task[dict[str, Path]]":
            return asyncio.create_task(
                weights.bring({"weights": ARTIFACT}, (), meter=meter, is_suspect=False)
            )

        brought = [bring(first)]
        await eventually(lambda: first.bytes_done > 0)
        brought.append(bring(second))
        await eventually(lambda: second.bytes_done > 0)
        before = second.bytes_done
        await eventually(lambda: second.bytes_done > before)
        is_here.set()
        assert await brought[0] == await brought[1]
        assert shelf.fetched == 1

    run(scenario)


def test_replicas_that_wait_for_bytes_leave_the_controller_its_threads(tmp_path: Path) -> None:
    """E3: routes are stored and published, however many replicas are being fetched."""
    is_over, waiting = threading.Event(), []

    def fetch(artifact: Artifact, progress: Progress) -> Path:
        waiting.append(artifact)
        is_over.wait(60)
        raise HeadraceError("it doesn't come")

    async def scenario() -> None:
        weights = Weights(tmp_path, fetch)
        many = [Artifact(uri=f"https://example.org/{number}", sha256=f"{number:064}") for number in range(40)]
        brought = [
            asyncio.create_task(weights.bring({"weights": each}, (), meter=Meter(), is_suspect=False))
            for each in many
        ]
        await eventually(lambda: len(waiting) == len(many))
        await asyncio.to_thread(is_over.set)
        for each in brought:
            with pytest.raises(HeadraceError):
                await each

    run(scenario)


@pytest.mark.slow
def test_files_are_fetched_and_checked_before_the_engine_starts(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "store", GOOD)

    async def scenario() -> None:
        spec = scripted(artifacts={"weights": ARTIFACT})
        async with living(spec, tmp_path, weights=shelf.weights()) as life:
            await eventually(lambda: life.offers)
            assert life.states() == [FETCHING, STARTING, WARMING, READY]
            assert life.took.fetch_s > 0
        assert shelf.fetched == 1

    run(scenario)


def test_a_corrupt_file_is_put_aside_and_fetched_again_once(tmp_path: Path) -> None:
    """E8: a flipped bit is found before an engine loads it."""
    shelf = Shelf(tmp_path / "store", GOOD[:-1] + b"!", GOOD)

    async def scenario() -> None:
        spec = scripted(artifacts={"weights": ARTIFACT})
        async with living(spec, tmp_path, weights=shelf.weights()) as life:
            await eventually(lambda: life.offers)
        assert shelf.fetched == 2
        assert (shelf.root / "quarantine" / ARTIFACT.sha256).read_bytes() == GOOD[:-1] + b"!"
        assert shelf.damaged == [shelf.root / ARTIFACT.sha256], "somebody is told"

    run(scenario)


def test_a_file_that_another_replica_has_fetched_anew_is_not_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E8: two replicas read the damaged file at once; the second must not throw away what the first has brought."""
    shelf = Shelf(tmp_path / "store", GOOD[:-1] + b"!")
    read = weights._sha256

    def read_while_it_is_replaced(path: Path, meter: Meter) -> str:
        found = read(path, meter)
        if found != ARTIFACT.sha256:
            fresh = path.with_name("fresh")
            fresh.write_bytes(GOOD)
            fresh.replace(path)
        return found

    monkeypatch.setattr(weights, "_sha256", read_while_it_is_replaced)
    brought = asyncio.run(shelf.weights().bring({"weights": ARTIFACT}, (), meter=Meter(), is_suspect=False))
    assert brought["weights"].read_bytes() == GOOD
    assert (shelf.fetched, shelf.damaged) == (1, [])
    assert not (shelf.root / "quarantine").exists()


def test_a_damaged_file_is_kept_from_the_moment_that_it_is_put_aside(tmp_path: Path) -> None:
    """However old it is: what lies aside goes after some days."""
    shelf = Shelf(tmp_path / "store", GOOD[:-1] + b"!", GOOD)
    os.utime(shelf.fetch(ARTIFACT, Meter()), (1, 1))
    asyncio.run(shelf.weights().bring({"weights": ARTIFACT}, (), meter=Meter(), is_suspect=False))
    assert (shelf.root / "quarantine" / ARTIFACT.sha256).stat().st_mtime > 1


def test_a_file_that_is_corrupt_wherever_it_comes_from_is_a_reason(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "store", b"something else")

    async def scenario() -> None:
        spec = scripted(artifacts={"weights": ARTIFACT})
        async with living(spec, tmp_path, weights=shelf.weights()) as life:
            status = await life.failed()
            assert (status.code, status.is_stuck) == ("corrupt_model", True)
            assert "fetched twice" in status.reason
            assert STARTING not in life.states()

    run(scenario)


def test_a_file_that_we_dont_keep_is_checked_and_left_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(b"not what it was")

    async def scenario() -> None:
        spec = replace(scripted(), model_path=path, model_sha256=digest(GOOD))
        async with living(spec, tmp_path, weights=Weights(tmp_path / "store")) as life:
            assert (await life.failed()).code == "corrupt_model"
            path.write_bytes(GOOD)
            await eventually(lambda: life.offers)
        assert path.exists()

    run(scenario)


@pytest.mark.slow
def test_a_file_is_read_whole_again_only_when_it_has_changed_or_could_not_be_loaded(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "store", GOOD)

    async def scenario() -> None:
        spec = scripted(artifacts={"weights": ARTIFACT})
        async with living(spec, tmp_path, weights=shelf.weights()) as life:
            await eventually(lambda: life.offers)
        blob = shelf.root / ARTIFACT.sha256
        found = blob.stat()
        blob.write_bytes(GOOD[:-1] + b"!")
        os.utime(blob, ns=(found.st_atime_ns, found.st_mtime_ns))  # as a disk does it, without a trace
        spec = scripted(artifacts={"weights": ARTIFACT}, load_fault="failed")
        async with living(spec, tmp_path, weights=shelf.weights()) as life:
            assert (await life.failed()).code == "load_failed"
            await eventually(lambda: (shelf.root / "quarantine" / ARTIFACT.sha256).exists())

    run(scenario)


def test_a_fetch_without_a_byte_is_given_up(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "store", GOOD)
    goes_on = threading.Event()

    def fetch(artifact: Artifact, progress: Progress) -> Path:
        goes_on.wait(60)
        return shelf.fetch(artifact, progress)

    async def scenario() -> None:
        spec = scripted(artifacts={"weights": ARTIFACT}, terms=LifecycleTerms(fetch_stall_s=0.3))
        async with living(spec, tmp_path, weights=Weights(shelf.root, fetch)) as life:
            status = await life.failed()
            goes_on.set()
            assert (status.code, status.is_stuck) == ("fetch_stalled", True)

    run(scenario)


def test_what_cant_be_fetched_says_why(tmp_path: Path) -> None:
    async def scenario() -> None:
        spec = scripted(artifacts={"weights": ARTIFACT})
        async with living(spec, tmp_path, weights=Weights(tmp_path)) as life:
            status = await life.failed()
            assert status.code == "fetch_failed"
            assert "is not here, and nothing is fetched" in status.reason

    run(scenario)

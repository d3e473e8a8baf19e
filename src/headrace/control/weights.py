"""Are a replica's files here, and what they should be? Fetched, read through once, and put aside when they are damaged.

A file is read whole before it is used for the first time, and again when it has changed or an engine failed to load it:
reading hundreds of gigabytes for each start would cost more than it finds.
"""

import asyncio
import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from headrace.core.deployments import Artifact
from headrace.core.errors import HeadraceError
from headrace.stores.downloads import Progress

CHUNK_BYTES = 4 << 20
FOLLOW_EVERY_S = 0.1
# As many replicas get their files at once; others wait.
THREADS_MAX = 64
Fetch = Callable[[Artifact, Progress], Path]


class Abandoned(Exception):
    """Nobody waits for it any more."""


class CorruptModel(Exception):
    """A file is not what it should be, and has been put aside."""


class Meter:
    """How far the work on a thread is; the thread ends at its next step once nobody waits for it.

    Owner: the thread; another may read `bytes_done` and set `is_abandoned`.
    """

    def __init__(self) -> None:
        self.bytes_done = 0
        self.is_abandoned = False
        self._before = 0  # of the steps that are over
        self._step = 0

    def follow(self, other: "Meter", is_over: threading.Event) -> None:
        """Another thread does what this one is to do: what it gets on by counts here too, until it is over."""
        seen = other.bytes_done
        while not is_over.wait(FOLLOW_EVERY_S):
            now = other.bytes_done
            self._before, seen = self._before + max(0, now - seen), now
            self._measure()

    def say(self, line: str) -> None:
        """A step began, which is progress too."""
        self._before, self._step = self._before + self._step + 1, 0
        self._measure()

    def advance(self, done_bytes: int, total_bytes: int) -> None:
        if done_bytes < self._step:
            self._before += self._step
        self._step = done_bytes
        self._measure()

    def _measure(self) -> None:
        self.bytes_done = self._before + self._step
        if self.is_abandoned:
            raise Abandoned


@dataclass(frozen=True, slots=True)
class File:
    """A file that is here, and the digest that it should have."""

    path: Path
    sha256: str


class Weights:
    """The files of this machine's replicas.

    Args:
        root: Of the model store.
        fetch: Brings an artifact here and says where it lies; blocking. None where nothing is fetched.
        note_damage: Hears of each file that is not what it should be, on the thread that read it.
    """

    def __init__(
        self,
        root: Path,
        fetch: Fetch | None = None,
        *,
        note_damage: Callable[[File], None] = lambda _: None,
    ) -> None:
        self._root = root
        self._fetch = fetch
        self._note_damage = note_damage
        self._aside = threading.Lock()  # held while a damaged file goes
        self._fetching: dict[
            str, tuple[Meter, threading.Event]
        ] = {}  # by address and digest, what is under way
        self._turn = threading.Lock()  # held while that changes
        # Threads of its own: those that wait for bytes must not be all that the controller has for its store.
        self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="weights")

    async def bring(
        self,
        artifacts: Mapping[str, Artifact],
        known: Iterable[File],
        *,
        meter: Meter,
        is_suspect: bool,
    ) -> dict[str, Path]:
        """Where the artifacts lie, by what they are for, each of them and of `known` checked.

        A damaged artifact is put aside and fetched again, once.

        Args:
            is_suspect: An engine could not load them, so all are read whatever was found before.
        Raises:
            CorruptModel: Also what was fetched anew is damaged, or what can't be fetched.
            HeadraceError, OSError: It can't be fetched or read.
            Abandoned: `meter` says so.
        """
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(
                self._threads, self._bring, artifacts, tuple(known), meter, is_suspect
            )
        finally:
            meter.is_abandoned = True

    def _bring(
        self, artifacts: Mapping[str, Artifact], known: tuple[File, ...], meter: Meter, is_suspect: bool
    ) -> dict[str, Path]:
        if damaged := self._damaged(known, meter, is_suspect=is_suspect):
            raise CorruptModel(_told(damaged))
        paths = {}
        for name, artifact in artifacts.items():
            path = self._fetched(artifact, meter)
            if self._damaged(_files(artifact, path), meter, is_suspect=is_suspect):
                path = self._fetched(artifact, meter)
                if damaged := self._damaged(_files(artifact, path), meter, is_suspect=True):
                    raise CorruptModel(f"{_told(damaged)}, fetched twice from {artifact.uri}")
            paths[name] = path
        return paths

    def _fetched(self, artifact: Artifact, meter: Meter) -> Path:
        if self._fetch is None:
            raise HeadraceError(f"{artifact.uri} is not here, and nothing is fetched by this service")
        key = f"{artifact.uri} {artifact.sha256}"
        mine = meter, threading.Event()
        while True:
            with self._turn:
                other = self._fetching.setdefault(key, mine)
            if other is mine:
                break
            meter.follow(
                *other
            )  # replicas of one version need the same: it is fetched once, and is progress for all
        try:
            return self._fetch(artifact, meter)
        finally:
            with self._turn:
                del self._fetching[key]
            mine[1].set()

    def _damaged(self, files: tuple[File, ...], meter: Meter, *, is_suspect: bool) -> list[File]:
        """Those whose bytes are not what they should be; they are put aside."""
        return [file for file in files if self._is_damaged(file, meter, is_suspect=is_suspect)]

    def _is_damaged(self, file: File, meter: Meter, *, is_suspect: bool) -> bool:
        """What is here now is looked at, and not what another replica has put aside or fetched anew since it was read."""
        seen = self._root / "verified" / file.sha256
        while True:
            stamp = _stamp(file.path)
            if not is_suspect and _read(seen) == stamp:
                return False
            if _sha256(file.path, meter) == file.sha256:
                with contextlib.suppress(OSError):  # then it is read once more the next time
                    seen.parent.mkdir(parents=True, exist_ok=True)
                    seen.write_text(stamp)
                return False
            with self._aside:
                if not file.path.exists():
                    return True
                if _stamp(file.path) == stamp:
                    self._put_aside(file)
                    break
        self._note_damage(file)
        return True

    def _put_aside(self, file: File) -> None:
        """Out of the store, so that it is fetched anew, but kept: whoever wonders can compare. Others' files stay."""
        path = file.path.resolve()
        if path.is_relative_to(self._root.resolve()):
            aside = self._root / "quarantine"
            aside.mkdir(parents=True, exist_ok=True)
            path.replace(aside / file.sha256)
            os.utime(aside / file.sha256)  # it is kept for a while from now on, however old its bytes are
        with contextlib.suppress(FileNotFoundError):
            (self._root / "verified" / file.sha256).unlink()


def _files(artifact: Artifact, path: Path) -> tuple[File, ...]:
    if artifact.files:
        return tuple(File(path / file.path, file.sha256) for file in artifact.files)
    return (File(path, artifact.sha256),) if artifact.sha256 else ()


def _stamp(path: Path) -> str:
    found = path.stat()
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns}"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _sha256(path: Path, meter: Meter) -> str:
    digest, done = hashlib.sha256(), 0
    meter.say(f"checking {path.name}")
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            meter.advance(done, 0)
    return digest.hexdigest()


def _told(damaged: list[File]) -> str:
    return ", ".join(f"{file.path}: not the bytes of {file.sha256[:12]}..." for file in damaged)

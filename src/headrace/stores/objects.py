"""Where do large files live? Named by their SHA-256, visible only when whole, never changed in place."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.core.errors import ConfigError

CHUNK_BYTES = 1 << 20
# Left free on the disk: the ledger lives on the same one by default, and must go on writing.
HEADROOM_BYTES = 64 << 20
# Held while names, records and blobs change, so that a removal never takes a blob that a pull is about to name.
STORE_LOCK = "+store"


class ObjectStore:
    """`blobs/sha256/<digest>` for what is whole, `staging/<name>/` for what isn't yet, `locks/` for who works on it.

    A file enters `blobs/` only by a rename on the same file system, after its bytes are on the disk, so that a process
    killed at any moment leaves either nothing or everything.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._blobs = root / "blobs" / "sha256"
        self._staging = root / "staging"
        self._quarantine = root / "quarantine"  # what was found damaged, put aside for whoever wonders

    def path(self, sha256: str) -> Path:
        return self._blobs / sha256

    def add(self, staged: Path, *, sha256: str) -> Path:
        """Moves a finished file in; the caller has checked its digest. Replaces a damaged file of that digest."""
        self._blobs.mkdir(parents=True, exist_ok=True)
        _flush(staged)
        target = self.path(sha256)
        staged.replace(target)
        target.chmod(0o444)
        _flush(self._blobs)
        return target

    def blobs(self) -> dict[str, int]:
        """All that are whole, with their bytes."""
        found = self._blobs.iterdir() if self._blobs.is_dir() else ()
        return {blob.name: blob.stat().st_size for blob in found}

    def staged_bytes(self) -> int:
        """What is on its way takes, without what is a blob too; a file with two names counts once."""
        known = {blob.stat().st_ino for blob in self._blobs.iterdir()} if self._blobs.is_dir() else set()
        return _bytes(status for status in _walk(self._staging) if status.st_ino not in known)

    def clear_stale(self, *, before_s: float, is_trial: bool) -> int:
        """Drops what cut transfers left that nobody has gone on with since then, and damaged files; returns the bytes."""
        freed_bytes = 0
        for folder in list(self._staging.iterdir()) if self._staging.is_dir() else ():
            with self.lock_if_free(folder.name) as is_ours:
                found = list(_walk(folder)) if is_ours else []
                if found and max(status.st_mtime for status in found) < before_s:
                    freed_bytes += _bytes(found)
                    if not is_trial:
                        shutil.rmtree(folder, ignore_errors=True)
        for path in list(self._quarantine.iterdir()) if self._quarantine.is_dir() else ():
            status = path.lstat()
            if status.st_mtime < before_s:
                freed_bytes += status.st_size
                if not is_trial:
                    path.unlink(missing_ok=True)
        return freed_bytes

    def sweep(self, keep: set[str]) -> int:
        """Removes every blob that isn't in `keep`; returns the bytes freed."""
        freed_bytes = 0
        for blob in list(self._blobs.iterdir()) if self._blobs.is_dir() else []:
            if blob.name not in keep:
                freed_bytes += blob.stat().st_size
                blob.unlink()
        return freed_bytes

    def staging(self, name: str) -> Path:
        """The folder where work on `name` goes on, over several processes if need be."""
        folder = self._staging / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def has_staging(self, name: str) -> bool:
        return (self._staging / name).is_dir()

    def clear_staging(self, name: str) -> None:
        shutil.rmtree(self._staging / name, ignore_errors=True)

    @contextmanager
    def lock(self, name: str, *, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """One process and thread at a time per name. The kernel drops the lock of a killed process.

        Args:
            waiting: Called once if another holds it.
        """
        folder = self._root / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if waiting is not None:
                    waiting()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def lock_if_free(self, name: str) -> Iterator[bool]:
        """The same without waiting; yields whether it is held."""
        folder = self._root / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            is_ours = True
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                is_ours = False
            yield is_ours
        finally:
            os.close(descriptor)

    def check_space(self, needed_bytes: int) -> None:
        """Raises ConfigError if that many bytes more would fill the disk."""
        self._root.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(self._root).free
        if needed_bytes + HEADROOM_BYTES > free_bytes:
            raise ConfigError(
                f"{self._root}: {_megabytes(needed_bytes)} are needed (and {_megabytes(HEADROOM_BYTES)} left free), "
                f"the disk has {_megabytes(free_bytes)}; free some space or choose another --data directory"
            )


def _walk(folder: Path) -> Iterator[os.stat_result]:
    """The folder and all below it, as far as it is still there: others may be at work in it."""
    for where, _, names in os.walk(folder):
        for path in (where, *(os.path.join(where, name) for name in names)):
            with contextlib.suppress(FileNotFoundError):
                yield os.lstat(path)


def _bytes(found: Iterable[os.stat_result]) -> int:
    """Of the files among them; one with two names counts once."""
    return sum({each.st_ino: each.st_size for each in found if stat.S_ISREG(each.st_mode)}.values())


def sha256_of(path: Path) -> str:
    """The digest of what is on the disk, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_whole(path: Path, content: bytes) -> None:
    """Writes a small file so that a reader, or a crash, sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # One writer at a time holds the store's lock, so the fixed name of the draft is never shared.
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(content)
    _flush(draft)
    draft.replace(path)
    _flush(path.parent)


def drop_whole(path: Path) -> None:
    """Removes a file so that nothing that is removed after it can be gone while it is still there, crash or not."""
    if path.exists():
        path.unlink()
        _flush(path.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _megabytes(count_bytes: int) -> str:
    return f"{count_bytes / 1e6:.0f} MB"

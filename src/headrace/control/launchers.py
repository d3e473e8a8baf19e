"""How does an engine become a process of this machine, and how does it end for certain?"""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from headrace.core.ids import ReplicaId
from headrace.engines.embedded import EngineReport, EngineSettings

# `-P`: a folder named headrace in the current directory must not be run in our place.
EMBEDDED_ENGINE = (sys.executable, "-P", "-m", "headrace.engines.embedded")
LIFELINE = (sys.executable, "-P", "-m", "headrace.control.lifeline")
LOG_TAIL_BYTES = 64 * 1024
KILL_MARGIN_S = 5.0

_ENGINE_LINE = re.compile(r"[\d.]+ [A-Z] ")
_ENGINE_ERROR = re.compile(r"^[\d.]+ E (.+)$", re.MULTILINE)


class EngineProcess:
    """A running engine under its lifeline. Whoever holds one must `stop` it, also after it ended on its own.

    Owner: one replica; `pid` is the engine's own, known with its first report.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reports: asyncio.StreamReader,
        ours: contextlib.ExitStack,
        *,
        log: Path,
        stop_grace_s: float,
    ) -> None:
        """`ours` closes our ends of the lifeline and of the reports."""
        self.pid: int | None = None
        self._process = process
        self._reports = reports
        self._ours = ours
        self._log = log
        self._stop_grace_s = stop_grace_s

    async def report(self) -> EngineReport | None:
        """The engine's next report; None when it ended or wrote something else."""
        try:
            line = await self._reports.readline()
            report = msgspec.json.decode(line, type=EngineReport)
        except (ValueError, msgspec.DecodeError):
            return None
        self.pid = report.pid
        return report

    async def wait(self) -> int:
        """Returns its exit status when it has ended; 128 + N after signal N, as shells do."""
        return await self._process.wait()

    async def stop(self) -> None:
        """Asks it to end, kills it after the grace, and returns when nothing of it is left. May be called twice."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
        try:
            async with asyncio.timeout(self._stop_grace_s + KILL_MARGIN_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        finally:
            self._cut()

    def _cut(self) -> None:
        self._ours.close()
        lifeline_was_killed = self._process.returncode is None or self._process.returncode < 0
        if lifeline_was_killed and self.pid is not None:
            # Nobody else is left to end the engine's group, whose number is the engine's pid.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.pid = None

    def first_error(self) -> str:
        """The first error in the engine's log, else the end of a traceback, else "": the cause behind a bare status."""
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, self._log.stat().st_size - LOG_TAIL_BYTES))
                text = log.read().decode("utf-8", errors="replace").strip()
        except OSError as error:
            return f"{self._log}: {error.strerror}"
        error_line = _ENGINE_ERROR.search(text)
        if error_line:
            return error_line[1]
        last_line = text.rpartition("\n")[2]
        return "" if _ENGINE_LINE.match(last_line) else last_line


class ProcessLauncher:
    """Starts engines as child processes, each under its own lifeline.

    Args:
        logs: Directory of the engines' logs, one `<replica>.log` each with the previous one as `<replica>.log.1`.
        command: What to run; it must speak the settings and reports of engines.embedded.
        stop_grace_s: Time between SIGTERM and SIGKILL.
    """

    def __init__(
        self, *, logs: Path, command: Sequence[str] = EMBEDDED_ENGINE, stop_grace_s: float = 5.0
    ) -> None:
        self._logs = logs
        self._command = tuple(command)
        self._stop_grace_s = stop_grace_s

    async def launch(self, replica: ReplicaId, settings: EngineSettings) -> EngineProcess:
        """Starts an engine and hands it its settings. Raises OSError when there is no process to be had."""
        log = self._logs / (re.sub(r"[^A-Za-z0-9._-]", "_", replica) + ".log")
        # Our own pipes, not subprocess.PIPE: of the lifeline it must be certain that nobody else holds the writing
        # end, and the reports must be closable by us while some orphan still holds theirs.
        with contextlib.ExitStack() as on_failure, contextlib.ExitStack() as ends_of_the_child:
            log_fd = _fresh_log(log)
            ends_of_the_child.callback(os.close, log_fd)
            settings_fd, lifeline = os.pipe()
            ends_of_the_child.callback(os.close, settings_fd)
            on_failure.callback(os.close, lifeline)
            reports_fd, reporting_fd = os.pipe()
            ends_of_the_child.callback(os.close, reporting_fd)
            reports = asyncio.StreamReader()
            reports_transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reports), os.fdopen(reports_fd, "rb", buffering=0)
            )
            on_failure.callback(reports_transport.close)
            process = await asyncio.create_subprocess_exec(
                *LIFELINE,
                "--grace-s",
                f"{self._stop_grace_s:g}",
                "--",
                *self._command,
                stdin=settings_fd,
                stdout=reporting_fd,
                stderr=log_fd,
                start_new_session=True,  # Ctrl-C in a terminal is for the supervisor, which drains first
            )
            # Far below a pipe's capacity, so this never waits.
            os.write(lifeline, msgspec.json.encode(settings) + b"\n")
            ours = on_failure.pop_all()
        return EngineProcess(process, reports, ours, log=log, stop_grace_s=self._stop_grace_s)


def _fresh_log(log: Path) -> int:
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        log.replace(_previous(log))
    return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _previous(log: Path) -> Path:
    return log.with_name(log.name + ".1")

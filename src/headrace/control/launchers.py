"""How does an engine become a process of this machine, how is a running one found again, and how does it end for certain?

There is one way to hold an engine, an `EngineHandle`, and two to get one: `launch` starts it, `adopt` finds one that an
earlier process has started. Who launches may die at any moment, and leaves either nothing or one engine that can be adopted:
first want.json names the launch's token, then whatever still held the replica is ended, then a lifeline is started with
that token. A lifeline without the newest token starts nothing, and there is one lock.
"""

import asyncio
import contextlib
import errno
import os
import re
import secrets
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from headrace.config.surroundings import inherited
from headrace.control import processes
from headrace.control.replica_files import EngineState, ProcessKey, ReplicaFiles, Want
from headrace.core.clock import Clock
from headrace.core.ids import ReplicaId

# `-P`: a folder named headrace in the current directory must not be run in our place.
LIFELINE = (sys.executable, "-P", "-m", "headrace.control.lifeline")
LOG_TAIL_BYTES = 64 * 1024
KILL_MARGIN_S = 5.0
STATE_LOOK_S = 0.03
# From the start of a lifeline to its first word.
FIRST_WORD_S = 30.0

_ENGINE_LINE = re.compile(r"[\d.]+ [A-Z] ")
_ENGINE_ERROR = re.compile(r"^[\d.]+ E (.+)$", re.MULTILINE)


class Lifeline:
    """The pipe whose end is the end of every engine. The service makes one and keeps it as long as it lives.

    `reading_fd` goes to whoever launches engines, by inheritance; the writing end never leaves this process.
    """

    def __init__(self) -> None:
        self.reading_fd, self._writing_fd = os.pipe()

    def close(self) -> None:
        """Every engine under it ends. May be called twice."""
        for descriptor in (self.reading_fd, self._writing_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self.reading_fd = self._writing_fd = -1


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a start has got, in things that only grow while something happens.

    Attributes:
        rss_bytes: Of the engine and all that it started.
    """

    log_bytes: int
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class Held:
    """What stands under one replica's id.

    Attributes:
        is_running: A lifeline holds it. What isn't running may have left its files.
        token: Of what runs, else of what was wanted last; "" where nothing is known.
    """

    replica: ReplicaId
    is_running: bool
    token: str
    want: Want | None
    state: EngineState | None


class EngineHandle:
    """A running engine under its lifeline, launched or adopted alike. Whoever has one must `stop` it or `let_go` of it.

    Owner: one replica. What it says is as of the last look at the engine's state.
    """

    def __init__(self, files: ReplicaFiles, want: Want, lifeline: ProcessKey, descriptor: int) -> None:
        """`descriptor` is a pidfd of the lifeline."""
        self.want = want
        self.state: EngineState | None = None
        self._files = files
        self._lifeline = lifeline
        self._descriptor = descriptor
        self._engine_descriptor = -1
        self._version = (0, 0)
        self._has_ended = asyncio.Event()
        self._is_over = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, self._over)
        self.look()

    @property
    def pid(self) -> int | None:
        """The engine's own, and its group's number; None before it was started."""
        return None if self.state is None or self.state.engine is None else self.state.engine.pid

    def look(self) -> bool:
        """Reads the state if it was written anew; returns whether it was."""
        version = self._files.state_version()
        if version == self._version:
            return False
        state = self._files.state()
        self._version = version
        if state is None or state.token != self.want.token or state == self.state:
            return False
        self.state = state
        if state.engine is not None and self._engine_descriptor < 0 and not self._has_ended.is_set():
            self._watch_engine(state.engine)
        return True

    async def next_state(self) -> EngineState | None:
        """Waits for the next change; None when the engine has ended (its last state is in `state`)."""
        while not self.look():
            if self._is_over.is_set():
                return None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STATE_LOOK_S):
                    await self._is_over.wait()
        return self.state

    async def ended(self) -> None:
        """Returns as soon as the engine's process has ended, or its lifeline."""
        while self._engine_descriptor < 0 and not self._has_ended.is_set():
            if await self.next_state() is None:
                break
        await self._has_ended.wait()

    async def wait(self) -> int | None:
        """Returns the exit status (128 + N after signal N) when nothing is left; None if nobody could tell it."""
        await self._is_over.wait()
        self.look()
        return None if self.state is None else self.state.exit_status

    async def stop(self) -> None:
        """Asks it to end, kills it after the grace, and returns when nothing of it is left. May be called again, also after it
        was cancelled."""
        await _end_lifeline(self._lifeline, self._is_over, grace_s=self.want.grace_s)
        self.look()
        # Of this launch alone: another one may have taken its place since.
        mark = f"{self._files.mark}{self.want.token}"
        await _end_leftovers(mark, None if self.state is None else self.state.engine)
        self.let_go()

    def let_go(self) -> None:
        """The engine runs on; somebody else may adopt it. May be called twice."""
        for descriptor in (self._descriptor, self._engine_descriptor):
            if descriptor >= 0:
                asyncio.get_running_loop().remove_reader(descriptor)
                os.close(descriptor)
        self._descriptor = self._engine_descriptor = -1
        self._has_ended.set()
        self._is_over.set()

    def progress(self) -> Progress:
        """How far it is. Looks at every process of the machine, so not to be asked more than about once a second."""
        log_bytes = rss_bytes = 0
        for path in (Path(self.want.log), _previous(Path(self.want.log))):
            with contextlib.suppress(OSError):
                log_bytes += path.stat().st_size
        if self.state is not None and self.state.engine is not None:
            rss_bytes = sum(each.rss_bytes for each in processes.family(self.state.engine, processes.rows()))
        return Progress(log_bytes, rss_bytes)

    def first_error(self) -> str:
        """The first error in the engine's log, else the end of a traceback, else "": the cause behind a bare status.

        Of a launch that never became an engine, what its lifeline had to say.
        """
        path = self._files.lifeline_log if self.pid is None else Path(self.want.log)
        try:
            with path.open("rb") as log:
                log.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
                text = log.read().decode("utf-8", errors="replace").strip()
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"{path}: {error.strerror}"
        error_line = _ENGINE_ERROR.search(text)
        if error_line:
            return error_line[1]
        last_line = text.rpartition("\n")[2]
        return "" if _ENGINE_LINE.match(last_line) else last_line

    def _watch_engine(self, engine: ProcessKey) -> None:
        descriptor = processes.open_process(engine)
        if descriptor is None:
            self._has_ended.set()
            return
        self._engine_descriptor = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._engine_ended)

    def _engine_ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._engine_descriptor)
        self._has_ended.set()

    def _over(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        _reap(self._descriptor)
        self._has_ended.set()
        self._is_over.set()


class Launcher:
    """Starts engines under lifelines, finds those that run, and ends them.

    Args:
        run: Directory of the replicas' files, one folder each.
        logs: Directory of the engines' logs, one `<replica>.log` each with the previous one as `<replica>.log.1`.
        lifeline_fd: The reading end of the service's lifeline.
        end_limit_s: How long what ran under an id before may take to end, its grace not counted.
    """

    def __init__(
        self, *, run: Path, logs: Path, lifeline_fd: int, clock: Clock, end_limit_s: float = 60.0
    ) -> None:
        self._run = run
        self._logs = logs
        self.lifeline_fd = lifeline_fd
        self._clock = clock
        self._end_limit_s = end_limit_s

    def log_of(self, replica: ReplicaId) -> Path:
        return self._logs / f"{_file_name(replica)}.log"

    async def launch(self, want: Want) -> EngineHandle:
        """Starts what `want` says, after the end of whatever ran under that id.

        Raises OSError when there is no process or no file to be had, or what ran before doesn't end; then nothing of it runs.
        """
        files = self._files(ReplicaId(want.replica))
        files.write_want(want)
        await self._end(files)
        pid, key = self._spawn(files, want.token)
        descriptor = os.pidfd_open(pid)  # it is our child and not reaped, so the number is its own
        return EngineHandle(files, want, key, descriptor)

    async def adopt(self, replica: ReplicaId, token: str) -> EngineHandle | None:
        """The engine that runs under that id since the launch with that token; None when there is none.

        What was launched in vain, a moment before its launcher died, may still be on its way: `launch` and `fence` see to
        it that it can't become an engine any more.
        """
        files = self._files(replica)
        want, state = files.want(), files.state()
        if want is None or state is None or not files.is_held():
            return None
        if not want.token == state.token == token:
            return None
        descriptor = processes.open_process(state.lifeline)
        return None if descriptor is None else EngineHandle(files, want, state.lifeline, descriptor)

    def inventory(self) -> tuple[Held, ...]:
        """What has files under `run`, by id."""
        try:
            directories = sorted(path for path in self._run.iterdir() if path.is_dir())
        except FileNotFoundError:
            return ()
        return tuple(_held(ReplicaFiles(directory)) for directory in directories)

    async def fence(self, replica: ReplicaId) -> None:
        """Ends whatever runs under that id, also what is just being launched, and returns when nothing of it is left.

        Raises OSError when the files can't be written, so that a late launch could still pass, or it doesn't end.
        """
        files = self._files(replica)
        if not files.directory.exists():
            return
        files.write_want(Want(replica, secrets.token_hex(16)))
        await self._end(files)

    def forget(self, replica: ReplicaId) -> None:
        """Removes the files of a replica that doesn't run and shall not run again; its logs stay."""
        directory = self._files(replica).directory
        with contextlib.suppress(FileNotFoundError):
            for path in directory.iterdir():
                path.unlink()
            directory.rmdir()

    async def _end(self, files: ReplicaFiles) -> None:
        """Until the lock is free. Whoever holds it has written its state, or will read the new token and end."""
        asked: dict[ProcessKey, float] = {}
        begun_s = self._clock.now_s()
        while files.is_held():
            state, now_s = files.state(), self._clock.now_s()
            if now_s - begun_s > self._end_limit_s + (state.grace_s if state is not None else 0.0):
                raise OSError(errno.EBUSY, "what ran there before doesn't end", str(files.directory))
            if state is not None:
                at_s = asked.get(state.lifeline)
                if at_s is None:
                    asked[state.lifeline] = now_s
                    processes.send(state.lifeline, signal.SIGTERM)
                elif now_s - at_s > state.grace_s + KILL_MARGIN_S:
                    asked[state.lifeline] = now_s
                    processes.send(state.lifeline, signal.SIGKILL)
            await asyncio.sleep(STATE_LOOK_S)
        state = files.state()
        await _end_leftovers(files.mark, None if state is None else state.engine)

    def _spawn(self, files: ReplicaFiles, token: str) -> tuple[int, ProcessKey]:
        """A lifeline in a session of its own: Ctrl-C in a terminal is for the service, which drains first."""
        command = (*LIFELINE, str(files.directory), token)
        truncate = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        # Not `subprocess`: it would want to reap what outlives this process by design.
        pid = os.posix_spawn(
            command[0],
            command,
            inherited(),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, self.lifeline_fd, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(files.lifeline_log), truncate, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        return pid, processes.key_of(pid)

    def _files(self, replica: ReplicaId) -> ReplicaFiles:
        return ReplicaFiles(self._run / _file_name(replica))


async def _end_lifeline(lifeline: ProcessKey, is_over: asyncio.Event, *, grace_s: float) -> None:
    if is_over.is_set():
        return
    processes.send(lifeline, signal.SIGTERM)
    try:
        async with asyncio.timeout(grace_s + KILL_MARGIN_S):
            await is_over.wait()
    except TimeoutError:
        processes.send(lifeline, signal.SIGKILL)
        await is_over.wait()


async def _end_leftovers(mark: str, engine: ProcessKey | None) -> None:
    """What a lifeline couldn't end because it was killed itself. After a regular end there is nothing."""
    for _ in range(int(KILL_MARGIN_S / STATE_LOOK_S)):
        family = tuple(processes.family(engine, processes.rows(), mark=mark))
        if not family:
            return
        for (
            each
        ) in family:  # also what was forked while its parent was being killed is found, by the next look
            processes.send(each.key, signal.SIGKILL)
        await asyncio.sleep(STATE_LOOK_S)


def _reap(descriptor: int) -> None:
    """Takes note of the end of a lifeline that is our child; of an adopted one somebody else does."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG)


def _held(files: ReplicaFiles) -> Held:
    want, state, is_running = files.want(), files.state(), files.is_held()
    tokens: Iterable[str | None] = (
        state.token if state is not None and is_running else None,
        want.token if want is not None else None,
    )
    replica = ReplicaId(want.replica if want is not None else files.directory.name)
    return Held(replica, is_running, next(filter(None, tokens), ""), want, state)


def _file_name(replica: ReplicaId) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", replica)


def _previous(log: Path) -> Path:
    return log.with_name(log.name + ".1")

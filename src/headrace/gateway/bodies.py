"""Who reads a large body? A child process, one body at a time, so that the event loop never waits for a parser.

The child starts with the first large body, ends when it has been idle for a while, and is started again when it dies.
"""

import asyncio
import contextlib
import signal
import socket
import sys
from collections import deque
from collections.abc import Sequence
from typing import cast

import msgspec

from headrace.core.clock import Clock
from headrace.core.errors import DeadlineExceeded, HeadraceError, InternalError, InvalidRequest, Saturated
from headrace.core.outcome import Reason
from headrace.core.request import Endpoint
from headrace.gateway import parser_process
from headrace.gateway.parser_process import ANSWER, CPU_S_MAX, ENDPOINTS, QUESTION, Failed, Parsed, Refused
from headrace.protocols.openai import ParsedBody

PARSER = (sys.executable, "-P", "-m", "headrace.gateway.parser_process")
BODIES_MAX = 32  # waiting or being read
BYTES_MAX = 128 * 1024 * 1024  # of these together; one body alone may be larger
WAIT_S_MAX = 30.0
RETRY_AFTER_S = 1.0
DESCRIPTION_BYTES_MAX = 16 * 1024 * 1024


class _Job:
    """One body, and who waits for it."""

    __slots__ = ("body", "endpoint", "parsed", "size")

    def __init__(self, endpoint: Endpoint, body: bytes, parsed: "asyncio.Future[ParsedBody]") -> None:
        self.endpoint = endpoint
        self.body = body
        self.size = len(body)
        self.parsed = parsed

    def refuse(self, error: HeadraceError) -> None:
        if not self.parsed.done():
            self.parsed.set_exception(error)


class BodyReader:
    """Parses in the child. Owner of the child, of `_waiting` and of `_current`, the job that the child has now.

    Whoever leaves while its body is read costs nobody anything: what comes is thrown away.
    """

    def __init__(
        self, *, clock: Clock, command: Sequence[str] = PARSER, wait_s_max: float = WAIT_S_MAX
    ) -> None:
        self._clock = clock
        self._command = command
        self._wait_s_max = wait_s_max
        self._tasks: asyncio.TaskGroup | None = None
        self._waiting: deque[_Job] = deque()
        self._current: _Job | None = None
        self._bytes = 0
        self._child: _ChildConnection | None = None
        self._has_child = (
            False  # from its start until its end is settled; `_child` only while it can be asked
        )
        self._process: asyncio.subprocess.Process | None = None
        self._patience: asyncio.TimerHandle | None = None

    def open(self, tasks: asyncio.TaskGroup) -> None:
        """Gets the group that owns the task which keeps the child."""
        self._tasks = tasks

    @property
    def count(self) -> int:
        """Bodies that wait or are being read."""
        return len(self._waiting) + (self._current is not None)

    async def parse(self, endpoint: Endpoint, body: bytes, *, deadline_s: float) -> ParsedBody:
        """As protocols.openai.parse_body, in the child. Raises Saturated when there is too much to read, DeadlineExceeded."""
        if self.count >= BODIES_MAX or (self.count and self._bytes + len(body) > BYTES_MAX):
            raise Saturated(
                "too many large requests are being read",
                retry_after_s=RETRY_AFTER_S,
                reason=Reason.BODY_UNREAD,
            )
        loop = asyncio.get_running_loop()
        job = _Job(endpoint, body, loop.create_future())
        self._waiting.append(job)
        self._bytes += job.size
        left_s = deadline_s - self._clock.now_s()
        timer = loop.call_later(min(left_s, self._wait_s_max), job.refuse, self._too_late(left_s))
        try:
            self._advance()
            return await job.parsed
        finally:
            timer.cancel()
            if not job.parsed.cancel():
                job.parsed.exception()  # looked at, or asyncio would report what nobody awaits any more
            if job is not self._current:
                self._forget(job)

    def _too_late(self, left_s: float) -> HeadraceError:
        if left_s <= self._wait_s_max:
            return DeadlineExceeded("the deadline passed while the request was read")
        return Saturated(
            "the request was not read in time", retry_after_s=RETRY_AFTER_S, reason=Reason.BODY_UNREAD
        )

    def _forget(self, job: _Job) -> None:
        """The job is over, or nobody waits for it: its bytes count no more. Again, it does nothing."""
        self._bytes -= job.size
        job.size = 0
        job.body = b""
        with contextlib.suppress(ValueError):
            self._waiting.remove(job)

    def _advance(self) -> None:
        """Gives the child its next job, or starts a child if there is work and none."""
        if self._current is not None or not self._waiting:
            return
        if self._child is not None:
            self._current = job = self._waiting.popleft()
            # A child that hangs would let everyone behind it wait in vain.
            self._patience = asyncio.get_running_loop().call_later(self._wait_s_max, self._kill_child)
            self._child.ask(job.endpoint, job.body)
        elif not self._has_child:
            assert self._tasks is not None, "requests come after `open`"
            self._has_child = True
            self._tasks.create_task(self._keep_child())

    async def _keep_child(self) -> None:
        """One child from start to end; whatever it left undone is refused, and the next one waiting starts another."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=theirs.fileno(),
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,  # a traceback could quote a body
                    start_new_session=True,  # Ctrl-C in a terminal is for the gateway, which drains first
                )
            except OSError:  # no process to be had
                ours.close()
                self._has_child = False
                while self._waiting:
                    self._finish(self._waiting[0], _no_reader())
                return
        loop = asyncio.get_running_loop()
        transport, child = await loop.create_unix_connection(lambda: _ChildConnection(self), sock=ours)
        try:
            self._child, self._process = child, process
            self._advance()
            status = await process.wait()
        finally:
            if self._patience is not None:
                self._patience.cancel()
            self._child = self._process = None
            transport.abort()
            if process.returncode is None:
                process.kill()
                await process.wait()
        self._ended(status)

    def _kill_child(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def _take_current(self) -> _Job | None:
        if self._patience is not None:
            self._patience.cancel()
        job, self._current = self._current, None
        return job

    def _ended(self, status: int) -> None:
        self._has_child = False
        job = self._take_current()
        if job is not None:
            if status == 0 and not job.parsed.done():
                # It ended for being idle as the job came: the next child gets it.
                self._waiting.appendleft(job)
            else:
                self._finish(job, _why_unread(status))
        self._advance()

    def _finish(self, job: _Job, result: ParsedBody | HeadraceError) -> None:
        self._forget(job)
        if job.parsed.done():
            return
        if isinstance(result, HeadraceError):
            job.parsed.set_exception(result)
        else:
            job.parsed.set_result(result)

    # Called by the connection to the child.

    def child_lost(self, child: "_ChildConnection") -> None:
        """It has ended: what comes now waits for the next one."""
        if self._child is child:
            self._child = None

    def answered(self, description: bytearray, canonical: bytearray) -> None:
        """The child has read its current job."""
        job = self._take_current()
        assert job is not None, "the child speaks when it is asked"
        match parser_process.decode_result(description):
            case Parsed(body):
                self._finish(job, msgspec.structs.replace(body, canonical=bytes(canonical)))
            case Refused(message, param):
                self._finish(job, InvalidRequest(message, param=param))
            case Failed(error):
                self._finish(job, InternalError(f"{error} while a request was read"))
        self._advance()


def _no_reader() -> HeadraceError:
    return Saturated(
        "large requests can't be read at the moment", retry_after_s=RETRY_AFTER_S, reason=Reason.BODY_UNREAD
    )


def _why_unread(status: int) -> HeadraceError:
    if status == -signal.SIGPROF:
        return InvalidRequest(f"the body takes more than {CPU_S_MAX:g} s to read")
    return _no_reader()


class _ChildConnection(asyncio.BufferedProtocol):
    """The gateway's end of the socket. Answers are received in place, because joining the pieces of 20 MB would hold it up."""

    def __init__(self, reader: BodyReader) -> None:
        self._reader = reader
        self._transport: asyncio.Transport | None = None
        self._lengths = bytearray(ANSWER.size)
        self._description = bytearray()
        self._canonical = bytearray()
        self._awaited = self._lengths  # what is being received, up to `_filled`
        self._filled = 0

    def ask(self, endpoint: Endpoint, body: bytes) -> None:
        if self._transport is not None:  # if it is gone, so is the child, whose end settles the job
            self._transport.write(QUESTION.pack(ENDPOINTS.index(endpoint), len(body)))
            self._transport.write(body)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports have the methods, not the base class.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._reader.child_lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._awaited)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled < len(self._awaited):
            return
        self._filled = 0
        if self._awaited is self._lengths:
            description_length, canonical_length = ANSWER.unpack(self._lengths)
            assert 0 < description_length <= DESCRIPTION_BYTES_MAX, "we know what the child sends"
            self._description = bytearray(description_length)
            self._canonical = bytearray(canonical_length)
            self._awaited = self._description
        elif self._awaited is self._description and self._canonical:
            self._awaited = self._canonical
        else:
            self._awaited = self._lengths
            self._reader.answered(self._description, self._canonical)

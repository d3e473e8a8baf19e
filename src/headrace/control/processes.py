"""Which process is this, does it still live, and which others belong to it? Read from /proc, safe against reused pids."""

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace.control.replica_files import MARK, ProcessKey

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One line of /proc: a process at one moment."""

    pid: int
    state: str
    parent: int
    group: int
    started_ticks: int
    rss_bytes: int

    @property
    def key(self) -> ProcessKey:
        return ProcessKey(self.pid, self.started_ticks)


def row(pid: int) -> ProcessRow | None:
    """None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The name in parentheses may hold anything, also parentheses.
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return ProcessRow(
        pid=pid,
        state=fields[0].decode(),
        parent=int(fields[1]),
        group=int(fields[2]),
        started_ticks=int(fields[19]),
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
    )


def rows() -> list[ProcessRow]:
    """All that run, without zombies."""
    found = (row(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [each for each in found if each is not None and each.state != "Z"]


def key_of(pid: int) -> ProcessKey:
    """Of a process that is known to be there. Raises ProcessLookupError."""
    found = row(pid)
    if found is None:
        raise ProcessLookupError(pid)
    return found.key


def open_process(key: ProcessKey) -> int | None:
    """A pidfd of that very process, also as a zombie; None when it is gone. It is readable once the process has ended."""
    try:
        descriptor = os.pidfd_open(key.pid)
    except ProcessLookupError:
        return None
    found = row(key.pid)  # the descriptor came first, so what is read now is what it stands for
    if found is None or found.started_ticks != key.started_ticks:
        os.close(descriptor)
        return None
    return descriptor


def send(key: ProcessKey, number: signal.Signals) -> None:
    """To that process, if it is still there."""
    descriptor = open_process(key)
    if descriptor is not None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, number)
        os.close(descriptor)


def family(engine: ProcessKey | None, among: Iterable[ProcessRow], *, mark: str = "") -> Iterator[ProcessRow]:
    """The engine, its group and its descendants, and whoever carries the mark if one is given.

    A group's number stays taken while it has members: a group whose leader is the engine is the engine's. One whose leader
    has gone could be a stranger's, so its members must carry the mark.
    """
    everyone = {each.pid: each for each in among}
    leader = None if engine is None else everyone.get(engine.pid)
    is_led = leader is not None and leader.key == engine
    ours = {engine.pid} if is_led and engine is not None else set()
    for each in everyone.values():
        is_in_group = is_led and engine is not None and each.group == engine.pid
        if is_in_group or (mark and _is_marked(each.pid, mark)):
            ours.add(each.pid)
    while more := {each.pid for each in everyone.values() if each.parent in ours} - ours:
        ours |= more
    return (everyone[pid] for pid in ours)


def _is_marked(pid: int, mark: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            return f"{MARK}={mark}".encode() in environ.read()
    except OSError:  # gone, or somebody else's
        return False

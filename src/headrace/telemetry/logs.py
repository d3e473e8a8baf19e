"""What happened? One JSON object per line on one stream, from a fixed list of events with a fixed list of fields.

The list is the guard against leaks: what isn't declared can't be written, so a prompt, a completion, a key or a header
value never reaches the log by accident, and neither does the text of an exception, which may quote any of them.
"""

import json
import math
import threading
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Protocol

import headrace
from headrace.core.clock import Clock

LINES_PER_S_MAX = 20
STRING_LENGTH_MAX = 500

Field = str | int | float | bool | None

_PACKAGE = Path(headrace.__file__).parent


class Level(IntEnum):
    """Error: a person must act. Warning: degraded. Info: lifecycle. Debug: off in production."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


@dataclass(frozen=True, slots=True)
class Event:
    """One kind of line; `fields` are all it may carry besides `ts`, `level`, `event` and `suppressed`."""

    level: Level
    meaning: str
    fields: tuple[str, ...]


_WHO = ("request_id", "tenant", "key_id", "endpoint", "model")
_REPLICA = ("replica", "model", "generation")
_ENDED = (
    *_WHO,
    "revision",
    "config_version",
    "status",
    "code",
    "reason",
    "replica",
    "attempts",
    "queue_wait_s",
    "ttft_s",
    "total_s",
)
_COUNTED = (*_ENDED, "prompt_tokens", "completion_tokens", "cached_tokens", "usage_source")
_ROLLOUT_END = ("model", "version", "result", "reason", "stage", "detail", "elapsed_s")

EVENTS: dict[str, Event] = {
    "service.starting": Event(
        Level.INFO, "The process has read its configuration.", ("version", "pid", "data")
    ),
    "service.ready": Event(
        Level.INFO,
        "The ports are open and a replica is ready.",
        ("host", "port", "admin_host", "admin_port", "elapsed_s"),
    ),
    "service.draining": Event(
        Level.INFO, "No new requests; those in progress may finish.", ("reason", "in_flight", "drain_s")
    ),
    "service.stopped": Event(
        Level.INFO, "The last line of a process that ended on purpose.", ("reason", "cut", "uptime_s")
    ),
    "artifact.removed": Event(
        Level.INFO,
        "The artifact that was unused for longest made room for another, within `models.disk_bytes_max`.",
        ("sha256", "used_s"),
    ),
    "artifact.damaged": Event(
        Level.ERROR,
        "A file is not what its digest says. In the store it was put aside, into `models/quarantine`, and is fetched again.",
        ("sha256", "path"),
    ),
    "replica.starting": Event(
        Level.INFO, "A replica's process was launched.", (*_REPLICA, "pid", "port", "restarts")
    ),
    "replica.ready": Event(
        Level.INFO,
        "A replica takes requests.",
        (
            *(*_REPLICA, "pid", "port", "slots", "revision"),
            *("capacity_s", "fetch_s", "launch_s", "load_s", "warm_s"),
        ),
    ),
    "replica.lost": Event(
        Level.WARNING,
        "A ready or starting replica ended or stopped answering; it will be started again.",
        (*_REPLICA, "pid", "reason", "code", "exit_status", "restarts", "restart_in_s"),
    ),
    "replica.draining": Event(
        Level.INFO, "A replica gets no more requests; it ends when those in progress have.", _REPLICA
    ),
    "replica.stopped": Event(Level.INFO, "A replica has ended on purpose.", _REPLICA),
    "replica.failed": Event(
        Level.ERROR,
        "A replica doesn't get ready, or ends again and again; it is tried again, ever more slowly.",
        (*_REPLICA, "reason", "code", "exit_status", "restarts"),
    ),
    "replica.ejected": Event(
        Level.WARNING,
        "A replica's requests failed in a row, or it was silent too long; it gets none for a while.",
        _REPLICA,
    ),
    "replica.returned": Event(
        Level.INFO, "An ejected replica answered again; its share of requests grows.", _REPLICA
    ),
    "rollout.moved": Event(
        Level.INFO,
        "A rollout has begun, come to another stage or step, been checked, or been told something.",
        ("model", "version", "reason", "stage", "step", "share", "waits_for"),
    ),
    "rollout.ended": Event(
        Level.INFO, "A rollout is over: promoted, aborted, or superseded by a newer version.", _ROLLOUT_END
    ),
    "rollout.rolled_back": Event(
        Level.ERROR, "A candidate was refused; the accepted version has all the traffic.", _ROLLOUT_END
    ),
    "rollout.rehearsed": Event(
        Level.INFO,
        "A return to an earlier version was rehearsed: whether it loads, fits and answers right.",
        ("model", "version", "verdict", "ready_s", "reason"),
    ),
    "request.refused": Event(
        Level.INFO,
        "Turned away before any work.",
        (*_WHO, "revision", "config_version", "status", "code", "reason", "queue_wait_s", "total_s"),
    ),
    "limit.shadow": Event(
        Level.INFO,
        "A request that was let in, and that a shadow limit would have refused.",
        ("tenant", "key_id", "model", "reason"),
    ),
    "request.failed": Event(Level.WARNING, "Work was tried; the caller got an error.", _ENDED),
    "request.broken": Event(Level.WARNING, "The answer ended early, with an error event.", _COUNTED),
    "request.cancelled": Event(Level.INFO, "The caller left, or was cut because it took nothing.", _COUNTED),
    "request.delivered": Event(Level.DEBUG, "The whole answer was handed over.", _COUNTED),
    "attempt.failed": Event(
        Level.WARNING,
        "One attempt on one replica failed; another may follow.",
        ("request_id", *_REPLICA, "revision", "attempt", "reason", "upstream_status", "elapsed_s"),
    ),
    "budget.low": Event(
        Level.WARNING,
        "So many percent of a budget are spent; once for each of 80 and 95 in a period.",
        ("tenant", "key_id", "quota", "percent", "spent", "limit"),
    ),
    "budget.overshot": Event(
        Level.WARNING,
        "An engine made a request cost more than it was bound to; all of it is recorded.",
        ("request_id", "tenant", "model", "quota", "reserved", "used"),
    ),
    "budget.unread": Event(
        Level.ERROR,
        "What was spent of new quotas can't be read from the ledger; requests that need them get 503 until it can.",
        ("error", "quotas"),
    ),
    "connection.rejected": Event(
        Level.INFO,
        "A connection was closed for how it speaks HTTP, or because there were too many.",
        ("code",),
    ),
    "pressure.rose": Event(
        Level.WARNING,
        "Memory, descriptors or the event loop's time run short: keep-alive (`brief`) or new work as well (`refuse`) is given up.",
        ("pressure", "reason", "lag_s", "left_bytes", "descriptors", "descriptors_max"),
    ),
    "pressure.eased": Event(
        Level.INFO,
        "The shortage is over, or less than it was.",
        ("pressure", "reason", "lag_s", "left_bytes", "descriptors", "descriptors_max"),
    ),
    "accept.paused": Event(
        Level.WARNING,
        "No new connections for a moment: descriptors ran short. At most every 10 s.",
        ("reason", "connections"),
    ),
    "tls.reloaded": Event(
        Level.INFO, "A changed certificate is in force for new connections.", ("days_left",)
    ),
    "tls.failing": Event(
        Level.ERROR,
        "A changed certificate or key can't be used; the one in force stays.",
        ("error", "days_left"),
    ),
    "tls.expired": Event(
        Level.ERROR, "The certificate had expired when the service started.", ("days_left",)
    ),
    "keys.reloaded": Event(
        Level.INFO, "Changed API keys, tenants or prices are in force.", ("keys", "tenants")
    ),
    "keys.failing": Event(
        Level.ERROR,
        "Changed API keys can't be read, and those in force stay; or one key or tenant can't, and opens nothing.",
        ("error",),
    ),
    "issuer.answered": Event(
        Level.INFO,
        "An identity provider has shown its keys, for the first time or again.",
        ("issuer", "keys"),
    ),
    "issuer.failing": Event(
        Level.ERROR,
        "An identity provider doesn't show its keys; the last ones stay for `auth.keys_keep_s`. Said once.",
        ("issuer", "error", "keys"),
    ),
    "ledger.failing": Event(
        Level.ERROR,
        "Usage records can't be written; they wait in memory.",
        ("error", "backlog"),
    ),
    "ledger.recovered": Event(Level.INFO, "Usage records are written again.", ("outage_s",)),
    "ledger.adopted": Event(
        Level.WARNING,
        "A process had died: what it left in its journal is in the ledger. What was torn is kept in that file.",
        ("records", "orphans", "torn", "path"),
    ),
    "books.differ": Event(
        Level.ERROR,
        "Records, attempts, charges or engines' counters don't agree; `headrace reconcile` lists them all.",
        ("reason", "count", "subjects"),
    ),
    "books.unread": Event(Level.WARNING, "The books could not be compared this time.", ("error",)),
    "central.failing": Event(
        Level.ERROR,
        "The central database can't be had: for keys (the copy here is gone by) or for the ledger (records wait on disk).",
        ("part", "error"),
    ),
    "central.recovered": Event(Level.INFO, "It can be had again.", ("part", "outage_s")),
    "keys.stale": Event(
        Level.ERROR,
        "The copy of tenants and keys is too old to be gone by: requests are refused until it is renewed.",
        ("age_s",),
    ),
    "ledger.lagging": Event(
        Level.ERROR, "Records reach the central database too slowly, or not at all.", ("lag_s",)
    ),
    "ledger.row_refused": Event(
        Level.ERROR,
        "The central database refused a row, which is in its `usage_rejected` now: a bug of ours.",
        ("request_id",),
    ),
    "limits.failing": Event(
        Level.ERROR,
        "The store of the limits that hosts share can't be had: each host admits its even part of every rate. Said once.",
        ("error",),
    ),
    "limits.recovered": Event(
        Level.INFO, "It can be had again, and rates are shared as before.", ("outage_s",)
    ),
    "limits.too_many_hosts": Event(
        Level.ERROR,
        "More hosts share limits than `limits.hosts_max`, so that their parts come to more than the whole.",
        ("hosts", "hosts_max"),
    ),
    "controller.started": Event(Level.INFO, "The controller was launched.", ("pid", "restarts")),
    "controller.lost": Event(
        Level.WARNING,
        "The controller ended although nobody asked it to, or was killed because it was stuck; it is started again."
        " What it published stays in force.",
        ("reason", "exit_status", "restarts", "restart_in_s"),
    ),
    "controller.failing": Event(
        Level.ERROR,
        "The controller can't keep what it decides, so nothing follows from it; what is in force stays. Said once.",
        ("error",),
    ),
    "scale.decided": Event(
        Level.INFO,
        "The autoscaler wants another number of replicas, or something else holds it back: why, and by which guards.",
        ("model", "version", "replicas", "advised", "ready", "asked", "reason", "guards"),
    ),
    "config.reloaded": Event(
        Level.INFO,
        "The configuration was read anew and is in force, but for keys that need a restart and keys that something hides.",
        (
            *("config_version", "changed", "restart_required", "hidden", "silent", "late", "elapsed_s"),
            "actor",
        ),
    ),
    "config.refused": Event(
        Level.ERROR,
        "The configuration was read anew and is wrong; the one before stays in force.",
        ("error", "actor"),
    ),
    "worker.started": Event(Level.INFO, "A worker was launched.", ("worker", "pid", "restarts")),
    "worker.ready": Event(Level.INFO, "A worker accepts connections.", ("worker", "pid", "elapsed_s")),
    "worker.lost": Event(
        Level.WARNING,
        "A worker ended although nobody asked it to, or was killed because it was stuck; it is started again.",
        ("worker", "pid", "reason", "exit_status", "in_flight", "restarts", "restart_in_s"),
    ),
    "internal.error": Event(
        Level.ERROR,
        "A bug of ours: the exception's type and our innermost line, never its text.",
        ("where", "error", "at", "request_id"),
    ),
    "library.warned": Event(
        Level.WARNING,
        "A library logged a warning or error: which and where, never its text.",
        ("logger", "severity", "error", "at"),
    ),
}


class LineStream(Protocol):
    """Where lines go: a file, standard error, or a file that moves itself aside."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> None: ...


class Log:
    """Writes events; safe from any thread.

    At most LINES_PER_S_MAX lines of one event in a second; the rest are counted, and the count follows as one line with
    `suppressed` once the second is over: at the next event of any name, or at `tick`.

    Args:
        worker: The number that every line carries as `worker`; None where there is one process.
    """

    def __init__(
        self, stream: LineStream, clock: Clock, level: Level = Level.INFO, *, worker: int | None = None
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._level = level
        self._worker: dict[str, Field] = {} if worker is None else {"worker": worker}
        # Reentrant, because a finalizer that runs inside a write may have something to report too.
        self._lock = threading.RLock()
        # Owned by whoever holds the lock: events of the current second by name, and when that second is over.
        self._seen: Counter[str] = Counter()
        self._second_ends_s = clock.now_s() + 1

    def event(self, name: str, /, **fields: Field) -> None:
        """Writes one line. A name or field that isn't declared is a programmer's error."""
        declared = EVENTS[name]
        if declared.level < self._level:
            return
        assert fields.keys() <= set(declared.fields), f"{name} has no {fields.keys() - set(declared.fields)}"
        with self._lock:
            self.tick()
            self._seen[name] += 1
            if self._seen[name] <= LINES_PER_S_MAX:
                self._write(name, {key: fields[key] for key in declared.fields if key in fields})

    def internal_error(self, error: BaseException, *, where: str, request_id: str | None = None) -> None:
        """An unexpected exception, without its text."""
        at = _innermost(error.__traceback__)
        self.event("internal.error", where=where, error=type(error).__name__, at=at, request_id=request_id)

    def tick(self) -> None:
        """Reports what was suppressed, once its second is over. Call it now and then, and before the process ends."""
        with self._lock:
            now_s = self._clock.now_s()
            if now_s < self._second_ends_s:
                return
            seen, self._seen = self._seen, Counter()
            self._second_ends_s = now_s + 1
            for name, count in seen.items():
                if count > LINES_PER_S_MAX:
                    self._write(name, {"suppressed": count - LINES_PER_S_MAX})

    def _write(self, name: str, fields: dict[str, Field]) -> None:
        at = datetime.fromtimestamp(self._clock.wall_s(), UTC).isoformat(timespec="milliseconds")
        record = {
            "ts": at.replace("+00:00", "Z"),
            "level": EVENTS[name].level.name.lower(),
            "event": name,
            **self._worker,
            **{key: _plain(value) for key, value in fields.items()},
        }
        # ASCII only: no control character, terminal sequence or lone surrogate survives as itself.
        self.relay(json.dumps(record, separators=(",", ":"), ensure_ascii=True) + "\n")

    def relay(self, line: str) -> None:
        """Writes a line that another process of the service has made, or this one."""
        with self._lock:
            try:
                self._stream.write(line)
                self._stream.flush()
            except (OSError, ValueError):
                # The reader is gone, the disk is full, or the stream is closed. The service matters more than its log.
                pass


def _plain(value: Field) -> Field:
    if isinstance(value, str):
        return value[:STRING_LENGTH_MAX]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else str(value)
    assert value is None or isinstance(value, int), f"{type(value).__name__} is not a log field"
    return value


def _innermost(traceback: TracebackType | None) -> str:
    """`file:line` of the innermost frame of ours, or else of the innermost frame."""
    ours = anyones = ""
    while traceback is not None:
        path = Path(traceback.tb_frame.f_code.co_filename)
        anyones = f"{path.name}:{traceback.tb_lineno}"
        if path.is_relative_to(_PACKAGE):
            ours = f"{path.relative_to(_PACKAGE.parent)}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return ours or anyones

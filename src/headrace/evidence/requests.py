"""Which requests does a workload file make? Finds it, and its trace, and plans them."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

import msgspec

from headrace.config import workloads
from headrace.core import workload as core_workload
from headrace.core.errors import ConfigError
from headrace.core.workload import ArrivalKind, Arrived, Workload
from headrace.evidence import traces
from headrace.policies import workload_plan
from headrace.policies.workload_plan import Planned

OWN = Path(__file__).parent / "workloads"
DEFAULT = "document-assistant"
_AFTER_S = 0.1  # what is due when a run ends is no part of it
SMALL = "small"
"""Short prompts and answers, which a small model on a few cores keeps up with."""


def find(named: str, *, data: Path | None = None) -> Path:
    """The file of a workload, or a trace: a path, or a name in `workloads/` of the data directory, or that of one that comes with headrace.

    Raises: ConfigError with what there is.
    """
    if "/" in named or Path(named).suffix in (".toml", *traces.SUFFIXES):
        return Path(named)
    folders = [OWN] if data is None else [data / workloads.FOLDER, OWN]
    for folder in folders:
        if (file := folder / f"{named}.toml").is_file():
            return file
    known = sorted({path.stem for folder in folders for path in folder.glob("*.toml")})
    raise ConfigError(f"no workload {named!r}: give a .toml file, or one of: {', '.join(known)}")


def load(named: str = DEFAULT, *, data: Path | None = None) -> Workload:
    """What a file says, found as `find` does; of a trace, the workload that is its requests. Raises ConfigError."""
    path = find(named, data=data)
    return workloads.load(path) if path.suffix == ".toml" else workloads.of_trace(path)


def at_speed(workload: Workload, speed: float) -> Workload:
    """The same so many times as fast. Raises ConfigError for a closed loop, whose pace is that of the answers."""
    arrivals = workload.arrivals
    if arrivals.kind is ArrivalKind.CLOSED:
        raise ConfigError(f"`{workload.name}` is a closed loop: how fast it goes is the service's business")
    rate = arrivals.rate_per_s or traces.rate_per_s(Path(arrivals.file))
    return core_workload.at_rate(workload, rate * speed)


def lasts_s(workload: Workload) -> float | None:
    """How long it goes on by itself: what it says, or all of its trace, whose last request comes at the end; None for ever."""
    arrivals = workload.arrivals
    if workload.duration_s is not None or arrivals.kind is not ArrivalKind.TRACE:
        return workload.duration_s
    path = Path(arrivals.file)
    last_s = 0.0
    for row in traces.read(path):
        last_s = row.at_s
    if arrivals.rate_per_s is not None:
        last_s *= traces.rate_per_s(path) / arrivals.rate_per_s
    return last_s + _AFTER_S


def at_most_s(workload: Workload, duration_s: float, *, rate_per_s: float | None = None) -> float:
    """So long, or until its trace is at its end: a time in which nothing can be due would make every rate too low."""
    if workload.arrivals.kind is not ArrivalKind.TRACE:
        return duration_s
    if rate_per_s is not None:
        workload = core_workload.at_rate(workload, rate_per_s)
    return min(duration_s, lasts_s(msgspec.structs.replace(workload, duration_s=None)) or duration_s)


def requests(
    workload: Workload, *, duration_s: float | None = None, rate_per_s: float | None = None
) -> Iterator[Planned]:
    """Every request of a workload, as policies.workload_plan.plan, from its own seed and its trace."""
    arrivals = workload.arrivals
    trace: Iterable[Arrived] = ()
    if arrivals.kind is ArrivalKind.TRACE:
        rate = rate_per_s or arrivals.rate_per_s
        path = Path(arrivals.file)
        trace = _whole(workload, traces.read(path) if rate is None else traces.at_rate(path, rate))
    return workload_plan.plan(
        workload,
        chance=Random(workload.seed),
        duration_s=duration_s,
        rate_per_s=rate_per_s,
        trace=trace,
    )


def _whole(workload: Workload, trace: Iterable[Arrived]) -> Iterator[Arrived]:
    """The trace, if it or the workload says how long everything is. Raises ConfigError."""
    for number, row in enumerate(trace, 1):
        for name in ("input_tokens", "output_tokens"):
            if getattr(row, name) is None and getattr(workload, name) is None:
                raise ConfigError(
                    f"{workload.arrivals.file}: request {number} says no {name}; say `{name}` in a workload file"
                    " whose `arrivals.file` is this trace"
                )
        yield row

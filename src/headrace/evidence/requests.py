"""Which requests does a workload file make? Finds it, and its trace, and plans them."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

from headrace.config import workloads
from headrace.core.errors import ConfigError
from headrace.core.workload import ArrivalKind, Workload
from headrace.evidence import traces
from headrace.policies import workload_plan
from headrace.policies.workload_plan import Planned

OWN = Path(__file__).parent / "workloads"
DEFAULT = "document-assistant"
SMALL = "small"
"""Short prompts and answers, which a small model on a few cores keeps up with."""


def find(named: str, *, data: Path | None = None) -> Path:
    """The file of a workload: a path, or a name in `workloads/` of the data directory, or the name of one that comes with headrace.

    Raises: ConfigError with what there is.
    """
    if named.endswith(".toml") or "/" in named:
        return Path(named)
    folders = [OWN] if data is None else [data / workloads.FOLDER, OWN]
    for folder in folders:
        if (file := folder / f"{named}.toml").is_file():
            return file
    known = sorted({path.stem for folder in folders for path in folder.glob("*.toml")})
    raise ConfigError(f"no workload {named!r}: give a .toml file, or one of: {', '.join(known)}")


def load(named: str = DEFAULT, *, data: Path | None = None) -> Workload:
    """What a file says, found as `find` does. Raises ConfigError."""
    return workloads.load(find(named, data=data))


def requests(
    workload: Workload, *, duration_s: float | None = None, rate_per_s: float | None = None
) -> Iterator[Planned]:
    """Every request of a workload, as policies.workload_plan.plan, from its own seed and its trace."""
    arrivals = workload.arrivals
    trace = None
    if arrivals.kind is ArrivalKind.TRACE:
        rate = rate_per_s or arrivals.rate_per_s
        path = Path(arrivals.file)
        trace = traces.read(path) if rate is None else traces.at_rate(path, rate)
    return workload_plan.plan(
        workload,
        chance=Random(workload.seed),
        duration_s=duration_s,
        rate_per_s=rate_per_s,
        trace=trace or (),
    )

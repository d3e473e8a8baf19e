"""What do all workers together have to do? What each has reported last, and what those that are gone had counted."""

import msgspec

from headrace.core.leases import WorkerId
from headrace.core.load import NO_LOAD, PlaneLoad, TargetLoad, merge

GONE_MAX = 64  # targets, of those that nobody reports any more


class PlaneLoads:
    """State: `_loads`, the last report of each worker that is there, and `_gone`, the counts of the others."""

    def __init__(self) -> None:
        self._loads: dict[WorkerId, PlaneLoad] = {}
        self._gone: dict[str, TargetLoad] = {}

    def reported(self, worker: WorkerId, load: PlaneLoad) -> None:
        self._loads[worker] = load

    def lost(self, worker: WorkerId) -> None:
        """What it counted stays counted, and nothing of it is in progress any more."""
        for load in self._loads.pop(worker, NO_LOAD).targets:
            ended = msgspec.structs.replace(load, in_flight=0, queued=0, wait_s=0.0)
            known = self._gone.pop(load.target, None)
            self._gone[load.target] = ended if known is None else known.plus(ended)
        reported = {load.target for each in self._loads.values() for load in each.targets}
        for target in [target for target in self._gone if target not in reported][:-GONE_MAX]:
            del self._gone[target]

    def together(self) -> PlaneLoad:
        """As of the last reports; the snapshot is the oldest that any of them serves from."""
        now = merge(self._loads.values())
        gone = PlaneLoad(now.snapshot_version, list(self._gone.values()), [])
        return merge([now, gone])

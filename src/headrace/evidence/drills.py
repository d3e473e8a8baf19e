"""Which failures can be rehearsed?"""

from headrace.evidence.drill import Drill
from headrace.evidence.drills_engines import HANG, OUT_OF_MEMORY, REPLICA_LOSS
from headrace.evidence.drills_service import CLOCK_STEP, CONTROLLER_LOSS, FULL_DISK
from headrace.evidence.drills_versions import BAD_RELEASE, CORRUPT_MODEL

DRILLS: dict[str, Drill] = {
    drill.name: drill
    for drill in (
        REPLICA_LOSS,
        OUT_OF_MEMORY,
        HANG,
        CONTROLLER_LOSS,
        FULL_DISK,
        CORRUPT_MODEL,
        CLOCK_STEP,
        BAD_RELEASE,
    )
}

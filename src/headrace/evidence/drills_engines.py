"""What if an engine is killed, runs out of memory, or hangs?"""

import signal

import msgspec

from headrace.engines import fetch
from headrace.evidence.drill import Drill, Sign, Stage
from headrace.evidence.drill_instance import DrillError
from headrace.evidence.drill_report import Bounds

# Streams that have begun on the engine that is lost can't go on elsewhere.
_ON_ONE_ENGINE = 8


async def _kill(stage: Stage) -> None:
    stage.victims.append(stage.engine())
    stage.mark()
    stage.signal(stage.engine(), signal.SIGKILL)


async def _run_out_of_memory(stage: Stage) -> None:
    """The engine's own port is asked to play it: nobody else would do so before its next request."""
    victim = stage.before.ready()[0]
    state = stage.running.data / "run" / "replicas" / victim.id / "state.json"
    port = msgspec.json.decode(state.read_bytes())["port"]
    stage.victims.append(stage.engine())
    stage.mark()
    told = await fetch.fetch(
        "127.0.0.1",
        port,
        "POST",
        "/scripted/faults",
        body=b"out_of_memory",
        timeout_s=10.0,
        body_bytes_max=4096,
    )
    if told.status != 200:
        raise DrillError(f"the engine takes no fault: {told.body.decode(errors='replace')}")


async def _stop(stage: Stage) -> None:
    stage.victims.append(stage.engine())
    stage.mark()
    stage.signal(stage.engine(), signal.SIGSTOP)


REPLICA_LOSS = Drill(
    "replica-loss",
    "An engine is killed under load: who notices, and when is there another?",
    "kill -9 of one of two engines; nothing is simulated",
    _kill,
    Bounds(callers_s=2.0, recovered_s=20.0, broken=_ON_ONE_ENGINE),
    signs=(Sign("replica.lost", {"code": "crashed"}, within_s=5.0),),
)

OUT_OF_MEMORY = Drill(
    "out-of-memory",
    "An engine runs out of memory under load: is that what the operator is told?",
    "the scripted engine writes an allocator's last words into its log and ends with 137; no memory is really used up, since"
    " that would hit whatever else runs on the machine",
    _run_out_of_memory,
    # It isn't started again at once: what ran out of memory mostly does so again.
    Bounds(callers_s=2.0, recovered_s=30.0, broken=_ON_ONE_ENGINE),
    signs=(Sign("replica.lost", {"code": "out_of_memory"}, within_s=5.0),),
    is_scripted_only=True,
)

HANG = Drill(
    "hang",
    "An engine hangs with its connections open: do requests go elsewhere, and is it ended?",
    "SIGSTOP of one of two engines, with request.first_event_limit_s and request.stall_limit_s at 5 s; nothing else is changed",
    _stop,
    # Streams on it are given up after 5 s, and tried elsewhere where nothing of an answer had come; others wait for their
    # deadline, since silence is what an answer in one piece begins with. Until it is ended, after 60 s without a sign of life
    # and 10 s for a last question, each of its trials costs one request.
    Bounds(callers_s=110.0, recovered_s=130.0, broken=_ON_ONE_ENGINE, failed=_ON_ONE_ENGINE + 4),
    signs=(
        Sign("replica.ejected", within_s=30.0),
        Sign("replica.lost", {"code": "hung"}, within_s=110.0),
    ),
    recovery_limit_s=150.0,
    config="\n[request]\nfirst_event_limit_s = 5.0\nstall_limit_s = 5.0\n",
)

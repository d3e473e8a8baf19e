"""Who puts an acceptance set to a version for a rollout? `headrace eval`, as a child: it asks the public port as callers do.

The child is bound to its time, and it has the lowest priority, since whoever serves goes first. It is ended when nobody wishes for
its result any more; where its parent has died it ends by itself, at the next line of progress that nobody takes.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from headrace.core.deployment_terms import Gate
from headrace.core.fleet import target_key
from headrace.policies import quality_gate
from headrace.policies.quality_gate import GateResult, GateRun
from headrace.policies.rollout_state import QUALITY_PREFIX, Acceptance, AcceptanceRun

_NICENESS = 10
_COMPLAINT_BYTES = 4096
_READ_BYTES = 64 * 1024


class AcceptanceChild:
    """Runs what a rollout wishes for.

    Args:
        url: Where callers reach the service, as it is now.
        key: Reference to a key that may ask for versions by name.
        certificate: PEM file with what the service shows where it speaks TLS: made for the name that callers know it by, and
            perhaps signed by nobody, it is trusted as it is.
    """

    def __init__(self, *, url: Callable[[], str], key: str, data: Path, certificate: str = "") -> None:
        self._url = url
        self._key = key
        self._data = data
        self._certificate = certificate

    async def __call__(self, name: str, run: AcceptanceRun, gate: Gate) -> Acceptance:
        """Never raises, but for a cancellation.

        A first version has nobody to be compared with. Where the gate has no bound of its own either, it must have answered.
        """
        floor = 0.0 if gate.min is None and run.accepted is None else gate.min
        found = await evaluate(
            GateRun(
                cases=gate.metric.removeprefix(QUALITY_PREFIX),
                candidate=target_key(name, run.candidate),
                accepted="" if run.accepted is None else target_key(name, run.accepted),
                url=self._url(),
                key=self._key,
                data=str(self._data),
                certificate=self._certificate,
                margin=None if gate.min_delta is None else -gate.min_delta,
                floor=floor,
                alpha=1.0 - gate.confidence,
                purpose=f"{run.of} of {name}, attempt {run.attempt + 1}",
            )
        )
        return Acceptance(
            of=run.of,
            gate=run.gate,
            attempt=run.attempt,
            verdict=found.verdict,
            candidate_share=found.candidate_share,
            accepted_share=found.accepted_share,
            detail=found.detail,
        )


async def evaluate(run: GateRun) -> GateResult:
    """Runs one evaluation to its end. A cancellation ends the child first."""
    process = await asyncio.create_subprocess_exec(
        # `-P`: a folder named headrace in the current directory must not be run in our place.
        *(sys.executable, "-P", "-m", "headrace", *quality_gate.command(run)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(quality_gate.child_limit_s(run)), asyncio.TaskGroup() as tasks:
            output = tasks.create_task(_head(process.stdout, quality_gate.OUTPUT_BYTES_MAX))
            complaint = tasks.create_task(_tail(process.stderr, _COMPLAINT_BYTES))
            status = await process.wait()
    except TimeoutError:
        return quality_gate.result(None, b"")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return quality_gate.result(status, output.result(), complaint.result())


async def _head(stream: asyncio.StreamReader, bytes_max: int) -> bytes:
    """Its first bytes; what comes after them is read and dropped, so that nobody waits to write it."""
    kept = bytearray()
    while chunk := await stream.read(_READ_BYTES):
        kept += chunk[: bytes_max - len(kept)]
    return bytes(kept)


async def _tail(stream: asyncio.StreamReader, bytes_max: int) -> bytes:
    """Its last bytes."""
    kept = b""
    while chunk := await stream.read(_READ_BYTES):
        kept = (kept + chunk)[-bytes_max:]
    return kept

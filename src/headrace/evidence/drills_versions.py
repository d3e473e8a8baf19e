"""What if the stored weights are damaged, or a new version is bad?"""

import hashlib
import signal
from pathlib import Path

from headrace.evidence.drill import ARGS, MODEL, REPLICAS, Drill, Sign, Stage, deployment
from headrace.evidence.drill_instance import DrillError
from headrace.evidence.drill_report import Bounds
from headrace.stores import gguf_file

_WEIGHTS = "weights.gguf"
_WEIGHTS_BYTES = 1 << 20
_ACCEPTED = f"{MODEL}@v1"
# A rollout in seconds: what takes an hour in service is over before anybody has left.
_CAUTIOUS = """\
[rollout]
steps = [{ weight = 20, min_requests = 20 }, { weight = 50, min_requests = 50 }]
sticky = "none"
interval_s = 1
fail_limit = 1

[[rollout.gate]]
metric = "failure_rate"
max_delta = 0.01
"""


def _with_weights(folder: Path) -> str:
    """A file that says what it is, and that no engine computes with."""
    content = hashlib.shake_256(b"a drill").digest(_WEIGHTS_BYTES)
    gguf_file.write(
        folder / _WEIGHTS,
        metadata={"general.architecture": "llama", "general.license": "apache-2.0"},
        tensors=[gguf_file.Tensor("drill", (_WEIGHTS_BYTES // 4,), gguf_file.TensorType.F32, content)],
    )
    return f'[revision.weights]\nuri = "{folder / _WEIGHTS}"\n'


async def _damage(stage: Stage) -> None:
    """A byte of what is stored becomes another one, and an engine has to start."""
    stored = _stored(stage)
    with stored.open("r+b") as file:
        file.seek(_WEIGHTS_BYTES // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    stage.victims.append(stage.engine())
    stage.mark()
    stage.signal(stage.engine(), signal.SIGKILL)


def _stored(stage: Stage) -> Path:
    size_bytes = (stage.running.folder / _WEIGHTS).stat().st_size
    for path in sorted((stage.running.data / "models").rglob("*")):
        if path.is_file() and not path.is_symlink() and path.stat().st_size == size_bytes:
            return path
    raise DrillError("the weights are not in the store")


async def _release(stage: Stage) -> None:
    stage.mark()
    bad = {**ARGS, "fault": "error:500@1/3"}
    text = deployment(BAD_RELEASE, stage.running.folder, args=bad, sections=_CAUTIOUS)
    await stage.running.apply(text)


def _is_rolled_back(stage: Stage) -> bool:
    """The version before serves, with the same engines, and the bad one is gone."""
    replicas = stage.watch.look.replicas
    has_ended = stage.watch.first("rollout.rolled_back", {}, since_s=stage.fault_s) is not None
    return has_ended and {each.target for each in replicas} == {_ACCEPTED} and len(replicas) == REPLICAS


CORRUPT_MODEL = Drill(
    "corrupt-model",
    "A byte of the stored weights has changed: is that found before an engine reads them, and mended?",
    "one bit of the stored file is turned, and one of two engines killed so that it has to start; the file is a GGUF file of"
    " 1 MiB that the scripted engine doesn't compute with",
    _damage,
    Bounds(callers_s=2.0, recovered_s=30.0, broken=8),
    signs=(Sign("artifact.damaged", within_s=15.0),),
    prepare=_with_weights,
    is_scripted_only=True,
)

BAD_RELEASE = Drill(
    "bad-release",
    "A new version fails a third of its requests: is it rolled back, and does a caller notice?",
    "a version whose scripted engine answers every third request with 500 is applied, with a rollout of 20 % after which 20"
    " requests are judged each second; steps and interval are shorter than anybody would have them",
    _release,
    # What the candidate fails before the first byte is answered by the accepted version.
    Bounds(callers_s=0.0, recovered_s=60.0),
    signs=(Sign("rollout.rolled_back", within_s=45.0),),
    is_whole=_is_rolled_back,
    recovery_limit_s=90.0,
    is_scripted_only=True,
)

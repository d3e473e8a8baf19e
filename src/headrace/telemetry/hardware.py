"""What can be put on this machine? Its memory, or its container's, and its GPUs, as Linux tells."""

import contextlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

from headrace.core.capacity import Hardware
from headrace.policies.pressure import Memory
from headrace.telemetry.resources import Resources

MIB = 1 << 20
_ANSWER_LIMIT_S = 10.0


def memory_bytes(root: Path = Path("/")) -> int:
    """The tightest limit that holds for what we start; 0 where none can be read."""
    memories: tuple[Memory, ...] = Resources(root=root).memories()
    return min((memory.limit_bytes for memory in memories), default=0)


def in_words(root: Path = Path("/")) -> str:
    """What tells machines apart on which the same start takes another time."""
    with contextlib.suppress(OSError):
        gpus = len(os.listdir(root / "proc/driver/nvidia/gpus"))
        return f"{_processor(root)}, {gpus} GPUs"
    return _processor(root)


def described(root: Path = Path("/"), command: str = "nvidia-smi") -> Hardware:
    """What was measured on it, for people who compare records of several machines."""
    return Hardware(
        cpu=_cpu_name(root),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=memory_bytes(root),
        gpus=tuple(_gpu_query("name", command)),
    )


def _cpu_name(root: Path) -> str:
    with contextlib.suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine()


def _processor(root: Path) -> str:
    return f"{platform.machine()}, {os.cpu_count()} CPUs, {memory_bytes(root) >> 30} GiB"


def gpu_memory_bytes(command: str = "nvidia-smi") -> tuple[int, ...]:
    """Memory of each GPU; none where there is no driver to ask."""
    return tuple(int(line) * MIB for line in _gpu_query("memory.total", command) if line.isdigit())


def _gpu_query(what: str, command: str) -> list[str]:
    """A line for each GPU."""
    if shutil.which(command) is None:
        return []
    try:
        answer = subprocess.run(
            [command, f"--query-gpu={what}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_ANSWER_LIMIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]

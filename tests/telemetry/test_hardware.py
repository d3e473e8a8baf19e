"""What the machine has is what Linux says, and nothing where nobody can say."""

import platform
from pathlib import Path

from headrace.telemetry import hardware


def test_the_tightest_limit_on_memory_is_the_machine(tmp_path: Path) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 400 kB\n")
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/box\n")
    assert hardware.memory_bytes(tmp_path) == 1000 * 1024
    group = tmp_path / "sys/fs/cgroup/box"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("65536\n")
    (group / "memory.stat").write_text("anon 1\n")
    assert hardware.memory_bytes(tmp_path) == 65536


def tool(folder: Path, says: str, *, status: int = 0) -> str:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\nprintf '{says}'\nexit {status}\n")
    path.chmod(0o755)
    return str(path)


def test_gpus_are_what_the_driver_lists(tmp_path: Path) -> None:
    assert hardware.gpu_memory_bytes(tool(tmp_path, "143771\\n81920\\n")) == (143771 << 20, 81920 << 20)


def test_without_a_driver_that_answers_there_are_no_gpus(tmp_path: Path) -> None:
    assert hardware.gpu_memory_bytes("no-such-command-here") == ()
    assert hardware.gpu_memory_bytes(tool(tmp_path, "No devices were found", status=6)) == ()


def test_a_machine_is_described_by_its_processor_and_gpus(tmp_path: Path) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 400 kB\n")
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/box\n")
    (tmp_path / "proc" / "cpuinfo").write_text("processor : 0\nmodel name : Example 9000\n")
    found = hardware.described(tmp_path, tool(tmp_path, "Example GPU\\n"))
    assert (found.cpu, found.gpus) == ("Example 9000", ("Example GPU",))
    assert (found.memory_bytes, found.cores >= 1) == (1000 * 1024, True)
    (tmp_path / "proc" / "cpuinfo").unlink()
    assert hardware.described(tmp_path, "no-such-command-here").cpu == platform.machine()

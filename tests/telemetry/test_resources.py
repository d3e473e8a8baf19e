"""What is read of memory and descriptors: from this very process, and from the files of machines that are laid out otherwise."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.policies.pressure import Memory
from headrace.telemetry.resources import Resources

MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\n"
MACHINE = Memory(600 * 1024, 1000 * 1024)


def machine(root: Path, *, groups: str, files: dict[str, str]) -> Resources:
    """A machine with these control groups, and a `proc` that says so."""
    for name, text in {"proc/self/cgroup": groups, "proc/meminfo": MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Resources(root=root)


def test_this_process_is_read() -> None:
    read = Resources(memory_bytes_max=1 << 40)
    before = read.descriptors()
    with open(os.devnull, "rb"):
        assert read.descriptors() == before + 1
    assert 1 << 20 < read.resident_bytes() < 1 << 40
    assert Memory(read.resident_bytes(), 1 << 40).limit_bytes in {
        each.limit_bytes for each in read.memories()
    }


def test_a_group_of_version_2_limits_what_the_kernel_cannot_drop(tmp_path: Path) -> None:
    """T15: cached files count for nothing, and the groups above count as well."""
    read = machine(
        tmp_path,
        groups="0::/slice/service\n",
        files={
            "sys/fs/cgroup/slice/service/memory.max": "max\n",
            "sys/fs/cgroup/slice/service/memory.stat": "anon 1\n",
            "sys/fs/cgroup/slice/memory.max": "500000\n",
            "sys/fs/cgroup/slice/memory.stat": "anon 300000\nfile 190000\nshmem 1000\nsock 7\n",
        },
    )
    assert read.memories() == (Memory(301_007, 500_000), MACHINE)


def test_a_limit_that_is_set_while_we_run_holds(tmp_path: Path) -> None:
    limit = "sys/fs/cgroup/memory.max"
    read = machine(tmp_path, groups="0::/\n", files={limit: "max\n", "sys/fs/cgroup/memory.stat": "anon 5\n"})
    assert read.memories() == (MACHINE,)
    (tmp_path / limit).write_text("10\n")
    assert read.memories() == (Memory(5, 10), MACHINE)


def test_a_group_of_version_1_limits_too(tmp_path: Path) -> None:
    """In a container the path in `proc` may be the host's, and the mount is the group."""
    read = machine(
        tmp_path,
        groups="12:cpu,cpuacct:/a\n4:memory:/docker/0123\n0::/\n",
        files={
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "4000\n",
            "sys/fs/cgroup/memory/memory.stat": "rss 1\ntotal_rss 1500\ntotal_shmem 500\ntotal_cache 1900\n",
        },
    )
    assert read.memories() == (Memory(2000, 4000), MACHINE)


def test_the_number_that_means_no_limit_in_version_1_is_none(tmp_path: Path) -> None:
    read = machine(
        tmp_path,
        groups="4:memory:/\n",
        files={
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.stat": "total_rss 1500\n",
        },
    )
    assert read.memories() == (MACHINE,)


def test_without_control_groups_the_machine_is_the_limit(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    assert Resources(root=tmp_path).memories() == (MACHINE,)


@pytest.mark.parametrize(("soft", "hard", "lifted"), [(64, 256, 256), (256, 256, 256)])
def test_the_soft_limit_on_descriptors_is_lifted_to_the_hard_one(soft: int, hard: int, lifted: int) -> None:
    """T16: in a process of its own, since a hard limit doesn't go up again."""
    program = (
        "import resource; from headrace.telemetry.resources import raise_descriptor_limit as lift;"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}));"
        "print(lift(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < hard:
        pytest.skip("this machine allows fewer open files")
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout.split() == [str(lifted), str(lifted), str(hard)]

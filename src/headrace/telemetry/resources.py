"""How much memory and how many descriptors does this process use, and how many may it? Read from Linux, as files."""

import ctypes
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from headrace.policies.pressure import Memory

UNLIMITED_BYTES = 1 << 60  # what cgroup v1 calls no limit is a number above this
# More than a gateway can use; `ulimit` may say a thousand times as much, and the kernel's tables grow with it.
DESCRIPTORS_WANTED = 65_536
# What the kernel can't drop when memory is short, by its names in `memory.stat` of either version.
_FIXED_V1: tuple[str, ...] = ("total_rss", "total_shmem")
_FIXED_V2: tuple[str, ...] = ("anon", "shmem", "kernel_stack", "pagetables", "sock")


def raise_descriptor_limit() -> int:
    """Lifts the soft limit on descriptors to what the hard one allows; returns what holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return DESCRIPTORS_WANTED if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def release_free_memory() -> None:
    """Hands what the allocator keeps of freed memory back to the kernel, where the C library can (glibc: malloc_trim)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Resources:
    """Reads how things stand; cheap enough for several times a second.

    Args:
        root: Where `proc` and `sys` are; for tests.
        memory_bytes_max: A limit on the resident memory of this process alone; 0 for none. It may be set anew.
    """

    def __init__(self, *, memory_bytes_max: int = 0, root: Path = Path("/")) -> None:
        self.memory_bytes_max = memory_bytes_max
        self._proc = root / "proc"
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._groups = list(_memory_groups(root))

    def descriptors(self) -> int:
        """Open descriptors of this process."""
        folder = self._proc / "self" / "fd"
        # Since Linux 6.2 the size of the folder is their number; before, it is 0.
        return os.stat(folder).st_size or len(os.listdir(folder))

    def resident_bytes(self) -> int:
        """Resident memory of this process."""
        return int((self._proc / "self" / "statm").read_bytes().split()[1]) * self._page_bytes

    def memories(self) -> tuple[Memory, ...]:
        """Every limit on memory that holds for this process: its own, its control groups', the machine's."""
        found = [memory for group in self._groups if (memory := group.memory()) is not None]
        if self.memory_bytes_max:
            found.append(Memory(self.resident_bytes(), self.memory_bytes_max))
        facts = _numbers(self._proc / "meminfo")
        if "MemTotal:" in facts and "MemAvailable:" in facts:
            total_bytes = facts["MemTotal:"] * 1024
            found.append(Memory(total_bytes - facts["MemAvailable:"] * 1024, total_bytes))
        return tuple(found)


class _MemoryGroup:
    """One control group with a limit on memory. Memory that the kernel can drop (cached files) doesn't count as used."""

    def __init__(self, folder: Path, *, limit: str, fixed: tuple[str, ...]) -> None:
        self._limit = folder / limit
        self._statistics = folder / "memory.stat"
        self._fixed = fixed

    def memory(self) -> Memory | None:
        """None where there is no limit; it may come and go while we run."""
        try:
            text = self._limit.read_text().strip()
            if not text.isdigit() or int(text) >= UNLIMITED_BYTES:
                return None
            statistics = _numbers(self._statistics)
        except OSError:
            return None
        return Memory(sum(statistics.get(name, 0) for name in self._fixed), int(text))


def _memory_groups(root: Path) -> Iterator[_MemoryGroup]:
    """The groups that this process is in, up to the root: the tightest limit holds. Version 2 and version 1."""
    try:
        lines = (root / "proc" / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            mount, limit, fixed = root / "sys/fs/cgroup", "memory.max", _FIXED_V2
        elif "memory" in controllers.split(","):
            mount, limit, fixed = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", _FIXED_V1
        else:
            continue
        # In a container the path may be the host's, which isn't there: then the mount itself is the group.
        folder = mount / path.lstrip("/")
        for each in (folder, *folder.parents):
            yield _MemoryGroup(each, limit=limit, fixed=fixed)
            if each == mount:
                break


def _numbers(path: Path) -> dict[str, int]:
    """The first number of each line by the word before it."""
    fields = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in fields if len(words) >= 2 and words[1].isdigit()}

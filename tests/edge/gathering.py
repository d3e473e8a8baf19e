"""All that a running provider leaves behind: files, output, answers of the admin port, what the kernel shows of its processes."""

import contextlib
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support.provider import Provider

ADMIN_PATHS = (
    "/metrics",
    "/admin/v1/status",
    "/admin/v1/tenants",
    "/admin/v1/keys",
    "/admin/v1/admins",
    "/admin/v1/audit",
)
COMMANDS = (
    ("usage", "--requests", "--json"),
    ("usage", "--orphans", "--json"),
    ("keys", "list", "--json"),
    ("tenants", "list", "--json"),
    ("audit", "list", "--json"),
    ("status", "--json"),
)


def family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            parent = int(Path(f"/proc/{int(entry)}/stat").read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(entry))
    found = [pid]
    for each in found:
        found += parents.get(each, [])
    return found


def of_processes(pids: Iterable[int]) -> dict[str, bytes]:
    """Their command lines, and the content of files that they hold open, also of those that have no name any more."""
    seen = {}
    for pid in pids:
        seen[f"argv {pid}"] = Path(f"/proc/{pid}/cmdline").read_bytes()
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if stat.S_ISREG(link.stat().st_mode):
                    seen[f"open file {os.readlink(link)} of {pid}"] = link.read_bytes()
    return seen


def of_files(folder: Path) -> dict[str, bytes]:
    """Every file, the database with what is not yet in it, journals and sockets' folders too; by its path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def of_service(service: Provider) -> dict[str, bytes]:
    """What whoever operates it can read while it runs."""
    seen = {f"admin port {path}": service.admin(path)[1] for path in ADMIN_PATHS}
    for words in COMMANDS:
        done = service.cli(*words, check=False)
        seen[f"headrace {' '.join(words)}"] = (done.stdout + done.stderr).encode()
    return seen | of_processes(family(service.pid))


def hits(seen: Mapping[str, bytes], secrets: Mapping[str, bytes]) -> list[tuple[str, str]]:
    """Which of the secrets is where."""
    return [
        (where, what) for where, text in seen.items() for what, secret in secrets.items() if secret in text
    ]

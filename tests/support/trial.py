"""Runs the tests, and once more alone those that failed beside others: `python -m tests.support.trial`.

Tests of processes and sockets share two cores with each other and with whatever else a machine does. One that fails there and passes
alone is told apart from one that fails, and named at the end of the output, so that somebody mends it. It hides nothing that
fails always, and it can hide what fails seldom: that is what the simulation and the long forms are for.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

AGAIN_MAX = 8
"""Where more fail than that, it isn't noise."""
_FAILED = 1  # pytest's status for tests that failed, and for nothing worse


def trial(runs: Sequence[Sequence[str]], *, folder: Path | None = None) -> int:
    """Runs pytest with each of those arguments, one after the other; 0 if all tests passed there or alone.

    Args:
        folder: Where the tests are; None for here.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-trial-") as cache:
        common = ["-o", f"cache_dir={cache}"]
        statuses = {_pytest([*common, *arguments], folder) for arguments in runs}
        failed = _failed(Path(cache))
        if statuses == {0}:
            return 0
        if statuses - {0, _FAILED} or not 0 < len(failed) <= AGAIN_MAX:
            _tell("failed", failed)
            return 1
        status = _pytest([*common, "--last-failed", "-p", "no:xdist", "-rf"], folder)
        left = _failed(Path(cache))
        _tell("failed beside others, passed alone", sorted(set(failed) - set(left)))
        _tell("failed alone too", left)
        return 0 if status == 0 and not left else 1


def _pytest(arguments: Sequence[str], folder: Path | None) -> int:
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, check=False, cwd=folder, env=dict(os.environ)).returncode


def _failed(cache: Path) -> list[str]:
    try:
        return sorted(json.loads((cache / "v" / "cache" / "lastfailed").read_text()))
    except FileNotFoundError:
        return []


def _tell(heading: str, tests: Sequence[str]) -> None:
    if tests:
        print(f"{len(tests)} {heading}:", *tests, sep="\n  ", flush=True)


def main(processes: int) -> int:
    # A file stays whole, so that what its tests share is started once. What measures time runs with nothing beside it.
    beside = ["-m", "not alone", "--numprocesses", str(processes), "--dist", "loadfile"]
    return trial([beside, ["-m", "alone"]])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

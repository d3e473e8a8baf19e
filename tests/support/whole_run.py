"""Do all tests pass? As `scripts/test` runs them: in several processes, and then alone what must be alone.

    python -m tests.support.whole_run PROCESSES

What failed is run once more with nothing beside it, and named either way; docs/decisions/0022-tests-once-more-alone.md says why.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import msgspec

from tests.support.noted_outcomes import Outcomes

# A busy machine breaks a few tests. What breaks more is not noise.
AGAIN_MAX = 8
TESTS_FAILED = 1  # pytest's status; any other but 0 says that not all tests were run


class Verdict(NamedTuple):
    """What stays of a whole run, each with what it said.

    Attributes:
        noisy: Failed, and passed the second time, alone.
        failed: All others that failed.
        broken: Runs that did not get through their tests.
    """

    noisy: dict[str, str]
    failed: dict[str, str]
    broken: list[str]

    @property
    def is_green(self) -> bool:
        return not self.failed and not self.broken

    def __str__(self) -> str:
        parts = [
            _listed("failed beside others, passed alone the second time: to be mended", self.noisy),
            _listed("failed", self.failed),
            _listed("not run to the end", dict.fromkeys(self.broken, "")),
        ]
        return "\n".join(filter(None, parts)) or "all tests passed"


def to_try_again(*runs: Outcomes) -> list[str]:
    """What failed in these, where that may be noise."""
    if any(run.uncollected or not _is_whole(run) for run in runs):
        return []
    failed = [name for run in runs for name in run.failed]
    return failed if len(failed) <= AGAIN_MAX else []


def judge(beside: Outcomes, alone: Outcomes, again: Outcomes | None) -> Verdict:
    """What three runs come to; `again` is of what failed in the others, None where that wasn't tried again."""
    passed = set() if again is None else again.passed  # one that is skipped now has not passed
    first = beside.failed | alone.failed
    noisy = {name: said for name, said in first.items() if name in passed}
    failed = {name: said for name, said in first.items() if name not in passed}
    failed |= {} if again is None else again.failed
    failed |= beside.uncollected | alone.uncollected
    runs = {"in several processes": beside, "alone": alone, "once more": again}
    broken = [name for name, run in runs.items() if run is not None and not _is_whole(run)]
    return Verdict(noisy, failed, broken)


def _is_whole(run: Outcomes) -> bool:
    return run.status == 0 or (run.status == TESTS_FAILED and bool(run.failed or run.uncollected))


def _listed(title: str, said: dict[str, str]) -> str:
    if not said:
        return ""
    lines = [f"{title} ({len(said)}):"]
    for name, text in said.items():
        lines += [f"  {name}", *(f"      {line}" for line in text.splitlines())]
    return "\n".join(lines)


def run(*arguments: str) -> Outcomes:
    """One run of pytest in the current folder."""
    with tempfile.TemporaryDirectory(prefix="headrace-outcomes-") as folder:
        file = Path(folder) / "outcomes.json"
        plugin = ("-p", "tests.support.noted_outcomes", "--outcomes", str(file))
        done = subprocess.run([sys.executable, "-m", "pytest", *plugin, *arguments], check=False)
        if not file.exists():  # it was killed, or didn't understand what it was asked
            return Outcomes(status=done.returncode or -1)
        found = msgspec.json.decode(file.read_bytes(), type=Outcomes)
        return found if found.status == done.returncode else Outcomes(status=-1, failed=found.failed)


def main(processes: str) -> int:
    # A file stays whole, so that what its tests share is started once.
    beside = run("-m", "not alone", "--numprocesses", processes, "--dist", "loadfile")
    alone = run("-m", "alone")
    names = to_try_again(beside, alone)
    verdict = judge(beside, alone, run(*names) if names else None)
    print(f"\n{verdict}", flush=True)
    return 0 if verdict.is_green else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

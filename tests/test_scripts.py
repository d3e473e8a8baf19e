"""Does scripts/venv.sh leave a whole environment behind, whatever happened before or beside it?"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# What it takes to install the package itself: six small packages stand for the whole lock.
INSTALLERS = {"editables", "hatchling", "packaging", "pathspec", "pluggy", "tomlkit", "trove-classifiers"}
ENSURE = "set -euo pipefail; source scripts/venv.sh; ensure_venv run"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what an installation reads, with a lock of few packages."""
    for name in ("scripts/venv.sh", "pyproject.toml", "LICENSE", "README.md", "src/headrace/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    entries = re.split(r"\n(?=\S)", (ROOT / "requirements" / "run.lock").read_text().strip())
    (tmp_path / "requirements").mkdir()
    few = "\n".join(entry for entry in entries if entry.split("==")[0] in INSTALLERS)
    (tmp_path / "requirements" / "run.lock").write_text(few + "\n")
    return tmp_path


def start(checkout: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", "-c", ENSURE],
        cwd=checkout,
        env=os.environ | {"PYTHON": sys.executable} | environment,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    _, told = process.communicate(timeout=230)
    assert process.returncode == 0, told
    return told


def wait_until(condition: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


def can_import(checkout: Path) -> bool:
    """Whether the installed environment finds the package in this checkout, from another folder."""
    told = subprocess.run(
        [checkout / ".venv/bin/python", "-I", "-c", "import hatchling, headrace; print(headrace.__file__)"],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout.strip() == str(checkout / "src/headrace/__init__.py")


def test_two_starts_at_once_install_once_and_the_next_finds_it_done(checkout: Path) -> None:
    first, second = start(checkout), start(checkout)
    told = [finish(first), finish(second)]
    assert can_import(checkout)
    assert sum("installing" in text for text in told) == 1
    assert finish(start(checkout)) == ""


def test_an_installation_that_was_killed_is_started_anew(checkout: Path) -> None:
    killed = start(checkout)
    wait_until((checkout / ".venv" / "headrace-installing").exists)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=60)
    assert "starting it anew" in finish(start(checkout))
    assert can_import(checkout)


def test_a_checkout_that_was_moved_does_not_use_the_old_place(checkout: Path) -> None:
    """Scripts in .venv/bin carry absolute paths."""
    finish(start(checkout))
    moved = checkout.with_name("moved")
    checkout.rename(moved)
    assert "another folder" in finish(start(moved))
    assert can_import(moved)


def test_a_wrong_hash_installs_nothing_and_says_so(checkout: Path) -> None:
    """T48: what the index serves must be what was locked."""
    lock = checkout / "requirements" / "run.lock"
    lock.write_text(re.sub(r"sha256:[0-9a-f]{64}", "sha256:" + "0" * 64, lock.read_text()))
    process = start(checkout)
    _, told = process.communicate(timeout=230)
    assert process.returncode == 1
    assert "the installation failed" in told
    assert not can_import(checkout)


def test_a_python_that_will_not_do_is_refused_by_name(checkout: Path) -> None:
    process = start(checkout, PYTHON="/bin/false")
    _, told = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "PYTHON=/bin/false" in told
    assert not (checkout / ".venv").exists()

"""What `scripts/test` makes of tests that fail beside others: nothing is hidden, and noise alone is not red."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.noted_outcomes import Outcomes
from tests.support.whole_run import AGAIN_MAX, judge, to_try_again

ROOT = Path(__file__).parent.parent
GOOD = Outcomes(status=0, passed={"other"})


def failing(*names: str, status: int = 1) -> Outcomes:
    return Outcomes(status=status, passed={"other"}, failed=dict.fromkeys(names, "it said so"))


def test_a_plugin_is_one_among_others() -> None:
    """Where folders have hooks of their own, pytest keeps its plugins in a set."""
    assert {GOOD, Outcomes(status=0, passed={"other"})} - {GOOD}


def test_a_run_in_which_all_pass_is_green() -> None:
    assert not to_try_again(GOOD, GOOD)
    verdict = judge(GOOD, GOOD, None)
    assert verdict.is_green
    assert str(verdict) == "all tests passed"


def test_what_passes_alone_is_green_and_is_named_with_what_it_said() -> None:
    assert to_try_again(failing("a"), failing("timing")) == ["a", "timing"]
    verdict = judge(failing("a"), failing("timing"), Outcomes(status=0, passed={"a", "timing"}))
    assert verdict.is_green
    assert "passed alone the second time: to be mended (2):\n  a\n      it said so" in str(verdict)


@pytest.mark.parametrize(
    "again",
    [
        pytest.param(failing("a"), id="it fails again"),
        pytest.param(Outcomes(status=0), id="it is skipped"),
        pytest.param(Outcomes(status=4), id="it is not found"),
        pytest.param(Outcomes(status=-1, passed={"a"}), id="the run is killed"),
        pytest.param(None, id="it is not tried"),
    ],
)
def test_what_does_not_pass_alone_is_red(again: Outcomes | None) -> None:
    assert not judge(failing("a"), GOOD, again).is_green


def test_more_than_a_few_are_not_noise() -> None:
    names = [str(number) for number in range(AGAIN_MAX + 1)]
    assert to_try_again(failing(*names[1:]), GOOD) == names[1:]
    assert not to_try_again(failing(*names[1:]), failing(names[0]))
    assert list(judge(failing(*names), GOOD, None).failed) == names


@pytest.mark.parametrize("status", [2, 3, 4, 5, -9])
def test_a_run_that_did_not_get_through_its_tests_is_red(status: int) -> None:
    assert not to_try_again(failing("a", status=status), GOOD)
    assert judge(failing(status=status), GOOD, None).broken == ["in several processes"]
    assert judge(GOOD, failing(status=status), None).broken == ["alone"]


def test_a_failure_without_a_name_is_red() -> None:
    """Such as one that a plugin makes of the whole session."""
    assert not judge(failing(), GOOD, None).is_green


def test_a_file_that_can_not_be_read_is_red() -> None:
    unread = Outcomes(status=1, failed={"a": ""}, uncollected={"tests/b.py": "SyntaxError"})
    assert not to_try_again(unread, GOOD)
    assert "tests/b.py" in str(judge(unread, GOOD, None))


# The runs themselves.

TESTS = """
import os
import pytest

IS_BESIDE = "PYTEST_XDIST_WORKER" in os.environ

def test_quiet(): pass

@pytest.mark.parametrize("word", ["a b", "c::d[e]"])
def test_noisy(word): assert not IS_BESIDE, "too much going on"

@pytest.mark.alone
def test_timing(): assert not IS_BESIDE
"""
ALSO_BAD = """
def test_bad(): assert 1 == 2

@pytest.fixture
def late():
    yield
    assert not "left over"

def test_that_leaves_something(late): pass

@pytest.mark.alone
def test_slow(): assert not "in time"
"""


def whole_run(folder: Path, text: str) -> tuple[int, str]:
    """Exit status and output."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = alone\naddopts = -q -p xdist\n")
    (folder / "test_it.py").write_text(text)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they take most of a short run's time
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.whole_run", "1"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.slow
def test_noise_is_told_at_the_end_and_is_not_red(tmp_path: Path) -> None:
    status, told = whole_run(tmp_path, TESTS)
    assert status == 0, told
    end = told[told.rindex("\n\n") :]
    assert "passed alone the second time: to be mended (2):" in end
    for word in ("a b", "c::d[e]"):
        assert f"  test_it.py::test_noisy[{word}]\n      AssertionError: too much going on\n" in end


@pytest.mark.slow
def test_what_is_wrong_is_told_at_the_end_and_is_red(tmp_path: Path) -> None:
    status, told = whole_run(tmp_path, TESTS + ALSO_BAD)
    assert status == 1, told
    end = told[told.rindex("\n\n") :]
    assert "passed alone the second time: to be mended (2):" in end
    for name in ("bad", "that_leaves_something", "slow"):
        assert f"  test_it.py::test_{name}\n" in end[end.index("failed (3):") :]
    assert "      assert 1 == 2\n" in end

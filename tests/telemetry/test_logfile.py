"""The log file keeps its size, is its owner's alone, and comes back after the disk failed it."""

import stat
from pathlib import Path

import pytest

from headrace.telemetry.logfile import RotatingFile

LINE = "x" * 9 + "\n"


def test_at_most_two_files_of_the_size_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "headrace.log"
    log = RotatingFile(path, bytes_max=50)
    for number in range(23):
        log.write(f"{number:09d}\n")
    log.close()
    assert path.read_text().split() == [f"{number:09d}" for number in (20, 21, 22)]
    assert path.with_name("headrace.log.1").read_text().split() == [
        f"{number:09d}" for number in range(15, 20)
    ]
    assert {each.name for each in path.parent.iterdir()} == {"headrace.log", "headrace.log.1"}


def test_a_start_goes_on_in_the_file_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "headrace.log"
    for _ in range(2):
        log = RotatingFile(path, bytes_max=15)
        log.write(LINE)
        log.close()
    assert path.read_text() == LINE
    assert path.with_name("headrace.log.1").read_text() == LINE


def test_only_the_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "headrace.log"
    RotatingFile(path).close()
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent)] == [0o600, 0o700]


def test_a_file_that_could_not_be_begun_is_begun_with_a_later_line(tmp_path: Path) -> None:
    """As when there is no file descriptor left at that moment: the log isn't lost for good."""
    folder = tmp_path / "logs"
    log = RotatingFile(folder / "headrace.log", bytes_max=15)
    log.write(LINE)
    log.flush()
    folder.rename(tmp_path / "away")
    with pytest.raises(OSError, match="No such file"):
        log.write(LINE)
    folder.mkdir()
    log.write("back\n")
    log.close()
    assert (folder / "headrace.log").read_text() == "back\n"

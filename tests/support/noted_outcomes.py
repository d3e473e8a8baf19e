"""A pytest plugin that notes how each test ended: `-p tests.support.noted_outcomes --outcomes FILE`.

What pytest prints is for people; this is for whoever must decide by it what to run next.
"""

from pathlib import Path

import msgspec
import pytest

# Enough to know what was claimed and what was found; the whole of it is in pytest's own report.
LINES_MAX, LINE_LENGTH_MAX = 6, 200


class Outcomes(msgspec.Struct, eq=False):
    """How the tests of one run ended, by their names.

    Attributes:
        status: The exit status of pytest.
        failed: What each said that failed, also before or after the test itself.
        uncollected: What was said by each file that could not be read for its tests.
    """

    status: int = -1
    passed: set[str] = msgspec.field(default_factory=set)
    failed: dict[str, str] = msgspec.field(default_factory=dict)
    uncollected: dict[str, str] = msgspec.field(default_factory=dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            # Where a test fails and so does what comes after it, the first one is the reason.
            self.failed.setdefault(report.nodeid, said(report))
            self.passed.discard(report.nodeid)
        elif report.passed and report.when == "call" and report.nodeid not in self.failed:
            self.passed.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.uncollected[report.nodeid] = said(report)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        self.status = int(exitstatus)
        Path(session.config.getoption("--outcomes")).write_bytes(msgspec.json.encode(self))


def said(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The first lines of why it failed."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        text = str(report.longrepr).strip().rpartition("\n")[2]
    else:
        text = f"{crash.message}\n{Path(crash.path).name}:{crash.lineno}"
    lines = text.splitlines()
    shown = lines if len(lines) <= LINES_MAX else [*lines[: LINES_MAX - 1], lines[-1]]
    return "\n".join(line[:LINE_LENGTH_MAX] for line in shown)


def pytest_addoption(parser: pytest.Parser) -> None:
    # A word, not a path: it is sent to the processes that run tests.
    parser.addoption("--outcomes", metavar="FILE", help="where it is noted how each test ended")


def pytest_configure(config: pytest.Config) -> None:
    # Of several processes the one that hears of all tests writes them down.
    if config.getoption("--outcomes") is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(), "noted outcomes")

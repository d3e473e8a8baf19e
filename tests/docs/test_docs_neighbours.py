"""Each report in docs/internals/neighbours.md is retold by tests that exist, and each scenario named after one is in the page."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCENARIOS = ("tests/control/test_neighbours.py", "tests/policies/test_neighbours_rollout.py")


def functions_in(path: str) -> set[str]:
    module = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {each.name for each in module.body if isinstance(each, ast.FunctionDef)}


def named() -> set[tuple[str, str]]:
    page = (ROOT / "docs" / "internals" / "neighbours.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if re.match(r"\| [\w/-]+#\d", line)]
    assert rows
    found = [re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row) for row in rows]
    assert all(found), "a report without a test"
    return {test for tests in found for test in tests}


def test_every_report_is_retold_by_tests_that_exist() -> None:
    assert [f"{path}::{name}" for path, name in sorted(named()) if name not in functions_in(path)] == []


def test_every_scenario_is_in_the_page() -> None:
    scenarios = {
        (path, name) for path in SCENARIOS for name in functions_in(path) if name.startswith("test_")
    }
    assert scenarios - named() == set()

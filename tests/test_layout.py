"""Does the code keep the shape that CONTRIBUTING.md promises? A ratchet: exemptions are listed, and leave the list when they can."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "tests", "benchmarks", "examples")
MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
TEST_NAME_WORDS_MIN = 4

# "src/headrace/room/module.py" or "src/headrace/room/module.py::Class.function" -> why it may be longer.
MODULES_EXEMPT: dict[str, str] = {}
FUNCTIONS_EXEMPT: dict[str, str] = {}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def modules() -> dict[str, ast.Module]:
    """Every Python file of ours, parsed, by its path from the root."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_bytes()) for path in paths}


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Every function below that node with its dotted name; an inner function counts by itself and in its parent."""
    for node in ast.iter_child_nodes(tree):
        inner = prefix
        if isinstance(node, Function | ast.ClassDef):
            inner = f"{prefix}{node.name}."
        if isinstance(node, Function):
            yield prefix + node.name, node
        yield from functions(node, inner)


def line_count(path: str) -> int:
    return len((ROOT / path).read_bytes().splitlines())


def test_no_module_is_longer_than_the_limit() -> None:
    long = {path for path in modules() if line_count(path) > MODULE_LINES_MAX}
    assert long - set(MODULES_EXEMPT) == set(), (
        f"over {MODULE_LINES_MAX} lines: split by what they decide or do"
    )
    assert set(MODULES_EXEMPT) - long == set(), "exempt without need: take them off MODULES_EXEMPT"


def test_no_function_is_longer_than_the_limit() -> None:
    long = {
        f"{path}::{name}"
        for path, tree in modules().items()
        for name, node in functions(tree)
        if (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES_MAX
    }
    assert long - set(FUNCTIONS_EXEMPT) == set(), (
        f"over {FUNCTION_LINES_MAX} lines: keep the branches, move the leaves"
    )
    assert set(FUNCTIONS_EXEMPT) - long == set(), "exempt without need: take them off FUNCTIONS_EXEMPT"


def test_every_exemption_has_its_reason() -> None:
    assert all(len(reason.split()) > 3 for reason in (MODULES_EXEMPT | FUNCTIONS_EXEMPT).values())


def test_every_module_of_the_package_opens_with_a_sentence() -> None:
    silent = [
        path
        for path, tree in modules().items()
        if path.startswith("src/")
        and not (ast.get_docstring(tree) or "").split("\n")[0].endswith((".", "?", ":"))
    ]
    assert silent == [], "the first line of a module says what question it answers"


def test_every_test_states_a_claim_in_its_name_or_docstring() -> None:
    mute = [
        f"{path}::{name}"
        for path, tree in modules().items()
        if path.startswith("tests/")
        for name, node in functions(tree)
        if node.name.startswith("test_")
        and len(node.name.removeprefix("test_").split("_")) < TEST_NAME_WORDS_MIN
        and not ast.get_docstring(node)
    ]
    assert mute == [], "say what would be untrue if this test failed"


def test_the_package_is_one_folder_deep() -> None:
    deep = [path for path in modules() if path.startswith("src/") and len(Path(path).parts) > 4]
    assert deep == []

"""No amount of money is ever a floating-point number: the modules that hold money have none of them in reach."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "headrace"
MONEY = (
    "core/money.py",
    "core/prices.py",
    "core/invoices.py",
    "policies/charging.py",
    "policies/prices.py",
    "policies/invoicing.py",
    "stores/prices.py",
    "stores/price_file.py",
    "stores/invoices.py",
    "cli/prices.py",
    "cli/invoice.py",
    "cli/invoice_csv.py",
    "cli/invoice_page.py",
    "cli/invoice_text.py",
)
# Moments are Unix seconds, the only floats there are.
MOMENTS = ("_s",)


def annotated(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            yield node.arg, node.annotation
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.annotation


def names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


@pytest.mark.parametrize("module", MONEY)
def test_a_module_of_money_has_no_float_but_moments(module: str) -> None:
    tree = ast.parse((SRC / module).read_text(encoding="utf-8"))
    for name, annotation in annotated(tree):
        assert "float" not in names(annotation) or name.endswith(MOMENTS) or name == "Timeline", name
    for node in ast.walk(tree):
        # A true division of integers is a float, and so is a power with a negative exponent.
        assert not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and not is_path(node)), (
            node.lineno
        )
        if isinstance(node, ast.Constant) and isinstance(node.value, float):
            assert module in ("stores/prices.py",), f"line {node.lineno}: {node.value}"


def is_path(node: ast.BinOp) -> bool:
    """`data / "prices.toml"`"""
    return any(
        isinstance(side, ast.Constant) and isinstance(side.value, str) for side in (node.left, node.right)
    )


def test_nobody_makes_a_float_of_an_amount() -> None:
    """`float(...)`, `/` and `round(...)` never see a name that ends in `_pico`, wherever it is."""
    for file in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            sides: list[ast.AST] = []
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("float", "round")
            ):
                sides = list(node.args)
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                sides = [node.left, node.right]
            spoken = {inner.id for side in sides for inner in ast.walk(side) if isinstance(inner, ast.Name)}
            spoken |= {
                inner.attr for side in sides for inner in ast.walk(side) if isinstance(inner, ast.Attribute)
            }
            assert not any(name.endswith("_pico") for name in spoken), f"{file}:{node.lineno}"  # type: ignore[attr-defined]

"""Modules of at most 800 lines, functions of at most 60. A larger one needs a reason."""

import ast
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
PACKAGES = ("sparklog", "sparklog_server", "pyspark_sparklog", "tests", "benchmarks", "scripts")
MODULE_LINES = 800
FUNCTION_LINES = 60
LONG_FUNCTIONS = {
    # One history, in which the number is looked at after each step.
    "tests/metadata/test_cleaning_stalled.py": {"test_number_stays_taken_at_every_moment_of_the_cleaning"},
}
MODULES = {
    str(path.relative_to(PROJECT)): path for package in PACKAGES for path in (PROJECT / package).rglob("*.py")
}


def test_modules_are_short_enough_to_be_read_at_once() -> None:
    lines = {name: path.read_text().count("\n") for name, path in MODULES.items()}
    assert {name: n for name, n in lines.items() if n > MODULE_LINES} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_functions_are_short(package: str) -> None:
    long = [
        f"{name}: {node.name}"
        for name, path in MODULES.items()
        if name.startswith(f"{package}/")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES
        and node.name not in LONG_FUNCTIONS.get(name, ())
    ]
    assert long == []

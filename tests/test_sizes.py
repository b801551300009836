"""Modules of at most 800 lines, functions of at most 60; test modules bear the name of a module.

What exceeds a bound needs a reason.
"""

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


# Folders whose test modules are named after the modules of a package, and the exceptions, which
# read a page, or test several modules together.
LAYERS = (
    *("cli", "client", "console", "format", "log", "maintenance"),
    *("metadata", "mirror", "spark", "storage", "testing"),
)
SERVER_LAYERS = (
    *(
        "admin",
        "cluster",
        "coordination",
        "dispatch",
        "fetch",
        "groups",
        "http",
        "maintenance",
        "metrics",
        "network",
    ),
    *("observe", "protocol", "publish", "root", "runtime", "security", "settings", "share", "transactions"),
)
MIRRORED = {
    **{f"tests/{layer}": f"sparklog/{layer}" for layer in LAYERS},
    **{f"tests/server/{layer}": f"sparklog_server/{layer}" for layer in SERVER_LAYERS},
}
OTHER_SUBJECTS = {
    "tests/cli": {"cli_docs", "preflight"},
    "tests/format": {"format_md"},
    "tests/metadata": {"format_md"},
    "tests/spark": {
        "cluster",
        "memory",
        "migration_page",
        "s3",
        "spark_issues",
        "sql",
        "through_broker",
        "transactions",
        "workers",
    },
}


@pytest.mark.parametrize("folder", MIRRORED)
def test_test_modules_are_named_after_modules(folder: str) -> None:
    stems = {path.stem for path in (PROJECT / MIRRORED[folder]).rglob("*.py")}
    tested = {path.stem.removeprefix("test_") for path in (PROJECT / folder).glob("test_*.py")}
    named = {name for name in tested if any(f"{name}_".startswith(f"{stem}_") for stem in stems)}
    assert tested - named == OTHER_SUBJECTS.get(folder, set())


def test_modules_are_short_enough_to_be_read_at_once() -> None:
    lines = {name: path.read_text().count("\n") for name, path in MODULES.items()}
    assert {name: n for name, n in lines.items() if n > MODULE_LINES} == {}


@pytest.mark.slow
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

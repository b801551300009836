"""No module imports itself by way of others: imports for typing and inside functions count."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]


def modules(package: str) -> dict[str, Path]:
    found = {}
    for path in (ROOT / package).rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.AST, known: dict[str, Path]) -> Iterator[str]:
    """Modules that a source names: "from a import b" is of a.b where that is a module, and else of a."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name in known:
                    yield name
                elif node.module in known:
                    yield node.module


def circles(imports: dict[str, set[str]]) -> set[str]:
    """Modules from which imports lead back to themselves."""
    return {name for name in imports if name in reachable(imports, name)}


def reachable(imports: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    left = list(imports[start])
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += imports[name]
    return found


def test_no_import_circle() -> None:
    known = {**modules("sparklog"), **modules("sparklog_server"), **modules("pyspark_sparklog")}
    assert len(known) > 250
    imports = {
        name: set(imported(ast.parse(path.read_text("utf-8")), known)) - {name}
        for name, path in known.items()
    }
    assert not circles(imports)


@pytest.mark.parametrize(
    ("imports", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, set()),
        ({"top": {"a"}, "a": {"b"}, "b": {"a", "low"}, "low": set()}, {"a", "b"}),
        ({"a": {"a"}}, {"a"}),
    ],
)
def test_a_circle_is_found_and_not_what_hangs_on_it(imports: dict[str, set[str]], found: set[str]) -> None:
    assert circles(imports) == found

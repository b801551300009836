"""Tests look at what a module offers; none reaches into private parts.

Private: a name with one underscore in front, of another module's or object's. Not counted: what a test's own
module defines, and the names of NOT_OURS.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PACKAGES = ("sparklog", "sparklog_server", "pyspark_sparklog")
NOT_OURS = {
    "_replace",  # a named tuple's
    "_asdict",
    "_exit",  # os
    "_jdf",  # pyspark's
    "_jsc",
    "_options",
    "_active_spark_context",
    "_taskContext",
    "_scheduled",  # asyncio's
    "_set_running_loop",
    "_TIMED_OUT",  # an error's of confluent-kafka
    "_metadata",  # google-auth's, which reads the address of the metadata server at its import
    "_GCE_METADATA_HOST",
}
# What does so with reason.
REACHES = {
    # A safeguard that is switched off, to see a simulation notice it: most are nobody's to call.
    "simulation/mutants.py": {
        "_Listing",
        "_never_reached_proxy",
        "_newest_snapshot",
        "_settled",
        "_install_durably",
    },
    "simulation/compaction_mutants.py": {"_cleanable"},
    "simulation/broker_mutants.py": {"_leaderless"},
    "simulation/coordinator_mutants.py": {"_publish"},
    # Whether a lock is held shows nowhere else, but in who hangs.
    "metadata/test_following_interrupted.py": {"_lock", "_freshness", "_refreshing"},
    "log/test_writer.py": {"_lock"},
    "client/test_log_forks.py": {"_apply", "_writer_lock", "_retention_notice", "_lock"},
}
PATCHES = ("setattr", "getattr", "patch", "patch.object")


@pytest.mark.slow
def test_no_test_reaches_into_private_parts() -> None:
    found = {name: reached - REACHES.get(name, set()) for name, reached in _all_reached().items()}
    assert {name: reached for name, reached in found.items() if reached} == {}


@pytest.mark.slow
def test_what_may_reach_still_does() -> None:
    reached = _all_reached()
    assert [name for name, allowed in REACHES.items() if allowed - reached[name]] == []


@pytest.mark.parametrize(
    "line",
    [
        "from sparklog.storage.local import _put_key",
        "log._settings = 1",
        "assert log.metadata._image is None",
        "monkeypatch.setattr(roots, '_opened', {})",
        "monkeypatch.setattr('sparklog.spark.roots._opened', {})",
        "mock.patch.object(roots, '_opened', {})",
        "getattr(log, '_writer')",
        "opened().patch('sparklog.spark.roots._opened')",
        "other.self._settings",
        "opened()._settings",
    ],
)
def test_a_reach_is_noticed(line: str) -> None:
    assert len(_reached(ast.parse(line))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "self._settings = 1",
        "super()._own()",
        "log.__class__",
        "row._replace(a=1)",
        "def _own(): ...\nmodule._own()",
        "text('_a')",
    ],
)
def test_what_is_ours_is_no_reach(line: str) -> None:
    assert _reached(ast.parse(line)) == []


@cache
def _all_reached() -> dict[str, set[str]]:
    parsed = {str(path.relative_to(TESTS)): ast.parse(path.read_text()) for path in TESTS.rglob("*.py")}
    return {name: set(_reached(tree)) for name, tree in parsed.items()}


def _reached(tree: ast.Module) -> list[str]:
    own: set[str] = set()  # what the module itself defines, at whatever depth
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if not _is_own(node.value):
                names.append(node.attr)
            elif isinstance(node.ctx, ast.Store):
                own.add(node.attr)
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                own.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            names += [one.name for one in node.names]
        elif isinstance(node, ast.Call) and _called(node.func).endswith(PATCHES):
            names += [_last_name(one) for one in node.args]
    return [name for name in names if _is_private(name) and name not in own | NOT_OURS]


def _called(function: ast.expr) -> str:
    """The last names of what is called."""
    if isinstance(function, ast.Attribute):
        return f"{_called(function.value)}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


def _is_own(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "super"
    return isinstance(value, ast.Name) and value.id in {"self", "cls"}


def _last_name(argument: ast.expr) -> str:
    """What a text such as "package.module.name" names."""
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return argument.value.rpartition(".")[2]
    return ""


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")

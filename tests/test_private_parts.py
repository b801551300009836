"""Tests look at what a module offers. Those that reach into private parts are counted, and grow fewer.

Private: a name with one underscore in front, of another module's or object's. Not counted: what a test's own
module defines, and the names of NOT_OURS.
"""

import ast
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PACKAGES = ("sparklog", "sparklog_server", "pyspark_sparklog")
NOT_OURS = {
    "_replace",  # a named tuple's
    "_exit",  # os
    "_jdf",  # pyspark's
    "_jsc",
    "_options",
    "_active_spark_context",
    "_scheduled",  # asyncio's
}
# Whoever makes one smaller lowers its number; none may be added.
REACHES = {
    "client/test_broker_root.py": 5,
    "client/test_s3.py": 1,
    "client/test_s3_behind_proxies.py": 1,
    "client/test_writer_versions.py": 1,
    "format/test_decode.py": 2,
    "format/test_kernels.py": 4,
    "format/test_record_inspection.py": 4,
    "log/test_remote.py": 1,
    "log/test_writer.py": 2,
    "metadata/test_cleaning_stalled.py": 2,
    "metadata/test_combining.py": 1,
    "metadata/test_combining_errors.py": 2,
    "metadata/test_extent_list.py": 1,
    "metadata/test_format_md.py": 1,
    "metadata/test_lost_answers.py": 1,
    "metadata/test_remote.py": 1,
    "metadata/test_remote_end.py": 1,
    "metadata/test_replacing.py": 1,
    "metadata/test_request_window.py": 2,
    "metadata/test_upkeep.py": 3,
    "property/test_metadata_model.py": 1,
    "server/fetch/test_bounds.py": 1,
    "server/fetch/test_reader.py": 1,
    "server/fetch/test_service.py": 8,
    "server/groups/test_group_schedules.py": 6,
    "server/metrics/test_histogram.py": 2,
    "server/publish/test_publisher.py": 2,
    "simulation/cloning.py": 4,
    "simulation/mutants.py": 4,
    "simulation/processes.py": 1,
    "simulation/test_faults.py": 2,
    "spark/conftest.py": 1,
    "spark/test_bootstrap_servers.py": 4,
    "spark/test_features.py": 1,
    "spark/test_sink_roots.py": 3,
    "spark/test_sink_upkeep.py": 1,
    "storage/test_s3_faults.py": 1,
    "twins.py": 3,
}


def test_no_more_tests_reach_into_private_parts() -> None:
    found = {name: count for name, count in _counted().items() if count > REACHES.get(name, 0)}
    assert found == {}


def test_what_reaches_less_by_now_is_counted_as_less() -> None:
    counted = _counted()
    assert {name: count for name, count in REACHES.items() if counted[name] < count} == {}


def _counted() -> Counter[str]:
    return Counter(
        {
            str(path.relative_to(TESTS)): len(reached)
            for path in TESTS.rglob("*.py")
            if (reached := _reached(ast.parse(path.read_text())))
        }
    )


def _reached(tree: ast.Module) -> list[str]:
    own = _defined(tree)
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            names += [one.name for one in node.names]
        elif isinstance(node, ast.Attribute) and not _is_own(node.value):
            names.append(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("setattr", "getattr")):
            names += [one.value for one in node.args if _is_text(one)]  # type: ignore[attr-defined]
    return [name for name in names if _is_private(name) and name not in own | NOT_OURS]


def _defined(tree: ast.Module) -> set[str]:
    """What the module itself defines, at whatever depth."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node.value):
            names.add(node.attr)
    return names


def _is_own(value: ast.expr) -> bool:
    return ast.unparse(value) in {"self", "cls", "super()"}


def _is_text(argument: ast.expr) -> bool:
    return isinstance(argument, ast.Constant) and isinstance(argument.value, str)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")

"""Benchmarks run by hand, and break unseen: here they are at least imported."""

import importlib
import pkgutil

import pytest

import benchmarks

NAMES = [
    module.name for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.") if not module.ispkg
]


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("__main__")])
def test_a_benchmark_can_be_imported(name: str) -> None:
    importlib.import_module(name)

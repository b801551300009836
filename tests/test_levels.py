"""Levels leave out what they say, and a fast test cannot start a process."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.levels import FOLDERS, spread

TESTS = Path(__file__).resolve().parent
STARTS = """
import os, subprocess
from tests.support.levels import refuse_processes
refused = []
refuse_processes(refused)
for start in (lambda: subprocess.run(["true"]), os.fork, lambda: os.system("true")):
    try:
        start()
    except RuntimeError:
        pass
print(len(refused))
"""


@pytest.mark.parametrize(
    ("count", "wanted", "kept"),
    [(3, 5, {0, 1, 2}), (3, 3, {0, 1, 2}), (3, 1, {0}), (10, 2, {0, 5}), (10, 4, {0, 2, 5, 7})],
)
def test_sampled_cases_are_spread(count: int, wanted: int, kept: set[int]) -> None:
    assert spread(count, wanted) == kept


def test_slow_folders_are_there() -> None:
    assert {name for name in FOLDERS if not list((TESTS / name).glob("test_*.py"))} == set()


@pytest.mark.slow
def test_each_way_to_start_a_process_is_refused() -> None:
    result = subprocess.run(
        [sys.executable, "-c", STARTS], cwd=TESTS.parent, capture_output=True, text=True, check=True
    )
    assert result.stdout == "3\n"
